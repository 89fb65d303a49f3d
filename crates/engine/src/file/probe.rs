//! What a file or device can do: alignment of direct I/O, limits, features.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

use ashlar_block::buffer::Buffer;
use ashlar_block::limits::{Features, Limits};
use ashlar_block::units::Sectors;
use rustix::fs::{FallocateFlags, Stat, fallocate, major, minor};

use super::ioctl;
use super::sysfs::BlockDir;

/// The most pieces of memory in one call (`UIO_MAXIOV`).
const MAX_SEGMENTS: u32 = 1024;
/// The most sectors in one read or write: 32 MiB, far below the limit of a call (2 GiB less a page).
const MAX_SECTORS: Sectors = Sectors(65_536);
/// The most sectors in one discard, where nothing else limits it: the limit of NVMe.
const MAX_DISCARD: Sectors = Sectors(u32::MAX as u64);

/// The alignment O_DIRECT requires, bytes, powers of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DirectAlign {
    /// Of memory addresses, and of the lengths of pieces.
    pub(super) memory: u32,
    /// Of offsets and lengths.
    pub(super) offset: u32,
}

/// The kernel's alignment for direct I/O on a file opened with O_DIRECT. `None`: it does no direct I/O.
pub(super) fn direct_align(fd: BorrowedFd<'_>) -> Option<DirectAlign> {
    match statx_align(fd) {
        Some(DirectAlign { memory: 0, .. } | DirectAlign { offset: 0, .. }) => None,
        Some(align) => Some(align),
        None => try_align(fd),
    }
}

/// STATX_DIOALIGN (6.1). `None` when the kernel or the file system does not answer.
fn statx_align(fd: BorrowedFd<'_>) -> Option<DirectAlign> {
    // SAFETY: a zeroed statx is valid.
    let mut stat: libc::statx = unsafe { mem::zeroed() };
    // SAFETY: the path is an empty C string; `stat` is ours and writable.
    let result = unsafe {
        libc::statx(
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut stat,
        )
    };
    if result < 0 || stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    Some(DirectAlign { memory: stat.stx_dio_mem_align, offset: stat.stx_dio_offset_align })
}

/// Tries sizes: before Linux 6.1 there was no other way.
fn try_align(fd: BorrowedFd<'_>) -> Option<DirectAlign> {
    let mut buffer = Buffer::alloc(4096);
    [512_u32, 4096].into_iter().find_map(|size| {
        let bytes = &mut buffer.as_mut_slice()[..size as usize];
        rustix::io::pread(fd, bytes, 0).ok()?;
        Some(DirectAlign { memory: size, offset: size })
    })
}

/// Limits of a disk image with blocks of `block` bytes.
pub(super) fn image_limits(
    fd: BorrowedFd<'_>,
    stat: &Stat,
    block: u32,
    direct: Option<DirectAlign>,
    writable: bool,
) -> Limits {
    // The unit of allocation, if the file system reports a sensible one.
    let unit = u32::try_from(stat.st_blksize)
        .ok()
        .filter(|unit| unit.is_power_of_two() && (512..=1 << 20).contains(unit))
        .unwrap_or(4096);
    // Direct I/O writes single blocks; the page cache reads the rest of the page first.
    let physical = direct.map_or(4096, |align| align.offset).max(block);
    let holes = writable && punches_holes(fd, stat);
    let if_holes = |limit| if holes { limit } else { Sectors::ZERO };
    let mut features = Features::WRITE_CACHE | Features::FUA | Features::DISCARD_ZEROES;
    features.set(Features::FAST_ZERO, holes);
    Limits {
        logical_block_bytes: block,
        physical_block_bytes: physical,
        io_min_bytes: physical,
        max_hw_sectors: MAX_SECTORS,
        max_segments: MAX_SEGMENTS,
        dma_alignment_bytes: direct.map_or(1, |align| align.memory),
        max_hw_discard: if_holes(MAX_DISCARD),
        discard_granularity_bytes: if holes { unit.max(block) } else { 0 },
        max_write_zeroes: if_holes(MAX_DISCARD),
        features,
        ..Limits::default()
    }
}

/// Whether the file system punches holes: tried beyond the end of the file, where it does not change the contents.
fn punches_holes(fd: BorrowedFd<'_>, stat: &Stat) -> bool {
    let behind = u64::try_from(stat.st_size).unwrap_or(0).next_multiple_of(1 << 20);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(fd, flags, behind, 4096).is_ok()
}

/// Limits of a block device.
///
/// # Errors
/// Those of its ioctls.
pub(super) fn device_limits(
    fd: BorrowedFd<'_>,
    stat: &Stat,
    direct: Option<DirectAlign>,
) -> io::Result<Limits> {
    let [logical, physical, io_min, io_opt] = ioctl::block_sizes(fd)?;
    let logical = if logical.is_power_of_two() { logical.clamp(512, 1 << 16) } else { 512 };
    let mut limits = Limits {
        logical_block_bytes: logical,
        physical_block_bytes: physical.max(logical),
        io_min_bytes: io_min.max(logical),
        io_opt_bytes: io_opt,
        max_hw_sectors: MAX_SECTORS,
        max_segments: MAX_SEGMENTS,
        dma_alignment_bytes: direct.map_or(1, |align| align.memory),
        features: Features::WRITE_CACHE | Features::FUA,
        ..Limits::default()
    };
    let Some(dir) = BlockDir::of(major(stat.st_rdev), minor(stat.st_rdev)) else {
        tracing::warn!("no sysfs: taking the device's limits for the smallest");
        return Ok(limits);
    };
    let u32_of = |value: Option<u64>| value.and_then(|value| u32::try_from(value).ok());
    let sectors_of = |name| Sectors::from_bytes_floor(dir.number(name).unwrap_or(0));
    if let Some(kib) = dir.number("max_hw_sectors_kb").filter(|kib| *kib >= 4) {
        limits.max_hw_sectors = Sectors(kib.saturating_mul(2)).min(MAX_SECTORS);
    }
    if let Some(segments) = u32_of(dir.number("max_segments")).filter(|segments| *segments > 0) {
        limits.max_segments = segments.min(MAX_SEGMENTS);
    }
    if let Some(sectors) = dir.number("chunk_sectors") {
        limits.chunk_sectors = Sectors(sectors);
    }
    // The kernel splits discards to its own limit (discard_max_bytes), which users tune; pass it up, because mkfs and
    // fstrim choose their sizes by it.
    limits.max_hw_discard = sectors_of("discard_max_bytes");
    limits.discard_granularity_bytes = u32_of(dir.number("discard_granularity")).unwrap_or(0);
    limits.discard_alignment_bytes = u32_of(dir.device_number("discard_alignment")).unwrap_or(0);
    if !sectors_of("write_zeroes_max_bytes").is_zero() {
        limits.max_write_zeroes = MAX_DISCARD;
        // A disk that has a command for zeroes may still write them all. The kernel says which disks free the range instead
        // (Linux 6.17), and loop punches holes into its file.
        let frees = !sectors_of("write_zeroes_unmap_max_bytes").is_zero();
        limits.features.set(Features::FAST_ZERO, frees || ioctl::is_loop_on_file(fd));
    }
    if dir.number("rotational") == Some(1) {
        limits.features |= Features::ROTATIONAL;
    }
    // Without the page cache, a device without a write cache has nothing to flush.
    if direct.is_some() && dir.text("write_cache").as_deref() == Some("write through") {
        limits.features -= Features::WRITE_CACHE | Features::FUA;
    }
    Ok(limits)
}
