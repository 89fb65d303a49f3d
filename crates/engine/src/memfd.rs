//! Memory that this process shares with another one.
//!
//! It is a memfd that cannot change its size, so that no access gets SIGBUS. [`Memfd`] is for memory that both sides write: this
//! process reaches it by segments, whose bytes are atomic ([`ForeignMemory`]).

use std::ffi::{CStr, c_void};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use ashlar_block::buffer::ForeignMemory;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

/// See the module text.
pub struct Memfd {
    /// The memory, mapped until it and its last segment are dropped.
    pub memory: ForeignMemory,
    /// The file, for the other process to map.
    pub file: OwnedFd,
    /// Its address in this process.
    pub address: u64,
}

impl Memfd {
    /// New memory of `len` bytes; pages are allocated at their first use.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2), mmap(2). EFBIG: the file size limit of the process is too low.
    pub fn new(name: &CStr, len: usize) -> Result<Self, Errno> {
        let (file, start) = map_new(name, len)?;
        let mapping = Arc::new(Mapping { start: start.cast(), len });
        // Otherwise a core dump would contain it. SAFETY: the advice concerns that mapping, and does not change its contents.
        unsafe { rustix::mm::madvise(start.as_ptr(), len, Advice::LinuxDontDump) }?;
        // SAFETY: mapped until `mapping` is dropped, from a file that cannot be shortened; nothing else here refers to it.
        let memory = unsafe { ForeignMemory::new(start.cast(), len, mapping) };
        Ok(Self { memory, file, address: start.as_ptr() as u64 })
    }
}

/// Makes a memfd of `len` bytes that keeps its size, and maps it for reading and writing.
///
/// # Errors
/// As [`Memfd::new`].
pub(crate) fn map_new(name: &CStr, len: usize) -> Result<(OwnedFd, NonNull<c_void>), Errno> {
    // Beyond the limit the process would get SIGXFSZ (setrlimit(2)).
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < len as u64) {
        return Err(Errno::FBIG);
    }
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    // The seals keep the mapping inside the file: no access beyond its end gets SIGBUS.
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let start =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, file.as_fd(), 0) }?;
    Ok((file, NonNull::new(start).ok_or(Errno::NOMEM)?))
}

struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the address of memory that lives as long as this value.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no segment is left.
        if let Err(errno) = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) } {
            tracing::error!(%errno, "unmapping shared memory");
        }
    }
}
