//! The files of vdevs, for libzpool.
//!
//! libzpool reads and writes its disks with the functions of sys/zfs_file.h, which it defines and
//! calls by name. If the program exports functions of these names, the dynamic linker resolves the
//! library's calls to them (ld.so(8)). This crate's build script exports them for its tests, and
//! the program's build script for the program. The functions here differ in three ways from the
//! library's own, which are made for tests (lib/libzpool/kernel.c):
//!
//! - A vdev may be a part of a file: a partition of an image has no path ([`add_part`]).
//! - A write is one write. The library splits each in two, at any sector of 512 bytes, as a power
//!   failure might: a device with larger sectors refuses this, and the library aborts the process.
//! - I/O that must bypass the page cache (`O_DIRECT`) but is not aligned goes through an aligned buffer.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

/// A part of a file that is a vdev.
struct FilePart {
    file: OwnedFd,
    offset_bytes: u64,
    /// `None`: up to the end of the file.
    size_bytes: Option<u64>,
}

/// Whether files are used by the descriptors of parts, because this process cannot open files.
static ARE_SHARED: AtomicBool = AtomicBool::new(false);

/// Uses each part by its descriptor, whose open file the daemon uses too, and does not open it again.
pub(crate) fn share_descriptions() {
    ARE_SHARED.store(true, Ordering::Relaxed);
}

/// By path in the pool's configuration.
static PARTS: Mutex<BTreeMap<PathBuf, FilePart>> = Mutex::new(BTreeMap::new());

fn parts() -> MutexGuard<'static, BTreeMap<PathBuf, FilePart>> {
    // A panic cannot leave the map inconsistent.
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the path stand for a part of a file, until the process exits.
pub(crate) fn add_part(path: &Path, file: OwnedFd, offset_bytes: u64, size_bytes: Option<u64>) {
    parts().insert(path.to_owned(), FilePart { file, offset_bytes, size_bytes });
}

/// Whether the path stands for a part of a file.
pub(crate) fn is_part(path: &Path) -> bool {
    parts().contains_key(path)
}

/// Opens a disk for inspection; for a part, the file that contains it.
///
/// # Errors
/// Those of open(2).
pub(crate) fn look_at(path: &Path) -> std::io::Result<File> {
    match parts().get(path) {
        Some(part) => Ok(File::from(part.file.try_clone()?)),
        None => File::open(path),
    }
}

/// The library's state of an open file: `zfs_file_t` of sys/zfs_file.h, for functions that are not
/// replaced, followed by our fields.
#[repr(C)]
struct VdevFile {
    f_fd: c_int,
    f_dump_fd: c_int,
    file: OwnedFd,
    /// Start of the vdev in the file.
    offset_bytes: u64,
    /// End of the vdev, if it is not the file's end.
    size_bytes: Option<u64>,
    /// Required alignment of addresses, offsets and lengths.
    align_bytes: usize,
}

/// A piece of I/O: its offset in the file, and the part of its length that is inside the vdev.
struct Extent {
    offset_bytes: u64,
    len: usize,
}

impl VdevFile {
    /// Opens an existing file. Only a cache file would have to be created, and no pool here has one.
    fn open(path: &Path, flags: OFlags) -> Result<Box<Self>, Errno> {
        let (mut offset_bytes, mut size_bytes) = (0, None);
        let file = match parts().get(path) {
            Some(part) => {
                (offset_bytes, size_bytes) = (part.offset_bytes, part.size_bytes);
                if ARE_SHARED.load(Ordering::Relaxed) {
                    part.file.try_clone().map_err(|error| errno_of(&error))?
                } else {
                    // Opened again to get a separate open file description: the other has the lock, and other flags.
                    let path = PathBuf::from(format!("/proc/self/fd/{}", part.file.as_raw_fd()));
                    open_file(&path, flags)?
                }
            }
            None => open_file(path, flags)?,
        };
        let align_bytes = match is_device(&rustix::fs::fstat(&file)?) {
            true => rustix::fs::ioctl_blksszget(&file)?.max(1) as usize,
            false => 1,
        };
        let f_fd = file.as_raw_fd();
        Ok(Box::new(Self { f_fd, f_dump_fd: -1, file, offset_bytes, size_bytes, align_bytes }))
    }

    fn size_bytes(&self) -> Result<u64, Errno> {
        match self.size_bytes {
            Some(size_bytes) => Ok(size_bytes),
            // lseek(2) works for devices, too. The file position is not used elsewhere.
            None => rustix::fs::seek(&self.file, SeekFrom::End(0)),
        }
    }

