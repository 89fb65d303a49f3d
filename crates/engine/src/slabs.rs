//! Slabs: reusable blocks of memory in a few sizes; the block returned last is used first.
//!
//! Each size has its own region of address space, an array of blocks: blocks are never split or joined, and one size
//! cannot fragment another. Pages are allocated at first use. Up to a bound they are kept when blocks are returned,
//! because pages in the processor's caches that need no page fault are worth keeping. Beyond the bound the pages that
//! were unused longest are returned to the kernel, from each size in turn; only the address space stays.
//!
//! The memory is private, or that of a memfd whose pages another process may map read-only ([`Slabs::shared`],
//! memfd_create(2)).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use ashlar_block::buffer;
use ashlar_block::sync::lock;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::memfd;

/// All sizes are multiples of this.
const PAGE_BYTES: usize = 4096;

/// See the module text. The memory is never unmapped: a block may be kept until the process ends.
#[derive(Debug)]
pub struct Slabs {
    base: NonNull<u8>,
    /// Block sizes, in ascending order.
    sizes: Box<[usize]>,
    /// Address space for each size.
    region_bytes: usize,
    regions: Box<[Mutex<Region>]>,
    /// Total size of idle blocks whose pages are kept.
    idle_bytes: AtomicUsize,
    keep_bytes: AtomicUsize,
    /// The size that returns pages next.
    turn: AtomicUsize,
    /// The madvise(2) advice that returns pages; it depends on the kind of mapping.
    giving_back: Advice,
}

// SAFETY: the pointer is to memory that lives as long as the process; each block has one owner.
unsafe impl Send for Slabs {}
// SAFETY: mutable state is behind locks.
unsafe impl Sync for Slabs {}

/// Blocks of one size, by their numbers.
#[derive(Debug, Default)]
struct Region {
    /// Given back, with their pages; the most recent at the end.
    idle: VecDeque<u32>,
    /// Given back, without pages.
    empty: Vec<u32>,
    /// Numbers from here on were never taken.
    fresh: u32,
}

/// The memory of [`Slabs::shared`], for another process to map.
#[derive(Debug)]
pub struct SharedMemory {
    /// Opened read-only: it cannot be mapped writable.
    pub file: OwnedFd,
    /// Its address in this process.
    pub address: u64,
    /// Its length.
    pub len_bytes: u64,
}

impl Slabs {
    /// Blocks of `sizes` (ascending, multiples of 4096 bytes), at most `region_bytes` of each. Up to `keep_bytes` of
    /// the returned memory are kept.
    ///
    /// # Errors
    /// Those of mmap(2): not enough address space.
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

    /// As [`Slabs::private`], in a new memfd.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2), mmap(2); without /proc those of open(2). EFBIG: the file size limit of
    /// the process is too low.
    pub fn shared(
        sizes: &[usize],
        region_bytes: usize,
        keep_bytes: usize,
    ) -> Result<(Self, SharedMemory), Errno> {
        let len = sizes.len() * region_bytes;
        let (file, base) = memfd::map_new(c"ashlar-buffers", len)?;
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let file = rustix::fs::open(again, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let base = base.as_ptr();
        let slabs = Self::new(base, sizes, region_bytes, keep_bytes, Advice::LinuxRemove)?;
        Ok((slabs, SharedMemory { file, address: base as u64, len_bytes: len as u64 }))
    }

    fn new(
        base: *mut std::ffi::c_void,
        sizes: &[usize],
        region_bytes: usize,
        keep_bytes: usize,
        giving_back: Advice,
    ) -> Result<Self, Errno> {
        assert!(sizes.is_sorted() && sizes.iter().all(|size| size.is_multiple_of(PAGE_BYTES)));
        // Otherwise a core dump would contain the whole mapping, used or not. SAFETY: the advice concerns a mapping of
        // that length, and does not change its contents.
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

    /// Changes how much of the returned memory is kept.
    pub fn set_keep_bytes(&self, keep_bytes: usize) {
        self.keep_bytes.store(keep_bytes, Ordering::Relaxed);
        self.give_back();
    }

    fn region(&self, class: usize) -> MutexGuard<'_, Region> {
        lock(&self.regions[class])
    }

    /// The smallest size that fits.
    fn class_of(&self, len: usize) -> Option<usize> {
        let class = self.sizes.partition_point(|size| *size < len);
        (class < self.sizes.len()).then_some(class)
    }

    fn block(&self, class: usize, number: u32) -> NonNull<u8> {
        let offset = class * self.region_bytes + number as usize * self.sizes[class];
        // SAFETY: within the mapping, as the number is below the region's end.
        unsafe { self.base.add(offset) }
    }

    /// A block of at least `len` bytes, aligned to 4096. Its contents are arbitrary. `None`: no size fits, or the
    /// region is full.
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

    /// Whether the memory belongs to one of these blocks.
    pub fn owns(&self, memory: NonNull<u8>) -> bool {
        let offset = (memory.addr().get()).wrapping_sub(self.base.addr().get());
        offset < self.sizes.len() * self.region_bytes
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// `memory` is what [`Slabs::take`] returned, is returned once, and is no longer used.
    pub unsafe fn give(&self, memory: NonNull<u8>) {
        let offset = memory.addr().get() - self.base.addr().get();
        let (class, within) = (offset / self.region_bytes, offset % self.region_bytes);
        let size = self.sizes[class];
        let number = (within / size) as u32;
        // Add before the block is in the list: the thread that takes it out subtracts.
        self.idle_bytes.fetch_add(size, Ordering::Relaxed);
        self.region(class).idle.push_back(number);
        self.give_back();
    }

    /// Returns pages of idle blocks to the kernel while more are idle than are kept.
    fn give_back(&self) {
        while self.idle_bytes.load(Ordering::Relaxed) > self.keep_bytes.load(Ordering::Relaxed) {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let all = 0..self.sizes.len();
            let oldest = all.map(|class| (turn + class) % self.sizes.len()).find_map(|class| {
                // Blocks that do not begin and end at this machine's page boundaries cannot be returned alone.
                let is_whole = self.sizes[class].is_multiple_of(rustix::param::page_size());
                Some((class, is_whole.then(|| self.region(class).idle.pop_front())??))
            });
            // Other threads returned or took all of them meanwhile.
            let Some((class, number)) = oldest else { return };
            let (size, block) = (self.sizes[class], self.block(class, number));
            self.idle_bytes.fetch_sub(size, Ordering::Relaxed);
            // SAFETY: the block is in no list and not in use, so no other thread can get it before it is pushed again.
            let given =
                unsafe { rustix::mm::madvise(block.as_ptr().cast(), size, self.giving_back) };
            if let Err(errno) = given {
                tracing::debug!(%errno, "cannot return memory to the kernel");
            }
            self.region(class).empty.push(number);
        }
    }
}

// SAFETY: blocks are apart, at least as long as asked for, aligned to pages, and initialised: by the kernel, with zeroes, or
// by an earlier owner. A block is in no list while it is taken.
unsafe impl buffer::Source for Slabs {
    fn take(&self, len: usize) -> Option<NonNull<u8>> {
        self.take(len)
    }

    unsafe fn give(&self, memory: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { self.give(memory) }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::SealFlags;

    use super::*;

    const SIZES: [usize; 3] = [4096, 8192, 1 << 20];

    fn fill(block: NonNull<u8>, len: usize, byte: u8) {
        // SAFETY: a block of that length, which this test owns.
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

    /// Most recent first, with its contents; the blocks returned longest ago without.
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

    /// A size does not keep its idle blocks forever because there were many of them.
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
        // For each block beyond the bound one was returned, of either size.
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
