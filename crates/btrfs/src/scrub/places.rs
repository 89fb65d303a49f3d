//! Locations of a stripe's sectors on its device.
//!
//! Contiguous, as in the chunk, except for data placed by the RAID stripe tree.

use std::ops::Range;

use smallvec::SmallVec;

use super::sectors::Sectors;
use crate::error::ReadError;
use crate::units::Physical;

/// Sectors that are also contiguous on the device.
#[derive(Clone, Debug)]
struct Segment {
    sectors: Range<usize>,
    /// Offset of the first one.
    at: Physical,
}

/// Locations of a stripe's sectors. A sector without one was never written, or its location is unknown.
#[derive(Clone, Debug)]
pub(super) struct Places {
    sectorsize: u64,
    /// Ascending, without overlaps.
    segments: SmallVec<[Segment; 1]>,
    /// Sectors whose location is unknown.
    lost: Vec<(usize, ReadError)>,
}

impl Places {
    /// No sector has a location.
    pub(super) fn nowhere(sectorsize: u64) -> Self {
        Self { sectorsize, segments: SmallVec::new(), lost: Vec::new() }
    }

    /// All `count` sectors are contiguous, starting at `at`.
    pub(super) fn linear(at: Physical, count: usize, sectorsize: u64) -> Self {
        let segment = Segment { sectors: 0..count, at };
        Self { segments: SmallVec::from_iter([segment]), ..Self::nowhere(sectorsize) }
    }

    /// Places `sector`, which is after all others, at `at`.
    pub(super) fn push(&mut self, sector: usize, at: Physical) {
        let sectorsize = self.sectorsize;
        match self.segments.last_mut() {
            Some(last) if last.sectors.end == sector && last.of(sector, sectorsize) == at => {
                last.sectors.end += 1;
            }
            Some(_) | None => self.segments.push(Segment { sectors: sector..sector + 1, at }),
        }
    }

    /// Records that the location of `sector` is unknown.
    pub(super) fn push_lost(&mut self, sector: usize, why: ReadError) {
        self.lost.push((sector, why));
    }

    /// Location of `sector`.
    pub(super) fn get(&self, sector: usize) -> Option<Physical> {
        let segment = self.segments.iter().find(|segment| segment.sectors.contains(&sector))?;
        Some(segment.of(sector, self.sectorsize))
    }

    /// Why the location of one of `sectors` is unknown.
    pub(super) fn why_lost(&self, sectors: &Range<usize>) -> Option<&ReadError> {
        self.lost.iter().find(|(sector, _)| sectors.contains(sector)).map(|(_, why)| why)
    }

    /// The sectors of `wanted` that have a location.
    pub(super) fn placed(&self, wanted: Sectors) -> Sectors {
        let mut placed = Sectors::default();
        self.segments.iter().for_each(|segment| placed.insert(segment.sectors.clone()));
        Sectors(placed.0 & wanted.0)
    }

    /// Runs of located sectors of `wanted`, including gaps of up to `gap` sectors, each with the
    /// location of its first sector.
    pub(super) fn runs(
        &self,
        wanted: Sectors,
        gap: usize,
    ) -> SmallVec<[(Range<usize>, Physical); 8]> {
        let of_segment = |segment: &Segment| {
            let mut there = Sectors::default();
            there.insert(segment.sectors.clone());
            let place = segment.clone();
            let sectorsize = self.sectorsize;
            let runs = Sectors(there.0 & wanted.0).runs(gap).into_iter();
            runs.map(move |run| (run.clone(), place.of(run.start, sectorsize)))
        };
        self.segments.iter().flat_map(of_segment).collect()
    }
}

impl Segment {
    /// Location of `sector`, actual or extrapolated; it must not be before the first one.
    fn of(&self, sector: usize, sectorsize: u64) -> Physical {
        Physical(self.at.0 + (sector - self.sectors.start) as u64 * sectorsize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_that_are_beside_each_other_are_read_in_one() {
        let mut places = Places::nowhere(4096);
        for (sector, at) in [(1, 0), (2, 1), (3, 8), (6, 11), (7, 12)] {
            places.push(sector, Physical(at * 4096));
        }
        places.push_lost(9, ReadError::Row(crate::units::Logical(0)));
        let at = |sector| places.get(sector).map(|at| at.0 / 4096);
        assert_eq!(
            [0, 1, 2, 3, 4, 6, 7, 8].map(at),
            [None, Some(0), Some(1), Some(8), None, Some(11), Some(12), None]
        );
        let runs = |wanted: u32| -> Vec<(Range<usize>, u64)> {
            let runs = places.runs(Sectors(wanted), 4).into_iter();
            runs.map(|(run, at)| (run, at.0 / 4096)).collect()
        };
        // The space between 3 and 6 is used by others, or free.
        assert_eq!(runs(u32::MAX), [(1..3, 0), (3..4, 8), (6..8, 11)]);
        assert_eq!(runs(0b1000_0101), [(2..3, 1), (7..8, 12)]);
        assert_eq!(places.placed(Sectors(0b1_1000_0101)).0, 0b1000_0100);
        assert!(places.why_lost(&(8..10)).is_some() && places.why_lost(&(6..9)).is_none());
        let linear = Places::linear(Physical(65536), 16, 4096);
        assert_eq!(
            linear.runs(Sectors(0b1001_0000), 4).into_vec(),
            [(4..8, Physical(65536 + 16384))]
        );
        assert_eq!((linear.get(15), linear.get(16)), (Some(Physical(65536 + 61440)), None));
    }
}
