//! The fields of logical volumes.

use ashlar_block::Sectors;
use ashlar_dm::snapshot::Status;

use super::relations::ComponentKind;
use super::state::ratio;
use super::{
    Field, Item, LvRow, LvState, Value, VgRow, empty, flag, list, minus_one, number, size, tags,
    text, undefined,
};
use crate::activate::dm_name;
use crate::metadata::{Creation, Flag, LogicalVolume, LvFlag, Raid, SegmentKind};
use crate::report::value::Percent;

fn lv(row: &Item) -> Option<&LogicalVolume> {
    row.lv.as_ref()?.lv()
}

fn state(row: &Item) -> Option<&LvState> {
    row.lv.as_ref()?.state()
}

fn first(lv: &LogicalVolume) -> Option<&SegmentKind> {
    lv.segments.first().map(|segment| &segment.kind)
}

fn is_pool(row: &Item) -> bool {
    row.lv.as_ref().is_some_and(LvRow::is_pool)
}

fn creation(row: &Item) -> Option<&Creation> {
    lv(row)?.creation.as_ref()
}

fn has(row: &Item, wanted: LvFlag) -> Value {
    flag(lv(row), |lv| lv.flags.contains(&wanted))
}

/// The name of a related volume.
fn named(row: &Item, get: impl FnOnce(&LvRow) -> Option<&str>) -> Value {
    let related = row.lv.as_ref().and_then(|row| Some(row.named(get(row)?)));
    related.unwrap_or_else(|| Value::Text(String::new()))
}

/// The identity of a related volume.
fn uuid(row: &Item, get: impl FnOnce(&LvRow) -> Option<&str>) -> Value {
    text(row.lv.as_ref().and_then(|row| Some(row.uuid_of(get(row)?))), |uuid| uuid)
}

/// One of the fixed device numbers.
fn numbers(row: &Item, get: impl FnOnce((i64, i64)) -> i64) -> Value {
    let numbers = lv(row).filter(|lv| lv.flags.contains(&LvFlag::FixedMinor));
    let number = numbers.and_then(LogicalVolume::device_numbers).map(get);
    let number = number.and_then(|number| u64::try_from(number).ok());
    number.map_or(Value::Undefined("-1"), Value::Number)
}

/// A number of a RAID, which is not kept if it is 0.
fn raid(row: &Item, get: impl FnOnce(&Raid) -> Option<u32>) -> Value {
    let raid = lv(row).and_then(first).and_then(SegmentKind::as_raid);
    let number = raid.and_then(get).filter(|number| *number > 0);
    Value::defined(number.map(u64::from))
}

/// A word of the status of an active RAID.
fn raid_word(row: &Item, at: usize) -> Option<&str> {
    state(row)?.words("raid")?.get(at).copied()
}

fn moved(row: &Item) -> Option<(&LvRow, usize)> {
    let row = row.lv.as_ref()?;
    Some((row, row.moves_from()?))
}

fn log(row: &LvRow) -> Option<&str> {
    row.first()?.as_mirror()?.log.as_deref()
}

/// The layer below a mirror that gets another copy.
fn converted(row: &LvRow) -> Option<&str> {
    let mut legs = row.first()?.as_mirror()?.areas.iter().filter_map(|area| area.lv());
    legs.find(|name| name.contains("_mimagetmp_"))
}

fn snapshot(row: &Item) -> Option<Status> {
    let is_snapshot = |row: &&LvRow| {
        row.lv().is_some_and(|lv| row.group().snapshot_in(&lv.name).is_some()) || row.is_merging()
    };
    row.lv.as_ref().filter(is_snapshot)?.state()?.snapshot()
}

