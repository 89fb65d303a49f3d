//! New pools.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;

use super::{Locks, check_new_name, device, properties};
use crate::dataset;
use crate::ffi::kernel::Zfs;
use crate::ondisk::label::{DeviceLabels, PoolState};
use crate::ondisk::layout::{LABEL_BYTES, LABELS, label_offset};
use crate::protocol::{DiskWipe, NewVdev, NvMap, NvValue, Refusal, VdevClass, VdevKind};

/// SPA_MINDEVSIZE of sys/vdev_impl.h.
const MIN_DISK_BYTES: u64 = 64 << 20;

/// A pool to create.
pub(crate) struct NewPool<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Its top-level vdevs.
    pub(crate) vdevs: &'a [NewVdev],
    /// Its properties.
    pub(crate) properties: &'a BTreeMap<String, String>,
    /// Its root dataset's properties.
    pub(crate) dataset_properties: &'a BTreeMap<String, String>,
    /// Allow disks of other pools, and vdevs that do not match.
    pub(crate) force: bool,
    /// The ranges to zero first.
    pub(crate) wiped: &'a [DiskWipe],
}

/// Creates a pool and returns the locks of its disks. Its root dataset only contains volumes: the
/// objects of a file system can only be created by the kernel.
///
/// # Errors
/// The name, a vdev or a property is invalid, or a disk is unusable.
pub(crate) fn create(zfs: &Zfs, new: &NewPool<'_>) -> Result<Locks, Refusal> {
    let name = new.name;
    let what = format!("cannot create '{name}'");
    check_new_name(zfs, name, &what)?;
    let properties = properties::for_new_pool(zfs, new.properties, &what)?;
    let ashift = match properties.get("ashift") {
        Some(NvValue::Uint64(ashift)) if *ashift != 0 => Some(*ashift),
        _ => None,
    };
    if !new.vdevs.iter().any(|vdev| vdev.class == VdevClass::Normal) {
        let why = "invalid vdev specification: at least one toplevel vdev must be specified";
        return Err(Refusal::new(&what, why, Errno::INVAL));
    }
    let root = root_vdev(new.vdevs, ashift, None, new.force, &what)?;
    let root_properties = dataset::properties_of_new_container(zfs, new.dataset_properties, &what)?;
    if let Some(ashift) = ashift {
        for path in new.vdevs.iter().flat_map(|vdev| &vdev.paths) {
            device::check(path, ashift, &what)?;
        }
    }
    let paths: Vec<_> = new.vdevs.iter().flat_map(|vdev| vdev.paths.clone()).collect();
    let locks = Locks::take(&paths, false, &what)?;
    if !new.force {
        refuse_used_disks(new.vdevs, &what)?;
    }
    wipe(new.wiped, &what)?;
    zfs.create_pool(name, &root, &properties).map_err(|errno| refused(&what, errno))?;
    dataset::apply(zfs, name, &root_properties, &what).inspect_err(|_| {
        if let Err(errno) = zfs.destroy_pool(name) {
            tracing::error!(pool = name, %errno, "cannot remove a pool whose creation failed");
        }
    })?;
    Ok(locks)
}

/// Erases former owners' signatures from the disks, durably, before libzpool writes the first
/// label. Conditions that otherwise only libzpool would check are checked first: a refusal changes
/// nothing.
pub(super) fn wipe(wiped: &[DiskWipe], what: &str) -> Result<(), Refusal> {
    let failed = |path: &Path, error: &std::io::Error| {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        Refusal::new(what, format_args!("cannot wipe '{}': {error}", path.display()), errno)
    };
    let mut files = Vec::new();
    for DiskWipe { path, ranges } in wiped {
        let open = || {
            let mut file = File::options().read(true).write(true).open(path)?;
            let size = file.seek(SeekFrom::End(0))?;
            std::io::Result::Ok((file, size))
        };
        let (file, size_bytes) = open().map_err(|error| failed(path, &error))?;
        if size_bytes < MIN_DISK_BYTES {
            return Err(refused(what, Errno::OVERFLOW));
        }
        files.push((file, path, ranges));
    }
    for (file, path, ranges) in files {
        let zero = |range: &Range<u64>| {
            let len = range.end.saturating_sub(range.start);
            let zeroes = vec![0; usize::try_from(len).map_err(std::io::Error::other)?];
            file.write_all_at(&zeroes, range.start)
        };
        let done = ranges.iter().try_for_each(zero).and_then(|()| file.sync_all());
        done.map_err(|error| failed(path, &error))?;
    }
    Ok(())
}

pub(super) fn refused(what: &str, errno: Errno) -> Refusal {
    let new = |why: &str| Refusal::new(what, why, errno);
    match errno {
        Errno::BUSY => new("one or more vdevs refer to the same device"),
        Errno::OVERFLOW => new("one or more devices is less than the minimum size (64M)"),
        Errno::NOSPC => new("one or more devices is out of space"),
        Errno::RANGE => new("record size invalid"),
        errno => Refusal::of_pool(what, errno),
    }
}

