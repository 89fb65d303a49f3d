//! What must be known of a block device before libzpool has it.

use std::fs::File;
use std::path::Path;

use rustix::io::Errno;

use crate::protocol::Refusal;

/// SPA_MINBLOCKSHIFT of sys/spa.h.
const MIN_ASHIFT: u64 = 9;
/// zfs_vdev_max_auto_ashift: more is only taken if it is asked for.
const MAX_AUTOMATIC_ASHIFT: u64 = 14;
/// The sectors that libzpool writes, whatever a device has: it opens devices with O_DIRECT, and splits writes at any of these to
/// simulate torn ones (zfs_file_pwrite of lib/libzpool/kernel.c). A device that refuses one of them ends the process.
const SECTOR_BYTES: u32 = 512;

/// The logical and physical block size of a device; `None` for a file.
fn block_sizes(path: &Path) -> Option<(u32, u32)> {
    let file = File::open(path).ok()?;
    let logical_bytes = rustix::fs::ioctl_blksszget(&file).ok()?;
    let physical_bytes = rustix::fs::ioctl_blkpbszget(&file).ok()?;
    Some((logical_bytes, physical_bytes))
}

/// The `ashift` that the kernel would take for a device: its physical block size. libzpool, to which a device is a file, would take 512
/// bytes. `None` for a file.
pub(super) fn ashift(path: &Path) -> Option<u64> {
    let (logical_bytes, physical_bytes) = block_sizes(path)?;
    let ashift_of = |bytes: u32| u64::from(bytes.max(1).ilog2());
    let physical_ashift = ashift_of(physical_bytes).min(MAX_AUTOMATIC_ASHIFT);
    Some(physical_ashift.max(ashift_of(logical_bytes)).max(MIN_ASHIFT))
}

/// Refuses a device that libzpool cannot write.
///
/// # Errors
/// Its logical blocks are larger than libzpool's sectors.
pub(super) fn check(path: &Path, what: &str) -> Result<(), Refusal> {
    match block_sizes(path) {
        Some((logical_bytes, _)) if logical_bytes > SECTOR_BYTES => {
            let why = format!(
                "{} has logical blocks of {logical_bytes} bytes, and libzpool writes sectors of {SECTOR_BYTES}",
                path.display()
            );
            Err(Refusal::new(what, why, Errno::OPNOTSUPP).with_hint(
                "put a loop device of 512 byte sectors on it (losetup --sector-size 512), or use the kernel's zfs",
            ))
        }
        Some(_) | None => Ok(()),
    }
}
