//! The status of a pool: its vdevs, its scrub, its properties.

use super::properties;
use crate::ffi::kernel::Zfs;
use crate::protocol::{NvMap, NvValue, PoolStatus, Refusal, ScanStatus, VdevClass, VdevStatus};

/// A number in a list.
pub(crate) fn number(map: &NvMap, name: &str) -> Option<u64> {
    match map.get(name) {
        Some(NvValue::Uint64(number)) => Some(*number),
        _ => None,
    }
}

/// A text in a list.
pub(crate) fn text<'a>(map: &'a NvMap, name: &str) -> Option<&'a str> {
    match map.get(name) {
        Some(NvValue::String(text)) => Some(text),
        _ => None,
    }
}

/// A list in a list.
pub(crate) fn list<'a>(map: &'a NvMap, name: &str) -> Option<&'a NvMap> {
    match map.get(name) {
        Some(NvValue::List(list)) => Some(list),
        _ => None,
    }
}

/// The vdevs below a vdev.
pub(crate) fn children(vdev: &NvMap) -> &[NvMap] {
    match vdev.get("children") {
        Some(NvValue::Lists(children)) => children,
        _ => &[],
    }
}

/// A field of a C structure that libzpool gives as an array of 64-bit numbers (sys/fs/zfs.h). The fields named below
/// are the same from 2.1 to 2.4.
fn field(map: &NvMap, name: &str, index: usize) -> Option<u64> {
    match map.get(name) {
        Some(NvValue::Uint64s(fields)) => fields.get(index).copied(),
        _ => None,
    }
}

/// vdev_stat_t
mod vdev_stat {
    pub(super) const NAME: &str = "vdev_stats";
    pub(super) const STATE: usize = 1;
    pub(super) const AUX: usize = 2;
    pub(super) const ALLOCATED: usize = 3;
    pub(super) const SPACE: usize = 4;
    pub(super) const READ_ERRORS: usize = 20;
    pub(super) const WRITE_ERRORS: usize = 21;
    pub(super) const CHECKSUM_ERRORS: usize = 22;
}

/// pool_scan_stat_t
mod scan_stat {
    pub(super) const NAME: &str = "scan_stats";
    pub(super) const FUNCTION: usize = 0;
    pub(super) const STATE: usize = 1;
    pub(super) const START_TIME: usize = 2;
    pub(super) const END_TIME: usize = 3;
    pub(super) const TO_EXAMINE: usize = 4;
    pub(super) const PROCESSED: usize = 7;
    pub(super) const ERRORS: usize = 8;
    pub(super) const PAUSE_TIME: usize = 11;
    pub(super) const ISSUED: usize = 14;
}

/// zpool's word for a pool that waits for its disks.
const SUSPENDED: &str = "SUSPENDED";

/// The pool's state, vdevs, scrub and properties.
///
/// # Errors
/// libzpool cannot describe it.
pub(crate) fn status(zfs: &Zfs, name: &str) -> Result<PoolStatus, Refusal> {
    let refused = |errno| Refusal::of_pool(format_args!("cannot open '{name}'"), errno);
    let config = zfs.pool_stats(name).map_err(refused)?;
    let empty = NvMap::new();
    let tree = list(&config, "vdev_tree").unwrap_or(&empty);
    let root = vdev(tree, name);
    let is_suspended = config.contains_key("suspended");
    let state = if is_suspended { SUSPENDED.to_owned() } else { root.state.clone() };
    let told = zfs.pool_properties(name).map_err(refused)?;
    let (properties, listed) = properties::shown(zfs, &told, &config, &state);
    Ok(PoolStatus {
        name: name.to_owned(),
        guid: number(&config, "pool_guid").unwrap_or(0),
        size_bytes: field(tree, vdev_stat::NAME, vdev_stat::SPACE).unwrap_or(0),
        allocated_bytes: field(tree, vdev_stat::NAME, vdev_stat::ALLOCATED).unwrap_or(0),
        scan: scan(tree),
        errors: number(&config, "error_count").unwrap_or(0),
        properties,
        listed,
        state,
        root,
    })
}

