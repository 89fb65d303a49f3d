//! Memory that a ring has registered: the kernel pins its pages once, and not for each direct I/O.
//!
//! It is for the reads of files with direct I/O, which go to memory of their queue (`ashlar_block::bounce`). A ring gets its
//! memory with the first such read, so a ring without one pins nothing. Where the kernel refuses (the limit of locked
//! memory, or a kernel before Linux 5.13, which would first wait for all operations in flight), and when all blocks are taken,
//! reads go to ordinary memory.
//!
//! The lowest free block is taken, so that few blocks are used again and again, which are in the processor's cache.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use ashlar_block::Segment;
use ashlar_block::buffer::{BUFFER_ALIGN, ForeignMemory};

use crate::ring::Ring;

/// The blocks: their size in bytes and their number.
const CLASSES: [(usize, usize); 4] =
    [(4 << 10, 256), (32 << 10, 32), (128 << 10, 16), (512 << 10, 2)];

/// The bytes of all blocks.
const TOTAL: usize = {
    let (mut sum, mut class) = (0, 0);
    while class < CLASSES.len() {
        sum += CLASSES[class].0 * CLASSES[class].1;
        class += 1;
    }
    sum
};

/// The pages, which the last block frees.
struct Pages(NonNull<u8>);

impl Pages {
    const LAYOUT: Layout = match Layout::from_size_align(TOTAL, BUFFER_ALIGN) {
        Ok(layout) => layout,
        Err(_) => panic!("the sizes are constants"),
    };

    fn new() -> Option<Self> {
        // SAFETY: the layout has a non-zero size.
        NonNull::new(unsafe { alloc_zeroed(Self::LAYOUT) }).map(Self)
    }
}

// SAFETY: plain memory, which only its blocks' segments access.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout, and no block is left.
        unsafe { dealloc(self.0.as_ptr(), Self::LAYOUT) }
    }
}

/// One ring's registered memory.
pub(crate) struct FixedMemory {
    range: Range<usize>,
    classes: [Vec<ForeignMemory>; CLASSES.len()],
}

impl FixedMemory {
    /// The memory's number at the ring.
    pub(crate) const INDEX: u16 = 0;

    /// Allocates the memory and registers it.
    ///
    /// # Errors
    /// Those of io_uring_register(2); `Unsupported` on a kernel that would wait for the ring to be idle.
    pub(crate) fn register(ring: &Ring) -> io::Result<Self> {
        let pages = Arc::new(Pages::new().ok_or(io::ErrorKind::OutOfMemory)?);
        let start = pages.0;
        // SAFETY: the pages live as long as a block, and `self` has all blocks; their addresses are not used for anything else
        // before the ring is closed, because the reactor drops the ring first.
        unsafe { ring.register_memory(start.as_ptr(), TOTAL)? };
        let mut at = 0;
        let classes = CLASSES.map(|(bytes, count)| {
            let block = |number| {
                // SAFETY: within the pages, which the owner keeps; only segments access them.
                unsafe { ForeignMemory::new(start.add(at + number * bytes), bytes, pages.clone()) }
            };
            let blocks = (0..count).map(block).collect();
            at += bytes * count;
            blocks
        });
        let from = start.as_ptr() as usize;
        Ok(Self { range: from..from + TOTAL, classes })
    }

    /// A block of `len` bytes; `None` if no free block is as long.
    pub(crate) fn take(&self, len: usize) -> Option<Segment> {
        let class = CLASSES.iter().position(|(bytes, _)| len <= *bytes)?;
        self.classes[class].iter().find(|block| block.is_unused())?.segment(0..len)
    }

    /// Whether a piece of memory is in here.
    pub(crate) fn contains(&self, start: *mut u8, len: usize) -> bool {
        let start = start as usize;
        self.range.contains(&start) && len <= self.range.end - start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::BackEnd;

    /// `None` where there is no io_uring. (Threads have no such memory.)
    fn memory() -> Option<FixedMemory> {
        match Ring::with(BackEnd::Auto, 8, false).unwrap() {
            Ring::Threads(_) => None,
            ring => Some(FixedMemory::register(&ring).unwrap()),
        }
    }

    #[test]
    fn threads_have_no_registered_memory() {
        let ring = Ring::with(BackEnd::Threads, 8, false).unwrap();
        let error = FixedMemory::register(&ring).err().map(|error| error.kind());
        assert_eq!(error, Some(io::ErrorKind::Unsupported));
    }

    #[test]
    fn blocks_do_not_overlap_and_the_lowest_free_one_is_taken() {
        let Some(memory) = memory() else { return eprintln!("no io_uring") };
        let mut taken = Vec::new();
        for (bytes, count) in CLASSES {
            for _ in 0..count {
                taken.push(memory.take(bytes).expect("a free block"));
            }
            assert!(memory.take(bytes).is_none());
        }
        assert!(taken.iter().all(|block| memory.contains(block.as_ptr(), block.len())));
        let mut ranges: Vec<_> = taken.iter().map(|b| (b.as_ptr() as usize, b.len())).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0));
        let (third, second) = (taken.remove(2).as_ptr(), taken.remove(1).as_ptr());
        assert_eq!(memory.take(512).map(|block| block.as_ptr()), Some(second));
        assert_ne!(second, third);
        assert!(memory.take((512 << 10) + 1).is_none());
    }

    #[test]
    fn a_block_outlives_the_ring_s_memory() {
        let Some(memory) = memory() else { return eprintln!("no io_uring") };
        let (block, other) = (memory.take(4096).unwrap(), vec![0; 1]);
        assert!(!memory.contains(other.as_ptr().cast_mut(), 1));
        drop(memory);
        block.copy_from(b"abc");
        let mut seen = [0; 3];
        block.copy_to(&mut seen);
        assert_eq!(&seen, b"abc");
    }
}
