//! Write-behind: writes that are acknowledged before the write-mostly members have them.
//!
//! An array of one fast member and a slow or distant one (`--write-mostly`, with a bitmap that allows
//! `--write-behind`) acknowledges a write when the members that serve reads have it. The data is copied,
//! because its owner may reuse the buffer; the bitmap's mark stays until the last member has it, so after a
//! crash every unfinished write is marked, and a resync copies from a member that serves reads.
//!
//! The promises of a block device are kept as follows:
//! - a write, behind or not, waits for overlapping writes behind: on a slow member the older could
//!   otherwise land after the newer;
//! - a read that must go to a slow member waits for overlapping writes;
//! - a flush waits for all of them, and so makes acknowledged writes durable on every member. (The
//!   kernel flushes without waiting.)

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use ashlar_block::Sector;
use ashlar_block::sync::lock;
use event_listener::{Event, listener};

/// The array's writes that may be acknowledged before all members have them.
#[derive(Default)]
pub(super) struct Backlog {
    /// How many are allowed at a time.
    limit: u32,
    /// How many are under way.
    count: AtomicU32,
    list: Mutex<List>,
    ended: Event,
}

/// The writes behind, in the order of their beginning.
#[derive(Default)]
struct List {
    begun: u64,
    ranges: Vec<(u64, Range<Sector>)>,
}

impl List {
    fn is_clear(&self, of: &Range<Sector>) -> bool {
        !self.ranges.iter().any(|(_, range)| range.start < of.end && of.start < range.end)
    }
}

/// A write behind; ends when dropped.
#[must_use = "the write has ended when this is dropped"]
pub(super) struct Entry<'a> {
    backlog: &'a Backlog,
    number: u64,
}

impl Backlog {
    /// Allows `limit` writes behind at a time (the bitmap's `backlog`).
    pub(super) fn new(limit: u32) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Whether another write behind may begin.
    pub(super) fn has_room(&self) -> bool {
        self.count.load(SeqCst) < self.limit
    }

    /// Waits until the list is empty or `done` returns true for it.
    async fn wait(&self, done: impl Fn(&List) -> bool) {
        while !self.is_empty() {
            listener!(self.ended => ended);
            if done(&lock(&self.list)) {
                return;
            }
            ended.await;
        }
    }

    /// Whether no write behind is under way.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    /// Waits until no write behind overlaps `[start, end)`.
    pub(super) async fn clear_of(&self, start: Sector, end: Sector) {
        self.wait(|list| list.is_clear(&(start..end))).await;
    }

    /// Waits until all writes behind that have begun have ended.
    pub(super) async fn all_ended(&self) {
        if self.is_empty() {
            return;
        }
        let begun = lock(&self.list).begun;
        self.wait(|list| list.ranges.iter().all(|(number, _)| *number > begun)).await;
    }

    /// Counts a write in once it overlaps no other.
    pub(super) async fn enter(&self, start: Sector, end: Sector) -> Entry<'_> {
        let range = start..end;
        loop {
            self.clear_of(start, end).await;
            let mut list = lock(&self.list);
            // Another write may have entered first.
            if list.is_clear(&range) {
                list.begun += 1;
                let number = list.begun;
                list.ranges.push((number, range));
                self.count.fetch_add(1, SeqCst);
                return Entry { backlog: self, number };
            }
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        lock(&self.backlog.list).ranges.retain(|(number, _)| *number != self.number);
        self.backlog.count.fetch_sub(1, SeqCst);
        self.backlog.ended.notify(usize::MAX);
    }
}