/// The part of a snapshot's store, a thin pool or a thin volume that is in use.
fn used(row: &LvRow) -> Option<Percent> {
    let state = row.state()?;
    if let Some(words) = state.words("thin-pool") {
        return ratio(words.get(2)?);
    }
    if let Some(words) = state.words("thin") {
        let mapped: u64 = words.first()?.parse().ok()?;
        let pool = row.group().lv(row.pool()?).and_then(first)?.as_thin_pool()?;
        let chunk = pool.chunk_size.0.max(1);
        let whole = row.size().0.div_ceil(chunk).checked_mul(chunk)?;
        return Percent::of(mapped.min(whole), whole);
    }
    state.used()
}

fn permissions(row: &Item) -> &'static str {
    let Some(lv) = lv(row) else { return "unknown" };
    match (lv.flags.contains(&LvFlag::PvMove), lv.is_writable()) {
        (true, _) => "",
        (false, true) if state(row).is_none() => "unknown",
        (false, true) => "writeable",
        (false, false) => "read-only",
    }
}

fn health(row: &Item) -> &'static str {
    let Some((row, lv)) = row.lv.as_ref().zip(lv(row)) else { return "" };
    let words = row.state().and_then(|state| state.words("raid"));
    let mismatches = words.and_then(|words| words.get(5).copied());
    if row.facts.group.needs_missing(&lv.name).is_some() {
        "partial"
    } else if lv.flags.contains(&LvFlag::WriteMostly) {
        "writemostly"
    } else if mismatches.is_some_and(|count| count != "0") {
        "mismatches exist"
    } else {
        ""
    }
}

