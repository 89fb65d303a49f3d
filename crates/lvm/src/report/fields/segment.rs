//! The fields of segments, and of extents that no segment uses.

use ashlar_block::Sectors;

use super::relations::ComponentKind;
use super::{Field, Item, LvRow, Value, empty, list, number, size, tags, text, undefined};
use crate::metadata::{RaidLevel, Segment, SegmentKind, ThinPool};

fn stripes(segment: &Segment) -> u64 {
    match &segment.kind {
        SegmentKind::Striped(_) | SegmentKind::Mirror(_) => segment.areas().len() as u64,
        SegmentKind::Raid(raid) => raid.images.len() as u64,
        SegmentKind::ThinPool(_) => 1,
        SegmentKind::Foreign(foreign) => u64::from(!foreign.uses.is_empty()),
        SegmentKind::Snapshot(_) | SegmentKind::Thin(_) => 0,
        SegmentKind::Error | SegmentKind::Zero => 0,
    }
}

fn is_raid10(level: RaidLevel) -> bool {
    matches!(level, RaidLevel::Raid10 | RaidLevel::Raid10Near)
}

fn data_stripes(segment: &Segment) -> u64 {
    let stripes = stripes(segment);
    let Some(raid) = segment.kind.as_raid() else { return stripes };
    if is_raid10(raid.level) {
        return stripes / copies(segment).max(1);
    }
    stripes.saturating_sub(raid.level.parity().into())
}

/// How often data is there: with parity one more time than there are legs for that.
fn copies(segment: &Segment) -> u64 {
    let Some(raid) = segment.kind.as_raid() else { return 1 };
    if is_raid10(raid.level) {
        return raid.data_copies.unwrap_or(2).into();
    }
    if raid.level == RaidLevel::Raid1 {
        return raid.images.len() as u64;
    }
    u64::from(raid.level.parity()) + 1
}

/// The chunks of a stripe that are only there for redundancy.
fn redundant(segment: &Segment) -> Option<u64> {
    copies(segment).checked_sub(1).filter(|chunks| *chunks > 0)
}

/// The extents of a RAID that are left for reshaping; `None` if it cannot be reshaped.
fn reshape_extents(row: &Item) -> Option<u32> {
    let segment = row.segment()?;
    let is_reshapable = |kind: &SegmentKind| {
        let level = kind.as_raid().map(|raid| raid.level);
        level.is_some_and(|level| is_raid10(level) || level.parity() > 0)
    };
    // Or the beginning of one of its images.
    let above = row.lv.as_ref().filter(|_| segment.start == 0).and_then(LvRow::part);
    let image = above.filter(|(_, part)| *part == ComponentKind::RaidImage);
    let above = image.and_then(|(user, _)| user.segments.first());
    if !is_reshapable(&segment.kind) && !above.is_some_and(|above| is_reshapable(&above.kind)) {
        return None;
    }
    let each = segment.kept_number("reshape_count").unwrap_or(0);
    each.saturating_mul(stripes(segment)).try_into().ok()
}

fn chunk(row: &LvRow, segment: &Segment) -> Sectors {
    if let Some(found) = row.lv().and_then(|lv| row.group().snapshot_in(&lv.name)) {
        return found.snapshot.chunk_size;
    }
    let kept = |segment: &Segment| Sectors(segment.kept_number("chunk_size").unwrap_or(0));
    let pool = || row.pool().and_then(|pool| row.group().lv(pool)?.segments.first());
    match segment.kind.foreign_name() {
        "cache-pool" => kept(segment),
        "cache" => {
            let pool = pool().filter(|pool| pool.kind.foreign_name() == "cache-pool");
            kept(pool.unwrap_or(segment))
        }
        _ => segment.kind.as_thin_pool().map_or(Sectors::ZERO, |pool| pool.chunk_size),
    }
}

fn thins(row: &LvRow) -> Option<u64> {
    let lv = row.lv().filter(|_| row.is_pool())?;
    let kinds = row.group().lvs.iter().filter_map(|lv| lv.segments.first()?.kind.as_thin());
    Some(kinds.filter(|thin| thin.pool == lv.name).count() as u64)
}

/// The first segment of the pool that it is, or that it takes its space from.
fn pool_segment(row: &Item) -> Option<&Segment> {
    let volume = row.lv.as_ref()?;
    let pool = volume.pool().and_then(|pool| volume.group().lv(pool)?.segments.first());
    pool.or_else(|| row.segment())
}

fn pool(row: &Item) -> Option<&ThinPool> {
    row.segment().and_then(|_| pool_segment(row))?.kind.as_thin_pool()
}

