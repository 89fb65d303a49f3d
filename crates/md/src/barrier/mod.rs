//! Keeps regular I/O apart from the array's own I/O, and all I/O from changes of the array.
//!
//! Three parties, for RAID1 and RAID10 alike.
//!
//! - **Regular I/O** calls [`Barrier::wait_read`] or [`Barrier::wait`] and holds a [`Pass`] until it
//!   ends.
//! - **Sync I/O**, that is resync, recovery, check, repair, and a correction (a sector read from
//!   one copy and written over another), calls [`Barrier::raise`] and holds a [`Raise`]. Meanwhile
//!   no regular write is in its buckets, so it cannot write old data over new.
//! - **A change of the array** that excludes all I/O in flight calls [`Barrier::freeze`] and
//!   holds a [`Freeze`]. Meanwhile there is no sync I/O and no regular I/O.
//!
//! The array's address space is divided into units of 64 MiB that map to 1,024 buckets. I/O
//! enters every bucket that it touches: nearly always one. A unit's bucket is its number modulo 1,024, so neighbours have neighbouring
//! buckets, and the buckets of a range are a range.
//!
//! # Why reads and sync I/O do not wait for each other
//!
//! A read goes to a copy that the array considers good, and sync I/O writes the contents of such a copy
//! only to others. So a read sees the same data before, during and after; where copies differ because
//! the array was never synced, it sees one or the other, as without sync I/O. Therefore reads are
//! counted only for a freeze. In the kernel, sync I/O also waits for the reads of its bucket,
//! and an unbroken sequence of overlapping reads prevents its start forever.
//!
//! # No party is overlooked
//!
//! A bucket has a word for reads (their number; frozen) and a word for writes (their number; the
//! number of raises; frozen). Entering is one atomic addition, and its result says whether
//! the bucket was free. Raising and freezing are additions to the same word. All threads agree on
//! the order of changes to one word, on every machine. So of two parties that exclude each other,
//! whichever arrives second sees the other in its `fetch_add` result, and steps back
//! (regular I/O) or waits (the others). From then on no I/O enters, so a count that was zero once
//! contains only I/O that is about to step back.
//!
//! In the kernel, each party changes its own word and then reads the other's. That is correct
//! only with a full fence between the two steps, on both sides; `freeze_array` seems to lack
//! it, so it could see no reader while a reader sees no freeze. With one word
//! no fence is needed. The remaining ordering requirement is that the work of one party under the
//! barrier happens before the work of the next: all changes acquire and release. `model.rs`
//! checks this, and that it would find the kernel's gap.
//!
//! # No wake-up is lost
//!
//! A waiter takes the bucket's lock, reads the word, and adds a waker to the list, all under the
//! lock. A party that leaves changes the word first, and if the new value says
//! that there may be waiters, takes the lock and wakes the list. If the waiter read the word before the
//! change, its waker is in the list by then; if after, it saw the change. Woken tasks check again, and
//! nothing is handed to them, so a dropped future only removes itself from the
//! list.
//!
//! No party starves. A raise lets the writes pass that wait in the bucket (they wait for an
//! earlier raise), then keeps new ones out and waits for those inside. So a write waits only for the
//! raises present at its arrival, and a raise only for the writes present at its arrival.
//! A freeze keeps all I/O out, then waits for one bucket after another; an empty bucket stays
//! empty.
//!
//! # No deadlock
//!
//! I/O that takes several buckets takes them in ascending order. Consider the waiters in bucket *i*.
//! A raise waits for the writes that wait here, these wait for raises that are up here, and these wait
//! for writes inside. Those are running, or wait in a bucket above *i*, as may the raises
//! that are up. So each chain of waiting goes upward and ends at a running party. A freeze waits for
//! all I/O; so it wakes waiters that hold other buckets, and they release their buckets
//! and start over when it ends. It closes buckets upward and opens them downward, so they
//! then wait in their first bucket until it has opened all.
//!
//! The callers' obligations: a holder of a [`Pass`] or [`Raise`] does not wait for the barrier before it
//! has released it, and a caller with several raises in flight polls them concurrently, so that
//! each completes without the next.

mod bucket;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ashlar_block::sync::rwlock::{Guard, RwLock};
use ashlar_block::sync::{Primitives, Std};
use ashlar_block::{Sector, Sectors};

use crate::canary::{Rule, broken};
use bucket::{Bucket, Kind};

pub use bucket::Counts;

/// log2 of the sectors of a unit: 64 MiB.
const UNIT_SHIFT: u32 = 17;
/// Sectors of a unit.
pub const UNIT: Sectors = Sectors(1 << UNIT_SHIFT);

/// Primitives, and the size of a barrier that has them.
pub trait Buckets: Primitives {
    /// Number of buckets: a power of two, 65,536 at most.
    const BUCKETS: usize;
}

