//! The state of each chunk in memory: a word with the number of writes in flight and five flags.
//!
//! | flag   | meaning                                                                       |
//! |--------|-------------------------------------------------------------------------------|
//! | ONDISK | the mark is durable on all members, and is not being cleared                  |
//! | HELD   | the mark is durable, and is being cleared                                     |
//! | RECENT | a write began since the daemon's last pass                                    |
//! | NEEDED | the copies may differ: the mark stays until a sync                            |
//! | RESYNC | a sync of the chunk is running                                                |
//!
//! ONDISK and HELD are never both set. A write may begin by one atomic addition if it finds ONDISK;
//! then, until it ends, the mark stays, because clearing takes two steps that each
//! need a count of zero (of one, its own, for a discard):
//!
//! 1. ONDISK becomes HELD, by one compare-and-swap of the whole word ([`Counter::hold`]).
//! 2. After the members' data was flushed, HELD is cleared in the same way ([`Counter::clear`]), and
//!    then the mark in the image, both under the image's lock.
//!
//! All accesses are to one word, so they have one order. A write's addition either comes before step
//! 1, which then fails; or after it, and finds no ONDISK. In the latter case it takes the image's lock
//! and checks ([`Counter::claim`]): if step 2 has not happened, the mark is still durable, and the write
//! turns HELD back into ONDISK; if it has, the write sets the mark again and waits until it is durable.
//!
//! The end of a write is a release, step 1 an acquire: so the flush between the steps comes after
//! all writes that ended before step 1, and no others are in the chunk. Setting ONDISK is a release
//! too, and the addition an acquire: so the write of the mark comes before the write of the data.
//!
//! The tests check this with loom.

use std::ops::Range;
use std::sync::atomic::AtomicU32;

use ashlar_block::sync::Word;
use ashlar_block::{Sector, Sectors, Status};

/// Ranges of at most this many chunks are entered without the lock.
const FEW: usize = 4;

const COUNT: u32 = (1 << 24) - 1;
/// Most writes in one chunk. Far below the count's maximum, so that additions that are undone at
/// once cannot overflow it.
const MOST: u32 = 1 << 23;
const ONDISK: u32 = 1 << 24;
const HELD: u32 = 1 << 25;
const RECENT: u32 = 1 << 26;
const NEEDED: u32 = 1 << 27;
const RESYNC: u32 = 1 << 28;

/// See the module text. Methods that need the image's lock say so.
#[derive(Default)]
pub(super) struct Counter<A = AtomicU32>(A);

impl<A: Word<u32>> Counter<A> {
    fn has(&self, flags: u32) -> bool {
        self.0.load() & flags != 0
    }

    /// Changes the word by `f` unless `f` returns `None`. Returns whether the word was changed.
    fn change(&self, f: impl FnMut(u32) -> Option<u32>) -> bool {
        self.0.update(f).is_ok()
    }

    fn set(&self, flags: u32) {
        self.change(|old| Some(old | flags));
    }

    /// Begins a write if the mark is durable. If true, [`Self::leave`] must follow.
    pub(super) fn try_enter(&self) -> bool {
        if self.0.load() & ONDISK == 0 {
            return false;
        }
        let old = self.0.add(1);
        if old & ONDISK == 0 || old & COUNT >= MOST {
            self.leave();
            return false;
        }
        if old & RECENT == 0 {
            self.set(RECENT);
        }
        true
    }

    /// Counts a write in whose caller will set the mark; false if there are too many writes. If true,
    /// [`Self::leave`] must follow.
    pub(super) fn enter(&self) -> bool {
        let fits = self.0.add(1) & COUNT < MOST;
        if !fits {
            self.leave();
        }
        fits
    }

    /// A write ends.
    pub(super) fn leave(&self) {
        self.0.sub(1);
    }

    /// Under the lock, after entering: whether the mark is durable. If so, it stays.
    pub(super) fn claim(&self) -> bool {
        self.release();
        let durable = self.has(ONDISK);
        if durable {
            self.set(RECENT);
        }
        durable
    }

