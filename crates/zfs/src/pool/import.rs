//! Import of existing pools.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::status::{children, list, number, text};
use super::{Locks, check_new_name, device};
use crate::ffi::kernel::Zfs;
use crate::ffi::spa::import_flag;
use crate::protocol::{NvMap, NvValue, Refusal};

/// POOL_STATE_EXPORTED and POOL_STATE_DESTROYED of sys/fs/zfs.h.
const EXPORTED: u64 = 1;
const DESTROYED: u64 = 2;
/// MMP_STATE_ACTIVE and MMP_STATE_NO_HOSTID of sys/fs/zfs.h.
const MMP_ACTIVE: u64 = 0;
const MMP_NO_HOSTID: u64 = 2;

/// An import of a pool.
pub(crate) struct Import<'a> {
    /// The configuration from its labels, with the current paths of its disks.
    pub(crate) config: &'a NvMap,
    /// A new name for it.
    pub(crate) name: Option<&'a str>,
    /// Import without writing.
    pub(crate) read_only: bool,
    /// Import even if another host used it last.
    pub(crate) force: bool,
    /// Import even if a log device is missing.
    pub(crate) missing_log: bool,
}

/// Imports a pool and returns its name and the locks of its disks.
///
/// # Errors
/// Another host uses it or used it last, required disks are missing, it has unknown features, or it is damaged.
pub(crate) fn import(zfs: &Zfs, import: &Import<'_>) -> Result<(String, Locks), Refusal> {
    let label_name = checked_name(import.config)?;
    let name = import.name.unwrap_or(label_name);
    let what = match import.name {
        Some(name) => format!("cannot import '{label_name}' as '{name}'"),
        None => format!("cannot import '{label_name}'"),
    };
    if import.name.is_some() {
        check_new_name(zfs, name, &what)?;
    }
    if number(import.config, "state") == Some(DESTROYED) {
        return Err(Refusal::new(&what, "pool was destroyed", Errno::NOENT));
    }
    let paths = paths(import.config);
    let locks = Locks::take(&paths, import.read_only, &what)?;
    refuse_large_blocks(import.config, &what)?;
    let tried =
        zfs.try_import_pool(import.config).map_err(|errno| Refusal::of_pool(&what, errno))?;
    refuse_foreign(zfs, import, tried.as_ref(), &what)?;
    let mut properties =
        NvMap::from([("cachefile".to_owned(), NvValue::String("none".to_owned()))]);
    if import.read_only {
        properties.insert("readonly".to_owned(), NvValue::Uint64(1));
    }
    let mut flags = 0;
    if import.force {
        flags |= import_flag::ANY_HOST;
    }
    if import.missing_log {
        flags |= import_flag::MISSING_LOG;
    }
    let (result, learned) = zfs.import_pool(name, import.config, &properties, flags);
    match result {
        Ok(()) => Ok((name.to_owned(), locks)),
        Err(errno) => Err(refused(&what, errno, &learned, tried.as_ref())),
    }
}

/// The pool's name; checks that the configuration has the fields that libzpool assumes.
fn checked_name(config: &NvMap) -> Result<&str, Refusal> {
    let name = text(config, "name");
    let tree = list(config, "vdev_tree");
    let has_vdevs =
        tree.is_some_and(|tree| text(tree, "type") == Some("root") && !children(tree).is_empty());
    let numbers = ["version", "pool_guid", "state"];
    match name {
        Some(name) if has_vdevs && numbers.iter().all(|name| number(config, name).is_some()) => {
            Ok(name)
        }
        _ => {
            let what = format!("cannot import '{}'", name.unwrap_or_default());
            let refusal = Refusal::new(what, "invalid vdev configuration", Errno::INVAL);
            Err(refusal.with_hint("scan all of the pool's disks"))
        }
    }
}

/// Refuses a pool that another host used last and did not export, unless forced; a pool that
/// another host uses now is always refused.
fn refuse_foreign(
    zfs: &Zfs,
    import: &Import<'_>,
    tried: Option<&NvMap>,
    what: &str,
) -> Result<(), Refusal> {
    let empty = NvMap::new();
    let info = tried.and_then(|tried| list(tried, "load_info")).unwrap_or(&empty);
    let told = |name: &str| {
        text(info, name).or_else(|| text(import.config, name)).unwrap_or("<unknown>").to_owned()
    };
    let refused = |why: String| Refusal::new(what, why, Errno::REMOTEIO);
    match number(info, "mmp_state") {
        Some(MMP_ACTIVE) => {
            let host = text(info, "mmp_hostname").unwrap_or("<unknown>");
            let id = number(info, "mmp_hostid").unwrap_or(0);
            return Err(refused(format!("pool is imported on host '{host}' (hostid={id:x})"))
                .with_hint("export the pool on the other system, then import it here"));
        }
        Some(MMP_NO_HOSTID) => {
            return Err(refused(
                "pool has the multihost property on and the system's hostid is not set".to_owned(),
            )
            .with_hint("set a unique hostid with zgenhostid"));
        }
        Some(_) | None => {}
    }
    let exported = number(import.config, "state") == Some(EXPORTED);
    // Up to 2.1, a trial import does not return the host; its host name is then this host's.
    let host_id = number(info, "hostid").or_else(|| number(import.config, "hostid")).unwrap_or(0);
    if exported || host_id == zfs.host_id() || import.force {
        return Ok(());
    }
    Err(refused(format!(
        "pool was previously in use from another system. Last accessed by {} (hostid={host_id:x})",
        told("hostname")
    ))
    .with_hint("if no other system uses it now, the pool can be imported with force (-f)"))
}

