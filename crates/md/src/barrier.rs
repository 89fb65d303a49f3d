//! Keeps regular writes and the array's own corrections of the same sectors apart.
//!
//! Two parties. **Regular writes** say [`Barrier::wait`] and hold a [`Pass`] until they end. **A
//! correction** (a sector read from one copy and written over another) says [`Barrier::raise`] and
//! holds a [`Raised`]: while it does, no regular write is in the same bucket, so it cannot put old
//! data over new. Reads take no part: they see the old or the new sector, as without correction.
//!
//! The array's address space is cut into units of 64 MiB that hash into 1,024 buckets; an I/O lies in
//! one unit (the array's limits see to that), a long discard passes every bucket that it touches.
//! Without a correction in its bucket a write does one atomic add when it begins and one when it
//! ends, in a cache line that only writes to that bucket touch.
//!
//! Ordering. A write adds itself to `pending` and then looks at `raised`; a correction adds itself to
//! `raised` and then looks at `pending`. All four accesses are sequentially consistent, so at least
//! one of the two sees the other: either the write steps back and waits, or the correction waits for
//! the write. The write that steps back and the write that ends both notify the correction after
//! their subtraction; the correction registers as a listener before it looks, so that it cannot
//! miss the last one. The same holds for writes waiting for `raised` to become zero.
//!
//! Deadlock. A discard waits in one bucket while it is in others; so it takes them in ascending
//! order, whatever the order of its units, and never waits in a bucket below one that it is in. A
//! correction waits in its only bucket.

use std::iter::Chain;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use ashlar_block::{Sector, Sectors};
use event_listener::{Event, listener};

/// log2 of the sectors of a unit: 64 MiB.
const UNIT_SHIFT: u32 = 17;
/// Sectors of a unit, which no read or write crosses.
pub const UNIT: Sectors = Sectors(1 << UNIT_SHIFT);
/// Buckets that the units hash into: a page of 4-byte counters, as in the kernel's raid1.
const BUCKETS: usize = 1024;

#[derive(Default)]
struct Bucket {
    pending: AtomicU32,
    raised: AtomicU32,
}

/// See the module text.
pub struct Barrier {
    buckets: Box<[Bucket]>,
    changed: Event,
}

/// A regular write's leave to be in its buckets.
pub struct Pass<'a> {
    barrier: &'a Barrier,
    /// The buckets of its units, ascending.
    wanted: Chain<Range<usize>, Range<usize>>,
    /// How many of them it is in.
    count: usize,
}

/// A correction's hold on a bucket.
pub struct Raised<'a> {
    barrier: &'a Barrier,
    bucket: usize,
}

fn bucket_of(unit: u64) -> usize {
    (unit % BUCKETS as u64) as usize
}

/// The buckets of the units `first` to `last`, each once, ascending.
fn buckets_of(first: u64, last: u64) -> Chain<Range<usize>, Range<usize>> {
    let (low, high) = (bucket_of(first), bucket_of(last));
    if last - first >= BUCKETS as u64 {
        (0..BUCKETS).chain(0..0)
    } else if low <= high {
        (low..high + 1).chain(0..0)
    } else {
        (0..high + 1).chain(low..BUCKETS)
    }
}

impl Default for Barrier {
    fn default() -> Self {
        let buckets = std::iter::repeat_with(Bucket::default).take(BUCKETS).collect();
        Self { buckets, changed: Event::new() }
    }
}

