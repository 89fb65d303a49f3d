//! Slabs: blocks of memory of some sizes, made once and used again, the one that was given back last first.
//!
//! Each size has a piece of address space of its own, which is an array of blocks: so nothing is ever split or put together, and
//! what one size leaves behind is not in the way of another. Pages are there once they are used. Up to a bound they stay when
//! blocks are given back, because what is in the processor's caches and needs no page fault is worth keeping; beyond it the pages of
//! those go back to the kernel that were not used longest, of each size in turn, and only the address space stays.
//!
//! The memory is the process's own, or that of a file in memory whose pages another process may map to read them
//! ([`Slabs::shared`], memfd_create(2)).

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ashlar_block::buffer;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

/// What sizes are multiples of.
const PAGE_BYTES: usize = 4096;

/// See the module text. The memory is never unmapped: who has a block may keep it to the process's end.
#[derive(Debug)]
pub struct Slabs {
    base: NonNull<u8>,
    /// Of a block, in ascending order.
    sizes: Box<[usize]>,
    /// Address space of each size.
    region_bytes: usize,
    regions: Box<[Mutex<Region>]>,
    /// Of blocks that nobody has and whose pages are kept.
    idle_bytes: AtomicUsize,
    keep_bytes: AtomicUsize,
    /// The size that is the next to give pages back.
    turn: AtomicUsize,
    /// How the kernel is told that pages are not needed: it depends on whose they are.
    giving_back: Advice,
}

// SAFETY: the pointer is to memory that lives as long as the process, and of which each block has one owner.
unsafe impl Send for Slabs {}
// SAFETY: what changes is behind locks.
unsafe impl Sync for Slabs {}

/// Blocks of one size, by their numbers.
#[derive(Debug, Default)]
struct Region {
    /// Given back, with their pages; the last one at the end.
    idle: VecDeque<u32>,
    /// Given back, without.
    empty: Vec<u32>,
    /// From here on none was ever taken.
    fresh: u32,
}

/// The memory of [`Slabs::shared`], to be mapped by another process.
#[derive(Debug)]
pub struct Shared {
    /// Opened to be read: it cannot be mapped to be written.
    pub file: OwnedFd,
    /// Where it is mapped here.
    pub address: u64,
    /// How long it is.
    pub len_bytes: u64,
}

