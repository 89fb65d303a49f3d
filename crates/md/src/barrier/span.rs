//! The buckets of a range of units, each once, in ascending order.

/// `low..=high`, or if `low` is above `high`: `0..=high` and `low..` to the end.
///
/// Ascending by bucket, not by unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    low: u16,
    high: u16,
}

impl Span {
    /// The buckets of the units `first` to `last`; there are `buckets` (65,536 at most) in all.
    #[inline]
    pub(super) fn of(first: u64, last: u64, buckets: usize) -> Self {
        let buckets = buckets as u64;
        if last - first >= buckets {
            return Self { low: 0, high: (buckets - 1) as u16 };
        }
        Self { low: (first % buckets) as u16, high: (last % buckets) as u16 }
    }

    /// The bucket, if there is only one.
    #[inline]
    pub(super) fn single(self) -> Option<usize> {
        (self.low == self.high).then_some(usize::from(self.low))
    }

    /// The `n`th bucket, from 0.
    pub(super) fn nth(self, n: u16, buckets: usize) -> Option<usize> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buckets_of_any_units_are_theirs_each_once_ascending() {
        for buckets in [1, 2, 4, 8, 1024] {
            let n = buckets as u64;
            for first in [0, 1, 5, n - 1, n, 3 * n - 1] {
                for len in [1, 2, 3, n - 1, n, n + 1, 5 * n].into_iter().filter(|len| *len > 0) {
                    let span = Span::of(first, first + len - 1, buckets);
                    let got: Vec<usize> = (0..).map_while(|i| span.nth(i, buckets)).collect();
                    let want: std::collections::BTreeSet<usize> =
                        (first..first + len).map(|unit| (unit % n) as usize).collect();
                    assert_eq!(got, want.into_iter().collect::<Vec<_>>(), "{first} + {len}");
                    assert_eq!(span.single(), (got.len() == 1).then(|| got[0]));
                }
            }
        }
    }
}
