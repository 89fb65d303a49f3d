//! Memory for large buffers in huge pages.
//!
//! A copy of 128 KiB in pages of 4 KiB needs 32 entries of the processor's TLB, and direct I/O on it 32 descriptors; in one
//! huge page each is one. The distributions' default leaves such pages to those that ask for them ("madvise" in
//! /sys/kernel/mm/transparent_hugepage/enabled), which the allocator does not.
//!
//! An arena is memory of 2 MiB or more, aligned to 2 MiB, cut into blocks of one size. It is unmapped as a whole: to return
//! parts of it would split its huge pages. One is mapped when no block of a size is left, so the price is at most an
//! arena for each size that is used, and what the kernel needs to clear 2 MiB at the first touch. Each thread keeps free
//! blocks in lists of its own ([`ashlar_block::buffer`]): the lock here is for what those lists do not have.

use std::collections::{BTreeSet, HashMap};
use std::ptr::NonNull;
use std::sync::Mutex;

use ashlar_block::buffer::{self, BLOCK_SIZES};
use ashlar_block::sync::lock;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::memory;

/// A huge page of x86-64, and of aarch64 with pages of 4 KiB.
const HUGE_BYTES: usize = 2 << 20;
/// Blocks from this size on: smaller ones gain little, and are many.
const SMALLEST_BYTES: usize = 64 << 10;
/// Idle arenas of this size in total stay mapped.
const KEEP_BYTES: usize = 16 << 20;
/// With less memory than this, rounding up to huge pages could take what others need.
const LEAST_AVAILABLE_BYTES: u64 = 1 << 30;

/// See the module text.
#[derive(Debug, Default)]
pub struct Arenas {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By their addresses.
    arenas: HashMap<usize, Arena>,
    /// Arenas with free blocks, by block size and address: the lowest first, so that the others empty.
    open: BTreeSet<(usize, usize)>,
    /// Total size of arenas without a used block.
    idle_bytes: usize,
}

#[derive(Debug)]
struct Arena {
    start: NonNull<u8>,
    block_bytes: usize,
    /// Free blocks, by their numbers; the most recent at the end.
    free: Vec<u16>,
}

// SAFETY: the pointer is to a mapping that belongs to this value; each block has one owner.
unsafe impl Send for Arena {}

impl Arena {
    const fn bytes_for(block_bytes: usize) -> usize {
        if block_bytes > HUGE_BYTES { block_bytes } else { HUGE_BYTES }
    }

    fn bytes(&self) -> usize {
        Self::bytes_for(self.block_bytes)
    }

    fn blocks(&self) -> usize {
        self.bytes() / self.block_bytes
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.blocks()
    }

    fn map(block_bytes: usize) -> Result<Self, Errno> {
        let bytes = Self::bytes_for(block_bytes);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let mapped =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes + HUGE_BYTES, protection, flags) }?;
        let before = mapped.addr().next_multiple_of(HUGE_BYTES) - mapped.addr();
        // SAFETY: `before` is below HUGE_BYTES, so that `bytes` follow it in the mapping. What lies before and behind them is
        // unmapped, and nothing refers to it. The advice does not change the contents.
        let start = unsafe {
            let start = mapped.byte_add(before);
            if before > 0 {
                munmap(mapped, before)?;
            }
            if before < HUGE_BYTES {
                munmap(start.byte_add(bytes), HUGE_BYTES - before)?;
            }
            // A kernel without huge pages has pages of another size for it.
            let (Ok(()) | Err(_)) = madvise(start, bytes, Advice::LinuxHugepage);
            start
        };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        let free = (0..(bytes / block_bytes) as u16).rev().collect();
        Ok(Self { start, block_bytes, free })
    }

    fn unmap(self) {
        // SAFETY: the mapping is this arena's, all blocks of which are free.
        if let Err(errno) = unsafe { munmap(self.start.as_ptr().cast(), self.bytes()) } {
            tracing::warn!(%errno, "cannot return the memory of buffers to the kernel");
        }
    }
}

impl Arenas {
    /// Takes the memory of large buffers of this process from now on, if enough is available. A further call changes nothing.
    pub fn serve_buffers() {
        if memory::available_bytes().is_some_and(|bytes| bytes < LEAST_AVAILABLE_BYTES) {
            tracing::debug!(
                "large buffers are in small pages: less than 1 GiB of memory is available"
            );
            return;
        }
        // Leaked, because buffers may outlive everything.
        let arenas: &'static Self = Box::leak(Box::default());
        let (Ok(()) | Err(_)) = buffer::set_large_source(SMALLEST_BYTES, arenas);
    }

    /// A block of `len` bytes; `None` if no blocks have that size here, or out of memory.
    fn take(&self, len: usize) -> Option<NonNull<u8>> {
        if len < SMALLEST_BYTES || !BLOCK_SIZES.contains(&len) {
            return None;
        }
        let state = &mut *lock(&self.state);
        let open = state.open.range((len, 0)..=(len, usize::MAX)).next().copied();
        let at = match open {
            Some((_, at)) => at,
            None => {
                let arena = Arena::map(len).ok()?;
                let at = arena.start.addr().get();
                state.idle_bytes += arena.bytes();
                state.arenas.insert(at, arena);
                state.open.insert((len, at));
                at
            }
        };
        let arena = state.arenas.get_mut(&at)?;
        if arena.is_idle() {
            state.idle_bytes -= arena.bytes();
        }
        let number = arena.free.pop()?;
        if arena.free.is_empty() {
            state.open.remove(&(len, at));
        }
        // SAFETY: within the arena, as its numbers are.
        Some(unsafe { arena.start.add(usize::from(number) * len) })
    }

