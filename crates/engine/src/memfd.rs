//! Memory that this process and another one share, and both write.
//!
//! It is a memfd that cannot change its size, so that no access gets SIGBUS. This process reaches it by segments, whose bytes
//! are atomic ([`ForeignMemory`]).

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use ashlar_block::buffer::ForeignMemory;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

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
    /// Those of memfd_create(2), ftruncate(2), mmap(2).
    pub fn new(len: usize) -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"ashlar-window", flags)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, file.as_fd(), 0) }?;
        // Otherwise a core dump would contain it. SAFETY: the advice concerns that mapping, and does not change its contents.
        unsafe { rustix::mm::madvise(start, len, Advice::LinuxDontDump) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Arc::new(Mapping { start, len });
        // SAFETY: mapped until `mapping` is dropped, from a file that cannot be shortened; nothing else here refers to it.
        let memory = unsafe { ForeignMemory::new(start, len, mapping) };
        Ok(Self { memory, file, address: start.as_ptr() as u64 })
    }
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
