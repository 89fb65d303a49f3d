//! Properties of a block device that libzpool does not check.

use std::path::Path;

use rustix::io::Errno;

use crate::ffi::files::look_at;
use crate::protocol::Refusal;

/// SPA_MINBLOCKSHIFT of sys/spa.h.
const MIN_ASHIFT: u64 = 9;
/// zfs_vdev_max_auto_ashift: larger values are only used on request.
const MAX_AUTOMATIC_ASHIFT: u64 = 14;
/// The logical and physical block size of a device; `None` for a file.
fn block_sizes(path: &Path) -> Option<(u32, u32)> {
    let file = look_at(path).ok()?;
    let logical_bytes = rustix::fs::ioctl_blksszget(&file).ok()?;
    let physical_bytes = rustix::fs::ioctl_blkpbszget(&file).ok()?;
    Some((logical_bytes, physical_bytes))
}

/// The `ashift` that the kernel would choose for a device: its physical block size. libzpool treats
/// a device as a file and would use 512 bytes. `None` for a file.
pub(super) fn ashift(path: &Path) -> Option<u64> {
    let (logical_bytes, physical_bytes) = block_sizes(path)?;
    let ashift_of = |bytes: u32| u64::from(bytes.max(1).ilog2());
    let physical_ashift = ashift_of(physical_bytes).min(MAX_AUTOMATIC_ASHIFT);
    Some(physical_ashift.max(ashift_of(logical_bytes)).max(MIN_ASHIFT))
}

/// Refuses a device whose logical blocks are larger than those of its vdev, as the kernel does
/// (`vdev_open()`): libzpool does not check this.
///
/// # Errors
/// Its logical blocks are too large.
pub(super) fn check(path: &Path, ashift: u64, what: &str) -> Result<(), Refusal> {
    match block_sizes(path) {
        Some((logical_bytes, _)) if u64::from(logical_bytes.max(1).ilog2()) > ashift => {
            let why = format!(
                "{} has logical blocks of {logical_bytes} bytes: ashift={ashift} is too small for it",
                path.display()
            );
            Err(Refusal::new(what, why, Errno::DOM).with_hint(
                "use a device with smaller blocks, or copy the pool's volumes to a pool made on this one",
            ))
        }
        Some(_) | None => Ok(()),
    }
}
