//! Memory of the daemon that is also mapped here: data of requests is copied without a system call.
//!
//! The daemon's buffers are mapped read-only: libzpool may have bugs, and a stray pointer must not reach the daemon's data of
//! other pools. A [`Window`] is memory for the data of one channel only, and is also written.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// See the module text. The daemon's buffers stay mapped until the process exits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedMemory {
    /// Its address in the daemon.
    theirs: u64,
    len_bytes: u64,
    /// Its address here.
    ours: NonNull<u8>,
    is_writable: bool,
}

// SAFETY: it stays mapped as long as it is used, and only requests write to it, each to memory of its own.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps a file that the daemon has mapped at address `theirs`, for reading.
    ///
    /// # Errors
    /// Those of mmap(2). EINVAL: the address range is invalid, or the file is shorter.
    pub fn map(file: impl AsFd, theirs: u64, len_bytes: u64) -> Result<Self, Errno> {
        Self::map_with(file, theirs, len_bytes, false)
    }

    fn map_with(
        file: impl AsFd,
        theirs: u64,
        len_bytes: u64,
        is_writable: bool,
    ) -> Result<Self, Errno> {
        let len = usize::try_from(len_bytes).map_err(|_| Errno::INVAL)?;
        let size_bytes = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        if theirs.checked_add(len_bytes).is_none() || len_bytes > size_bytes {
            return Err(Errno::INVAL);
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let writing = if is_writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let access = ProtFlags::READ | writing;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let ours = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, file, 0) }?;
        let ours = NonNull::new(ours.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { theirs, len_bytes, ours, is_writable })
    }

    /// Whether data may be written to it.
    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The address here of a range of the daemon's memory, if it is shared.
    pub(super) fn find(&self, theirs: u64, len_bytes: u64) -> Option<*mut u8> {
        let offset = theirs.checked_sub(self.theirs)?;
        if offset.checked_add(len_bytes)? > self.len_bytes {
            return None;
        }
        // SAFETY: within the mapping.
        Some(unsafe { self.ours.as_ptr().add(offset as usize) })
    }
}

/// The memory for the data of one channel, unmapped when dropped.
#[derive(Debug)]
pub struct Window(SharedMemory);

impl Window {
    /// Maps a file that the daemon has mapped at address `theirs`, for reading and writing.
    ///
    /// # Errors
    /// As [`SharedMemory::map`]. EPERM: the file could become shorter while it is mapped.
    pub fn map(file: impl AsFd, theirs: u64, len_bytes: u64) -> Result<Self, Errno> {
        // An access beyond the end of a shortened file would end this process (SIGBUS).
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(Errno::PERM);
        }
        SharedMemory::map_with(file, theirs, len_bytes, true).map(Self)
    }

    /// The memory, for requests that end before this value is dropped.
    pub fn memory(&self) -> SharedMemory {
        self.0
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `map`; its requests have ended.
        let unmapped =
            unsafe { rustix::mm::munmap(self.0.ours.as_ptr().cast(), self.0.len_bytes as usize) };
        if let Err(errno) = unmapped {
            tracing::error!(%errno, "unmapping a window");
        }
    }
}
