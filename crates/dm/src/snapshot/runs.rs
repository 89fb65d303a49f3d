//! A map from chunks to chunks in little memory: a snapshot may have tens of millions of exceptions.
//!
//! A run, both sides of which are consecutive, is an entry of 16 bytes. Entries are in ascending order in blocks of up to [`BLOCK`],
//! found by a tree. So an exception without a neighbour takes 16 bytes after it was read from a disk, 24 on
//! average where they come at random, and never more than 32 and its share of the tree.

use std::collections::BTreeMap;
use std::ops::Range;

/// Entries of a block at most: half of them are moved for an insertion, and are as many as a few cache lines.
const BLOCK: usize = 64;
/// Bits of a chunk's number, as in the kernel; the others of its word count the chunks of its run.
pub(super) const CHUNK_BITS: u32 = 56;
/// The longest run.
const LONGEST: u64 = 1 << (u64::BITS - CHUNK_BITS);

/// A run. Both chunks have [`CHUNK_BITS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    old: u64,
    /// The new chunk, and above it the length less one.
    new_and_more: u64,
}

impl Entry {
    pub(super) fn new(old: u64, new: u64) -> Self {
        Self::run(old, new, 1)
    }

    fn run(old: u64, new: u64, len: u64) -> Self {
        debug_assert!((old | new) >> CHUNK_BITS == 0 && (1..=LONGEST).contains(&len));
        Self { old, new_and_more: new | (len - 1) << CHUNK_BITS }
    }

    /// The first chunk.
    pub(super) fn old(self) -> u64 {
        self.old
    }

    fn new_chunk(self) -> u64 {
        self.new_and_more & ((1 << CHUNK_BITS) - 1)
    }

    fn len(self) -> u64 {
        (self.new_and_more >> CHUNK_BITS) + 1
    }

    fn end(self) -> u64 {
        self.old + self.len()
    }

    /// This run and the next as one, if they are.
    pub(super) fn with(self, next: Self) -> Option<Self> {
        let len = self.len() + next.len();
        let follows = self.end() == next.old && self.new_chunk() + self.len() == next.new_chunk();
        (follows && len <= LONGEST).then(|| Self::run(self.old, self.new_chunk(), len))
    }
}

/// See the module text.
#[derive(Default)]
pub(super) struct Runs {
    /// By a chunk that is not above the first of the block, and above all of the block before.
    blocks: BTreeMap<u64, Vec<Entry>>,
}

impl Runs {
    /// The map of entries in any order.
    ///
    /// # Errors
    /// The smallest chunk that has two.
    pub(super) fn of(mut entries: Vec<Entry>) -> Result<Self, u64> {
        entries.sort_unstable_by_key(|entry| entry.old);
        if let Some(twice) = entries.windows(2).find(|pair| pair[0].end() > pair[1].old) {
            return Err(twice[1].old);
        }
        entries.dedup_by(|next, last| last.with(*next).map(|run| *last = run).is_some());
        let blocks = entries.chunks(BLOCK).map(|block| (block[0].old, block.to_vec()));
        Ok(Self { blocks: blocks.collect() })
    }

    fn run_of(&self, old: u64) -> Option<Entry> {
        let (_, block) = self.blocks.range(..=old).next_back()?;
        let after = block.partition_point(|entry| entry.old <= old);
        block[..after].last().copied().filter(|run| old < run.end())
    }

    /// The chunk that `old` maps to.
    pub(super) fn get(&self, old: u64) -> Option<u64> {
        self.run_of(old).map(|run| run.new_chunk() + (old - run.old))
    }

