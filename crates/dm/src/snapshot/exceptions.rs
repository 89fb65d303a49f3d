//! The state of each chunk: copied, being copied, or being read from the origin.
//!
//! Everything known about a chunk is in one shard, under one lock that is held for a few
//! instructions: so a decision based on it is consistent. Neighbouring chunks share a shard, so
//! that a run of them can be one entry of its [`Runs`].
//!
//! Life of a chunk: *shared* (no entry; reads go to the origin and are tracked), *pending* (its
//! copy is being made; still read from the origin), *draining* (copied and committed, so read from
//! the COW device; but earlier reads of the origin are still in flight, and the origin must not
//! change: still pending, too), *complete*. A merge makes complete chunks shared again.

use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;

use ashlar_block::sync::{lock, until};
use ashlar_block::{ExtentState, Extents, Sector};
use event_listener::Event;

use super::runs::{Entry, Runs};

/// log2 of the number of consecutive chunks per shard.
const GROUP_SHIFT: u32 = 6;
/// So many that a list from a disk is sorted in short steps.
const SHARDS: usize = 256;
/// A step of this many entries is followed by other tasks.
const LONG_STEP: usize = 1024;

const WAITING: u8 = 0;
const MADE: u8 = 1;
const FAILED: u8 = 2;

/// An exception that is being made.
pub(super) struct PendingException {
    pub(super) old: u64,
    pub(super) new: u64,
    /// The order in which new chunks were allocated; exceptions are committed in this order.
    pub(super) sequence: u64,
    end: AtomicU8,
    ended: Event,
}

impl PendingException {
    pub(super) fn new(old: u64, new: u64, sequence: u64) -> Arc<Self> {
        let (end, ended) = (AtomicU8::new(WAITING), Event::new());
        Arc::new(Self { old, new, sequence, end, ended })
    }

    /// Waits until the origin's chunk may change (or the snapshot is known to be invalid); returns
    /// whether the exception was made.
    pub(super) async fn made(&self) -> bool {
        until(&self.ended, || self.end.load(SeqCst) != WAITING).await;
        self.end.load(SeqCst) == MADE
    }

    pub(super) fn end(&self, made: bool) {
        self.end.store(if made { MADE } else { FAILED }, SeqCst);
        self.ended.notify(usize::MAX);
    }
}

/// Chunks that are being merged, as ascending ranges.
#[derive(Clone, Default)]
pub(super) struct Window(Arc<[Range<u64>]>);

impl Window {
    /// These ranges, which do not overlap.
    pub(super) fn of(ranges: impl Iterator<Item = Range<u64>>) -> Self {
        let mut ranges: Vec<_> = ranges.collect();
        ranges.sort_unstable_by_key(|range| range.start);
        Self(ranges.into())
    }

    pub(super) fn contains(&self, chunk: u64) -> bool {
        let after = self.0.partition_point(|range| range.start <= chunk);
        self.0[..after].last().is_some_and(|range| range.contains(&chunk))
    }
}

#[derive(Default)]
pub(super) struct Shard {
    pub(super) complete: Runs,
    pub(super) pending: HashMap<u64, Arc<PendingException>>,
    /// Chunks with I/O in flight that must end before the chunk's location changes: reads of the
    /// origin, and writes to the copy while it may be merged.
    tracked: Vec<u64>,
    /// Chunks that are being merged: they must not be written.
    pub(super) window: Window,
}

impl Shard {
    pub(super) fn track(&mut self, chunk: u64) {
        self.tracked.push(chunk);
    }

    pub(super) fn is_tracked(&self, chunk: u64) -> bool {
        self.tracked.contains(&chunk)
    }

    /// Ends what [`Self::track`] began; returns the exception that only waited for this.
    pub(super) fn untrack(&mut self, chunk: u64) -> Option<Arc<PendingException>> {
        if let Some(at) = self.tracked.iter().position(|tracked| *tracked == chunk) {
            self.tracked.swap_remove(at);
        }
        let draining = self.complete.get(chunk).is_some() && !self.is_tracked(chunk);
        if draining { self.pending.remove(&chunk) } else { None }
    }
}

fn shard_of(chunk: u64) -> usize {
    (chunk >> GROUP_SHIFT) as usize % SHARDS
}

/// Pairs of chunks as they come from a disk, in any order: 16 bytes for each run.
pub(super) struct List {
    parts: Vec<Vec<Entry>>,
    /// The run that may become longer.
    last: Option<Entry>,
}

impl Default for List {
    fn default() -> Self {
        Self { parts: vec![Vec::new(); SHARDS], last: None }
    }
}

impl List {
    pub(super) fn push(&mut self, old: u64, new: u64) {
        let entry = Entry::new(old, new);
        // A run stays in its shard.
        let begins_group = old.is_multiple_of(1 << GROUP_SHIFT);
        match self.last.filter(|_| !begins_group).and_then(|last| last.with(entry)) {
            Some(run) => self.last = Some(run),
            None => {
                let ended = self.last.replace(entry);
                ended.into_iter().for_each(|run| self.keep(run));
            }
        }
    }

