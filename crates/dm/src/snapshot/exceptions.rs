//! The state of each chunk: copied, being copied, or being read from the origin.
//!
//! Everything known about a chunk is in one shard, under one lock that is held for a few
//! instructions: so a decision based on it is consistent. Neighbouring chunks share a shard, so
//! that a run of them can be one entry.
//!
//! Life of a chunk: *shared* (no entry; reads go to the origin and are tracked), *pending* (its
//! copy is being made; still read from the origin), *draining* (copied and committed, so read from
//! the COW device; but earlier reads of the origin are still in flight, and the origin must not
//! change: still pending, too), *complete*. A merge makes complete chunks shared again.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

use ashlar_block::sync::{lock, until};
use event_listener::Event;

/// log2 of the number of consecutive chunks per shard.
const GROUP_SHIFT: u32 = 6;
const SHARDS: usize = 16;

/// A map from chunks to chunks that stores runs (both sides consecutive) as one entry.
#[derive(Default)]
pub(super) struct Runs {
    runs: BTreeMap<u64, Run>,
}

#[derive(Clone, Copy)]
struct Run {
    new: u64,
    len: u64,
}

impl Runs {
    fn run_of(&self, old: u64) -> Option<(u64, Run)> {
        let (&first, &run) = self.runs.range(..=old).next_back()?;
        (old - first < run.len).then_some((first, run))
    }

    /// The chunk that `old` maps to.
    pub(super) fn get(&self, old: u64) -> Option<u64> {
        self.run_of(old).map(|(first, run)| run.new + (old - first))
    }

    /// Whether every chunk of a range is in the map.
    pub(super) fn covers(&self, range: Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            let Some((first, run)) = self.run_of(at) else { return false };
            at = first + run.len;
        }
        true
    }

    /// Inserts a chunk; false if it exists.
    pub(super) fn insert(&mut self, old: u64, new: u64) -> bool {
        if self.get(old).is_some() {
            return false;
        }
        let (mut first, mut run) = (old, Run { new, len: 1 });
        if let Some((&at, before)) = self.runs.range(..old).next_back()
            && at + before.len == old
            && before.new + before.len == new
        {
            (first, run) = (at, Run { new: before.new, len: before.len + 1 });
        }
        if let Some(after) = old.checked_add(1).and_then(|next| self.runs.get(&next)).copied()
            && after.new == new + 1
        {
            self.runs.remove(&(old + 1));
            run.len += after.len;
        }
        self.runs.insert(first, run);
        true
    }

    /// Removes a chunk; false if it is missing.
    pub(super) fn remove(&mut self, old: u64) -> bool {
        let Some((first, run)) = self.run_of(old) else { return false };
        let before = old - first;
        self.runs.remove(&first);
        if before > 0 {
            self.runs.insert(first, Run { new: run.new, len: before });
        }
        let after = run.len - before - 1;
        if after > 0 {
            self.runs.insert(old + 1, Run { new: run.new + before + 1, len: after });
        }
        true
    }

    /// The number of entries.
    #[cfg(test)]
    fn entries(&self) -> usize {
        self.runs.len()
    }
}

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

/// The chunks of a snapshot.
#[derive(Default)]
pub(super) struct Exceptions {
    shards: [Mutex<Shard>; SHARDS],
}

impl Exceptions {
    /// The shard of a chunk.
    pub(super) fn shard(&self, chunk: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(chunk >> GROUP_SHIFT) as usize % SHARDS])
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
    fn consecutive_chunks_are_one_entry() {
        let mut runs = Runs::default();
        for chunk in [5, 3, 4, 7, 6] {
            assert!(runs.insert(chunk, chunk + 100));
        }
        assert_eq!(runs.entries(), 1);
        assert!(!runs.insert(5, 9) && runs.covers(3..8) && !runs.covers(3..9));
        assert!(runs.insert(8, 300));
        assert_eq!((runs.entries(), runs.get(8), runs.get(9)), (2, Some(300), None));
    }

    #[test]
    fn a_run_is_cut_where_a_chunk_is_taken_out() {
        let mut runs = Runs::default();
        (0..10).for_each(|chunk| assert!(runs.insert(chunk, chunk + 20)));
        assert!(runs.remove(4) && !runs.remove(4));
        assert_eq!((runs.get(3), runs.get(4), runs.get(5)), (Some(23), None, Some(25)));
        assert!(runs.remove(0) && runs.remove(9));
        assert_eq!((runs.entries(), runs.get(1), runs.get(8)), (2, Some(21), Some(28)));
    }

    #[test]
    fn a_map_of_runs_is_a_map() {
        let mut model = BTreeMap::new();
        let mut runs = Runs::default();
        let mut word = 1_u64;
        for _ in 0..20_000 {
            word = word
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let (old, new) = (word >> 59, (word >> 40) % 3 * 100 + (word >> 59));
            if word >> 33 & 1 == 0 {
                assert_eq!(runs.insert(old, new), !model.contains_key(&old));
                model.entry(old).or_insert(new);
            } else {
                assert_eq!(runs.remove(old), model.remove(&old).is_some());
            }
            (0..33).for_each(|old| assert_eq!(runs.get(old), model.get(&old).copied()));
            let covered = (0..8).all(|old| model.contains_key(&old));
            assert_eq!(runs.covers(0..8), covered);
        }
    }

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