/// The status of a suspended pool, made from its status `before` that.
pub(crate) fn suspended(before: PoolStatus) -> PoolStatus {
    let mut status = PoolStatus { state: SUSPENDED.to_owned(), ..before };
    if let Some(health) = status.properties.get_mut("health") {
        SUSPENDED.clone_into(&mut health.value);
    }
    status
}

fn vdev(map: &NvMap, pool: &str) -> VdevStatus {
    let stat = |index| field(map, vdev_stat::NAME, index).unwrap_or(0);
    let is_log = number(map, "is_log") == Some(1);
    VdevStatus {
        name: vdev_name(map, pool),
        class: if is_log { VdevClass::Log } else { VdevClass::Normal },
        state: state_words(stat(vdev_stat::STATE), stat(vdev_stat::AUX)).to_owned(),
        read_errors: stat(vdev_stat::READ_ERRORS),
        write_errors: stat(vdev_stat::WRITE_ERRORS),
        checksum_errors: stat(vdev_stat::CHECKSUM_ERRORS),
        // A removed vdev leaves a hole, which zpool does not show.
        children: children(map)
            .iter()
            .filter(|child| text(child, "type") != Some("hole"))
            .map(|child| vdev(child, pool))
            .collect(),
    }
}

/// A vdev's name in zpool: its path, or its type with its number.
fn vdev_name(map: &NvMap, pool: &str) -> String {
    let kind = text(map, "type").unwrap_or("unknown");
    let id = number(map, "id").unwrap_or(0);
    match kind {
        "root" => pool.to_owned(),
        "disk" | "file" => match text(map, "path") {
            Some(path) => path.to_owned(),
            None => number(map, "guid").unwrap_or(0).to_string(),
        },
        "raidz" | "draid" => format!("{kind}{}-{id}", number(map, "nparity").unwrap_or(1)),
        kind => format!("{kind}-{id}"),
    }
}

/// vdev_state_t and vdev_aux_t of sys/fs/zfs.h in the words of zpool.
fn state_words(state: u64, aux: u64) -> &'static str {
    const CORRUPT_DATA: u64 = 2;
    const BAD_LOG: u64 = 13;
    const SPLIT_POOL: u64 = 15;
    match (state, aux) {
        (1 | 2, _) => "OFFLINE",
        (3, _) => "REMOVED",
        (4, CORRUPT_DATA | BAD_LOG) => "FAULTED",
        (4, SPLIT_POOL) => "SPLIT",
        (4, _) => "UNAVAIL",
        (5, _) => "FAULTED",
        (6, _) => "DEGRADED",
        (7, _) => "ONLINE",
        _ => "UNKNOWN",
    }
}

fn scan(root: &NvMap) -> Option<ScanStatus> {
    let stat = |index| field(root, scan_stat::NAME, index).unwrap_or(0);
    // pool_scan_func_t and dsl_scan_state_t of sys/fs/zfs.h
    let function = match stat(scan_stat::FUNCTION) {
        1 => "scrub",
        2 => "resilver",
        _ => return None,
    };
    let state = match stat(scan_stat::STATE) {
        1 if stat(scan_stat::PAUSE_TIME) != 0 => "paused",
        1 => "scanning",
        2 => "finished",
        3 => "canceled",
        _ => return None,
    };
    Some(ScanStatus {
        function: function.to_owned(),
        state: state.to_owned(),
        start_time: stat(scan_stat::START_TIME),
        end_time: if state == "scanning" || state == "paused" {
            0
        } else {
            stat(scan_stat::END_TIME)
        },
        to_examine_bytes: stat(scan_stat::TO_EXAMINE),
        examined_bytes: stat(scan_stat::ISSUED),
        repaired_bytes: stat(scan_stat::PROCESSED),
        errors: stat(scan_stat::ERRORS),
    })
}