    fn extent(&self, offset: i64, len: usize) -> Result<Extent, Errno> {
        let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
        let len = match self.size_bytes {
            None => len,
            Some(size) => len.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(len)),
        };
        let offset_bytes = self.offset_bytes.checked_add(offset).ok_or(Errno::INVAL)?;
        Ok(Extent { offset_bytes, len })
    }

    fn is_aligned(&self, bytes: usize) -> bool {
        bytes.is_multiple_of(self.align_bytes)
    }

    /// Reads up to the end of the vdev; returns the number of bytes.
    ///
    /// # Safety
    /// `into` must be good for `len` bytes.
    unsafe fn read(&self, into: *mut u8, offset: i64, len: usize) -> Result<usize, Errno> {
        let Extent { offset_bytes, len } = self.extent(offset, len)?;
        let inside = offset_bytes as usize % self.align_bytes;
        let read = |fd, into, len, at| {
            // SAFETY: as for `transfer`.
            unsafe { libc::pread64(fd, into, len, at) }
        };
        if inside == 0 && self.is_aligned(len) && self.is_aligned(into.addr()) {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.transfer(read, into, offset_bytes, len) };
        }
        let around = (inside + len).next_multiple_of(self.align_bytes);
        let mut buffer = Buffer::new(around, self.align_bytes)?;
        let from = offset_bytes - inside as u64;
        // SAFETY: the buffer has that many bytes.
        let found = unsafe { self.transfer(read, buffer.as_mut_ptr(), from, around) }?;
        let found = found.saturating_sub(inside).min(len);
        // SAFETY: guaranteed by the caller; the buffer has that many bytes after `inside`.
        unsafe { ptr::copy_nonoverlapping(buffer.as_mut_ptr().add(inside), into, found) };
        Ok(found)
    }

    /// Writes up to the end of the vdev; returns the number of bytes.
    ///
    /// # Safety
    /// `from` must be good for `len` bytes.
    unsafe fn write(&self, from: *const u8, offset: i64, len: usize) -> Result<usize, Errno> {
        let Extent { offset_bytes, len } = self.extent(offset, len)?;
        let write = |fd, from: *mut c_void, len, at| {
            // SAFETY: as for `transfer`.
            unsafe { libc::pwrite64(fd, from.cast_const(), len, at) }
        };
        if !self.is_aligned(offset_bytes as usize) || !self.is_aligned(len) {
            // A partial sector would need a read first, which would put the rest of the sector at risk.
            return Err(Errno::INVAL);
        }
        if self.is_aligned(from.addr()) {
            // SAFETY: guaranteed by the caller; the memory is only read.
            return unsafe { self.transfer(write, from.cast_mut(), offset_bytes, len) };
        }
        let mut buffer = Buffer::new(len, self.align_bytes)?;
        // SAFETY: guaranteed by the caller, and the buffer has that many bytes.
        unsafe { ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), len) };
        // SAFETY: the buffer has that many bytes.
        unsafe { self.transfer(write, buffer.as_mut_ptr(), offset_bytes, len) }
    }

    /// Calls `move_some` until all bytes are moved or it moves none.
    ///
    /// # Safety
    /// `memory` must be good for `len` bytes, and `move_some` be pread(2) or pwrite(2).
    unsafe fn transfer(
        &self,
        move_some: impl Fn(c_int, *mut c_void, usize, i64) -> isize,
        memory: *mut u8,
        offset_bytes: u64,
        len: usize,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        while done < len {
            let at = i64::try_from(offset_bytes + done as u64).map_err(|_| Errno::INVAL)?;
            let memory = memory.wrapping_add(done).cast();
            match move_some(self.file.as_raw_fd(), memory, len - done, at) {
                0 => break,
                moved @ 1.. => done += moved.unsigned_abs(),
                _ => match last_errno() {
                    Errno::INTR => {}
                    errno => return Err(errno),
                },
            }
        }
        Ok(done)
    }

    fn free(&self, offset: i64, len: i64) -> Result<(), Errno> {
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let Extent { offset_bytes, len } = self.extent(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, offset_bytes, len as u64)
    }
}

/// Memory with a given alignment.
struct Buffer {
    memory: NonNull<u8>,
    layout: Layout,
}

impl Buffer {
    fn new(len: usize, align_bytes: usize) -> Result<Self, Errno> {
        let layout = Layout::from_size_align(len.max(1), align_bytes).map_err(|_| Errno::INVAL)?;
        // SAFETY: the layout is not empty.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        Ok(Self { memory: NonNull::new(memory).ok_or(Errno::NOMEM)?, layout })
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated there, with that layout.
        unsafe { std::alloc::dealloc(self.memory.as_ptr(), self.layout) };
    }
}

fn is_device(about: &Stat) -> bool {
    FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice
}