    /// Takes a block back. An arena without used blocks is unmapped, unless few are idle.
    ///
    /// # Safety
    /// As [`buffer::Source::give`].
    unsafe fn give(&self, block: NonNull<u8>) {
        let state = &mut *lock(&self.state);
        // Arenas begin at multiples of a huge page, and only those of one block are longer.
        let at = block.addr().get() & !(HUGE_BYTES - 1);
        let Some(arena) = state.arenas.get_mut(&at) else {
            debug_assert!(false, "a block of no arena");
            return;
        };
        let number = (block.addr().get() - at) / arena.block_bytes;
        arena.free.push(number as u16);
        let (key, bytes, is_idle) = ((arena.block_bytes, at), arena.bytes(), arena.is_idle());
        state.open.insert(key);
        if !is_idle {
            return;
        }
        if state.idle_bytes + bytes <= KEEP_BYTES {
            state.idle_bytes += bytes;
            return;
        }
        state.open.remove(&key);
        if let Some(arena) = state.arenas.remove(&at) {
            arena.unmap();
        }
    }
}

// SAFETY: blocks of an arena are apart, as long as asked for, aligned to 64 KiB, and initialised: by the kernel, with zeroes, or
// by an earlier owner. A block is in no list while it is taken.
unsafe impl buffer::Source for Arenas {
    fn take(&self, len: usize) -> Option<NonNull<u8>> {
        self.take(len)
    }

    unsafe fn give(&self, block: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { self.give(block) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(block: NonNull<u8>, len: usize, byte: u8) {
        // SAFETY: a block of that length, which this test owns.
        unsafe { block.write_bytes(byte, len) };
    }

    fn holds(block: NonNull<u8>, len: usize, byte: u8) -> bool {
        // SAFETY: as in fill(); nothing is written meanwhile.
        unsafe { std::slice::from_raw_parts(block.as_ptr(), len) }
            .iter()
            .all(|found| *found == byte)
    }

    #[test]
    fn blocks_are_apart_and_aligned() {
        let arenas = Arenas::default();
        let sizes = [64 << 10, 128 << 10, 1 << 20, 2 << 20, 8 << 20];
        let mut taken: Vec<(NonNull<u8>, usize)> = Vec::new();
        for size in sizes {
            for _ in 0..(5_usize << 20).div_ceil(size) + 1 {
                let block = arenas.take(size).unwrap();
                assert!(block.addr().get().is_multiple_of(size.min(HUGE_BYTES)));
                fill(block, size, taken.len() as u8);
                taken.push((block, size));
            }
        }
        for size in [4096, 32 << 10, 96 << 10, 16 << 20] {
            assert_eq!(arenas.take(size), None, "{size}");
        }
        for ((block, size), byte) in taken.iter().zip(0..) {
            assert!(holds(*block, *size, byte));
        }
        taken.sort();
        let end = |(block, size): &(NonNull<u8>, usize)| block.addr().get() + size;
        assert!(taken.windows(2).all(|pair| end(&pair[0]) <= pair[1].0.addr().get()));
        for (block, _) in taken {
            // SAFETY: taken above, and not used from here on.
            unsafe { arenas.give(block) };
        }
    }

    #[test]
    fn idle_arenas_are_unmapped_beyond_what_is_kept() {
        let arenas = Arenas::default();
        let give = |block| {
            // SAFETY: each was taken, is given once, and is not used from here on.
            unsafe { arenas.give(block) };
        };
        let blocks: Vec<_> = (0..64).map(|_| arenas.take(1 << 20).unwrap()).collect();
        let mapped = || {
            let state = lock(&arenas.state);
            (state.arenas.len(), state.idle_bytes)
        };
        assert_eq!(mapped(), (32, 0));
        // An arena with one used block stays as it is.
        blocks.iter().step_by(2).for_each(|block| give(*block));
        assert_eq!(mapped(), (32, 0));
        blocks.iter().skip(1).step_by(2).for_each(|block| give(*block));
        let kept = KEEP_BYTES / HUGE_BYTES;
        assert_eq!(mapped(), (kept, KEEP_BYTES));
        let again: Vec<_> = (0..2 * kept).map(|_| arenas.take(1 << 20).unwrap()).collect();
        assert_eq!(mapped(), (kept, 0));
        again.into_iter().for_each(give);
    }

    /// Blocks go back to an arena that is in use, so that the others become idle.
    #[test]
    fn few_blocks_end_up_in_few_arenas() {
        let arenas = Arenas::default();
        let blocks: Vec<_> = (0..320).map(|_| arenas.take(64 << 10).unwrap()).collect();
        assert_eq!(lock(&arenas.state).arenas.len(), 10);
        // SAFETY: each was taken, is given once, and is not used from here on.
        blocks.iter().for_each(|block| unsafe { arenas.give(*block) });
        let few: Vec<_> = (0..32).map(|_| arenas.take(64 << 10).unwrap()).collect();
        let used = |state: &State| state.arenas.values().filter(|arena| !arena.is_idle()).count();
        assert_eq!(used(&lock(&arenas.state)), 1);
        // SAFETY: as above.
        few.iter().for_each(|block| unsafe { arenas.give(*block) });
    }
}
