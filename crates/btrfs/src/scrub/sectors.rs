//! A set of sectors of a stripe.

use std::ops::Range;

use smallvec::SmallVec;

/// As a bitmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sectors(pub(super) u32);

impl Sectors {
    pub(super) fn insert(&mut self, range: Range<usize>) {
        for sector in range {
            self.0 |= 1 << (sector & 31);
        }
    }

    pub(super) const fn has(self, sector: usize) -> bool {
        self.0 & 1 << (sector & 31) != 0
    }

    pub(super) fn intersects(self, mut range: Range<usize>) -> bool {
        range.any(|sector| self.has(sector))
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn count(self) -> u64 {
        self.0.count_ones() as u64
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (0..32).filter(move |sector| self.has(*sector))
    }

    /// Runs of consecutive sectors, including gaps of up to `gap` sectors.
    pub(super) fn runs(self, gap: usize) -> SmallVec<[Range<usize>; 8]> {
        let mut runs: SmallVec<[Range<usize>; 8]> = SmallVec::new();
        for sector in self.iter() {
            match runs.last_mut() {
                Some(run) if sector <= run.end + gap => run.end = sector + 1,
                _ => runs.push(sector..sector + 1),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_take_small_gaps_with_them() {
        let mut sectors = Sectors::default();
        for range in [0..2, 4..5, 9..11, 15..16] {
            sectors.insert(range);
        }
        let runs = |gap| sectors.runs(gap).into_vec();
        assert_eq!(runs(0), [0..2, 4..5, 9..11, 15..16]);
        assert_eq!(runs(2), [0..5, 9..11, 15..16]);
        assert_eq!((runs(4).len(), runs(4)[0].clone()), (1, 0..16));
        assert_eq!((sectors.count(), sectors.has(3), sectors.has(4)), (6, false, true));
        assert!(sectors.intersects(2..5) && !sectors.intersects(2..4));
        assert!(Sectors::default().runs(4).is_empty());
    }
}
