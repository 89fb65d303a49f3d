//! Memory of the daemon that this process has mapped, too, to read it: what is to be written is copied from there, without a
//! system call.
//!
//! Only to read: libzpool may have faults, and a pointer gone astray must not reach what the daemon holds for other pools.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// See the module text. It stays mapped to the process's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lent {
    /// Where it is in the daemon.
    theirs: u64,
    len_bytes: u64,
    /// Where it is here.
    ours: NonNull<u8>,
}

// SAFETY: it is mapped as long as the process lives, and never written here.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    /// Maps a file that is in the daemon's memory at address `theirs`.
    ///
    /// # Errors
    /// Those of mmap(2). EINVAL: there is no such range of addresses, or the file is not as long.
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

    /// Where a range of the daemon's memory is here, if it is lent.
    pub(super) fn find(&self, theirs: u64, len_bytes: u64) -> Option<*const u8> {
        let offset = theirs.checked_sub(self.theirs)?;
        if offset.checked_add(len_bytes)? > self.len_bytes {
            return None;
        }
        // SAFETY: within the mapping.
        Some(unsafe { self.ours.as_ptr().add(offset as usize) })
    }
}
