//! Freed ranges whose intent log records may not be committed yet.
//!
//! # Theory
//!
//! An indirect record of a write points to its block as it is when the log is committed, including
//! later writes, and libzpool leaves out the records of those later writes (`dmu_sync()` returns
//! EALREADY until the block is dirtied again), because the block of the first record has their
//! data. With a truncation in between, this is wrong. For *write, truncate, write again*, the log
//! has the block with both writes, and then the truncation, so a replay leaves zeroes where the
//! last write was. (The kernel's zvols lose data this way.)
//!
//! So a write to a range that was freed since the last commit has its data in the log. There it is
//! after the truncation, whatever else is left out. After the commit, indirect records are correct
//! again: a newly written block is not the one that an earlier record points to.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of separate ranges. Beyond it, everything between them counts as freed: this
/// costs copies, but no data.
const MOST_RANGES: usize = 4096;
/// Maximum number of transaction groups that are not on disk: one open, one quiescing and one
/// syncing (`TXG_CONCURRENT_STATES`).
const GROUPS_UNDER_WAY: u64 = 3;

/// The freed ranges of a volume. A thread that adds or queries a range has locked it.
#[derive(Default)]
pub(crate) struct FreedRanges {
    /// Whether there are any: most volumes never have any, and take no lock.
    has_some: AtomicBool,
    ranges: Mutex<Ranges>,
}

/// The last truncation that a commit covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach(u64);

#[derive(Default)]
struct Ranges {
    /// By start offset. They do not touch.
    by_start: BTreeMap<u64, Range>,
    /// The number of ranges ever added.
    count: u64,
    newest_group: u64,
}

#[derive(Clone, Copy)]
struct Range {
    end_bytes: u64,
    /// Number of its latest truncation.
    number: u64,
    group: u64,
}

impl FreedRanges {
    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a range that was freed in a transaction of `group`, after its record was added to the log.
    pub(crate) fn add(&self, offset_bytes: u64, len_bytes: u64, group: u64) {
        let mut ranges = self.lock();
        ranges.add(offset_bytes, offset_bytes + len_bytes, group);
        self.has_some.store(true, Ordering::Release);
    }

    /// Whether a part of a range was freed and may not be committed, for a write in `group`.
    pub(crate) fn overlaps(&self, offset_bytes: u64, len_bytes: u64, group: u64) -> bool {
        self.has_some.load(Ordering::Acquire)
            && self.lock().overlaps(offset_bytes, offset_bytes + len_bytes, group)
    }

    /// The truncations that a commit starting now will cover, if there are any.
    pub(crate) fn reach(&self) -> Option<Reach> {
        self.has_some.load(Ordering::Acquire).then(|| Reach(self.lock().count))
    }

    /// Removes the ranges that a finished commit covers.
    pub(crate) fn committed(&self, reach: Reach) {
        let mut ranges = self.lock();
        ranges.by_start.retain(|_, range| range.number > reach.0);
        self.has_some.store(!ranges.by_start.is_empty(), Ordering::Release);
    }
}

impl Ranges {
    fn add(&mut self, start_bytes: u64, end_bytes: u64, group: u64) {
        if group > self.newest_group {
            self.newest_group = group;
            self.by_start.retain(|_, range| range.group + GROUPS_UNDER_WAY > group);
        }
        self.count += 1;
        let (mut start_bytes, mut end_bytes, mut group) = (start_bytes, end_bytes, group);
        // Merge it with the ranges that it touches.
        while let Some((&start, range)) = self.by_start.range(..=end_bytes).next_back()
            && range.end_bytes >= start_bytes
        {
            start_bytes = start_bytes.min(start);
            end_bytes = end_bytes.max(range.end_bytes);
            group = group.max(range.group);
            self.by_start.remove(&start);
        }
        if self.by_start.len() >= MOST_RANGES {
            let first = self.by_start.first_key_value().map_or(start_bytes, |(start, _)| *start);
            let last =
                self.by_start.last_key_value().map_or(end_bytes, |(_, range)| range.end_bytes);
            (start_bytes, end_bytes) = (start_bytes.min(first), end_bytes.max(last));
            self.by_start.clear();
            group = self.newest_group;
        }
        self.by_start.insert(start_bytes, Range { end_bytes, number: self.count, group });
    }

    fn overlaps(&self, start_bytes: u64, end_bytes: u64, group: u64) -> bool {
        let overlapping = self.by_start.range(..end_bytes).rev();
        let mut overlapping = overlapping.take_while(|(_, range)| range.end_bytes > start_bytes);
        overlapping.any(|(_, range)| range.group + GROUPS_UNDER_WAY > group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores every truncation separately.
    #[derive(Default)]
    struct NaiveRanges(Vec<(u64, u64, u64)>);

    impl NaiveRanges {
        fn overlaps(&self, start: u64, end: u64) -> bool {
            self.0.iter().any(|(from, to, _)| *from < end && start < *to)
        }
    }

    /// All pairs of truncations, and a commit that covers none, one or both of them.
    #[test]
    fn what_is_not_committed_is_found_and_nothing_else() {
        const CELLS: u64 = 6;
        let ranges =
            || (0..CELLS).flat_map(|start| (start + 1..=CELLS).map(move |end| (start, end)));
        for first in ranges() {
            for second in ranges() {
                for reached in 0..=2 {
                    let freed = FreedRanges::default();
                    let mut naive = NaiveRanges::default();
                    let mut reach = freed.reach();
                    for (number, (start, end)) in [(1, first), (2, second)] {
                        freed.add(start, end - start, 7);
                        naive.0.push((start, end, number));
                        if reached == number {
                            reach = freed.reach();
                        }
                    }
                    if let Some(reach) = reach {
                        freed.committed(reach);
                    }
                    naive.0.retain(|(_, _, number)| *number > reached);
                    let is_one = first.0 <= second.1 && second.0 <= first.1;
                    for (start, end) in ranges() {
                        let found = freed.overlaps(start, end - start, 7);
                        let expected = naive.overlaps(start, end);
                        // Merged ranges are kept as long as the later one.
                        let may_be = is_one && reached == 1 && start < first.1 && first.0 < end;
                        assert!(
                            found == expected || (found && may_be),
                            "{first:?} {second:?} {reached}: {start}..{end}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_on_disk_is_forgotten() {
        const GROUP: u64 = 12;
        let freed = FreedRanges::default();
        freed.add(0, 1, 10);
        freed.add(8, 1, 12);
        assert!(!freed.overlaps(0, 1, 13), "without another truncation");
        assert!(freed.overlaps(0, 1, GROUP));
        freed.add(16, 1, 13);
        assert!(!freed.overlaps(0, 1, GROUP));
        assert!(freed.overlaps(8, 1, GROUP) && freed.overlaps(16, 1, GROUP));
        // A late transaction of an older group.
        freed.add(0, 1, 12);
        assert!(freed.overlaps(0, 1, GROUP) && freed.overlaps(16, 1, GROUP));
    }

    #[test]
    fn more_ranges_than_are_told_apart_are_all_found() {
        let freed = FreedRanges::default();
        let starts = || (0..3 * MOST_RANGES as u64).map(|number| number * 7919 % 65536 * 8);
        for start in starts() {
            freed.add(start, 4, 1);
        }
        assert!(freed.lock().by_start.len() <= MOST_RANGES);
        assert!(starts().all(|start| freed.overlaps(start, 1, 1)));
        freed.committed(freed.reach().expect("some are freed"));
        assert!(!starts().any(|start| freed.overlaps(start, 1, 1)));
    }
}