impl Buckets for Std {
    const BUCKETS: usize = 1024;
}

/// See the module text. Sectors are the array's.
pub struct Barrier<P: Buckets = Std> {
    buckets: Box<[Bucket<P>]>,
    /// Held by the task that freezes: one at a time, first come, first served.
    freezers: RwLock,
    totals: Totals,
}

/// Only counted where something waits, or excludes others.
#[derive(Default)]
struct Totals {
    waits: AtomicU64,
    raises: AtomicU64,
    freezes: AtomicU64,
}

/// What happened at a barrier since the array started.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BarrierTotals {
    /// How often regular I/O found a bucket closed, and waited.
    pub waits: u64,
    /// Windows of a sync, and corrections.
    pub raises: u64,
    /// Changes of the array that excluded all I/O.
    pub freezes: u64,
}

impl Default for Barrier {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Buckets> Barrier<P> {
    fn new() -> Self {
        let buckets = std::iter::repeat_with(Bucket::default).take(P::BUCKETS).collect();
        Self { buckets, freezers: RwLock::new(), totals: Totals::default() }
    }

    #[inline]
    fn span(sector: Sector, len: Sectors) -> Span {
        let last = sector.0.saturating_add(len.0.saturating_sub(1));
        Span::of(sector.0 >> UNIT_SHIFT, last >> UNIT_SHIFT, P::BUCKETS)
    }

    #[inline]
    fn try_take(&self, kind: Kind, span: Span) -> Option<Pass<'_, P>> {
        let entered = self.buckets[span.single()?].try_enter(kind);
        entered.then(|| Pass { barrier: self, span, taken: 1, kind })
    }

    async fn take(&self, kind: Kind, span: Span) -> Pass<'_, P> {
        if let Some(pass) = self.try_take(kind, span) {
            return pass;
        }
        let mut pass = Pass { barrier: self, span, taken: 0, kind };
        while let Some(index) = span.nth(pass.taken, P::BUCKETS) {
            let bucket = &self.buckets[index];
            let is_open = bucket.try_enter(kind);
            if !is_open {
                self.totals.waits.fetch_add(1, Relaxed);
            }
            if is_open || bucket.enter(kind, pass.taken > 0).await {
                pass.taken += 1;
            } else {
                pass.leave();
            }
        }
        pass
    }

    /// Begins a regular read of `[sector, sector + len)` if it lies in one unit and the array is not
    /// frozen.
    #[inline]
    pub fn try_wait_read(&self, sector: Sector, len: Sectors) -> Option<Pass<'_, P>> {
        self.try_take(Kind::Read, Self::span(sector, len))
    }

    /// Begins a regular read of `[sector, sector + len)` once the array is not frozen.
    pub async fn wait_read(&self, sector: Sector, len: Sectors) -> Pass<'_, P> {
        self.take(Kind::Read, Self::span(sector, len)).await
    }

    /// Begins a regular write of `[sector, sector + len)` if it lies in one unit, no sync I/O is in
    /// its bucket, and the array is not frozen.
    #[inline]
    pub fn try_wait(&self, sector: Sector, len: Sectors) -> Option<Pass<'_, P>> {
        self.try_take(Kind::Write, Self::span(sector, len))
    }

    /// Begins a regular write or discard of `[sector, sector + len)` once no sync I/O is in its
    /// buckets and the array is not frozen.
    pub async fn wait(&self, sector: Sector, len: Sectors) -> Pass<'_, P> {
        self.take(Kind::Write, Self::span(sector, len)).await
    }

    /// Begins sync I/O of `[sector, sector + len)` once no regular write is in its buckets and the
    /// array is not frozen. Regular writes that already wait go first.
    ///
    /// Sync I/Os do not exclude each other: each writes what it read from a good copy, which does
    /// not change meanwhile.
    pub async fn raise(&self, sector: Sector, len: Sectors) -> Raise<'_, P> {
        let span = Self::span(sector, len);
        let mut raise = Raise { barrier: self, span, taken: 0 };
        self.totals.raises.fetch_add(1, Relaxed);
        while let Some(index) = span.nth(raise.taken, P::BUCKETS) {
            let bucket = &self.buckets[index];
            if bucket.raise(raise.taken > 0).await {
                raise.taken += 1;
                if !broken(Rule::BarrierWaitsForWrites) {
                    bucket.without_writes().await;
                }
            } else {
                raise.lower();
            }
        }
        raise
    }

    /// Keeps all regular I/O and sync I/O from beginning, and waits until none is left.
    /// One freeze at a time.
    pub async fn freeze(&self) -> Freeze<'_, P> {
        let turn = self.freezers.write().await;
        self.totals.freezes.fetch_add(1, Relaxed);
        self.buckets.iter().for_each(Bucket::freeze);
        let freeze = Freeze { barrier: self, _turn: turn };
        for bucket in &self.buckets {
            bucket.without_io().await;
        }
        freeze
    }

    /// What happened since the array started.
    pub fn totals(&self) -> BarrierTotals {
        let Totals { waits, raises, freezes } = &self.totals;
        let [waits, raises, freezes] = [waits, raises, freezes].map(|count| count.load(Relaxed));
        BarrierTotals { waits, raises, freezes }
    }

    /// Counts for the whole array. Under I/O they are from slightly different moments.
    pub fn counts(&self) -> Counts {
        self.buckets.iter().map(Bucket::counts).fold(Counts::default(), |sum, each| Counts {
            reads: sum.reads + each.reads,
            writes: sum.writes + each.writes,
            raised: sum.raised + each.raised,
            waiting: sum.waiting + each.waiting,
            locks: sum.locks + each.locks,
        })
    }

    /// How often a lock was taken since the array started. Regular I/O takes no lock unless it meets
    /// sync I/O or a freeze.
    pub fn lock_acquisitions(&self) -> u64 {
        self.counts().locks
    }
}