fn map_of<const N: usize>(pairs: [(&str, NvValue); N]) -> NvMap {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn text(value: &str) -> NvValue {
    NvValue::String(value.to_owned())
}

/// The tree of vdevs for libzpool. `known` is the form of the vdevs that the pool has.
pub(super) fn root_vdev(
    vdevs: &[NewVdev],
    ashift: Option<u64>,
    mut known: Option<(VdevKind, usize)>,
    force: bool,
    what: &str,
) -> Result<NvMap, Refusal> {
    let refused = |why: String| Refusal::new(what, why, Errno::INVAL);
    let mut children = Vec::new();
    for vdev in vdevs {
        let shape = (vdev.kind, vdev.paths.len());
        check_vdev(vdev).map_err(|why| refused(format!("invalid vdev specification: {why}")))?;
        match (vdev.class, known) {
            (VdevClass::Log, _) => {}
            (VdevClass::Normal, Some(first)) if first != shape && !force => {
                return Err(refused(
                    "invalid vdev specification: mismatched replication level".into(),
                )
                .with_hint("give all top-level vdevs the same form, or use -f"));
            }
            (VdevClass::Normal, _) => known = Some(shape),
        }
        children.push(top_level_vdev(vdev, ashift));
    }
    Ok(map_of([("type", text("root")), ("children", NvValue::Lists(children))]))
}

fn check_vdev(vdev: &NewVdev) -> Result<(), String> {
    let paths = vdev.paths.len();
    if let Some(relative) = vdev.paths.iter().find(|path| !path.is_absolute()) {
        return Err(format!("'{}' must be an absolute path", relative.display()));
    }
    if let Some(unclear) = vdev.paths.iter().find(|path| path.to_str().is_none()) {
        return Err(format!("'{}' is not UTF-8", unclear.display()));
    }
    match vdev.kind {
        VdevKind::Single if paths != 1 => Err("one device is one vdev".into()),
        VdevKind::Mirror if paths < 2 => Err("mirror requires at least 2 devices".into()),
        VdevKind::Raidz(parity) if !(1..=3).contains(&parity) => {
            Err(format!("raidz{parity}: the parity must be 1 to 3"))
        }
        VdevKind::Raidz(parity) if paths < usize::from(parity) + 1 => {
            Err(format!("raidz{parity} requires at least {} devices", usize::from(parity) + 1))
        }
        VdevKind::Raidz(_) if paths > 255 => Err("raidz supports no more than 255 devices".into()),
        VdevKind::Raidz(_) if vdev.class == VdevClass::Log => {
            Err("unsupported 'log' device: raidz".into())
        }
        VdevKind::Single | VdevKind::Mirror | VdevKind::Raidz(_) => Ok(()),
    }
}

fn top_level_vdev(vdev: &NewVdev, ashift: Option<u64>) -> NvMap {
    let leaves = || {
        let leaves = vdev.paths.iter().map(|path| leaf(path, ashift)).collect();
        ("children", NvValue::Lists(leaves))
    };
    let mut map = match vdev.kind {
        VdevKind::Single => leaf(&vdev.paths[0], ashift),
        VdevKind::Mirror => map_of([("type", text("mirror")), leaves()]),
        VdevKind::Raidz(parity) => map_of([
            ("type", text("raidz")),
            ("nparity", NvValue::Uint64(u64::from(parity))),
            leaves(),
        ]),
    };
    let is_log = vdev.class == VdevClass::Log;
    map.insert("is_log".to_owned(), NvValue::Uint64(u64::from(is_log)));
    if is_log {
        map.insert("alloc_bias".to_owned(), text("log"));
    }
    map
}

/// A file or device. Both have the type `disk`: the kernel refuses to open a block device for a
/// vdev of type `file`, while libzpool opens both as files, and `zpool import` determines the type
/// again from what it finds.
fn leaf(path: &Path, ashift: Option<u64>) -> NvMap {
    let mut map = map_of([
        ("type", text("disk")),
        ("path", text(&path.to_string_lossy())),
        ("whole_disk", NvValue::Uint64(0)),
    ]);
    if let Some(ashift) = ashift.or_else(|| device::ashift(path)) {
        map.insert("ashift".to_owned(), NvValue::Uint64(ashift));
    }
    map
}

/// Refuses disks whose labels belong to a pool that was not destroyed.
pub(super) fn refuse_used_disks(vdevs: &[NewVdev], what: &str) -> Result<(), Refusal> {
    for path in vdevs.iter().flat_map(|vdev| &vdev.paths) {
        let labels = read_labels(path).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Refusal::new(what, format_args!("cannot open '{}': {error}", path.display()), errno)
        })?;
        let Some(label) = labels.label() else { continue };
        let state = match label.state {
            PoolState::Destroyed => continue,
            // It was detached, or never completely added.
            _ if label.member.is_some() && label.txg() == 0 => continue,
            PoolState::Active => "potentially active",
            state @ (PoolState::Exported | PoolState::Spare | PoolState::L2Cache) => {
                &state.to_string()
            }
        };
        let of = match &label.member {
            Some(member) => format!("is part of {state} pool '{}'", member.pool_name),
            None => format!("is kept as {state} of a pool"),
        };
        let why = format!("invalid vdev specification: {} {of}", path.display());
        return Err(Refusal::new(what, why, Errno::BUSY)
            .with_hint("use another disk, or use -f to destroy the other pool"));
    }
    Ok(())
}

fn read_labels(path: &Path) -> std::io::Result<DeviceLabels> {
    let mut file = File::open(path)?;
    // For a device, this is its size, too.
    let device_bytes = file.seek(SeekFrom::End(0))?;
    let mut labels: Vec<(u64, Box<[u8; LABEL_BYTES]>)> = Vec::new();
    for offset in (0..LABELS).filter_map(|index| label_offset(device_bytes, index)) {
        let mut bytes = Box::new([0; LABEL_BYTES]);
        file.read_exact_at(bytes.as_mut_slice(), offset)?;
        labels.push((offset, bytes));
    }
    Ok(DeviceLabels::parse(device_bytes, |wanted| {
        labels.iter().find(|(offset, _)| *offset == wanted).map(|(_, bytes)| &**bytes)
    }))
}