/// What the metadata says of them.
pub(super) const VOLUME: &[Field<Item>] = table! { Lv;
    Text "lv_uuid" "LV UUID" "UUID"
        |row| text(lv(row), |lv| lv.id.to_string());
    Text "lv_name" "LV" "name; a hidden volume is in brackets"
        |row| named(row, |row| Some(&row.lv()?.name));
    Text "lv_full_name" "LV" "name with the group: GROUP/NAME"
        |row| {
            let group = row.vg.as_ref().map_or("", |vg| &vg.group().name);
            Value::Text(format!("{group}/{}", lv(row).map_or("", |lv| &lv.name)))
        };
    Text "lv_path" "Path" "path in a mount; empty for components and pools"
        |row| text(row.lv.as_ref().and_then(LvRow::path), |path| path);
    Text "lv_dm_path" "DMPath" "path that the kernel's device mapper would use"
        |row| {
            text(row.lv.as_ref().zip(lv(row)), |(row, lv)| {
                format!("/dev/mapper/{}", dm_name(&row.group().name, &lv.name, None))
            })
        };
    Text "lv_parent" "Parent" "volume of which it is a component"
        |row| text(row.lv.as_ref(), LvRow::parent);
    List "lv_layout" "Layout" "segment types and properties"
        |row| Value::List(row.lv.as_ref().map_or_else(|| vec!["unknown".into()], LvRow::layout));
    List "lv_role" "Role" "purpose"
        |row| Value::List(row.lv.as_ref().map_or_else(|| vec!["public".into()], LvRow::roles));
    Flag["initial image sync" "sync"] "lv_initial_image_sync" "InitImgSync" "the initial resync has completed"
        |row| {
            flag(lv(row), |lv| {
                let is_copied =
                    matches!(first(lv), Some(SegmentKind::Raid(_) | SegmentKind::Mirror(_)));
                is_copied && !lv.flags.contains(&LvFlag::NotSynced)
            })
        };
    Flag["image synced" "synced"] "lv_image_synced" "ImgSynced" "this copy is in sync"
        |row| {
            flag(row.lv.as_ref().and_then(LvRow::part), |(user, part)| {
                let is_image = matches!(part, ComponentKind::RaidImage | ComponentKind::MirrorImage);
                let state = row.lv.as_ref().and_then(|row| row.facts.states.get(&user.name));
                is_image && state.and_then(LvState::synced) == Some(Percent::ALL)
            })
        };
    Flag["merging"] "lv_merging" "Merging" "it is being merged, or a snapshot is being merged into it"
        |row| flag(row.lv.as_ref(), LvRow::is_merging);
    Flag["converting"] "lv_converting" "Converting" "it is being converted"
        |row| flag(lv(row), |lv| lv.flags.iter().any(|flag| flag.as_other() == Some("CONVERTING")));
    Text "lv_allocation_policy" "AllocPol" "allocation policy"
        |row| {
            let policy = |lv: &LogicalVolume| match &lv.allocation {
                Some(policy) => policy.word().to_owned(),
                None => "inherit".to_owned(),
            };
            Value::Text(lv(row).map_or_else(|| "unknown".into(), policy))
        };
    Flag["allocation locked" "locked"] "lv_allocation_locked" "AllocLock" "its extents must not be changed"
        |row| has(row, LvFlag::Locked);
    Flag["fixed minor" "fixed"] "lv_fixed_minor" "FixMin" "it has fixed device numbers"
        |row| has(row, LvFlag::FixedMinor);
    Flag["skip activation" "skip"] "lv_skip_activation" "SkipAct" "it is activated only on request"
        |row| has(row, LvFlag::ActivationSkip);
    Flag["enabled"] "lv_autoactivation" "AutoAct" "it is activated when the host starts"
        |row| {
            let is_off = lv(row).is_some_and(|lv| lv.flags.contains(&LvFlag::NoAutoActivate));
            Value::Flag(Some(!is_off))
        };
    Text "lv_when_full" "WhenFull" "of a thin pool: queue or fail writes when it is full"
        |row| {
            text(lv(row).filter(|_| is_pool(row)), |lv| {
                let fails = lv.flags.contains(&LvFlag::ErrorWhenFull);
                if fails { "error" } else { "queue" }.to_owned()
            })
        };
    Flag["active"] "lv_active" "Active" "it is active"
        |row| Value::Flag(Some(state(row).is_some()));
    Flag["active locally" "active" "locally"] "lv_active_locally" "ActLocal" "it is active on this host"
        |row| Value::Flag(Some(state(row).is_some()));
    Flag["active remotely" "active" "remotely"] "lv_active_remotely" "ActRemote" "it is active on another host; unknown for shared groups"
        |row| {
            let is_shared = row.vg.as_ref().is_some_and(|vg| vg.group().lock_manager().is_some());
            Value::Flag(if is_shared { None } else { Some(false) })
        };
    Flag["active exclusively" "active" "exclusively"] "lv_active_exclusively" "ActExcl" "it is active on this host alone"
        |row| Value::Flag(Some(state(row).is_some()));
    Number "lv_major" "Maj" "fixed major number, or -1"
        |row| numbers(row, |numbers| numbers.0);
    Number "lv_minor" "Min" "fixed minor number, or -1"
        |row| numbers(row, |numbers| numbers.1);
    Size "lv_read_ahead" "Rahead" "read-ahead setting"
        |row| {
            match lv(row).map(|lv| lv.read_ahead) {
                Some(None | Some(0)) => Value::Undefined("auto"),
                Some(Some(sectors)) => Value::Size(Sectors(sectors.try_into().unwrap_or(0))),
                None => Value::Size(Sectors::ZERO),
            }
        };
    Size "lv_size" "LSize" "size; of a snapshot, the size of its exception store"
        |row| size(row.lv.as_ref(), LvRow::size);
    Size "lv_metadata_size" "MSize" "of a pool: size of its metadata volume"
        |row| {
            let [_, metadata] = row.lv.as_ref().map_or([None, None], LvRow::pool_parts);
            let group = row.vg.as_ref().map(VgRow::group);
            let volume = group.zip(metadata).and_then(|(group, name)| group.lv(name));
            let size = group.zip(volume).map(|(group, volume)| group.size(volume));
            size.map_or(Value::Undefined(""), Value::Size)
        };
    Number "seg_count" "#Seg" "number of segments"
        |row| number(lv(row), |lv| lv.segments.len() as u64);
    Text "origin" "Origin" "of a snapshot: the origin"
        |row| named(row, |row| Some(&row.origin()?.name));
    Text "origin_uuid" "Origin UUID" "of a snapshot: UUID of the origin"
        |row| uuid(row, |row| Some(&row.origin()?.name));
    Size "origin_size" "OSize" "of a snapshot or an origin: size of the origin"
        |row| {
            let size = row.lv.as_ref().and_then(LvRow::origin_size);
            size.map_or(Value::Undefined(""), Value::Size)
        };
    List "lv_ancestors" "Ancestors" "its origin, the origin of that, ..."
        |row| list(row.lv.as_ref(), LvRow::ancestors);
    List "lv_full_ancestors" "FAncestors" "same as lv_ancestors: removed volumes are not recorded"
        |row| list(row.lv.as_ref(), LvRow::ancestors);
    List "lv_descendants" "Descendants" "its snapshots, and the snapshots of these"
        |row| list(row.lv.as_ref(), LvRow::descendants);
    List "lv_full_descendants" "FDescendants" "same as lv_descendants: removed volumes are not recorded"
        |row| list(row.lv.as_ref(), LvRow::descendants);
    Number "raid_mismatch_count" "Mismatches" "of an active RAID: mismatches that a check found"
        |row| Value::defined(raid_word(row, 5).and_then(|word| word.parse().ok()));
    Text "raid_sync_action" "SyncAction" "of an active RAID: current sync action"
        |row| text(raid_word(row, 4), str::to_owned);
    Number "raid_write_behind" "WBehind" "of RAID1: maximum outstanding writes to write-mostly legs"
        |row| raid(row, |raid| raid.write_behind);
    Number "raid_min_recovery_rate" "MinSync" "of a RAID: minimum recovery rate, in KiB/s"
        |row| raid(row, |raid| raid.min_recovery_rate);
    Number "raid_max_recovery_rate" "MaxSync" "of a RAID: maximum recovery rate, in KiB/s"
        |row| raid(row, |raid| raid.max_recovery_rate);
    Text "raidintegritymode" "IntegMode" "integrity mode; not supported here"
        empty;
    Number "raidintegrityblocksize" "IntegBlkSize" "integrity block size; not supported here"
        minus_one;
    Number "integritymismatches" "IntegMismatches" "integrity mismatches; not supported here"
        undefined;
    Text "move_pv" "Move" "of a move: source physical volume"
        |row| text(moved(row), |(row, index)| row.facts.device(index).to_owned());
    Text "move_pv_uuid" "Move UUID" "of a move: UUID of the source physical volume"
        |row| text(moved(row).and_then(|(row, index)| row.group().pvs.get(index)), |pv| pv.id.to_string());
    Text "convert_lv" "Convert" "of a conversion: volume with the copies so far"
        |row| named(row, converted);
    Text "convert_lv_uuid" "Convert UUID" "of a conversion: UUID of that volume"
        |row| uuid(row, converted);
    Text "mirror_log" "Log" "of a mirror: log volume"
        |row| named(row, log);
    Text "mirror_log_uuid" "Log UUID" "of a mirror: UUID of the log volume"
        |row| uuid(row, log);
    Text "data_lv" "Data" "of a pool: data volume"
        |row| named(row, |row| row.pool_parts()[0]);
    Text "data_lv_uuid" "Data UUID" "of a pool: UUID of the data volume"
        |row| uuid(row, |row| row.pool_parts()[0]);
    Text "metadata_lv" "Meta" "of a pool: metadata volume"
        |row| named(row, |row| row.pool_parts()[1]);
    Text "metadata_lv_uuid" "Meta UUID" "of a pool: UUID of the metadata volume"
        |row| uuid(row, |row| row.pool_parts()[1]);
    Text "pool_lv" "Pool" "its pool"
        |row| named(row, LvRow::pool);
    Text "pool_lv_uuid" "Pool UUID" "UUID of its pool"
        |row| uuid(row, LvRow::pool);
    List "lv_tags" "LV Tags" "tags"
        |row| tags(lv(row), |lv| lv.tags.clone());
    Text "lv_profile" "LProfile" "configuration profile"
        |row| text(lv(row).and_then(LogicalVolume::profile), str::to_owned);
    Text "lv_lockargs" "LLockArgs" "lock manager arguments"
        |row| text(lv(row).and_then(LogicalVolume::lock_args), str::to_owned);
    Time "lv_time" "CTime" "time of creation"
        |row| Value::Time(creation(row).map_or(0, |made| made.time));
    Time "lv_time_removed" "RTime" "time of removal: removed volumes are not recorded"
        |_| Value::Time(0);
    Text "lv_host" "Host" "host that created it"
        |row| text(creation(row), |made| made.host.clone());
    List "lv_modules" "Modules" "modules that a kernel would need for it"
        |row| list(row.lv.as_ref(), LvRow::modules);
    Flag["historical"] "lv_historical" "Historical" "it was removed: removed volumes are not recorded"
        |_| Value::Flag(Some(false));
    Number "writecache_block_size" "WCacheBlkSize" "block size of a write cache; not supported here"
        minus_one;
    Text "lv_problem" "Problem" "why it cannot be used; not a field of LVM"
        |row| text(lv(row).and_then(|lv| lv.unsupported.clone()), |why| why);
};