/// The buckets of a range of units, each once: `low..=high`, or if `low` is above `high`: `0..=high` and `low..` to the end.
///
/// Ascending by bucket, not by unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    low: u16,
    high: u16,
}

impl Span {
    /// The buckets of the units `first` to `last`; there are `buckets` (65,536 at most) in all.
    #[inline]
    fn of(first: u64, last: u64, buckets: usize) -> Self {
        let buckets = buckets as u64;
        if last - first >= buckets {
            return Self { low: 0, high: (buckets - 1) as u16 };
        }
        Self { low: (first % buckets) as u16, high: (last % buckets) as u16 }
    }

    /// The bucket, if there is only one.
    #[inline]
    fn single(self) -> Option<usize> {
        (self.low == self.high).then_some(usize::from(self.low))
    }

    /// The `n`th bucket, from 0.
    fn nth(self, n: u16, buckets: usize) -> Option<usize> {
        let (low, high, n) = (usize::from(self.low), usize::from(self.high), usize::from(n));
        let (index, end) = if low <= high {
            (low + n, high + 1)
        } else if n <= high {
            (n, buckets)
        } else {
            (low + (n - high - 1), buckets)
        };
        (index < end).then_some(index)
    }
}

/// Permission for a regular I/O to be in its buckets, until dropped.
#[must_use = "the I/O may not be in flight without it"]
pub struct Pass<'a, P: Buckets = Std> {
    barrier: &'a Barrier<P>,
    span: Span,
    /// Number of buckets of the span that the I/O is in: all, unless it still waits.
    taken: u16,
    kind: Kind,
}

const _: () = assert!(size_of::<Pass<'_>>() == 16);

impl<P: Buckets> Pass<'_, P> {
    #[inline]
    fn leave(&mut self) {
        match self.span.single() {
            Some(index) if self.taken == 1 => self.barrier.buckets[index].leave(self.kind),
            Some(_) | None => self.leave_each(),
        }
        self.taken = 0;
    }

    #[cold]
    fn leave_each(&self) {
        let indices = (0..self.taken).filter_map(|n| self.span.nth(n, P::BUCKETS));
        indices.for_each(|index| self.barrier.buckets[index].leave(self.kind));
    }
}

impl<P: Buckets> Drop for Pass<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.leave();
    }
}

/// Keeps regular writes out of the buckets of a sync I/O, until dropped.
#[must_use = "regular writes are kept out while it is held"]
pub struct Raise<'a, P: Buckets = Std> {
    barrier: &'a Barrier<P>,
    span: Span,
    /// Number of buckets of the span that are raised.
    taken: u16,
}

impl<P: Buckets> Raise<'_, P> {
    fn lower(&mut self) {
        let indices = (0..self.taken).filter_map(|n| self.span.nth(n, P::BUCKETS));
        indices.for_each(|index| self.barrier.buckets[index].lower());
        self.taken = 0;
    }
}

impl<P: Buckets> Drop for Raise<'_, P> {
    fn drop(&mut self) {
        self.lower();
    }
}

/// Keeps all I/O out of the array, until dropped.
#[must_use = "I/O is kept out while it is held"]
pub struct Freeze<'a, P: Buckets = Std> {
    barrier: &'a Barrier<P>,
    /// Dropped last.
    _turn: Guard<'a>,
}

impl<P: Buckets> Drop for Freeze<'_, P> {
    fn drop(&mut self) {
        // Downward, as the freeze went upward: an I/O that was sent back waits in its first bucket
        // until all are open, so it is not sent back repeatedly.
        self.barrier.buckets.iter().rev().for_each(Bucket::unfreeze);
    }
}