/// The segment with the settings of a cache.
fn cache(row: &Item) -> Option<&Segment> {
    let segment = row.segment()?;
    let named = |segment: &Segment, name: &str| segment.kind.foreign_name() == name;
    if named(segment, "cache-pool") {
        return Some(segment);
    }
    // The volume of a cache without a pool has no settings of its own.
    let pool = pool_segment(row).filter(|pool| named(pool, "cache-pool"));
    named(segment, "cache").then(|| pool.unwrap_or(segment))
}

/// The segment of a VDO pool.
fn vdo(row: &Item) -> Option<&Segment> {
    let segment = row.segment().and_then(|_| pool_segment(row))?;
    (segment.kind.foreign_name() == "vdo-pool").then_some(segment)
}

fn vdo_flag(row: &Item, key: &str) -> Value {
    let set = vdo(row).map(|vdo| vdo.kept_number(key).is_some_and(|number| number != 0));
    set.map_or(Value::Undefined(""), |set| Value::Flag(Some(set)))
}

/// A size that the metadata has in units of so many sectors.
fn vdo_size(row: &Item, key: &str, unit: u64) -> Value {
    let size = vdo(row).and_then(|vdo| vdo.kept_number(key)?.checked_mul(unit));
    size.map_or(Value::Undefined(""), |sectors| Value::Size(Sectors(sectors)))
}

fn vdo_bytes(row: &Item, key: &str) -> Value {
    let size = vdo(row).and_then(|vdo| vdo.kept_number(key)).map(Sectors::from_bytes_floor);
    size.map_or(Value::Undefined(""), Value::Size)
}

fn kept(segment: Option<&Segment>, key: &str) -> Value {
    text(segment.and_then(|segment| segment.kept_text(key)), str::to_owned)
}

/// Its extents; those of a row for free ones are the row's.
fn length(row: &Item) -> u32 {
    let free = row.piece.map_or(0, |piece| piece.count);
    row.segment().map_or(free, |segment| segment.count)
}

fn extents(row: &Item, extents: Option<u32>) -> Value {
    size(row.vg.as_ref().zip(extents), |(vg, extents)| vg.group().sectors(extents))
}

/// The volumes with the metadata of a RAID.
fn metas(segment: &Segment) -> impl Iterator<Item = &String> {
    let images = segment.kind.as_raid().map_or(&[][..], |raid| &raid.images);
    images.iter().filter_map(|image| image.meta.as_ref())
}

/// The volumes in a segment, their first extents there, and how many.
fn areas<'a>(row: &'a LvRow, segment: &'a Segment) -> Vec<(&'a str, u32, u32)> {
    let whole = |name: &'a str| {
        let count = row.group().lv(name).map_or(0, |lv| lv.extents());
        (name, 0, count)
    };
    if let Some(raid) = segment.kind.as_raid() {
        return raid.images.iter().map(|image| whole(&image.data)).collect();
    }
    if let Some(pool) = segment.kind.as_thin_pool() {
        return vec![(&pool.data, 0, segment.count)];
    }
    if !segment.kind.foreign_name().is_empty() {
        let part = segment.kept_text("origin").or_else(|| segment.kept_text("data"));
        return part.or_else(|| segment.kept_text("vdo_pool")).into_iter().map(whole).collect();
    }
    let areas = segment.areas().iter();
    areas.map(|area| (row.place(&area.on), area.start, segment.area_extents())).collect()
}

fn places(row: &Item) -> Vec<String> {
    let Some((row, segment)) = row.lv.as_ref().zip(row.segment()) else { return Vec::new() };
    let areas = areas(row, segment).into_iter();
    areas.map(|(on, start, _)| format!("{on}({start})")).collect()
}

/// A range as in `/dev/sda:0-7`.
fn range(row: &LvRow, brackets: bool, (on, start, count): (&str, u32, u32)) -> String {
    let end = u64::from(start) + u64::from(count.max(1)) - 1;
    let is_hidden = matches!(row.named(on), Value::Hidden(_));
    if is_hidden && brackets {
        return format!("[{on}]:{start}-{end}");
    }
    format!("{on}:{start}-{end}")
}

fn ranges(row: &Item, brackets: bool) -> Vec<String> {
    let Some((row, segment)) = row.lv.as_ref().zip(row.segment()) else { return Vec::new() };
    let areas = areas(row, segment).into_iter();
    areas.map(|area| range(row, brackets, area)).collect()
}

fn metadata_ranges(row: &Item) -> Vec<String> {
    let Some((row, segment)) = row.lv.as_ref().zip(row.segment()) else { return Vec::new() };
    let extents = |name: &str| row.group().lv(name).map_or(0, |lv| lv.extents());
    metas(segment).map(|name| range(row, true, (name, 0, extents(name)))).collect()
}

