//! An array under reshape: two maps of the same data on the same members, and the position where one ends and the other begins.
//!
//! The kernel moves the data from one end of the array to the other and records how far it is. Everything on the near side of the recorded
//! position lies where the new map says, everything on the far side still where the old one says. A sector is therefore read by the map of its
//! side, and nothing else has to be known. Both sides are arrays of their own here, on the same members: with fewer members than are needed on
//! one side, blocks are recovered within that side's rows.
//!
//! | direction | old map | new map |
//! |---|---|---|
//! | forwards | from the position on | below the position |
//! | backwards | below the position | from the position on |
//!
//! Source of the facts: the kernel's `raid5.c` (`reshape_request`, `raid5_run`) and `raid10.c` (`raid10_find_phys`).

use std::ops::Range;

use ashlar_block::{Sector, Sectors};

use crate::canary::{Rule, broken};

/// How far a reshape is, as the superblocks record it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReshapePosition {
    /// A sector of the array.
    pub at: Sector,
    /// Whether the reshape runs from the end of the array to its start.
    pub backwards: bool,
}

/// Which map holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The map before the reshape.
    Before,
    /// The map after it.
    After,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Before, Self::After];

    /// The other one.
    pub const fn other(self) -> Self {
        match self {
            Self::Before => Self::After,
            Self::After => Self::Before,
        }
    }
}

impl ReshapePosition {
    /// The side of a sector.
    pub fn side(&self, sector: Sector) -> Side {
        let is_moved = if broken(Rule::PositionChoosesGeometry) {
            true
        } else {
            (sector < self.at) != self.backwards
        };
        if is_moved { Side::After } else { Side::Before }
    }

    /// Sectors from `sector` on with the same side.
    pub fn left(&self, sector: Sector) -> Sectors {
        if sector < self.at { self.at - sector } else { Sectors::MAX }
    }

    /// The part of an array of `size` that lies on a side.
    pub fn range(&self, side: Side, size: Sectors) -> Range<Sector> {
        let at = self.at.min(size.as_end());
        match (side == Side::After) != self.backwards {
            true => Sector::ZERO..at,
            false => at..size.as_end(),
        }
    }

    /// Percent of the data of an array of `size` that the reshape has moved, rounded down.
    pub fn percent(&self, size: Sectors) -> u64 {
        let moved = self.range(Side::After, size);
        (u128::from((moved.end - moved.start).0) * 100 / u128::from(size.0.max(1))) as u64
    }
}

/// The reshape that is under way, for the user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReshapeStatus {
    /// How far it is.
    pub position: ReshapePosition,
    /// The members of the array after it.
    pub raid_disks: u32,
    /// How many of them it adds.
    pub delta_disks: i32,
    /// The layout word before it.
    pub old_layout: u32,
    /// The layout word after it.
    pub new_layout: u32,
    /// The chunk size before it.
    pub old_chunk: Sectors,
    /// The chunk size after it.
    pub new_chunk: Sectors,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sector_has_the_side_of_the_range_that_contains_it() {
        const SIZE: Sectors = Sectors(10);
        for backwards in [false, true] {
            for at in 0..12 {
                let position = ReshapePosition { at: Sector(at), backwards };
                for sector in (0..SIZE.0).map(Sector) {
                    let side = position.side(sector);
                    assert!(position.range(side, SIZE).contains(&sector));
                    assert!(!position.range(side.other(), SIZE).contains(&sector));
                    let same = (sector.0..SIZE.0).map(Sector);
                    let same = same.take_while(|next| position.side(*next) == side).count() as u64;
                    assert_eq!(position.left(sector).min(SIZE.as_end() - sector).0, same);
                }
            }
        }
    }
}