/// What is known of their devices.
pub(super) const DEVICE: &[Field<Item>] = table! { Lv;
    Number "lv_kernel_major" "KMaj" "major number of its kernel device; -1: there is no kernel device here"
        minus_one;
    Number "lv_kernel_minor" "KMin" "minor number of its kernel device; -1: there is no kernel device here"
        minus_one;
    Size "lv_kernel_read_ahead" "KRahead" "read-ahead of its active device; unknown here"
        minus_one;
    Text "lv_permissions" "LPerms" "read-only or writeable, of an active volume"
        |row| Value::Text(permissions(row).to_owned());
    Flag["suspended"] "lv_suspended" "Suspended" "its device is suspended"
        |row| Value::Flag(state(row).map(|_| false));
    Flag["live table present" "live table" "live"] "lv_live_table" "LiveTable" "its device has a live table"
        |row| Value::Flag(state(row).map(|_| true));
    Flag["inactive table present" "inactive table" "inactive"] "lv_inactive_table" "InactiveTable" "its device has a loaded table that is not live"
        |row| Value::Flag(state(row).map(|_| false));
    Flag["open"] "lv_device_open" "DevOpen" "its device is in use"
        |row| Value::Flag(state(row).map(|state| state.is_open));
};

/// What their devices say.
pub(super) const STATUS: &[Field<Item>] = table! { Lv;
    Percent "data_percent" "Data%" "of an active snapshot, thin volume or pool: share in use"
        |row| Value::Percent(row.lv.as_ref().and_then(used));
    Percent "snap_percent" "Snap%" "same as data_percent"
        |row| Value::Percent(row.lv.as_ref().and_then(used));
    Percent "metadata_percent" "Meta%" "of an active thin pool: share of its metadata in use"
        |row| {
            let words = state(row).and_then(|state| state.words("thin-pool"));
            Value::Percent(words.and_then(|words| ratio(words.get(1)?)))
        };
    Percent "copy_percent" "Cpy%Sync" "of an active RAID, mirror or move: share in sync"
        |row| Value::Percent(state(row).and_then(LvState::synced));
    Percent "sync_percent" "Cpy%Sync" "same as copy_percent"
        |row| Value::Percent(state(row).and_then(LvState::synced));
    Number "cache_total_blocks" "CacheTotalBlocks" "of an active cache, which does not exist here"
        undefined;
    Number "cache_used_blocks" "CacheUsedBlocks" "of an active cache, which does not exist here"
        undefined;
    Number "cache_dirty_blocks" "CacheDirtyBlocks" "of an active cache, which does not exist here"
        undefined;
    Number "cache_read_hits" "CacheReadHits" "of an active cache, which does not exist here"
        undefined;
    Number "cache_read_misses" "CacheReadMisses" "of an active cache, which does not exist here"
        undefined;
    Number "cache_write_hits" "CacheWriteHits" "of an active cache, which does not exist here"
        undefined;
    Number "cache_write_misses" "CacheWriteMisses" "of an active cache, which does not exist here"
        undefined;
    Number "cache_promotions" "CachePromotions" "of an active cache, which does not exist here"
        undefined;
    Number "cache_demotions" "CacheDemotions" "of an active cache, which does not exist here"
        undefined;
    List "kernel_cache_settings" "KCacheSettings" "of an active cache, which does not exist here"
        |_| Value::List(Vec::new());
    Text "kernel_cache_policy" "KCachePolicy" "of an active cache, which does not exist here"
        empty;
    Number "kernel_metadata_format" "KMFmt" "of an active cache, which does not exist here"
        undefined;
    Text "kernel_cache_mode" "KCacheMode" "of an active cache, which does not exist here"
        empty;
    Text "lv_health_status" "Health" "partial if a physical volume of it is missing"
        |row| Value::Text(health(row).to_owned());
    Text "kernel_discards" "KDiscards" "of an active thin pool: how it handles discards"
        |row| {
            let words = state(row).and_then(|state| state.words("thin-pool")).unwrap_or_default();
            let known = ["discard_passdown", "no_discard_passdown", "ignore_discard"];
            let names = ["passdown", "nopassdown", "ignore"];
            let word = known.iter().zip(names).find(|(word, _)| words.contains(*word));
            text(word, |(_, name)| name.to_owned())
        };
    Flag["check needed" "needed"] "lv_check_needed" "CheckNeeded" "of an active thin pool: its metadata must be checked"
        |row| {
            let words = state(row).and_then(|state| state.words("thin-pool"));
            Value::Flag(words.map(|words| words.contains(&"needs_check")))
        };
    Flag["merge failed" "failed"] "lv_merge_failed" "MergeFailed" "of an active snapshot: its merge cannot continue"
        |row| Value::Flag(snapshot(row).map(|it| it == Status::MergeFailed));
    Flag["snapshot invalid" "invalid"] "lv_snapshot_invalid" "SnapInvalid" "of an active snapshot: its data is lost"
        |row| Value::Flag(snapshot(row).map(|it| it == Status::Invalid));
    Text "vdo_operating_mode" "VDOOperatingMode" "of an active VDO pool, which does not exist here"
        empty;
    Text "vdo_compression_state" "VDOCompressionState" "of an active VDO pool, which does not exist here"
        empty;
    Text "vdo_index_state" "VDOIndexState" "of an active VDO pool, which does not exist here"
        empty;
    Number "vdo_used_size" "VDOUsedSize" "of an active VDO pool, which does not exist here"
        undefined;
    Number "vdo_saving_percent" "VDOSaving%" "of an active VDO pool, which does not exist here"
        undefined;
    Number "writecache_total_blocks" "WCacheTotalBlocks" "of an active write cache, which does not exist here"
        undefined;
    Number "writecache_free_blocks" "WCacheFreeBlocks" "of an active write cache, which does not exist here"
        undefined;
    Number "writecache_writeback_blocks" "WCacheWritebackBlocks" "of an active write cache, which does not exist here"
        undefined;
    Number "writecache_error" "WCacheErrors" "of an active write cache, which does not exist here"
        undefined;
};

/// Of both.
pub(super) const COMBINED: &[Field<Item>] = table! { Lv;
    Text "lv_attr" "Attr" "kind, permissions, allocation, ...: see lvs(8)"
        |row| text(row.lv.as_ref(), LvRow::attributes);
};
