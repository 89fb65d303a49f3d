//! Changes of the vdevs of a pool.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

use rustix::io::Errno;

use super::create::{refuse_used_disks, refused, root_vdev, wipe};
use super::status::{children, list, number, text};
use super::{Locks, device};
use crate::ffi::kernel::Zfs;
use crate::protocol::{
    DiskWipe, LeafChange, NewVdev, NvMap, NvValue, Refusal, VdevClass, VdevKind,
};

/// VDEV_LABEL_START_SIZE and VDEV_LABEL_END_SIZE of sys/vdev_impl.h: what a leaf does not use for data.
const LABELS_BYTES: u64 = (4 << 20) + (512 << 10);
/// ZFS_ERR_ASHIFT_MISMATCH of sys/fs/zfs.h.
const ASHIFT_MISMATCH: i32 = 1056;
/// What stands in front of the path of a missing leaf (`ondisk::config`).
const MISSING: &str = "/dev/null";

/// A leaf of a pool.
struct Leaf {
    guid: u64,
    path: String,
    /// The type of its parent: `root`, `mirror`, `raidz`, `replacing`, ...
    parent: String,
    /// The block size of its top-level vdev.
    ashift: u64,
    /// The bytes that a disk in its place needs.
    min_bytes: u64,
}

/// A disk to attach to a leaf.
pub(crate) struct NewLeaf<'a> {
    /// The file or device.
    pub(crate) path: &'a Path,
    /// It replaces the leaf.
    pub(crate) replace: bool,
    /// Use it although it belongs to another pool.
    pub(crate) force: bool,
    /// The ranges to zero first.
    pub(crate) wiped: &'a [DiskWipe],
}

fn tree(zfs: &Zfs, pool: &str, what: &str) -> Result<NvMap, Refusal> {
    let config = zfs.pool_stats(pool).map_err(|errno| Refusal::of_pool(what, errno))?;
    Ok(list(&config, "vdev_tree").cloned().unwrap_or_default())
}

fn collect(vdev: &NvMap, parent: &str, top: &NvMap, into: &mut Vec<Leaf>) {
    let kind = text(vdev, "type").unwrap_or_default();
    if !children(vdev).is_empty() {
        return children(vdev).iter().for_each(|child| collect(child, kind, top, into));
    }
    let (Some(guid), Some(path)) = (number(vdev, "guid"), text(vdev, "path")) else { return };
    // As vdev_get_min_asize() does it.
    let shift = number(top, "metaslab_shift").unwrap_or(0).min(63);
    let whole_bytes = number(top, "asize").unwrap_or(0) >> shift << shift;
    let parts = match text(top, "type") {
        Some("raidz") => children(top).len().max(1) as u64,
        _ => 1,
    };
    into.push(Leaf {
        guid,
        path: path.to_owned(),
        parent: parent.to_owned(),
        ashift: number(top, "ashift").unwrap_or(0),
        min_bytes: whole_bytes / parts + LABELS_BYTES,
    });
}

fn leaves(tree: &NvMap) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    children(tree).iter().for_each(|top| collect(top, "root", top, &mut leaves));
    leaves
}

/// The leaf that a user names: by its path, by its number, or by the end of its path if no other ends so.
fn find(tree: &NvMap, name: &str, what: &str) -> Result<Leaf, Refusal> {
    let mut all = leaves(tree);
    let path = |leaf: &Leaf| leaf.path.strip_prefix(MISSING).unwrap_or(&leaf.path).to_owned();
    let exact = all
        .iter()
        .position(|leaf| leaf.path == name || path(leaf) == name || leaf.guid.to_string() == name);
    let at = exact.or_else(|| {
        let end = format!("/{name}");
        let mut ending = all.iter().enumerate().filter(|(_, leaf)| path(leaf).ends_with(&end));
        ending.next().map(|(at, _)| at).filter(|_| ending.next().is_none())
    });
    match at {
        Some(at) => Ok(all.swap_remove(at)),
        None => {
            Err(Refusal::new(what, format_args!("no such device in pool: {name}"), Errno::NODEV)
                .with_hint("zpool status shows its devices"))
        }
    }
}

