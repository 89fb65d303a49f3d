//! How long I/Os took: how many ended within each range of time.
//!
//! Counting is a table look-up and an addition. A thread that has a [shard](crate::shard) alone has counters of its own; all other
//! threads share one set, because they do little I/O and the counters of a shard fill several cache lines.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::shard::{OWN_SHARDS, own_shard};
use crate::sync::count;

/// The upper bounds of the ranges in microseconds, inclusive; a last range has no bound.
///
/// They double where disks answer, and grow faster where only disks with a problem do. Devices take the time once for each turn of their
/// runtime ([`crate::clock`]), so finer ones would say no more.
pub const BOUNDS_US: [u64; 15] = [
    16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 65_536, 262_144, 1_048_576,
    4_194_304,
];

/// The number of ranges.
pub const RANGES: usize = BOUNDS_US.len() + 1;

/// The range of a time in whole microseconds, by the number of its binary digits: all bounds are powers of two.
const RANGE_BY_DIGITS: [u8; 65] = {
    let mut ranges = [BOUNDS_US.len() as u8; 65];
    let (mut digits, mut range) = (0, 0);
    while range < BOUNDS_US.len() {
        assert!(BOUNDS_US[range].is_power_of_two());
        while digits <= BOUNDS_US[range].trailing_zeros() as usize {
            ranges[digits] = range as u8;
            digits += 1;
        }
        range += 1;
    }
    ranges
};

/// The index of the range that a time in nanoseconds belongs to.
#[inline]
fn range(ns: u64) -> usize {
    // Rounded down after taking one away, so that a bound itself belongs to its range.
    let us = ns.saturating_sub(1) / 1000;
    usize::from(RANGE_BY_DIGITS[(u64::BITS - us.leading_zeros()) as usize])
}

/// How many I/Os of one group of operations ended within each range, the first range first.
pub type Ranges = [u64; RANGES];

/// The groups of operations that are counted apart.
pub(crate) const GROUPS: usize = 4;

/// One set of counters, on separate cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Counters([[AtomicU64; RANGES]; GROUPS]);

/// The counters of a device.
#[derive(Default)]
pub(crate) struct Latencies {
    own: [Counters; OWN_SHARDS],
    shared: Counters,
}

impl Latencies {
    /// Counts an I/O of a group that ended after `ns` nanoseconds, on a thread with this shard.
    #[inline]
    pub(crate) fn count(&self, group: usize, ns: u64, shard: usize) {
        let own = own_shard(shard).map(|own| &self.own[own]);
        let counters = own.unwrap_or(&self.shared);
        count(&counters.0[group][range(ns)], 1, own.is_some());
    }

    /// The sums over all threads for a group.
    pub(crate) fn of(&self, group: usize) -> Ranges {
        let all = || self.own.iter().chain([&self.shared]);
        std::array::from_fn(|range| all().map(|c| c.0[group][range].load(Relaxed)).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_range_whose_bound_it_does_not_exceed() {
        let naive = |ns: u64| BOUNDS_US.iter().position(|us| ns <= us * 1000).unwrap_or(RANGES - 1);
        let near = BOUNDS_US.map(|us| us * 1000).into_iter().flat_map(|ns| [ns - 1, ns, ns + 1]);
        let doubled = (0..u64::BITS).map(|bit| 1 << bit);
        for ns in near.chain(doubled).chain([0, 999, 1000, 1001, u64::MAX]) {
            assert_eq!(range(ns), naive(ns), "{ns}");
        }
    }

    #[test]
    fn counts_of_all_threads_are_summed_group_by_group() {
        let latencies = Latencies::default();
        for shard in 0..crate::shard::SHARDS {
            latencies.count(1, 20_000, shard);
            latencies.count(1, u64::MAX, shard);
        }
        latencies.count(3, 0, 0);
        let shards = crate::shard::SHARDS as u64;
        let mut expected = [0; RANGES];
        (expected[1], expected[RANGES - 1]) = (shards, shards);
        assert_eq!(latencies.of(1), expected);
        assert_eq!((latencies.of(0), latencies.of(3)[0]), ([0; RANGES], 1));
    }
}
