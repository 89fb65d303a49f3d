//! Memory of the daemon that is also mapped here: the data of write requests is copied from it
//! without a system call.
//!
//! Read-only: libzpool may have bugs, and a stray pointer must not reach the daemon's data of other pools.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// See the module text. It stays mapped until the process exits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedMemory {
    /// Its address in the daemon.
    theirs: u64,
    len_bytes: u64,
    /// Its address here.
    ours: NonNull<u8>,
}

// SAFETY: it stays mapped as long as the process lives, and is never written here.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps a file that the daemon has mapped at address `theirs`.
    ///
    /// # Errors
    /// Those of mmap(2). EINVAL: the address range is invalid, or the file is shorter.
    pub fn map(file: impl AsFd, theirs: u64, len_bytes: u64) -> Result<Self, Errno> {
        let len = usize::try_from(len_bytes).map_err(|_| Errno::INVAL)?;
        let size_bytes = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        if theirs.checked_add(len_bytes).is_none() || len_bytes > size_bytes {
            return Err(Errno::INVAL);
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let ours = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, file, 0)
        }?;
        let ours = NonNull::new(ours.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { theirs, len_bytes, ours })
    }

    /// The address here of a range of the daemon's memory, if it is shared.
    pub(super) fn find(&self, theirs: u64, len_bytes: u64) -> Option<*const u8> {
        let offset = theirs.checked_sub(self.theirs)?;
        if offset.checked_add(len_bytes)? > self.len_bytes {
            return None;
        }
        // SAFETY: within the mapping.
        Some(unsafe { self.ours.as_ptr().add(offset as usize) })
    }
}