    /// The first chunks of a range that are in the map and beside each other.
    pub(super) fn first_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        let first = match self.run_of(range.start) {
            Some(run) => run,
            None => {
                let within = |(_, block): (_, &Vec<Entry>)| {
                    let after = block.partition_point(|entry| entry.old < range.start);
                    block.get(after).copied()
                };
                // In the block that may begin before the range, or at the start of the next one.
                let here = self.blocks.range(..=range.start).next_back().and_then(within);
                here.or_else(|| self.blocks.range(range.start..).next().and_then(within))?
            }
        };
        let start = first.old.max(range.start);
        (start < range.end).then(|| start..first.end().min(range.end))
    }

    /// Whether every chunk of a range is in the map.
    pub(super) fn covers(&self, range: Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            let Some(run) = self.run_of(at) else { return false };
            at = run.end();
        }
        true
    }

    /// Inserts a chunk; false if it exists.
    pub(super) fn insert(&mut self, old: u64, new: u64) -> bool {
        let entry = Entry::new(old, new);
        let Some((&key, block)) = self.blocks.range_mut(..=old).next_back() else {
            // Below all others.
            match self.blocks.pop_first() {
                Some((_, block)) => self.blocks.insert(old, block),
                None => self.blocks.insert(old, Vec::new()),
            };
            return self.insert(old, new);
        };
        let at = block.partition_point(|entry| entry.old <= old);
        let (before, after) = block.split_at_mut(at);
        let (before, after) = (before.last_mut(), after.first_mut());
        if before.as_ref().is_some_and(|run| old < run.end()) {
            return false;
        }
        let behind = before.as_ref().and_then(|run| run.with(entry));
        match (before, behind, after) {
            (Some(before), Some(run), Some(after)) if run.with(*after).is_some() => {
                *before = run.with(*after).unwrap_or(run);
                block.remove(at);
            }
            (Some(before), Some(run), _) => *before = run,
            (_, None, Some(after)) if entry.with(*after).is_some() => {
                *after = entry.with(*after).unwrap_or(entry);
            }
            (..) => self.place(key, at, entry),
        }
        true
    }

    /// Removes a chunk; false if it is missing.
    pub(super) fn remove(&mut self, old: u64) -> bool {
        let Some((&key, block)) = self.blocks.range_mut(..=old).next_back() else { return false };
        let Some(at) = block.partition_point(|entry| entry.old <= old).checked_sub(1) else {
            return false;
        };
        let run = block[at];
        if old >= run.end() {
            return false;
        }
        let (before, after) = (old - run.old, run.end() - old - 1);
        let left = |from: u64, len| Entry::run(run.old + from, run.new_chunk() + from, len);
        match (before, after) {
            (0, 0) => {
                block.remove(at);
                if block.is_empty() {
                    self.blocks.remove(&key);
                }
            }
            (0, after) => block[at] = left(1, after),
            (before, 0) => block[at] = left(0, before),
            (before, after) => {
                block[at] = left(0, before);
                self.place(key, at + 1, left(before + 1, after));
            }
        }
        true
    }

    /// Puts an entry into the block `key`, of which it becomes the one `at`.
    fn place(&mut self, key: u64, at: usize, entry: Entry) {
        let is_last = self.blocks.last_key_value().is_some_and(|(last, _)| *last == key);
        let Some(block) = self.blocks.get_mut(&key) else { return };
        if block.len() < BLOCK {
            return block.insert(at, entry);
        }
        // What comes in ascending order leaves full blocks behind.
        let half = if is_last && at == BLOCK { BLOCK } else { BLOCK / 2 };
        let mut upper = block.split_off(half);
        if at <= half && half < BLOCK {
            block.insert(at, entry);
        } else {
            upper.insert(at - half, entry);
        }
        block.shrink_to_fit();
        self.blocks.insert(upper[0].old, upper);
    }

    /// The number of entries, and the bytes that they take beside the tree.
    #[cfg(test)]
    fn size(&self) -> (usize, usize) {
        let bytes = |block: &Vec<Entry>| size_of_val(block) + block.capacity() * size_of::<Entry>();
        (self.blocks.values().map(Vec::len).sum(), self.blocks.values().map(bytes).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random words of a seed.
    fn words() -> impl Iterator<Item = u64> {
        let next = |word: &u64| {
            Some(
                word.wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407),
            )
        };
        std::iter::successors(Some(1_u64), next)
    }

    #[test]
    fn consecutive_chunks_are_one_entry() {
        let mut runs = Runs::default();
        for chunk in [5, 3, 4, 7, 6] {
            assert!(runs.insert(chunk, chunk + 100));
        }
        assert_eq!(runs.size().0, 1);
        assert!(!runs.insert(5, 9) && runs.covers(3..8) && !runs.covers(3..9));
        assert!(runs.insert(8, 300));
        assert_eq!((runs.size().0, runs.get(8), runs.get(9)), (2, Some(300), None));
    }

    #[test]
    fn a_run_is_cut_where_a_chunk_is_taken_out() {
        let mut runs = Runs::default();
        (0..10).for_each(|chunk| assert!(runs.insert(chunk, chunk + 20)));
        assert!(runs.remove(4) && !runs.remove(4));
        assert_eq!((runs.get(3), runs.get(4), runs.get(5)), (Some(23), None, Some(25)));
        assert!(runs.remove(0) && runs.remove(9));
        assert_eq!((runs.size().0, runs.get(1), runs.get(8)), (2, Some(21), Some(28)));
    }

    #[test]
    fn a_map_of_runs_is_a_map() {
        // The last one has more chunks than a block has entries, and runs that are longer than the longest.
        for (bits, rounds) in [(5, 20_000), (9, 40_000), (12, 60_000)] {
            let mut model = BTreeMap::new();
            let mut runs = Runs::default();
            for word in words().take(rounds) {
                let old = word >> (64 - bits);
                let new = (word >> 40) % 2 * 10_000 + old;
                if word >> 33 & 3 != 0 {
                    assert_eq!(runs.insert(old, new), !model.contains_key(&old));
                    model.entry(old).or_insert(new);
                } else {
                    assert_eq!(runs.remove(old), model.remove(&old).is_some());
                }
                let near = old.saturating_sub(3)..old + 4;
                for old in near.clone() {
                    assert_eq!(runs.get(old), model.get(&old).copied());
                }
                assert_eq!(runs.covers(near.clone()), near.clone().all(|o| model.contains_key(&o)));
                let first = near.clone().find(|old| model.contains_key(old));
                let found = runs.first_in(near.clone());
                assert_eq!(found.as_ref().map(|found| found.start), first);
                assert!(found.into_iter().flatten().all(|old| model.contains_key(&old)));
            }
            let all = 0..1 << bits;
            assert!(all.clone().all(|old| runs.get(old) == model.get(&old).copied()));
            let entries: Vec<Entry> =
                model.iter().map(|(old, new)| Entry::new(*old, *new)).collect();
            let sorted = Runs::of(entries).ok().unwrap();
            assert!(all.clone().all(|old| sorted.get(old) == runs.get(old)));
            assert!(sorted.size().0 <= runs.size().0);
            all.for_each(|old| assert_eq!(runs.remove(old), model.contains_key(&old)));
            assert!(runs.blocks.is_empty());
        }
    }

    #[test]
    fn a_chunk_that_is_there_twice_is_found_in_any_order() {
        let mut entries: Vec<Entry> = (0..1000).map(|n| Entry::new(n * 7 % 1000 * 2, n)).collect();
        assert!(Runs::of(entries.clone()).is_ok());
        entries.push(Entry::new(400, 5000));
        entries.push(Entry::new(300, 5001));
        assert_eq!(Runs::of(entries).err(), Some(300));
    }

    #[test]
    fn an_exception_without_neighbours_takes_at_most_32_bytes() {
        const COUNT: u64 = 20_000;
        let scattered: Vec<u64> = words().take(COUNT as usize).map(|word| word >> 9).collect();
        let orders: [Vec<u64>; 4] = [
            (0..COUNT).map(|n| n * 2).collect(),
            (0..COUNT).rev().map(|n| n * 2).collect(),
            // Between two blocks, from the second to the first.
            (0..100).chain((100..COUNT).rev()).map(|n| n * 2).collect(),
            scattered,
        ];
        for (order, olds) in orders.into_iter().enumerate() {
            let mut runs = Runs::default();
            olds.iter().zip(0..).for_each(|(old, new)| assert!(runs.insert(*old, new)));
            let (entries, bytes) = runs.size();
            assert_eq!(entries as u64, COUNT);
            assert!(bytes as u64 <= 32 * COUNT, "order {order}: {bytes} bytes");
            let entries = olds.iter().zip(0..).map(|(old, new)| Entry::new(*old, new));
            let (_, bytes) = Runs::of(entries.collect()).ok().unwrap().size();
            assert!(bytes as u64 <= 17 * COUNT, "order {order}: {bytes} bytes of a list");
        }
    }
}
