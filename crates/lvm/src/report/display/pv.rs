//! The display of physical volumes.

use ashlar_block::Sectors;

use super::{EMPTY, Lines, maps};
use crate::metadata::VgFlag;
use crate::report::{PvRow, Units};

pub(super) fn long(row: &PvRow, units: &Units, with_maps: bool) -> String {
    let notice = notice(row, units);
    let Some((group, _)) = row.group() else {
        let mut lines = Lines::new("NEW Physical volume", 22);
        lines.add("PV Name", row.device());
        lines.add("VG Name", "");
        lines.add("PV Size", units.long(row.size()));
        lines.add("Allocatable", "NO");
        lines.add("PE Size", units.long(Sectors::ZERO));
        for name in ["Total PE", "Free PE", "Allocated PE"] {
            lines.add(name, 0);
        }
        lines.add("PV UUID", row.uuid());
        let end = if with_maps { EMPTY } else { "" };
        return format!("{notice}{}{EMPTY}{end}", lines.text);
    };
    let mut lines = Lines::new("Physical volume", 22);
    let (all, free) = (row.extents(), row.free_extents());
    let exported = if group.flags.contains(&VgFlag::Exported) { " (exported)" } else { "" };
    lines.add("PV Name", row.device());
    lines.add("VG Name", format_args!("{}{exported}", group.name));
    let size = device_size(row);
    // The space before the first extent does not count, unless there is more.
    let rest = size.0.saturating_sub(row.size().0);
    let start = row.member().map_or(0, |pv| pv.pe_start.0);
    let rest = units.long(Sectors(if rest > start { rest } else { 0 }));
    lines.add("PV Size", format_args!("{} / not usable {rest}", units.long(size)));
    let is_allocatable = row.member().is_some_and(|pv| pv.is_allocatable());
    lines.add(
        "Allocatable",
        match (is_allocatable, free) {
            (false, _) => "NO",
            (true, 0) => "yes (but full)",
            (true, _) => "yes ",
        },
    );
    lines.add("PE Size", units.long(group.extent_size));
    lines.add("Total PE", all);
    lines.add("Free PE", free);
    lines.add("Allocated PE", all.saturating_sub(free));
    lines.add("PV UUID", row.uuid());
    let maps = if with_maps { maps::of_pv(row) } else { String::new() };
    format!("{notice}{}{EMPTY}{maps}", lines.text)
}

pub(super) fn short(row: &PvRow, units: &Units) -> String {
    let free = if is_absent(row) { Sectors::ZERO } else { row.free() };
    format!("  Device \"{}\" has a capacity of {}\n", row.device(), units.long(free))
}

pub(super) fn colons(row: &PvRow, units: &Units) -> String {
    let group = row.group().map(|(group, _)| group);
    let (all, free) = (row.extents(), row.free_extents());
    let allocatable = if row.member().is_some_and(|pv| pv.is_allocatable()) { 8 } else { 0 };
    let is_exported = group.is_some_and(|group| group.flags.contains(&VgFlag::Exported));
    let exported = if is_exported { 2 } else { 0 };
    let missing = if row.is_missing() { 0x80_0000 } else { 0 };
    format!(
        "{}  {}:{}:{}:-1:{}:{allocatable}:-1:{}:{all}:{free}:{}:{}\n",
        notice(row, units),
        row.device(),
        group.map_or("", |group| &group.name),
        device_size(row).0,
        allocatable | exported | missing,
        group.map_or(0, |group| group.extent_size.0 / 2),
        all.saturating_sub(free),
        row.uuid(),
    )
}

/// What LVM says before it displays a volume that is unusual.
fn notice(row: &PvRow, units: &Units) -> String {
    let device = row.device();
    match row.group() {
        None => {
            let size = units.long(row.size());
            format!("  \"{device}\" is a new physical volume of \"{size}\"\n")
        }
        Some((group, _)) if group.flags.contains(&VgFlag::Exported) => {
            format!(
                "  Physical volume \"{device}\" of volume group \"{}\" is exported\n",
                group.name
            )
        }
        Some(_) => String::new(),
    }
}

fn is_absent(row: &PvRow) -> bool {
    row.label().is_none()
}

/// The size of its device; of a missing one as its group knows it.
fn device_size(row: &PvRow) -> Sectors {
    match (is_absent(row), row.member()) {
        (true, Some(pv)) => pv.dev_size.unwrap_or_default(),
        (true, None) | (false, _) => row.device_size(),
    }
}
