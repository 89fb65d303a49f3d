//! Durations, counted in buckets of equal ratio.

/// Bits of a duration that its bucket keeps behind the first one: a bucket is at most an eighth wide.
const BITS: u32 = 3;
/// Longer durations (18 minutes) are counted in the last bucket.
const MAX_NS: u64 = (1 << 40) - 1;
/// The number of buckets.
const BUCKETS: usize = bucket(MAX_NS) + 1;

/// The bucket of a duration.
const fn bucket(ns: u64) -> usize {
    let ns = if ns > MAX_NS { MAX_NS } else { ns };
    if ns < 1 << BITS {
        return ns as usize;
    }
    let shift = ns.ilog2() - BITS;
    ((shift as usize + 1) << BITS) + ((ns >> shift) as usize & ((1 << BITS) - 1))
}

/// The longest duration of a bucket.
const fn upper(bucket: usize) -> u64 {
    let (group, within) = (bucket >> BITS, bucket & ((1 << BITS) - 1));
    if group == 0 {
        return within as u64;
    }
    (((1 << BITS) + within as u64 + 1) << (group - 1)) - 1
}

/// How long something took, many times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Latencies {
    buckets: Box<[u32; BUCKETS]>,
    count: u64,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        let buckets = Box::new([0; BUCKETS]);
        Self { buckets, count: 0, sum_ns: 0, min_ns: u64::MAX, max_ns: 0 }
    }
}

impl Latencies {
    pub(crate) fn add(&mut self, ns: u64) {
        let count = &mut self.buckets[bucket(ns)];
        *count = count.saturating_add(1);
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        for (count, more) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *count = count.saturating_add(*more);
        }
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// The shortest; `None` of nothing.
    pub(crate) fn min_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min_ns)
    }

    /// The longest.
    pub(crate) const fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The mean; 0 of nothing.
    pub(crate) fn mean_ns(&self) -> u64 {
        (self.sum_ns.checked_div(u128::from(self.count)).unwrap_or(0)) as u64
    }

    /// The duration that `thousandths` of all do not exceed, at most an eighth too long.
    pub(crate) fn quantile_ns(&self, thousandths: u64) -> u64 {
        let wanted = (self.count * thousandths).div_ceil(1000).max(1);
        let mut seen = 0;
        let reaches = |(index, count): (usize, &u32)| {
            seen += u64::from(*count);
            (seen >= wanted).then_some(index)
        };
        match self.buckets.iter().enumerate().find_map(reaches) {
            Some(index) => upper(index).min(self.max_ns),
            None => self.max_ns,
        }
    }

    /// How many there are in each half of an octave from `1 << from` ns to `1 << to` ns.
    pub(crate) fn half_octaves(&self, from: u32, to: u32) -> Vec<u64> {
        let mut all = vec![0; 2 * (to - from) as usize];
        for (index, count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            let top = upper(index).max(1);
            let octave = top.ilog2();
            let half = u32::from(top >> octave.saturating_sub(1) & 1 == 1 && octave > 0);
            let at = (2 * octave + half).clamp(2 * from, 2 * to - 1) - 2 * from;
            all[at as usize] += u64::from(*count);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_at_most_an_eighth_wide() {
        for index in 0..BUCKETS - 1 {
            assert_eq!(bucket(upper(index)), index);
            assert_eq!(bucket(upper(index) + 1), index + 1);
            let width = upper(index + 1) - upper(index);
            assert!(width == 1 || width <= upper(index + 1) / 8 + 1, "{index}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_in_the_bucket_of_the_exact_one() {
        let mut state = 1_u64;
        for len in 1..200 {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) >> (state & 31)
            };
            let mut all: Vec<u64> = (0..len).map(|_| next()).collect();
            let mut latencies = Latencies::default();
            all.iter().for_each(|ns| latencies.add(*ns));
            all.sort_unstable();
            for thousandths in [1, 500, 990, 1000] {
                let exact = all[(all.len() * thousandths).div_ceil(1000).max(1) - 1];
                let found = latencies.quantile_ns(thousandths as u64);
                assert!(found >= exact && bucket(found) == bucket(exact), "{exact} {found}");
            }
            assert_eq!((latencies.min_ns(), latencies.max_ns()), (Some(all[0]), all[len - 1]));
            assert_eq!(latencies.mean_ns(), all.iter().sum::<u64>() / len as u64);
            assert_eq!(latencies.half_octaves(0, 40).iter().sum::<u64>(), len as u64);
        }
    }
}