/// The form of the pool's first top-level vdev with data.
fn form(tree: &NvMap) -> Option<(VdevKind, usize)> {
    let is_data = |top: &&NvMap| {
        number(top, "is_log") != Some(1) && !matches!(text(top, "type"), Some("hole" | "indirect"))
    };
    let top = children(tree).iter().find(is_data)?;
    match text(top, "type")? {
        "mirror" => Some((VdevKind::Mirror, children(top).len())),
        "raidz" => {
            let parity = u8::try_from(number(top, "nparity")?).ok()?;
            Some((VdevKind::Raidz(parity), children(top).len()))
        }
        _ => Some((VdevKind::Single, 1)),
    }
}

/// Adds top-level vdevs, and returns the locks of their disks.
///
/// # Errors
/// A vdev is not possible, has another form than the pool's, or a disk is in use.
pub(crate) fn add(
    zfs: &Zfs,
    pool: &str,
    vdevs: &[NewVdev],
    force: bool,
    wiped: &[DiskWipe],
) -> Result<Locks, Refusal> {
    let what = format!("cannot add to '{pool}'");
    let tree = tree(zfs, pool, &what)?;
    let properties = zfs.pool_properties(pool).map_err(|errno| Refusal::of_pool(&what, errno))?;
    let ashift = list(&properties, "ashift").and_then(|ashift| number(ashift, "value"));
    let ashift = ashift.filter(|ashift| *ashift != 0);
    let root = root_vdev(vdevs, ashift, form(&tree), force, &what)?;
    let paths: Vec<_> = vdevs.iter().flat_map(|vdev| vdev.paths.clone()).collect();
    for path in &paths {
        refuse_own(&tree, path, &what)?;
        if let Some(ashift) = ashift {
            device::check(path, ashift, &what)?;
        }
    }
    let locks = Locks::take(&paths, false, &what)?;
    if !force {
        refuse_used_disks(vdevs, &what)?;
    }
    wipe(wiped, &what)?;
    match zfs.add_vdevs(pool, &root, force) {
        Ok(()) => Ok(locks),
        Err(errno) if errno.raw_os_error() == ASHIFT_MISMATCH => {
            let why = "the new disks have another block size than the pool";
            Err(Refusal::new(&what, why, errno).with_hint("force it (-f) to mix block sizes"))
        }
        Err(errno) => Err(refused(&what, errno)),
    }
}

