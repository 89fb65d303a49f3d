//! The ioctls of block devices (`include/uapi/linux/fs.h`, `include/uapi/linux/loop.h`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::checked;

const BLKROGET: libc::c_ulong = 0x125e;
const BLKSSZGET: libc::c_ulong = 0x1268;
const BLKDISCARD: libc::c_ulong = 0x1277;
const BLKIOMIN: libc::c_ulong = 0x1278;
const BLKIOOPT: libc::c_ulong = 0x1279;
const BLKPBSZGET: libc::c_ulong = 0x127b;
/// `_IOR(0x12, 114, size_t)`, on 64-bit machines with the generic encoding.
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;

const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    /// The number of the device that backs it; 0 for a file.
    rdevice: u64,
    rest: [u64; 26],
}

const _: () = assert!(size_of::<LoopInfo>() == 232);

/// The backing file of a loop device, as the number of its file system and its inode (`st_dev` and `st_ino` of
/// stat(2)): this identifies the file even if it was renamed or unlinked.
///
/// # Errors
/// ENXIO: the loop device has no backing file. ENOTTY and the like: not a loop device.
pub fn loop_backing_file(device: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let info = loop_info(device)?;
    Ok((info.device, info.inode))
}

/// Whether it is a loop device on a regular file.
pub(super) fn is_loop_on_file(device: BorrowedFd<'_>) -> bool {
    loop_info(device).is_ok_and(|info| info.rdevice == 0)
}

fn loop_info(device: BorrowedFd<'_>) -> io::Result<LoopInfo> {
    let mut info = LoopInfo { device: 0, inode: 0, rdevice: 0, rest: [0; 26] };
    // SAFETY: LOOP_GET_STATUS64 writes a loop_info64, whose size is asserted above, to memory that we own.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) })?;
    Ok(info)
}

/// An ioctl that writes one `T`, all of whose bit patterns are valid.
fn get<T: Default>(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<T> {
    let mut value = T::default();
    // SAFETY: every request passed here writes a value of the size of `T` (u32 or u64), to memory that we own during
    // the call.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) })?;
    Ok(value)
}

/// Size in bytes.
pub(super) fn size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    get::<u64>(fd, BLKGETSIZE64)
}

/// Whether the kernel refuses writes.
pub(super) fn is_read_only(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(get::<u32>(fd, BLKROGET)? != 0)
}

/// Logical and physical block size, minimum and optimal I/O size; bytes.
pub(super) fn block_sizes(fd: BorrowedFd<'_>) -> io::Result<[u32; 4]> {
    Ok([get(fd, BLKSSZGET)?, get(fd, BLKPBSZGET)?, get(fd, BLKIOMIN)?, get(fd, BLKIOOPT)?])
}

/// Discards a range of bytes; blocks.
pub(super) fn discard(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: BLKDISCARD reads two u64 at the pointer.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), BLKDISCARD, range.as_ptr()) }).map(drop)
}