impl Slabs {
    /// Blocks of `sizes` (ascending, multiples of 4096 bytes), `region_bytes` of each at most. Of what is given back
    /// `keep_bytes` are kept.
    ///
    /// # Errors
    /// Those of mmap(2): there is not so much address space.
    pub fn private(sizes: &[usize], region_bytes: usize, keep_bytes: usize) -> Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                sizes.len() * region_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }?;
        Self::new(base, sizes, region_bytes, keep_bytes, Advice::LinuxDontNeed)
    }

    /// As [`Slabs::private`], in a file in memory, which is made.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2), mmap(2); without /proc those of open(2). EFBIG: the process may have no file of that size.
    pub fn shared(
        sizes: &[usize],
        region_bytes: usize,
        keep_bytes: usize,
    ) -> Result<(Self, Shared), Errno> {
        let len = sizes.len() * region_bytes;
        // Beyond the limit the process would be killed (setrlimit(2)).
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < len as u64) {
            return Err(Errno::FBIG);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"ashlar-buffers", flags)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        // What is mapped is inside the file: nobody gets SIGBUS for its length.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file.as_fd(),
                0,
            )
        }?;
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let file = rustix::fs::open(again, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let slabs = Self::new(base, sizes, region_bytes, keep_bytes, Advice::LinuxRemove)?;
        Ok((slabs, Shared { file, address: base as u64, len_bytes: len as u64 }))
    }

    fn new(
        base: *mut std::ffi::c_void,
        sizes: &[usize],
        region_bytes: usize,
        keep_bytes: usize,
        giving_back: Advice,
    ) -> Result<Self, Errno> {
        assert!(sizes.is_sorted() && sizes.iter().all(|size| size.is_multiple_of(PAGE_BYTES)));
        // A dump of the process would have all of it, used or not.
        // SAFETY: it is told about a mapping of that length, and its content is as before.
        unsafe { rustix::mm::madvise(base, sizes.len() * region_bytes, Advice::LinuxDontDump) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let regions = sizes.iter().map(|_| Mutex::default()).collect();
        Ok(Self {
            base,
            sizes: sizes.into(),
            region_bytes,
            regions,
            idle_bytes: AtomicUsize::new(0),
            keep_bytes: AtomicUsize::new(keep_bytes),
            turn: AtomicUsize::new(0),
            giving_back,
        })
    }

    /// Changes how much is kept of what is given back.
    pub fn set_keep_bytes(&self, keep_bytes: usize) {
        self.keep_bytes.store(keep_bytes, Ordering::Relaxed);
        self.give_back();
    }

    fn region(&self, class: usize) -> MutexGuard<'_, Region> {
        // Nothing panics in between.
        self.regions[class].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first size that is enough.
    fn class_of(&self, len: usize) -> Option<usize> {
        let class = self.sizes.partition_point(|size| *size < len);
        (class < self.sizes.len()).then_some(class)
    }

    fn block(&self, class: usize, number: u32) -> NonNull<u8> {
        let offset = class * self.region_bytes + number as usize * self.sizes[class];
        // SAFETY: within the mapping, as the number is below the region's end.
        unsafe { self.base.add(offset) }
    }

    /// A block of at least `len` bytes, at a multiple of 4096. What is in it is anything, or zeroes. `None`: there is no such
    /// size, or no room.
    pub fn take(&self, len: usize) -> Option<NonNull<u8>> {
        let class = self.class_of(len)?;
        let size = self.sizes[class];
        let mut region = self.region(class);
        let number = match region.idle.pop_back() {
            Some(number) => {
                self.idle_bytes.fetch_sub(size, Ordering::Relaxed);
                number
            }
            None => match region.empty.pop() {
                Some(number) => number,
                None if (region.fresh as usize + 1) * size <= self.region_bytes => {
                    region.fresh += 1;
                    region.fresh - 1
                }
                None => return None,
            },
        };
        drop(region);
        Some(self.block(class, number))
    }

    /// Whether the memory is of a block of these.
    pub fn owns(&self, memory: NonNull<u8>) -> bool {
        let offset = (memory.addr().get()).wrapping_sub(self.base.addr().get());
        offset < self.sizes.len() * self.region_bytes
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// `memory` is what [`Slabs::take`] gave, once, and nobody uses it any more.
    pub unsafe fn give(&self, memory: NonNull<u8>) {
        let offset = memory.addr().get() - self.base.addr().get();
        let (class, within) = (offset / self.region_bytes, offset % self.region_bytes);
        let size = self.sizes[class];
        let number = (within / size) as u32;
        // Before it is in the list: who takes it out subtracts.
        self.idle_bytes.fetch_add(size, Ordering::Relaxed);
        self.region(class).idle.push_back(number);
        self.give_back();
    }

    /// Gives the kernel pages of idle blocks back, as long as there are more than are kept.
    fn give_back(&self) {
        while self.idle_bytes.load(Ordering::Relaxed) > self.keep_bytes.load(Ordering::Relaxed) {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let all = 0..self.sizes.len();
            let oldest = all.map(|class| (turn + class) % self.sizes.len()).find_map(|class| {
                // Of blocks that begin or end within a page of this machine nothing can be given back alone.
                let is_whole = self.sizes[class].is_multiple_of(rustix::param::page_size());
                Some((class, is_whole.then(|| self.region(class).idle.pop_front())??))
            });
            // Others have given back or taken all of it meanwhile.
            let Some((class, number)) = oldest else { return };
            let (size, block) = (self.sizes[class], self.block(class, number));
            self.idle_bytes.fetch_sub(size, Ordering::Relaxed);
            // SAFETY: nobody uses the block, and nobody gets it before it is in a list again.
            let given =
                unsafe { rustix::mm::madvise(block.as_ptr().cast(), size, self.giving_back) };
            if let Err(errno) = given {
                tracing::debug!(%errno, "memory is not given back");
            }
            self.region(class).empty.push(number);
        }
    }
}

impl buffer::Source for Slabs {
    fn take(&self, len: usize) -> Option<NonNull<u8>> {
        self.take(len)
    }

    unsafe fn give(&self, memory: NonNull<u8>) {
        // SAFETY: the caller's.
        unsafe { self.give(memory) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 3] = [4096, 8192, 1 << 20];

    fn fill(block: NonNull<u8>, len: usize, byte: u8) {
        // SAFETY: a block of that length, which this test has.
        unsafe { block.write_bytes(byte, len) };
    }

    fn bytes<'a>(block: NonNull<u8>, len: usize) -> &'a [u8] {
        // SAFETY: as in fill(); nothing is written meanwhile.
        unsafe { std::slice::from_raw_parts(block.as_ptr(), len) }
    }

    #[test]
    fn blocks_are_apart_aligned_and_end() {
        let slabs = Slabs::private(&SIZES, 2 << 20, 1 << 20).unwrap();
        let mut taken = Vec::new();
        for (len, size, count) in
            [(1, 4096, 512), (4097, 8192, 256), (8193, 1 << 20, 2), (1 << 20, 1 << 20, 0)]
        {
            let before = taken.len();
            while let Some(block) = slabs.take(len) {
                assert!(block.addr().get().is_multiple_of(4096) && slabs.owns(block));
                fill(block, len, taken.len() as u8);
                taken.push((block, size, len));
            }
            assert_eq!(taken.len() - before, count, "{len}");
        }
        assert_eq!(slabs.take((1 << 20) + 1), None);
        for (number, (block, _, len)) in taken.iter().enumerate() {
            assert!(bytes(*block, *len).iter().all(|byte| *byte == number as u8));
        }
        taken.sort();
        assert!(
            taken
                .windows(2)
                .all(|pair| pair[0].0.addr().get() + pair[0].1 <= pair[1].0.addr().get())
        );
    }

    /// The last one first, with what was in it; those that were given back longest ago without.
    #[test]
    fn what_is_given_back_is_used_again() {
        for slabs in [
            Slabs::private(&SIZES, 8 << 20, 2 << 20).unwrap(),
            Slabs::shared(&SIZES, 8 << 20, 2 << 20).unwrap().0,
        ] {
            let blocks: Vec<_> = (0..4).map(|_| slabs.take(1 << 20).unwrap()).collect();
            for block in &blocks {
                fill(*block, 1 << 20, 7);
                // SAFETY: taken once above, and not used from here on.
                unsafe { slabs.give(*block) };
            }
            let again: Vec<_> = (0..4).map(|_| slabs.take(1 << 20).unwrap()).collect();
            assert_eq!(again, [blocks[3], blocks[2], blocks[1], blocks[0]]);
            for (block, byte) in again.iter().zip([7, 7, 0, 0]) {
                assert!(bytes(*block, 1 << 20).iter().all(|found| *found == byte), "{byte}");
            }
        }
    }

    /// Blocks of one size are not kept for ever because there were many of them.
    #[test]
    fn sizes_give_back_in_turn() {
        let slabs = Slabs::private(&SIZES, 8 << 20, 1 << 20).unwrap();
        let use_and_give = |len: usize, count: usize| {
            let blocks: Vec<_> = (0..count).map(|_| slabs.take(len).unwrap()).collect();
            for block in blocks {
                fill(block, len, 7);
                // SAFETY: taken once above, and not used from here on.
                unsafe { slabs.give(block) };
            }
        };
        use_and_give(4096, 512);
        assert_eq!(slabs.idle_bytes.load(Ordering::Relaxed), 1 << 20);
        for _ in 0..20 {
            use_and_give(8192, 64);
        }
        // One was given back for each that came beyond the bound, of either size.
        assert_eq!(slabs.region(1).idle.len(), 64);
        assert_eq!(slabs.idle_bytes.load(Ordering::Relaxed), 1 << 20);
        slabs.set_keep_bytes(0);
        assert_eq!(slabs.idle_bytes.load(Ordering::Relaxed), 0);
        assert!(slabs.regions.iter().all(|region| region.lock().unwrap().idle.is_empty()));
    }

    #[test]
    fn shared_memory_is_read_elsewhere_and_not_written() {
        let (slabs, shared) = Slabs::shared(&SIZES, 8 << 20, 0).unwrap();
        let block = slabs.take(8192).unwrap();
        fill(block, 8192, 9);
        let map = |protection| {
            // SAFETY: a new mapping, at an address that the kernel chooses.
            unsafe {
                let (any, len) = (std::ptr::null_mut(), shared.len_bytes as usize);
                rustix::mm::mmap(any, len, protection, MapFlags::SHARED, &shared.file, 0)
            }
        };
        assert_eq!(map(ProtFlags::READ | ProtFlags::WRITE).unwrap_err(), Errno::ACCESS);
        let theirs = NonNull::new(map(ProtFlags::READ).unwrap().cast::<u8>()).unwrap();
        let offset = block.addr().get() - shared.address as usize;
        // SAFETY: within the mapping of the same length.
        let there = unsafe { theirs.add(offset) };
        assert!(bytes(there, 8192).iter().all(|byte| *byte == 9));
        let seals = rustix::fs::fcntl_get_seals(&shared.file).unwrap();
        assert_eq!(seals, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    }
}