    fn keep(&mut self, run: Entry) {
        let part = &mut self.parts[shard_of(run.old())];
        if part.len() == part.capacity() {
            // Twice as much would be unused half of the time.
            part.reserve_exact(64.max(part.len() / 8));
        }
        part.push(run);
    }

    /// The table of them. Other tasks run meanwhile.
    ///
    /// # Errors
    /// A chunk that is there twice.
    pub(super) async fn sorted(mut self) -> Result<Table, u64> {
        let last = self.last.take();
        last.into_iter().for_each(|run| self.keep(run));
        let mut table = Vec::with_capacity(SHARDS);
        for part in self.parts {
            let long = part.len() >= LONG_STEP;
            table.push(Runs::of(part)?);
            if long {
                let mut resumed = false;
                poll_fn(|cx| {
                    if std::mem::replace(&mut resumed, true) {
                        return Poll::Ready(());
                    }
                    cx.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
            }
        }
        Ok(Table(table))
    }
}

/// The complete exceptions of each shard.
pub(super) struct Table(Vec<Runs>);

/// The chunks of a snapshot.
pub(super) struct Exceptions {
    shards: Box<[Mutex<Shard>]>,
}

impl Default for Exceptions {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Exceptions {
    /// The shard of a chunk.
    pub(super) fn shard(&self, chunk: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard_of(chunk)])
    }

    /// Makes these the complete ones.
    pub(super) fn set_complete(&self, table: Table) {
        for (mut shard, complete) in self.shards().zip(table.0) {
            shard.complete = complete;
        }
    }

    /// Whether all chunks of a range have copies, and no reads of them from the origin are in flight.
    pub(super) fn are_complete(&self, range: Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(((at >> GROUP_SHIFT) + 1) << GROUP_SHIFT);
            let shard = self.shard(at);
            let pending = !shard.pending.is_empty()
                && (at..end).any(|chunk| shard.pending.contains_key(&chunk));
            if pending || !shard.complete.covers(at..end) {
                return false;
            }
            at = end;
        }
        true
    }

    /// Adds the chunks of a range to an answer that ends where the range starts, as far as that has room: `sector` is where a chunk
    /// starts, and those without a copy have all states, which says nothing of them.
    pub(super) fn uncopied(
        &self,
        range: Range<u64>,
        sector: impl Fn(u64) -> Sector,
        extents: &mut Extents,
    ) {
        let mut at = range.start;
        while at < range.end && !extents.is_full() {
            let end = range.end.min(((at >> GROUP_SHIFT) + 1) << GROUP_SHIFT);
            let shard = self.shard(at);
            while let Some(copied) = shard.complete.first_in(at..end) {
                extents.extend_to(sector(copied.start), ExtentState::all());
                extents.extend_to(sector(copied.end), ExtentState::empty());
                at = copied.end;
            }
            extents.extend_to(sector(end), ExtentState::all());
            at = end;
        }
    }

    fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(lock)
    }

    /// Marks these chunks as being merged, and no others.
    pub(super) fn set_window(&self, window: &Window) {
        self.shards().for_each(|mut shard| shard.window = window.clone());
    }

    /// Whether no write to the chunks that are being merged is in flight.
    pub(super) fn window_is_idle(&self) -> bool {
        let writes = |shard: MutexGuard<'_, Shard>| {
            shard.tracked.iter().any(|chunk| shard.window.contains(*chunk))
        };
        !self.shards().any(writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_what_its_ranges_cover() {
        let exceptions = Exceptions::default();
        exceptions.shard(9).track(9);
        let window = Window::of([9..10, 100..164, 3..5, 5..6].into_iter());
        let inside: Vec<u64> = (0..300).filter(|chunk| window.contains(*chunk)).collect();
        assert_eq!(inside, [3, 4, 5, 9].into_iter().chain(100..164).collect::<Vec<_>>());
        assert!(exceptions.window_is_idle());
        exceptions.set_window(&window);
        assert!(!exceptions.window_is_idle());
        exceptions.shard(9).untrack(9);
        exceptions.shard(10).track(10);
        assert!(exceptions.window_is_idle());
        assert!(!Window::default().contains(0));
    }

    #[test]
    fn an_exception_is_over_when_the_last_read_of_the_origin_is() {
        let exceptions = Exceptions::default();
        let mut shard = exceptions.shard(7);
        shard.track(7);
        shard.track(7);
        shard.pending.insert(7, PendingException::new(7, 2, 0));
        assert!(shard.untrack(7).is_none());
        shard.track(7);
        assert!(shard.complete.insert(7, 2));
        drop(shard);
        assert!(!exceptions.are_complete(7..8));
        let mut shard = exceptions.shard(7);
        assert!(shard.untrack(7).is_none() && shard.untrack(7).is_some());
        drop(shard);
        assert!(exceptions.are_complete(7..8) && !exceptions.are_complete(6..8));
    }
}