impl Barrier {
    /// Lets a regular write of `[sector, sector + len)` begin, once no correction is there.
    pub async fn wait(&self, sector: Sector, len: Sectors) -> Pass<'_> {
        let first = sector.0 >> UNIT_SHIFT;
        let last = (sector.0 + len.0.max(1) - 1) >> UNIT_SHIFT;
        let wanted = buckets_of(first, last);
        let mut pass = Pass { barrier: self, wanted: wanted.clone(), count: 0 };
        for index in wanted {
            self.enter(&self.buckets[index]).await;
            pass.count += 1;
        }
        pass
    }

    async fn enter(&self, bucket: &Bucket) {
        loop {
            bucket.pending.fetch_add(1, SeqCst);
            if bucket.raised.load(SeqCst) == 0 {
                return;
            }
            self.leave(bucket);
            loop {
                listener!(self.changed => changed);
                if bucket.raised.load(SeqCst) == 0 {
                    break;
                }
                changed.await;
            }
        }
    }

    fn leave(&self, bucket: &Bucket) {
        let last = bucket.pending.fetch_sub(1, SeqCst) == 1;
        if last && bucket.raised.load(SeqCst) != 0 {
            self.changed.notify(usize::MAX);
        }
    }

    /// Begins a correction around `sector`, once no regular write is in its bucket.
    ///
    /// Corrections exclude writes, not each other: two of them write what they read from a good
    /// copy, and nothing changes the good copy meanwhile.
    pub async fn raise(&self, sector: Sector) -> Raised<'_> {
        let index = bucket_of(sector.0 >> UNIT_SHIFT);
        let bucket = &self.buckets[index];
        bucket.raised.fetch_add(1, SeqCst);
        let raised = Raised { barrier: self, bucket: index };
        loop {
            listener!(self.changed => changed);
            if bucket.pending.load(SeqCst) == 0 {
                return raised;
            }
            changed.await;
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        for index in self.wanted.clone().take(self.count) {
            self.barrier.leave(&self.barrier.buckets[index]);
        }
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.barrier.buckets[self.bucket].raised.fetch_sub(1, SeqCst);
        self.barrier.changed.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_correction_waits_for_writes_of_its_bucket_only() {
        let barrier = Barrier::default();
        let far = barrier.wait(Sector(UNIT.0), Sectors(8)).now_or_never().unwrap();
        drop(barrier.raise(Sector(0)).now_or_never().expect("no write in this bucket"));
        let near = barrier.wait(Sector(8), Sectors(8)).now_or_never().unwrap();
        let mut raise = Box::pin(barrier.raise(Sector(0)));
        assert!(raise.as_mut().now_or_never().is_none());
        drop(near);
        let raised = raise.now_or_never().expect("the write ended");
        let mut write = Box::pin(barrier.wait(Sector(100), Sectors(8)));
        assert!(write.as_mut().now_or_never().is_none(), "a write passed a raised barrier");
        drop(raised);
        assert!(write.now_or_never().is_some());
        drop(far);
    }

    #[test]
    fn a_write_that_gives_up_leaves_nothing_behind() {
        let barrier = Barrier::default();
        let raised = barrier.raise(Sector(UNIT.0)).now_or_never().unwrap();
        // Passes the first bucket, waits at the second, and is dropped there.
        assert!(barrier.wait(Sector(0), Sectors(UNIT.0 * 3)).now_or_never().is_none());
        drop(raised);
        assert!(barrier.raise(Sector(0)).now_or_never().is_some());
        assert!(barrier.raise(Sector(UNIT.0)).now_or_never().is_some());
    }

    #[test]
    fn a_discard_of_everything_passes_each_bucket_once() {
        let barrier = Barrier::default();
        let all = barrier.wait(Sector(0), Sectors(UNIT.0 * 5000)).now_or_never().unwrap();
        assert!(barrier.raise(Sector(UNIT.0 * 777)).now_or_never().is_none());
        drop(all);
        assert!(barrier.raise(Sector(UNIT.0 * 777)).now_or_never().is_some());
    }

    #[test]
    fn discards_that_wrap_round_the_buckets_do_not_wait_for_one_another() {
        let barrier = Barrier::default();
        let (seven, five) = (UNIT.0 * 7, UNIT.0 * 5);
        let five_raised = barrier.raise(Sector(five)).now_or_never().unwrap();
        // Buckets 7 to 1023 and 0 to 5: waits in 5, and must not be in 7 already.
        let mut wraps = Box::pin(barrier.wait(Sector(seven), Sectors(UNIT.0 * 1023)));
        assert!(wraps.as_mut().now_or_never().is_none());
        let seven_raised = barrier.raise(Sector(seven)).now_or_never();
        drop(seven_raised.expect("a discard that waits holds a bucket above"));
        drop(five_raised);
        assert!(wraps.now_or_never().is_some());
    }

    #[test]
    fn the_buckets_of_any_units_are_theirs_each_once_ascending() {
        let total = BUCKETS as u64;
        for first in [0, 1, 5, total - 1, total, 3 * total - 2] {
            for len in [1, 2, 3, total - 1, total, total + 1, 5 * total] {
                let got: Vec<usize> = buckets_of(first, first + len - 1).collect();
                let want: std::collections::BTreeSet<usize> =
                    (first..first + len).map(bucket_of).collect();
                assert_eq!(got, want.into_iter().collect::<Vec<_>>(), "{first} + {len}");
            }
        }
    }
}
