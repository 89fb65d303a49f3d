//! Memory that another owner keeps, and may change at any time.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{Inner, Owner, Segment};

/// Bytes between the starts of two windows; the longest segment.
const STRIDE: usize = 1 << 31;
/// Bytes of a window: within it a segment's offset and its end fit into 32 bits.
const WINDOW: usize = 2 * STRIDE - 1;

/// Memory of another owner, such as the memory of a guest whose disk this process serves. Only its segments give access,
/// and their bytes are atomic: the other side may read and change them at any time, also while an I/O is in flight. A layer
/// that reads them twice may get two values; the copies of a mirrored write differ if they change meanwhile, as with a
/// kernel's O_DIRECT.
///
/// Threads that each have a `ForeignMemory` for the same memory share no count of references.
pub struct ForeignMemory {
    /// Overlapping parts, each with offsets of 32 bits.
    windows: Box<[Arc<Inner>]>,
    len: usize,
}

impl ForeignMemory {
    /// The `len` bytes at `start`, which `owner` keeps. It is dropped with the last segment or with this value, whichever
    /// is later.
    ///
    /// # Safety
    /// Until `owner` is dropped:
    /// - the memory stays mapped, readable and writable, also if its other side does what it likes (a file behind it
    ///   that could be shortened must be sealed against that);
    /// - this process accesses it only by atomic bytes ([`shared`](super::shared)) and by system calls: it has no other Rust
    ///   reference to it.
    ///
    /// The memory is initialised, as any memory is that another process writes.
    pub unsafe fn new(start: NonNull<u8>, len: usize, owner: Arc<dyn Send + Sync>) -> Self {
        let window = |number: usize| {
            // SAFETY: within the memory, as the number is at most `len / STRIDE`.
            let ptr = unsafe { start.add(number * STRIDE) };
            Arc::new(Inner::new(ptr, Owner::Other(Arc::clone(&owner))))
        };
        Self { windows: (0..=len / STRIDE).map(window).collect(), len }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether no segment of it is alive: what their users did happened before.
    pub fn is_unused(&self) -> bool {
        let unused = self.windows.iter().all(|window| Arc::strong_count(window) == 1);
        // Pairs with the release in the drop of a segment.
        fence(Ordering::Acquire);
        unused
    }

    /// The part `range` (bytes) as a segment for a bio. `None` if it is not within the memory, or longer than 2 GiB: such
    /// ranges come from the other side.
    pub fn segment(&self, range: Range<usize>) -> Option<Segment> {
        let len = range.end.checked_sub(range.start)?;
        if range.end > self.len || len > STRIDE {
            return None;
        }
        let (number, offset) = (range.start / STRIDE, range.start % STRIDE);
        debug_assert!(offset + len <= WINDOW);
        let inner = Arc::clone(&self.windows[number]);
        Some(Segment { inner, offset: offset as u32, len: len as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared;
    use super::*;
    use crate::bio::Bio;
    use crate::units::{Sector, Sectors};
    use std::sync::atomic::{AtomicBool, AtomicU8};

    /// The memory of a guest, which notes its end.
    struct Guest {
        memory: Box<[AtomicU8]>,
        gone: Arc<AtomicBool>,
    }

    impl Drop for Guest {
        fn drop(&mut self) {
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    fn guest(len: usize) -> (Arc<Guest>, ForeignMemory) {
        let memory = (0..len).map(|number| AtomicU8::new(number as u8)).collect();
        let guest = Arc::new(Guest { memory, gone: Arc::default() });
        let start = NonNull::from(&guest.memory[..]).cast();
        // SAFETY: the box lives as long as the guest, and all access is atomic.
        let foreign = unsafe { ForeignMemory::new(start, len, Arc::clone(&guest) as _) };
        (guest, foreign)
    }

    #[test]
    fn segments_of_foreign_memory_fill_and_copy_its_bytes() {
        let (guest, foreign) = guest(2048);
        let mut bio = Bio::write(Sector(8), [foreign.segment(512..2048).unwrap()]);
        assert_eq!(bio.len, Sectors(3));
        bio = bio.slice_to(Sector(9), Sectors(1), Sector(0));
        let mut seen = [0; 3];
        bio.segments[0].copy_to(&mut seen);
        assert_eq!(seen, [0, 1, 2]);
        bio.segments[0].copy_from(b"ab");
        assert_eq!(guest.memory[1025].load(Ordering::Relaxed), b'b');
        guest.memory[1026].store(77, Ordering::Relaxed);
        bio.segments[0].copy_to(&mut seen);
        assert_eq!(seen, [b'a', b'b', 77]);
    }

    #[test]
    fn foreign_memory_is_kept_for_its_last_segment() {
        let (guest, foreign) = guest(16);
        let gone = Arc::clone(&guest.gone);
        drop(foreign.segment(0..1));
        assert!(foreign.is_unused());
        let mut tail = foreign.segment(4..16).unwrap();
        assert!(!foreign.is_unused());
        let front = tail.split_to(4);
        drop((guest, foreign, tail));
        assert!(!gone.load(Ordering::Relaxed));
        let mut bytes = [0; 4];
        front.copy_to(&mut bytes);
        assert_eq!(bytes, [4, 5, 6, 7]);
        drop(front);
        assert!(gone.load(Ordering::Relaxed));
    }

    #[test]
    fn ranges_outside_of_the_foreign_memory_are_refused() {
        let (_guest, foreign) = guest(16);
        assert!(foreign.segment(16..16).is_some_and(|segment| segment.is_empty()));
        for (start, end) in [(0, 17), (17, 17), (5, 4), (usize::MAX, usize::MAX), (0, usize::MAX)] {
            assert!(foreign.segment(Range { start, end }).is_none(), "{start}..{end}");
        }
    }

    /// Miri reports a race where an access is not atomic.
    #[test]
    fn the_other_side_may_change_the_bytes_of_an_io_in_flight() {
        let (guest, foreign) = guest(64);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                shared::store(&[200; 64], &guest.memory);
                shared::zero(&guest.memory[8..24]);
            });
            for start in [0, 13, 40] {
                let segment = foreign.segment(start..start + 20).unwrap();
                threads.spawn(move || {
                    let mut seen = [9; 20];
                    segment.copy_to(&mut seen);
                    assert!(seen.iter().all(|byte| *byte < 64 || *byte == 200));
                    segment.copy_from(&seen);
                });
            }
        });
    }
}