/// The fields of segments.
pub(super) const FIELDS: &[Field<Item>] = table! { Segment;
    Text "segtype" "Type" "segment type"
        |row| Value::Text(row.segment().map_or("free", |segment| segment.kind.name()).to_owned());
    Number "stripes" "#Str" "number of stripes or copies"
        |row| number(row.segment(), stripes);
    Number "data_stripes" "#DStr" "number of stripes or copies, without parity"
        |row| number(row.segment(), data_stripes);
    Size "reshape_len" "RSize" "of a RAID that can be reshaped: size of the reshape space"
        |row| match reshape_extents(row) {
            Some(extents) => size(row.vg.as_ref(), |vg| vg.group().sectors(extents)),
            None => Value::Undefined(""),
        };
    Number "reshape_len_le" "RSize" "reshape_len in extents"
        |row| Value::defined(reshape_extents(row).map(u64::from));
    Number "data_copies" "#Cpy" "number of copies of the data"
        |row| Value::defined(row.segment().map(copies));
    Number "data_offset" "DOff" "of an active RAID that is being reshaped; unknown here"
        undefined;
    Number "new_data_offset" "NOff" "of an active RAID that is being reshaped; unknown here"
        undefined;
    Number "parity_chunks" "#Par" "number of parity chunks in a stripe"
        |row| Value::defined(row.segment().and_then(redundant));
    Size "stripe_size" "Stripe" "stripe size: contiguous data on one device"
        |row| {
            size(row.segment(), |segment| {
                let striped = segment.kind.as_striped().and_then(|striped| striped.stripe_size);
                let raid = || segment.kind.as_raid().and_then(|raid| raid.stripe_size);
                striped.or_else(raid).unwrap_or_default()
            })
        };
    Size "region_size" "Region" "of a mirror or RAID: size of a region in its log"
        |row| {
            size(row.segment(), |segment| {
                let mirror = segment.kind.as_mirror().and_then(|mirror| mirror.region_size);
                let raid = || segment.kind.as_raid().and_then(|raid| raid.region_size);
                mirror.or_else(raid).unwrap_or_default()
            })
        };
    Size "chunk_size" "Chunk" "of a snapshot or pool: chunk size"
        |row| size(row.lv.as_ref().zip(row.segment()), |(row, segment)| chunk(row, segment));
    Number "thin_count" "#Thins" "of a thin pool: number of thin volumes"
        |row| Value::defined(row.lv.as_ref().and_then(thins));
    Text "discards" "Discards" "of a thin pool or its volumes: how it handles discards"
        |row| text(pool(row), |pool| pool.discards.clone().unwrap_or_else(|| "ignore".into()));
    Number "cache_metadata_format" "CMFmt" "of a cache: metadata format"
        |row| Value::defined(cache(row).and_then(|cache| cache.kept_number("metadata_format")));
    Text "cache_mode" "CacheMode" "of a cache: how it handles writes"
        |row| kept(cache(row), "cache_mode");
    Flag["zero"] "zero" "Zero" "of a thin pool or its volumes: new chunks read as zeroes"
        |row| Value::Flag(pool(row).map(|pool| pool.zero_new_blocks));
    Number "transaction_id" "TransId" "of a thin pool: transaction ID; of a thin volume: ID of the transaction that created it"
        |row| {
            Value::defined(row.segment().and_then(|segment| {
                let pool = segment.kind.as_thin_pool().map(|pool| pool.transaction_id);
                pool.or_else(|| segment.kind.as_thin().map(|thin| thin.transaction_id))
            }))
        };
    Number "thin_id" "ThId" "of a thin volume: device ID in the pool"
        |row| {
            let thin = row.segment().and_then(|segment| segment.kind.as_thin());
            Value::defined(thin.map(|thin| thin.device_id.into()))
        };
    Size "seg_start" "Start" "offset in the volume"
        |row| extents(row, row.segment().map(|segment| segment.start));
    Number "seg_start_pe" "Start" "seg_start in extents"
        |row| number(row.segment(), |segment| segment.start.into());
    Size "seg_size" "SSize" "size"
        |row| extents(row, Some(length(row)));
    Number "seg_size_pe" "SSize" "seg_size in extents"
        |row| Value::Number(length(row).into());
    List "seg_tags" "Seg Tags" "tags"
        |row| tags(row.segment(), |segment| segment.tags.clone());
    Text "seg_pe_ranges" "PE Ranges" "ranges of extents, separated by spaces"
        |row| Value::Text(ranges(row, false).join(" "));
    List "seg_le_ranges" "LE Ranges" "ranges of extents; names of hidden volumes in brackets"
        |row| Value::List(ranges(row, true));
    List "seg_metadata_le_ranges" "Metadata LE Ranges" "of a RAID: ranges of metadata extents, as in seg_le_ranges"
        |row| Value::List(metadata_ranges(row));
    List "devices" "Devices" "devices and first extents"
        |row| Value::List(places(row));
    List "metadata_devices" "Metadata Devs" "of a RAID: metadata devices and first extents"
        |row| {
            let begin = |name: &String| format!("{name}(0)");
            Value::List(row.segment().map_or_else(Vec::new, |it| metas(it).map(begin).collect()))
        };
    Text "seg_monitor" "Monitor" "whether dmeventd monitors it; unused here"
        empty;
    Text "cache_policy" "CachePolicy" "of a cache: policy"
        |row| kept(cache(row), "policy");
    List "cache_settings" "CacheSettings" "of a cache: settings of the policy"
        |row| list(cache(row), |cache| cache.kept_settings("policy_settings"));
    List "integrity_settings" "IntegSettings" "integrity settings; not supported here"
        |_| Value::List(Vec::new());
    Flag["enabled"] "vdo_compression" "VDOCompression" "of a VDO pool: it compresses"
        |row| vdo_flag(row, "use_compression");
    Flag["enabled"] "vdo_deduplication" "VDODeduplication" "of a VDO pool: it stores equal blocks once"
        |row| vdo_flag(row, "use_deduplication");
    Size "vdo_minimum_io_size" "VDOMinimumIOSize" "of a VDO pool: minimum I/O size"
        |row| vdo_bytes(row, "minimum_io_size");
    Size "vdo_block_map_cache_size" "VDOBlockMapCacheSize" "of a VDO pool: size of the block map cache"
        |row| vdo_size(row, "block_map_cache_size_mb", 2048);
    Number "vdo_block_map_era_length" "VDOBlockMapEraLength" "of a VDO pool: maximum age of unwritten block map pages"
        |row| Value::defined(vdo(row).and_then(|vdo| vdo.kept_number("block_map_era_length")));
    Flag["enabled"] "vdo_use_sparse_index" "VDOSparseIndex" "of a VDO pool: its index is sparse"
        |row| vdo_flag(row, "use_sparse_index");
    Size "vdo_index_memory_size" "VDOIndexMemorySize" "of a VDO pool: memory of the index"
        |row| vdo_size(row, "index_memory_size_mb", 2048);
    Size "vdo_slab_size" "VDOSlabSize" "of a VDO pool: slab size, by which it grows"
        |row| vdo_size(row, "slab_size_mb", 2048);
    Number "vdo_ack_threads" "VDOAckThreads" "of a VDO pool: number of threads that acknowledge"
        |row| Value::defined(vdo(row).and_then(|vdo| vdo.kept_number("ack_threads")));
    Number "vdo_bio_threads" "VDOBioThreads" "of a VDO pool: number of threads that submit bios"
        |row| Value::defined(vdo(row).and_then(|vdo| vdo.kept_number("bio_threads")));
    Number "vdo_bio_rotation" "VDOBioRotation" "of a VDO pool: bios for a thread before the next one"
        |row| Value::defined(vdo(row).and_then(|vdo| vdo.kept_number("bio_rotation")));
    Number "vdo_cpu_threads" "VDOCPUThreads" "of a VDO pool: number of threads that compress and hash"
        |row| Value::defined(vdo(row).and_then(|vdo| vdo.kept_number("cpu_threads")));
    Number "vdo_hash_zone_threads" "VDOHashZoneThreads" "of a VDO pool: number of threads for hash zones"
        |row| Value::defined(vdo(row).and_then(|vdo| vdo.kept_number("hash_zone_threads")));
    Number "vdo_logical_threads" "VDOLogicalThreads" "of a VDO pool: number of threads for logical zones"
        |row| Value::defined(vdo(row).and_then(|vdo| vdo.kept_number("logical_threads")));
    Number "vdo_physical_threads" "VDOPhysicalThreads" "of a VDO pool: number of threads for physical zones"
        |row| Value::defined(vdo(row).and_then(|vdo| vdo.kept_number("physical_threads")));
    Number "vdo_max_discard" "VDOMaxDiscard" "of a VDO pool: maximum discard"
        |row| Value::defined(vdo(row).and_then(|vdo| vdo.kept_number("max_discard")));
    Size "vdo_header_size" "VDOHeaderSize" "of a VDO pool: size of the header"
        |row| vdo_size(row, "header_size", 1);
    Flag["enabled"] "vdo_use_metadata_hints" "VDOMetadataHints" "of a VDO pool: it asks for synchronous writes"
        |row| vdo_flag(row, "use_metadata_hints");
    Text "vdo_write_policy" "VDOWritePolicy" "of a VDO pool: write policy"
        |row| text(vdo(row), |vdo| vdo.kept_text("write_policy").unwrap_or("auto").to_owned());
};