    /// The mark is durable. Called by a write that has entered.
    pub(super) fn settle(&self) {
        self.set(ONDISK | RECENT);
    }

    /// The loaded mark is durable. No write has entered yet.
    pub(super) fn found(&self) {
        self.set(ONDISK);
    }

    /// Step 1: if the chunk is idle and its mark durable, the mark becomes HELD, and [`Self::clear`]
    /// or [`Self::release`] must follow. Unless `now`, a chunk with a recent write is not idle yet,
    /// but will be at the next call.
    pub(super) fn hold(&self, now: bool) -> bool {
        if now {
            return self.change(|old| (old & !RECENT == ONDISK).then_some(HELD));
        }
        let mut idle = false;
        let changed = self.change(|old| {
            idle = old == ONDISK;
            let aged = old & COUNT == 0 && old & RECENT != 0;
            if idle { Some(HELD) } else { aged.then_some(old & !RECENT) }
        });
        changed && idle
    }

    /// Step 2, under the lock: clears HELD if the chunk is still idle. If not, the mark stays.
    pub(super) fn clear(&self) -> bool {
        let cleared = self.change(|old| (old == HELD).then_some(0));
        if !cleared {
            self.release();
        }
        cleared
    }

    /// HELD becomes ONDISK again, unless another thread already changed it.
    pub(super) fn release(&self) {
        self.change(|old| (old & HELD != 0).then_some(old & !HELD | ONDISK));
    }

    /// Under the lock: no write is in the chunk, and no flag is set.
    pub(super) fn is_unused(&self) -> bool {
        self.0.load() == 0
    }

    /// Whether no write is in flight.
    pub(super) fn is_idle(&self) -> bool {
        !self.has(COUNT)
    }

    /// For a discard of the entire chunk that has entered and whose mark is durable: if it is alone in
    /// the chunk, the mark becomes HELD. [`Self::discarded`] must follow.
    pub(super) fn hold_alone(&self) {
        self.change(|old| {
            let alone = old & COUNT == 1 && old & ONDISK != 0 && old & RESYNC == 0;
            alone.then_some(old & !(ONDISK | RECENT) | HELD)
        });
    }

    /// Under the lock: a discard of the entire chunk has ended, but not left. Returns whether it
    /// succeeded (`gone`) and was alone all the time, so that the mark may be cleared; if not, the
    /// mark stays.
    pub(super) fn discarded(&self, gone: bool) -> bool {
        let alone = gone
            && self.change(|old| {
                let alone = old & COUNT == 1 && old & HELD != 0 && old & RESYNC == 0;
                alone.then_some(1)
            });
        if !alone {
            self.release();
        }
        alone
    }

    /// The copies may differ.
    pub(super) fn need(&self) {
        self.set(NEEDED);
    }

    /// Whether the copies may differ: a sync is needed or under way.
    pub(super) fn is_needed(&self) -> bool {
        self.has(NEEDED | RESYNC)
    }

    /// Under the lock: begins a sync, unless one is under way.
    pub(super) fn start_sync(&self) -> bool {
        self.change(|old| (old & RESYNC == 0).then_some(old & !NEEDED | RESYNC))
    }

    /// Under the lock: ends the sync, if one is under way.
    pub(super) fn end_sync(&self, well: bool) -> bool {
        let needed = if well { 0 } else { NEEDED };
        self.change(|old| (old & RESYNC != 0).then_some(old & !RESYNC | needed))
    }
}

/// A counter for each chunk of an array.
pub(super) struct Counters {
    each: Box<[Counter]>,
    /// A power of two. The last chunk ends with the array.
    chunk: Sectors,
    size: Sectors,
}