/// Attaches a disk to a leaf, as its mirror or its replacement, and returns the lock of the disk.
///
/// # Errors
/// There is no such leaf, it cannot have a mirror, or the disk is too small or in use.
pub(crate) fn attach(
    zfs: &Zfs,
    pool: &str,
    leaf: &str,
    new: &NewLeaf<'_>,
) -> Result<Locks, Refusal> {
    let path = new.path;
    let what = match new.replace {
        true => format!("cannot replace {leaf} with {}", path.display()),
        false => format!("cannot attach {} to {leaf}", path.display()),
    };
    let tree = tree(zfs, pool, &what)?;
    let leaf = find(&tree, leaf, &what)?;
    refuse_own(&tree, path, &what)?;
    let possible = match leaf.parent.as_str() {
        "root" | "mirror" => true,
        "raidz" => new.replace,
        _ => false,
    };
    if !possible {
        let why = match new.replace {
            true => "it is being replaced already",
            false => "a disk can be attached to a single disk and to a mirror only",
        };
        return Err(Refusal::new(&what, why, Errno::NOTSUP));
    }
    let vdevs = [NewVdev {
        kind: VdevKind::Single,
        class: VdevClass::Normal,
        paths: vec![path.to_owned()],
    }];
    // A leaf has the block size of its vdev.
    let mut root = root_vdev(&vdevs, Some(leaf.ashift), None, true, &what)?;
    if let Some(NvValue::Lists(children)) = root.get_mut("children") {
        children.iter_mut().for_each(|child| _ = child.remove("is_log"));
    }
    device::check(path, leaf.ashift, &what)?;
    let locks = Locks::take(&vdevs[0].paths, false, &what)?;
    if !new.force {
        refuse_used_disks(&vdevs, &what)?;
    }
    // Before anything is wiped.
    let bytes = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    let bytes = bytes.map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Refusal::new(&what, format_args!("cannot open '{}': {error}", path.display()), errno)
    })?;
    let too_small = || {
        let why = format!("the disk is too small: {} bytes are needed", leaf.min_bytes);
        Refusal::new(&what, why, Errno::OVERFLOW).with_hint("use a larger disk")
    };
    if bytes < leaf.min_bytes {
        return Err(too_small());
    }
    wipe(new.wiped, &what)?;
    match zfs.attach_vdev(pool, leaf.guid, &root, new.replace) {
        Ok(()) => Ok(locks),
        Err(Errno::OVERFLOW) => Err(too_small()),
        Err(errno) => Err(Refusal::of_pool(&what, errno)),
    }
}

/// Refuses a disk that the pool has already.
fn refuse_own(tree: &NvMap, path: &Path, what: &str) -> Result<(), Refusal> {
    let is_own = |leaf: &Leaf| Path::new(&leaf.path) == path;
    match leaves(tree).iter().any(is_own) {
        true => {
            let why = format!("{} is a device of this pool", path.display());
            Err(Refusal::new(what, why, Errno::BUSY).with_hint("use another disk"))
        }
        false => Ok(()),
    }
}

/// Detaches a leaf, or switches it off or on.
///
/// # Errors
/// There is no such leaf, the pool's data need it, or it does not work.
pub(crate) fn change_leaf(
    zfs: &Zfs,
    pool: &str,
    leaf: &str,
    change: LeafChange,
) -> Result<(), Refusal> {
    let verb = match change {
        LeafChange::Detach => "detach",
        LeafChange::Offline => "offline",
        LeafChange::Online { .. } => "online",
    };
    let what = format!("cannot {verb} {leaf}");
    let guid = find(&tree(zfs, pool, &what)?, leaf, &what)?.guid;
    let done = match change {
        LeafChange::Detach => zfs.detach_vdev(pool, guid),
        LeafChange::Offline => zfs.offline_vdev(pool, guid),
        LeafChange::Online { expand } => match zfs.online_vdev(pool, guid, expand) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let refusal = Refusal::new(&what, "the device does not work", Errno::NXIO);
                return Err(refusal.with_hint("replace it: zpool replace"));
            }
            Err(errno) => Err(errno),
        },
    };
    done.map_err(|errno| match (errno, change) {
        (Errno::BUSY, _) => {
            Refusal::new(&what, "no valid replicas", errno).with_hint("the pool's data need it")
        }
        (Errno::NOTSUP, LeafChange::Detach) => {
            let why = "only a disk of a mirror or of a replacement can be detached";
            Refusal::new(&what, why, errno)
        }
        _ => Refusal::of_pool(&what, errno),
    })
}

/// Sets the error counters of a leaf to 0, or those of all vdevs.
///
/// # Errors
/// There is no such leaf.
pub(crate) fn clear(zfs: &Zfs, pool: &str, leaf: Option<&str>) -> Result<(), Refusal> {
    let what = format!("cannot clear errors for {}", leaf.unwrap_or(pool));
    let guid = match leaf {
        Some(leaf) => Some(find(&tree(zfs, pool, &what)?, leaf, &what)?.guid),
        None => None,
    };
    zfs.clear_vdev(pool, guid).map_err(|errno| Refusal::of_pool(&what, errno))
}