/// Refuses devices that cannot write blocks as small as the pool's.
fn refuse_large_blocks(config: &NvMap, what: &str) -> Result<(), Refusal> {
    let tree = list(config, "vdev_tree");
    for vdev in tree.map(children).unwrap_or_default() {
        let Some(ashift) = number(vdev, "ashift") else { continue };
        let mut paths = Vec::new();
        leaves(vdev, &mut paths);
        for path in paths {
            device::check(Path::new(&path), ashift, what)?;
        }
    }
    Ok(())
}

/// The paths of a pool's disks.
fn paths(config: &NvMap) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    leaves(list(config, "vdev_tree").unwrap_or(&NvMap::new()), &mut paths);
    paths.into_iter().map(PathBuf::from).collect()
}

/// The paths of the leaves below a vdev.
fn leaves(vdev: &NvMap, into: &mut Vec<String>) {
    match children(vdev) {
        [] => into.push(
            text(vdev, "path")
                .map_or_else(|| number(vdev, "guid").unwrap_or(0).to_string(), str::to_owned),
        ),
        below => below.iter().for_each(|child| leaves(child, into)),
    }
}

fn refused(what: &str, errno: Errno, learned: &NvMap, tried: Option<&NvMap>) -> Refusal {
    let empty = NvMap::new();
    let info = list(learned, "load_info").unwrap_or(&empty);
    match errno {
        Errno::OPNOTSUPP => {
            let features: Vec<&str> = list(info, "unsup_feat")
                .into_iter()
                .flat_map(|features| features.keys())
                .map(String::as_str)
                .collect();
            if features.is_empty() {
                return Refusal::new(what, "unsupported version or feature", errno);
            }
            let why = format!(
                "unsupported version or feature: the pool uses {}, not supported by this release of OpenZFS",
                features.join(", ")
            );
            let refusal = Refusal::new(what, why, errno);
            if info.contains_key("can_rdonly") {
                refusal
                    .with_hint("these are only required for writing: it can be imported read-only")
            } else {
                refusal.with_hint("use a release of OpenZFS that has these features")
            }
        }
        // ENOENT: the error from opening a disk's path.
        Errno::NXIO | Errno::NOENT => {
            let mut missing = Vec::new();
            if let Some(devices) = list(info, "missing_vdevs") {
                leaves(devices, &mut missing);
            }
            if missing.is_empty() {
                if let Some(tree) = tried.and_then(|tried| list(tried, "vdev_tree")) {
                    unavailable(tree, &mut missing);
                }
                if errno == Errno::NXIO && missing.is_empty() && tried.is_some() {
                    // All devices are present: the remaining cause is spa_check_logs().
                    let why = "an intent log cannot be read (I/O error)";
                    return Refusal::new(what, why, Errno::IO).with_hint(
                        "nothing of it is lost: attach the device that contains it and try again. \
                         The pool can be imported read-only, without the data that only the log contains",
                    );
                }
                let why = "one or more devices is currently unavailable";
                let refusal = Refusal::new(what, join(why, &missing), errno);
                return refusal.with_hint("attach the missing devices and try again");
            }
            Refusal::new(what, join("log devices are missing or corrupted", &missing), errno)
                .with_hint(
                    "attach them. Without them the pool can be imported read-only, or with ashlar serve --missing-log or \
                     ashlar zpool import -m: data that only the log contains is lost then",
                )
        }
        Errno::INVAL => Refusal::new(what, "invalid vdev configuration", errno)
            .with_hint("scan all of the pool's disks"),
        Errno::ROFS => Refusal::new(what, "one or more devices is read only", errno)
            .with_hint("import it read-only"),
        Errno::BUSY => Refusal::new(what, "one or more devices are already in use", errno),
        Errno::NAMETOOLONG => Refusal::new(
            what,
            "new name of at least one dataset is longer than the maximum allowable length",
            errno,
        ),
        Errno::IO | Errno::BADE => Refusal::of_pool(what, errno)
            .with_hint("the pool's data is damaged; restore it from backup"),
        errno => Refusal::of_pool(what, errno),
    }
}

fn join(why: &str, names: &[String]) -> String {
    if names.is_empty() { why.to_owned() } else { format!("{why}: {}", names.join(", ")) }
}

/// The leaves that could not be opened.
fn unavailable(vdev: &NvMap, into: &mut Vec<String>) {
    const STATE: usize = 1;
    const CANT_OPEN: u64 = 4;
    match children(vdev) {
        [] => {
            let state = match vdev.get("vdev_stats") {
                Some(NvValue::Uint64s(fields)) => fields.get(STATE).copied(),
                _ => None,
            };
            if state.is_some_and(|state| state <= CANT_OPEN) {
                leaves(vdev, into);
            }
        }
        below => below.iter().for_each(|child| unavailable(child, into)),
    }
}