impl Counters {
    /// For an array of `size` sectors; the caller has checked that there are not too many chunks.
    pub(super) fn new(chunk: Sectors, size: Sectors) -> Self {
        let count = size.0.div_ceil(chunk.0) as usize;
        Self { each: std::iter::repeat_with(Counter::default).take(count).collect(), chunk, size }
    }

    pub(super) fn chunk(&self) -> Sectors {
        self.chunk
    }

    /// Number of chunks.
    pub(super) fn len(&self) -> u32 {
        self.each.len() as u32
    }

    pub(super) fn get(&self, chunk: u32) -> &Counter {
        &self.each[chunk as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Counter> {
        self.each.iter()
    }

    /// The chunk of a sector, which need not exist.
    pub(super) fn chunk_of(&self, sector: Sector) -> u64 {
        sector.0 >> self.chunk.0.trailing_zeros()
    }

    pub(super) fn start_of(&self, chunk: u32) -> Sector {
        Sector(u64::from(chunk) * self.chunk.0)
    }

    /// The end of the chunk; the last chunk ends with the array.
    pub(super) fn end_of(&self, chunk: u32) -> Sector {
        Sector(((u64::from(chunk) + 1) * self.chunk.0).min(self.size.0))
    }

    /// The chunks of a range.
    pub(super) fn span(&self, sector: Sector, len: Sectors) -> Result<Range<u32>, Status> {
        let end = sector.checked_add(len).ok_or(Status::Invalid)?;
        if end > self.size.as_end() {
            return Err(Status::Invalid);
        }
        if len.is_zero() {
            return Ok(0..0);
        }
        // The number of chunks fits in 32 bits.
        let last = self.chunk_of(Sector(end.0 - 1));
        Ok(self.chunk_of(sector) as u32..last as u32 + 1)
    }

    /// As [`Counter::try_enter`], all chunks of a range, if they are few. If it returns them, [`Self::leave`] must follow.
    pub(super) fn try_enter(&self, sector: Sector, len: Sectors) -> Option<Range<u32>> {
        let chunks = self.span(sector, len).ok()?;
        let entered = chunks.len() <= FEW && self.enter_each(&chunks, Counter::try_enter);
        entered.then_some(chunks)
    }

    /// As [`Counter::enter`], all chunks of a range. If it returns them, [`Self::leave`] must follow.
    pub(super) fn enter(&self, sector: Sector, len: Sectors) -> Result<Range<u32>, Status> {
        let chunks = self.span(sector, len)?;
        let entered = self.enter_each(&chunks, Counter::enter);
        if entered { Ok(chunks) } else { Err(Status::Resource) }
    }

    /// Enters all chunks or none.
    fn enter_each(&self, chunks: &Range<u32>, enter: impl Fn(&Counter) -> bool) -> bool {
        let refused = chunks.clone().find(|chunk| !enter(self.get(*chunk)));
        if let Some(at) = refused {
            self.leave(&(chunks.start..at));
        }
        refused.is_none()
    }

    /// A write in these chunks ends.
    pub(super) fn leave(&self, chunks: &Range<u32>) {
        chunks.clone().for_each(|chunk| self.get(chunk).leave());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    use ashlar_block::sync::model::explore;
    use ashlar_block::sync::model::loom::sync::Mutex;
    use ashlar_block::sync::model::loom::sync::atomic::{AtomicBool, AtomicU32 as LoomU32};

    /// A chunk, its mark on the medium, and data in a member's cache and on its medium. The lock
    /// models the image's lock; a mark is written under it, which is stricter than the batches, but
    /// the model checks only the word.
    struct World {
        counter: Counter<LoomU32>,
        marked: Mutex<bool>,
        /// The mark as a thread may see it without the lock.
        medium: AtomicBool,
        /// Writes whose data went to the members.
        written: LoomU32,
        /// The value of `written` at the last flush.
        flushed: LoomU32,
    }

    impl World {
        fn new() -> Self {
            let counter = Counter::default();
            counter.found();
            Self {
                counter,
                marked: Mutex::new(true),
                medium: AtomicBool::new(true),
                written: LoomU32::new(0),
                flushed: LoomU32::new(0),
            }
        }

        fn begin(&self) {
            if self.counter.try_enter() {
                return;
            }
            assert!(self.counter.enter());
            let mut marked = self.marked.lock().unwrap();
            if !self.counter.claim() {
                assert!(!*marked, "the mark is there and nobody knows");
                *marked = true;
                self.medium.store(true, Relaxed);
                self.counter.settle();
            }
        }

        fn write(&self) {
            self.begin();
            assert!(self.medium.load(Relaxed), "data before its mark");
            self.written.fetch_add(1, Relaxed);
            assert!(self.medium.load(Relaxed), "a mark went away under a write");
            self.counter.leave();
        }

        fn clean(&self) {
            if !self.counter.hold(true) {
                return;
            }
            self.flushed.store(self.written.load(Relaxed), Relaxed);
            let mut marked = self.marked.lock().unwrap();
            if self.counter.clear() {
                let (written, flushed) = (self.written.load(Relaxed), self.flushed.load(Relaxed));
                assert_eq!(written, flushed, "the mark of data that was not flushed is taken away");
                *marked = false;
                self.medium.store(false, Relaxed);
            }
        }
    }

    #[test]
    fn no_interleaving_of_writes_and_the_daemon_leaves_data_without_a_mark() {
        fn clean_twice(world: &World) {
            world.clean();
            world.clean();
        }
        fn end(world: &World) {
            world.clean();
            assert!(!*world.marked.lock().unwrap(), "an idle chunk stays marked");
        }
        explore(3, World::new, &[clean_twice, World::write], end);
        explore(3, World::new, &[World::clean, World::write, World::write], end);
    }

    /// A discard clears the mark as it ends; a write that came meanwhile keeps it.
    #[test]
    fn no_interleaving_lets_a_discard_take_a_writes_mark_away() {
        fn discard(world: &World) {
            world.begin();
            world.counter.hold_alone();
            let before = world.written.load(Relaxed);
            {
                let mut marked = world.marked.lock().unwrap();
                if world.counter.discarded(true) {
                    assert_eq!(before, world.written.load(Relaxed), "data written meanwhile");
                    *marked = false;
                    world.medium.store(false, Relaxed);
                }
            }
            world.counter.leave();
        }
        explore(3, World::new, &[discard, World::write], |world| assert!(world.counter.is_idle()));
    }

    type Plain = Counter<AtomicU32>;

    #[test]
    fn a_chunk_with_a_recent_write_is_held_only_the_second_time() {
        let counter = Plain::default();
        counter.found();
        assert!(counter.try_enter());
        assert!(!counter.hold(false), "a write is in flight");
        assert!(!counter.hold(true), "a write is in flight");
        counter.leave();
        assert!(!counter.hold(false), "a write was there a moment ago");
        assert!(counter.hold(false));
        assert!(counter.clear());
        assert!(counter.is_unused());
    }

    #[test]
    fn a_chunk_that_needs_a_sync_or_has_one_is_not_held() {
        let counter = Plain::default();
        counter.found();
        counter.need();
        assert!(!counter.hold(true));
        assert!(counter.start_sync() && !counter.start_sync());
        assert!(!counter.hold(true));
        counter.need();
        assert!(counter.end_sync(true));
        assert!(!counter.hold(true), "a write failed while the sync ran");
        assert!(counter.start_sync() && counter.end_sync(false));
        assert!(!counter.hold(true), "the sync was abandoned");
        assert!(counter.start_sync() && counter.end_sync(true));
        assert!(counter.hold(true));
    }

    #[test]
    fn the_count_cannot_overflow_into_the_flags() {
        let counter = Plain::default();
        counter.found();
        for _ in 0..MOST {
            assert!(counter.try_enter());
        }
        assert!(!counter.try_enter() && !counter.enter());
        counter.leave();
        assert!(counter.enter());
    }
}
