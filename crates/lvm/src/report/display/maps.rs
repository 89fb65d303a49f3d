//! The extents of volumes.

use super::EMPTY;
use crate::metadata::{Area, AreaVolume, RaidLevel, Segment, SegmentKind};
use crate::report::{LvRow, PvRow, Units};

/// The pieces of a physical volume, and what uses them.
pub(super) fn of_pv(row: &PvRow) -> String {
    let Some((group, index)) = row.group() else { return String::new() };
    let mut pieces: Vec<(u32, u32, String)> = Vec::new();
    for lv in &group.lvs {
        for segment in &lv.segments {
            let user = format!(
                "    Logical volume\t/dev/{}/{}\n    Logical extents\t{}\n",
                group.name,
                lv.name,
                range(segment.start, segment.count)
            );
            for on in segment.pv_extents().filter(|on| on.pv == index) {
                pieces.push((on.start, on.count, user.clone()));
            }
        }
    }
    let free = group.free_map();
    let free = free.ranges(index).iter();
    pieces.extend(free.map(|free| (free.start, free.end - free.start, "    FREE\n".to_owned())));
    pieces.sort_by_key(|(start, ..)| *start);
    let mut text = "  --- Physical Segments ---\n".to_owned();
    for (start, count, user) in pieces {
        text += &format!("  Physical extent {}:\n{user}", range(start, count));
    }
    text + EMPTY
}

/// The segments of a logical volume, and where they are.
pub(super) fn of_lv(row: &LvRow, units: &Units) -> String {
    let segments = row.lv().map_or(&[][..], |lv| &lv.segments);
    let mut text = "  --- Segments ---\n".to_owned();
    for segment in segments {
        let space = if segment.kind.as_thin().is_some() { "Virtual" } else { "Logical" };
        text += &format!("  {space} extents {}:\n", range(segment.start, segment.count));
        text += &format!("    Type\t\t{}\n", segment.kind.name());
        text += &details(row, segment, units);
        text += EMPTY;
    }
    text + EMPTY
}

fn details(row: &LvRow, segment: &Segment, units: &Units) -> String {
    let areas = segment.areas();
    let place = |area: &Area, indent: &str| area_text(row, segment, area, indent);
    let mut text = String::new();
    match &segment.kind {
        SegmentKind::Striped(_) if areas.len() == 1 => text += &place(&areas[0], "    "),
        SegmentKind::Striped(striped) => {
            let size = units.long(striped.stripe_size.unwrap_or_default());
            text += &format!("    Stripes\t\t{}\n    Stripe size\t\t{size}\n", areas.len());
            for (index, area) in areas.iter().enumerate() {
                text += &format!("    Stripe {index}:\n{}", place(area, "      "));
            }
        }
        SegmentKind::Mirror(mirror) => {
            text += MONITORING;
            text += &format!("    Mirrors\t\t{}\n", areas.len());
            text += &format!("    Mirror size\t\t{}\n", segment.count);
            if let Some(log) = &mirror.log {
                text += &format!("    Mirror log volume\t{log}\n");
            }
            if let Some(size) = mirror.region_size {
                text += &format!("    Mirror region size\t{}\n", units.long(size));
            }
            for (index, area) in areas.iter().enumerate() {
                text += match index {
                    0 => "    Mirror original:\n",
                    1 => "    Mirror destinations:\n",
                    _ => "",
                };
                text += &place(area, "      ");
            }
        }
        SegmentKind::Raid(raid) => {
            text += MONITORING;
            for (index, image) in raid.images.iter().enumerate() {
                // LVM shows legs of a RAID 10 with the extents of the whole.
                let leg = row.group().lv(&image.data).filter(|_| raid.level != RaidLevel::Raid10);
                let count = leg.map(|leg| leg.extents());
                let extents = range(0, count.unwrap_or(segment.count));
                text +=
                    &format!("    Raid Data LV {index}\n      Logical volume\t{}\n", image.data);
                text += &format!("      Logical extents\t{extents}\n");
            }
            for (index, image) in raid.images.iter().enumerate() {
                if let Some(meta) = &image.meta {
                    text += &format!("    Raid Metadata LV {index}\t{meta}\n");
                }
            }
        }
        SegmentKind::ThinPool(pool) => {
            let lvs = row.group().lvs.iter();
            let thin = lvs.filter_map(|lv| lv.segments.first()?.kind.as_thin());
            let count = thin.filter(|thin| Some(&thin.pool) == row.lv().map(|lv| &lv.name)).count();
            text += MONITORING;
            text += &format!("    Chunk size\t\t{}\n", units.long(pool.chunk_size));
            text +=
                &format!("    Discards\t\t{}\n", pool.discards.as_deref().unwrap_or("passdown"));
            text += &format!("    Thin count\t\t{count}\n");
            text += &format!("    Transaction ID\t{}\n", pool.transaction_id);
            let zero = if pool.zero_new_blocks { "yes" } else { "no" };
            text += &format!("    Zero new blocks\t{zero}\n");
        }
        SegmentKind::Thin(thin) => text += &format!("    Device ID\t\t{}\n", thin.device_id),
        SegmentKind::Snapshot(_)
        | SegmentKind::Error
        | SegmentKind::Zero
        | SegmentKind::Foreign(_) => {}
    }
    text
}

/// Nothing watches volumes here.
const MONITORING: &str = "    Monitoring\t\t\n";

fn area_text(row: &LvRow, segment: &Segment, area: &Area, indent: &str) -> String {
    let kind = match area.on {
        AreaVolume::Pv(_) => "Physical",
        AreaVolume::Lv(_) => "Logical",
    };
    let extents = range(area.start, segment.area_extents());
    let place = row.place(&area.on);
    format!("{indent}{kind} volume\t{place}\n{indent}{kind} extents\t{extents}\n")
}

/// The first and the last of some extents.
fn range(start: u32, count: u32) -> String {
    format!("{start} to {}", (u64::from(start) + u64::from(count)).saturating_sub(1))
}
