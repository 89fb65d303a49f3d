//! A map from ranges of sectors to values.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges of sectors, each with a value.
#[derive(Clone, Debug)]
pub struct RangeMap<V> {
    /// By start: the end and the value.
    ranges: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for RangeMap<V> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<V: Clone> RangeMap<V> {
    /// The value at `sector`.
    pub fn get(&self, sector: u64) -> Option<&V> {
        let (_, (end, value)) = self.ranges.range(..=sector).next_back()?;
        (sector < *end).then_some(value)
    }

    /// Removes `range`.
    pub fn clear(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // What begins at `range.end` or later stays.
        while let Some((&start, (end, value))) = self.ranges.range_mut(..range.end).next_back() {
            if *end <= range.start {
                break;
            }
            let rest = (*end > range.end).then(|| (*end, value.clone()));
            if start < range.start {
                *end = range.start;
            } else {
                self.ranges.remove(&start);
            }
            if let Some(rest) = rest {
                self.ranges.insert(range.end, rest);
            }
        }
    }

    /// Sets the value of `range`.
    pub fn set(&mut self, range: Range<u64>, value: V) {
        if range.is_empty() {
            return;
        }
        self.clear(range.clone());
        self.ranges.insert(range.start, (range.end, value));
    }

    /// The parts within `range` that have a value, in order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &V)> {
        let before = self.ranges.range(..range.start).next_back();
        let (from, to) = (range.start, range.end);
        before
            .into_iter()
            .chain(self.ranges.range(range))
            .map(move |(&start, (end, value))| (start.max(from)..(*end).min(to), value))
            .filter(|(part, _)| !part.is_empty())
    }

    /// The first sector within `range` that has a value.
    pub fn first_in(&self, range: Range<u64>) -> Option<u64> {
        self.within(range).next().map(|(part, _)| part.start)
    }

    /// Whether no sector has a value.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn it_agrees_with_an_array() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut map = RangeMap::default();
            let mut naive = [None; 40];
            for step in 0..30u64 {
                let start = rng.index(40);
                let end = start + rng.index(41 - start);
                let range = start as u64..end as u64;
                if rng.chance(1, 3) {
                    map.clear(range);
                    naive[start..end].fill(None);
                } else {
                    map.set(range, step);
                    naive[start..end].fill(Some(step));
                }
                for (sector, want) in naive.iter().enumerate() {
                    assert_eq!(map.get(sector as u64).copied(), *want, "seed {seed}");
                }
                let (from, to) = (rng.index(20), 20 + rng.index(20));
                let mut seen = [None; 40];
                for (part, value) in map.within(from as u64..to as u64) {
                    seen[part.start as usize..part.end as usize].fill(Some(*value));
                }
                assert_eq!(seen[from..to], naive[from..to], "seed {seed}");
                assert!(seen[..from].iter().chain(&seen[to..]).all(Option::is_none));
            }
        }
    }
}