/// Opens a file through the page cache, a device directly.
fn open_file(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let is_device = is_device(&rustix::fs::stat(path)?);
    let direct = if is_device { OFlags::DIRECT } else { OFlags::empty() };
    let flags = flags.difference(OFlags::CREATE) | direct | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn last_errno() -> Errno {
    errno_of(&std::io::Error::last_os_error())
}

/// The return value of a function of the library: 0 or an errno.
fn returned(result: Result<(), Errno>) -> c_int {
    result.map_or_else(Errno::raw_os_error, |()| 0)
}

/// Stores how much of `len` was not moved; without `left`, an incomplete transfer is an error.
///
/// # Safety
/// `left` must be null or good for a number.
unsafe fn tell_rest(moved: Result<usize, Errno>, len: usize, left: *mut isize) -> c_int {
    returned(moved.and_then(|moved| match NonNull::new(left) {
        Some(left) => {
            // SAFETY: guaranteed by the caller.
            unsafe { left.write((len - moved).cast_signed()) };
            Ok(())
        }
        None if moved == len => Ok(()),
        None => Err(Errno::IO),
    }))
}

/// sys/zfs_file.h, like the following functions.
///
/// Some releases (2.4.4) have a credential before the last argument, which is always null in user
/// space; the address to write to never is.
///
/// # Safety
/// `path` must be a string; the last argument of the release must be valid for a pointer.
#[unsafe(no_mangle)]
unsafe extern "C" fn zfs_file_open(
    path: *const c_char,
    flags: c_int,
    _mode: c_int,
    opened_or_credential: *mut *mut VdevFile,
    opened: *mut *mut VdevFile,
) -> c_int {
    let opened = if opened_or_credential.is_null() { opened } else { opened_or_credential };
    // SAFETY: guaranteed by the caller.
    let path = unsafe { CStr::from_ptr(path) };
    let flags = OFlags::from_bits_retain(flags.cast_unsigned());
    let file = VdevFile::open(Path::new(OsStr::from_bytes(path.to_bytes())), flags);
    returned(file.map(|file| {
        // SAFETY: guaranteed by the caller.
        unsafe { *opened = Box::into_raw(file) };
    }))
}

/// # Safety
/// `file` must come from [`zfs_file_open`], and not be used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn zfs_file_close(file: *mut VdevFile) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { Box::from_raw(file) });
}

/// # Safety
/// `file` must be open, `into` good for `len` bytes, `left` null or good for a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn zfs_file_pread(
    file: *const VdevFile,
    into: *mut c_void,
    len: usize,
    offset: i64,
    left: *mut isize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { tell_rest((*file).read(into.cast(), offset, len), len, left) }
}

/// Some releases (2.3.6, 2.4.4) have the vdev's `ashift` before the last argument, a number of 8
/// bits. The address to write to is never one of the first 256.
///
/// # Safety
/// `file` must be open, `from` good for `len` bytes, and the release's last argument null or good for a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn zfs_file_pwrite(
    file: *const VdevFile,
    from: *const c_void,
    len: usize,
    offset: i64,
    left_or_ashift: *mut isize,
    left: *mut isize,
) -> c_int {
    let has_ashift = left_or_ashift.addr() < 256;
    let left = if has_ashift { left } else { left_or_ashift };
    // SAFETY: guaranteed by the caller.
    unsafe { tell_rest((*file).write(from.cast(), offset, len), len, left) }
}

/// zfs_file_attr_t.
#[repr(C)]
struct Attributes {
    zfa_size: u64,
    zfa_mode: libc::mode_t,
}

/// # Safety
/// `file` must be open, `attributes` good for these.
#[unsafe(no_mangle)]
unsafe extern "C" fn zfs_file_getattr(file: *const VdevFile, attributes: *mut Attributes) -> c_int {
    // SAFETY: guaranteed by the caller.
    let file = unsafe { &*file };
    let found = file.size_bytes().and_then(|zfa_size| {
        Ok(Attributes { zfa_size, zfa_mode: rustix::fs::fstat(&file.file)?.st_mode })
    });
    returned(found.map(|found| {
        // SAFETY: guaranteed by the caller.
        unsafe { attributes.write(found) };
    }))
}

/// # Safety
/// `file` must be open.
#[unsafe(no_mangle)]
unsafe extern "C" fn zfs_file_fsync(file: *const VdevFile, _flags: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    let file = unsafe { &*file };
    returned(rustix::fs::fdatasync(&file.file))
}

/// Since 2.3.
///
/// # Safety
/// `file` must be open.
#[unsafe(no_mangle)]
unsafe extern "C" fn zfs_file_deallocate(file: *const VdevFile, offset: i64, len: i64) -> c_int {
    // SAFETY: guaranteed by the caller.
    returned(unsafe { &*file }.free(offset, len))
}

/// Up to 2.2, for the same purpose: vdevs use no other mode.
///
/// # Safety
/// `file` must be open.
#[unsafe(no_mangle)]
unsafe extern "C" fn zfs_file_fallocate(
    file: *const VdevFile,
    mode: c_int,
    offset: i64,
    len: i64,
) -> c_int {
    if mode != libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE {
        return Errno::OPNOTSUPP.raw_os_error();
    }
    // SAFETY: guaranteed by the caller.
    returned(unsafe { &*file }.free(offset, len))
}

/// By name. The last two exist in different releases.
pub(super) fn replaced() -> [(&'static CStr, *const ()); 8] {
    [
        (c"zfs_file_open", zfs_file_open as *const ()),
        (c"zfs_file_close", zfs_file_close as *const ()),
        (c"zfs_file_pread", zfs_file_pread as *const ()),
        (c"zfs_file_pwrite", zfs_file_pwrite as *const ()),
        (c"zfs_file_getattr", zfs_file_getattr as *const ()),
        (c"zfs_file_fsync", zfs_file_fsync as *const ()),
        (c"zfs_file_deallocate", zfs_file_deallocate as *const ()),
        (c"zfs_file_fallocate", zfs_file_fallocate as *const ()),
    ]
}
