//! A level: the map from the array's sectors to its members'.

use std::ops::Range;

use ashlar_block::{Bio, Flags, Limits, Sector, Sectors, limits};
use smallvec::SmallVec;
use thiserror::Error;

use crate::ondisk::{Features, Level, Superblock};
use crate::raid0::{Zones, ZonesError};
use crate::raid5::{self, Held, ParityLevel};
use crate::raid10::geometry::{Geometry, GeometryError, Location};

/// An array's level with its address map.
#[derive(Clone, Debug)]
pub enum Personality {
    /// One member after the other.
    Linear {
        /// Each member is a zone.
        zones: Zones,
        /// What members are rounded down to, or zero.
        rounding: Sectors,
    },
    /// Striped, no redundancy.
    Raid0(Zones),
    /// Every member holds all data.
    Raid1 {
        /// How many members a complete array has.
        disks: usize,
        /// The array's size, which is also the used size of each member.
        size: Sectors,
    },
    /// Striped copies.
    Raid10(Geometry),
    /// Striped, with one or two chunks of parity in each row.
    Parity(raid5::Geometry),
}

/// Why the parameters of a superblock cannot form an array.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PersonalityError {
    /// A level that is not implemented.
    #[error(
        "level {0} is not supported: only linear, raid0, raid1, raid4, raid5, raid6 and raid10 can be assembled"
    )]
    Level(Level),
    /// The parameters cannot form a RAID 0.
    #[error(transparent)]
    Zones(#[from] ZonesError),
    /// The parameters cannot form a RAID 10.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The parameters cannot form an array with parity.
    #[error(transparent)]
    Parity(#[from] raid5::GeometryError),
}

/// The places of the copies of a run of sectors.
pub(crate) type Copies = SmallVec<[Location; 4]>;

/// The level as one with parity, if it is one.
pub(crate) const fn parity_level(level: Level) -> Option<ParityLevel> {
    match level {
        Level::Raid4 => Some(ParityLevel::Raid4),
        Level::Raid5 => Some(ParityLevel::Raid5),
        Level::Raid6 => Some(ParityLevel::Raid6),
        Level::Linear
        | Level::Raid0
        | Level::Raid1
        | Level::Raid10
        | Level::Multipath
        | Level::Faulty
        | Level::Other(_) => None,
    }
}

impl Personality {
    /// The map that `sb` describes, for an array of `disks` members. `sizes` returns the data size of
    /// each, and is called only for a level that needs it.
    ///
    /// # Errors
    /// The parameters are invalid, or `sizes` failed.
    pub(crate) fn new<E: From<PersonalityError>>(
        sb: &Superblock,
        disks: usize,
        sizes: impl FnOnce() -> Result<Vec<Sectors>, E>,
    ) -> Result<Self, E> {
        let made = match sb.level {
            Level::Raid0 => {
                // Without the feature the layout field is meaningless.
                let known = sb.features.contains(Features::RAID0_LAYOUT);
                let layout = if known { sb.layout } else { 0 };
                Zones::new(&sizes()?, sb.chunk, layout).map(Self::Raid0).map_err(Into::into)
            }
            Level::Linear => {
                let (sizes, rounding) = (sizes()?, sb.chunk);
                let zones = Zones::concatenated(&sizes, rounding);
                zones.map(|zones| Self::Linear { zones, rounding }).map_err(Into::into)
            }
            Level::Raid10 => {
                let geometry = Geometry::new(sb.layout, disks, sb.chunk, sb.size);
                geometry.map(Self::Raid10).map_err(Into::into)
            }
            Level::Raid1 => Ok(Self::Raid1 { disks, size: sb.size }),
            Level::Raid4
            | Level::Raid5
            | Level::Raid6
            | Level::Multipath
            | Level::Faulty
            | Level::Other(_) => match parity_level(sb.level) {
                Some(level) => {
                    let geometry = raid5::Geometry::new(level, sb.layout, disks, sb.chunk, sb.size);
                    geometry.map(Self::Parity).map_err(Into::into)
                }
                None => Err(PersonalityError::Level(sb.level)),
            },
        };
        Ok(made?)
    }

    /// The level.
    pub fn level(&self) -> Level {
        match self {
            Self::Linear { .. } => Level::Linear,
            Self::Raid0(_) => Level::Raid0,
            Self::Raid1 { .. } => Level::Raid1,
            Self::Raid10(_) => Level::Raid10,
            Self::Parity(geometry) => match geometry.level() {
                ParityLevel::Raid4 => Level::Raid4,
                ParityLevel::Raid5 => Level::Raid5,
                ParityLevel::Raid6 => Level::Raid6,
            },
        }
    }

    /// How many members a complete array has.
    pub fn disks(&self) -> usize {
        match self {
            Self::Linear { zones, .. } | Self::Raid0(zones) => zones.disks(),
            Self::Raid1 { disks, .. } => *disks,
            Self::Raid10(geometry) => geometry.disks(),
            Self::Parity(geometry) => geometry.disks(),
        }
    }

    /// Whether the array can lose a member.
    pub fn is_redundant(&self) -> bool {
        !matches!(self, Self::Linear { .. } | Self::Raid0(_))
    }

    /// The used size of each member; zero for a level whose members differ.
    pub fn used_dev_size(&self) -> Sectors {
        match self {
            Self::Linear { .. } | Self::Raid0(_) => Sectors::ZERO,
            Self::Raid1 { size, .. } => *size,
            Self::Raid10(geometry) => geometry.used_dev_sectors(),
            Self::Parity(geometry) => geometry.used_dev_sectors(),
        }
    }

    /// The array's size.
    pub fn size(&self) -> Sectors {
        match self {
            Self::Linear { zones, .. } | Self::Raid0(zones) => zones.size(),
            Self::Raid1 { size, .. } => *size,
            Self::Raid10(geometry) => geometry.size(),
            Self::Parity(geometry) => geometry.size(),
        }
    }

    /// The copies of `sector` and of the sectors after it up to the end of its chunk.
    pub fn map(&self, sector: Sector) -> Copies {
        match self {
            Self::Linear { zones, .. } | Self::Raid0(zones) => {
                let at = zones.map(sector);
                Copies::from_iter([Location { disk: at.disk, sector: at.sector }])
            }
            Self::Raid1 { disks, .. } => {
                (0..*disks).map(|disk| Location { disk, sector }).collect()
            }
            Self::Raid10(geometry) => geometry.map(sector).collect(),
            Self::Parity(geometry) => Copies::from_iter([geometry.map(sector)]),
        }
    }

    /// Sectors from `sector`, of the array or of sync space, on for which its map holds.
    pub fn chunk_left(&self, sector: Sector) -> Sectors {
        match self {
            Self::Linear { zones, .. } | Self::Raid0(zones) => zones.map(sector).left,
            Self::Raid1 { .. } => Sectors::MAX,
            Self::Raid10(g) if g.is_plain_mirror() => Sectors::MAX,
            Self::Raid10(geometry) => geometry.chunk_left(sector),
            Self::Parity(geometry) => geometry.chunk_left(sector),
        }
    }

    /// The size of *sync space*, in which bitmaps, the bound and syncs count: the sectors of the array where it has copies, those of a
    /// member where it has parity.
    pub fn sync_size(&self) -> Sectors {
        match self {
            Self::Parity(geometry) => geometry.used_dev_sectors(),
            Self::Linear { .. } | Self::Raid0(_) | Self::Raid1 { .. } | Self::Raid10(_) => {
                self.size()
            }
        }
    }

    /// The part of sync space that a change of a range of the array touches.
    #[inline]
    pub(crate) fn sync_range(&self, at: Sector, len: Sectors) -> Range<Sector> {
        match self {
            Self::Parity(geometry) if geometry.chunk_left(at) >= len => {
                let at = geometry.map(at).sector;
                at..at + len
            }
            Self::Parity(geometry) => geometry.rows(at..at + len),
            Self::Linear { .. } | Self::Raid0(_) | Self::Raid1 { .. } | Self::Raid10(_) => {
                at..at + len
            }
        }
    }

    /// The range of the array whose changes touch a range of sync space.
    pub(crate) fn array_range(&self, range: &Range<Sector>) -> Range<Sector> {
        match self {
            Self::Parity(geometry) => geometry.data_of(range),
            Self::Linear { .. } | Self::Raid0(_) | Self::Raid1 { .. } | Self::Raid10(_) => {
                range.clone()
            }
        }
    }

    /// The slots whose members must agree at a place of sync space, and up to the end of its chunk.
    pub(crate) fn slots_at(&self, at: Sector) -> SmallVec<[usize; 4]> {
        match self {
            Self::Parity(geometry) => (0..geometry.disks()).collect(),
            Self::Linear { .. } | Self::Raid0(_) | Self::Raid1 { .. } | Self::Raid10(_) => {
                self.map(at).iter().map(|copy| copy.disk).collect()
            }
        }
    }

    /// The place of sync space that a sector of the data area of the member in `slot` belongs to.
    pub(crate) fn synced_at(&self, slot: usize, at: Sector) -> Option<Sector> {
        match self {
            Self::Parity(geometry) => (at < geometry.used_dev_sectors().as_end()).then_some(at),
            Self::Linear { .. } | Self::Raid0(_) | Self::Raid1 { .. } | Self::Raid10(_) => {
                self.unmap(slot, at)
            }
        }
    }

    /// Whether a resync can make right what the members of some slots hold, although others are missing. Parity is made from all data.
    pub(crate) fn is_resynced_degraded(&self) -> bool {
        !matches!(self, Self::Parity(_))
    }

    /// The parts of a bio, each within one chunk.
    pub(crate) fn chunks(&self, bio: &Bio) -> impl Iterator<Item = Bio> {
        let mut at = bio.sector;
        std::iter::from_fn(move || {
            let left = bio.end() - at;
            if left.is_zero() {
                return None;
            }
            let len = self.chunk_left(at).min(left);
            let part = bio.slice_to(at, len, at);
            at += len;
            Some(part)
        })
    }

    /// Whether a range lies within one chunk, so that one map holds for all of it.
    pub(crate) fn is_in_one_chunk(&self, at: Sector, len: Sectors) -> bool {
        self.chunk_left(at) >= len
    }

    /// The array sector whose data, or a copy of it, is at a sector of the data area of the member in `slot`.
    pub(crate) fn unmap(&self, slot: usize, at: Sector) -> Option<Sector> {
        match self {
            Self::Linear { .. } | Self::Raid0(_) => None,
            Self::Raid1 { size, .. } => (at < size.as_end()).then_some(at),
            Self::Raid10(geometry) => geometry.unmap(slot, at),
            Self::Parity(geometry) => match geometry.unmap(slot, at) {
                Held::Data(sector) => Some(sector),
                Held::P | Held::Q | Held::Nothing => None,
            },
        }
    }

    /// Sectors of a member from `at` on for which the result of [`Self::unmap`] holds.
    pub(crate) fn member_chunk_left(&self, at: Sector) -> Sectors {
        match self {
            Self::Raid10(geometry) => geometry.chunk_left(at),
            Self::Parity(geometry) => geometry.chunk_left(at),
            Self::Linear { .. } | Self::Raid0(_) | Self::Raid1 { .. } => Sectors::MAX,
        }
    }

    /// The length of the areas of a member that repeat the array (the far layout), if it has several.
    pub(crate) fn member_area(&self) -> Option<Sectors> {
        match self {
            Self::Raid10(geometry) if !geometry.layout().offset => {
                Some(geometry.stride()).filter(|stride| !stride.is_zero())
            }
            Self::Linear { .. }
            | Self::Raid0(_)
            | Self::Raid1 { .. }
            | Self::Raid10(_)
            | Self::Parity(_) => None,
        }
    }

    /// Whether all data can be read from the members for which `present` holds.
    pub fn is_readable_with(&self, present: impl Fn(usize) -> bool) -> bool {
        match self {
            Self::Linear { .. } | Self::Raid0(_) => (0..self.disks()).all(present),
            Self::Raid1 { disks, .. } => (0..*disks).any(present),
            Self::Raid10(geometry) => geometry.is_readable_with(present),
            Self::Parity(geometry) => geometry.is_readable_with(present),
        }
    }

    /// Whether some chunk has a copy on `slot` and another one on a member for which `present` holds; with parity, whether they have a row
    /// in common.
    pub fn shares_data(&self, slot: usize, present: impl Fn(usize) -> bool) -> bool {
        if let Self::Parity(geometry) = self {
            return (0..geometry.disks()).any(|other| other != slot && present(other));
        }
        // The pattern of a RAID 10 repeats after as many chunks as there are members.
        let chunk = self.chunk();
        let chunks = if chunk.is_zero() { 1 } else { self.size().0 / chunk.0 };
        (0..chunks.min(self.disks() as u64)).any(|c| {
            let copies = self.map(Sector(c * chunk.0));
            copies.iter().any(|at| at.disk == slot)
                && copies.iter().any(|at| at.disk != slot && present(at.disk))
        })
    }

    /// Adds the level's limits to the limits of the members.
    pub fn narrow(&self, limits: &mut Limits, disks: usize) {
        let bytes = |n: Sectors| u32::try_from(n.bytes()).unwrap_or(u32::MAX);
        match self {
            Self::Raid0(zones) => {
                let chunk = bytes(zones.chunk());
                limits.io_min_bytes = limits.io_min_bytes.max(chunk);
                limits.io_opt_bytes = chunk.saturating_mul(disks as u32);
            }
            Self::Linear { .. } | Self::Raid1 { .. } => {}
            Self::Raid10(geometry) => {
                let chunk = bytes(geometry.chunk());
                let stripes = (disks / usize::from(geometry.layout().near)).max(1) as u32;
                limits.io_min_bytes = limits.io_min_bytes.max(chunk);
                limits.io_opt_bytes = chunk.saturating_mul(stripes);
            }
            Self::Parity(geometry) => {
                let chunk = bytes(geometry.chunk());
                limits.io_min_bytes = limits.io_min_bytes.max(chunk);
                limits.io_opt_bytes = chunk.saturating_mul(geometry.data_disks() as u32);
                // Whole rows are zeroed on all members, which for a discard must be fast; the rest is not.
                let is_fast = limits.takes_zeroes(Flags::FAST);
                if !is_fast || limits.max_hw_discard.is_zero() {
                    limits.max_hw_discard = Sectors::ZERO;
                } else {
                    let row = bytes(geometry.row_len());
                    limits.discard_granularity_bytes = limits.discard_granularity_bytes.max(row);
                    limits.discard_alignment_bytes = 0;
                }
                limits.features -= limits::Features::DISCARD_ZEROES | limits::Features::FAST_ZERO;
            }
        }
        // The level splits I/O at its chunks, and the members' gateways at the members' boundaries.
    }

    /// The superblock's chunk size, zero where the level has none.
    pub fn chunk(&self) -> Sectors {
        match self {
            Self::Linear { rounding, .. } => *rounding,
            Self::Raid0(zones) => zones.chunk(),
            Self::Raid1 { .. } => Sectors::ZERO,
            Self::Raid10(geometry) => geometry.chunk(),
            Self::Parity(geometry) => geometry.chunk(),
        }
    }
}
