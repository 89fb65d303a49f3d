//! The address map of RAID 4, 5 and 6: which member holds a sector of the array, and the other way round.
//!
//! Chunk `c` is data chunk `c % D` of row `c / D`, where `D` is the number of data chunks in a row; all chunks of a row, those of parity
//! too, are at the same place of their members. Only the choice of members depends on the [layout](super::layout).
//!
//! Invariants, enumerated in the tests `geometry_raid5`:
//! - in each row every member holds one data chunk, P or Q;
//! - `map` and `unmap` are inverse;
//! - the members that Q counts have different exponents below 255.
//!
//! Source of the facts: the kernel's `raid5.c` (`raid5_compute_sector`, `raid5_compute_blocknr`, `raid5_size`, `setup_conf`).

use std::ops::Range;

use ashlar_block::units::{Sector, Sectors};

use super::layout::{DataOrder, Layout, LayoutError, ParityLevel, PlaceOfP, PlaceOfQ, QOrder};
use crate::raid0::MAX_MEMBERS;
use crate::raid10::Location;

/// The most data chunks in a row of RAID 6: as many as there are powers of two.
const MAX_Q_MEMBERS: usize = 255;

/// Why these parameters cannot form an array with parity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The layout word is invalid.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Too few members, or more than an array can have.
    #[error("an array of this level has {least} to {most} members, not {disks}")]
    MemberCount {
        /// The fewest.
        least: usize,
        /// The most.
        most: usize,
        /// The members.
        disks: usize,
    },
    /// The chunk size is not possible.
    #[error(
        "the chunk size of an array with parity must be a power of two of at least 4 KiB, not {0} sectors"
    )]
    Chunk(Sectors),
    /// The members have no room for a chunk.
    #[error("members of {0} sectors have no room for one chunk")]
    Empty(Sectors),
    /// The array would have more than 2^64 sectors.
    #[error("{disks} members of {dev_sectors} sectors are more than an array can have")]
    TooLarge {
        /// The members.
        disks: usize,
        /// Their size.
        dev_sectors: Sectors,
    },
}

/// What a member holds at a place of its data area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// This sector of the array.
    Data(Sector),
    /// The sum of the row's data.
    P,
    /// The sum of the row's data times powers of two.
    Q,
    /// Nothing: the place is behind the array's end.
    Nothing,
}

/// The members of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    layout: Layout,
    disks: u16,
    /// The slot that has P.
    pub p: usize,
    /// The slot that has Q.
    pub q: Option<usize>,
}

impl Row {
    fn new(layout: Layout, disks: usize, number: u64) -> Self {
        // Q outside leaves the others a RAID 5.
        let inner = disks - usize::from(layout.q == PlaceOfQ::Outside);
        let turn = |number: u64| (number % inner as u64) as usize;
        let p = match layout.p {
            PlaceOfP::First => 0,
            PlaceOfP::Last => inner - 1 - usize::from(layout.q == PlaceOfQ::AfterP),
            PlaceOfP::Left => inner - 1 - turn(number),
            PlaceOfP::LeftNext => inner - 1 - turn(number.wrapping_add(1)),
            PlaceOfP::Right => turn(number),
        };
        let q = match layout.q {
            PlaceOfQ::None => None,
            PlaceOfQ::AfterP => Some((p + 1) % disks),
            PlaceOfQ::BeforeP => Some((p + disks - 1) % disks),
            PlaceOfQ::Outside => Some(disks - 1),
        };
        Self { layout, disks: disks as u16, p, q }
    }

    fn disks(&self) -> usize {
        usize::from(self.disks)
    }

    /// The data chunks of the row.
    pub fn data_disks(&self) -> usize {
        self.disks() - 1 - usize::from(self.q.is_some())
    }

    /// The first slot behind the parity, and how many slots the data goes around.
    fn behind_parity(&self) -> (usize, usize) {
        let last =
            if self.layout.q == PlaceOfQ::AfterP { self.q.unwrap_or(self.p) } else { self.p };
        let around = self.disks() - usize::from(self.layout.q == PlaceOfQ::Outside);
        ((last + 1) % around, around)
    }

    /// The slot that has the row's data chunk `index`.
    pub fn data(&self, index: usize) -> usize {
        match self.layout.data {
            DataOrder::BehindParity => {
                let (first, around) = self.behind_parity();
                (first + index) % around
            }
            DataOrder::Ascending => {
                let mut parity = [Some(self.p), self.q];
                parity.sort_unstable();
                let skipped = parity.into_iter().flatten();
                skipped.fold(index, |slot, parity| slot + usize::from(slot >= parity))
            }
        }
    }

    /// Which of the row's data chunks `slot` has; `None` if it has parity.
    pub fn index(&self, slot: usize) -> Option<usize> {
        if slot == self.p || Some(slot) == self.q {
            return None;
        }
        Some(match self.layout.data {
            DataOrder::BehindParity => {
                let (first, around) = self.behind_parity();
                (slot + around - first) % around
            }
            DataOrder::Ascending => {
                let below = |parity: usize| usize::from(parity < slot);
                slot - below(self.p) - self.q.map_or(0, below)
            }
        })
    }

    /// The power of two that Q counts the data of `slot` with; `None` if it has parity, or there is no Q.
    pub fn exponent(&self, slot: usize) -> Option<u8> {
        let q = self.q?;
        if slot == self.p || slot == q {
            return None;
        }
        let exponent = match self.layout.q_order {
            QOrder::Ddf => slot,
            QOrder::Md => {
                let behind_q = |slot: usize| (slot + self.disks() - q - 1) % self.disks();
                behind_q(slot) - usize::from(behind_q(self.p) < behind_q(slot))
            }
        };
        Some(exponent as u8)
    }
}

/// The address map of one array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    level: ParityLevel,
    layout: Layout,
    disks: u16,
    chunk_shift: u32,
    /// Used part of each member.
    used: Sectors,
}

impl Geometry {
    /// The geometry of an array of `disks` members, each with a data area of `dev_sectors`, with the superblock's `layout` word and chunk
    /// size.
    ///
    /// # Errors
    /// See [`GeometryError`].
    pub fn new(
        level: ParityLevel,
        layout: u32,
        disks: usize,
        chunk: Sectors,
        dev_sectors: Sectors,
    ) -> Result<Self, GeometryError> {
        const LEAST_CHUNK: Sectors = Sectors(8);
        let layout = Layout::from_word(level, layout)?;
        let (least, parities) = (level.least_members(), level.parities());
        let most = match (level, layout.q_order) {
            (ParityLevel::Raid4 | ParityLevel::Raid5, _) => MAX_MEMBERS,
            (ParityLevel::Raid6, QOrder::Md) => MAX_Q_MEMBERS + parities,
            // A member's own number is the exponent.
            (ParityLevel::Raid6, QOrder::Ddf) => MAX_Q_MEMBERS,
        };
        if !(least..=most).contains(&disks) {
            return Err(GeometryError::MemberCount { least, most, disks });
        }
        if !chunk.0.is_power_of_two() || chunk < LEAST_CHUNK {
            return Err(GeometryError::Chunk(chunk));
        }
        // Checked in sectors, so that the computations below cannot overflow.
        let too_large = || GeometryError::TooLarge { disks, dev_sectors };
        dev_sectors.0.checked_mul(disks as u64).ok_or_else(too_large)?;
        let used = dev_sectors.round_down(chunk);
        if used.is_zero() {
            return Err(GeometryError::Empty(dev_sectors));
        }
        let chunk_shift = chunk.0.trailing_zeros();
        Ok(Self { level, layout, disks: disks as u16, chunk_shift, used })
    }

    /// The level.
    pub const fn level(&self) -> ParityLevel {
        self.level
    }

    /// The number of members.
    #[inline]
    pub fn disks(&self) -> usize {
        usize::from(self.disks)
    }

    /// The data chunks in a row.
    #[inline]
    pub fn data_disks(&self) -> usize {
        self.disks() - self.level.parities()
    }

    /// The chunk size.
    #[inline]
    pub fn chunk(&self) -> Sectors {
        Sectors(1 << self.chunk_shift)
    }

    /// How much of each member's data area the array uses.
    #[inline]
    pub fn used_dev_sectors(&self) -> Sectors {
        self.used
    }

    /// The array's size.
    #[inline]
    pub fn size(&self) -> Sectors {
        Sectors(self.used.0 * self.data_disks() as u64)
    }

    /// The members of the row that contains a sector of the members' data areas.
    pub fn row_at(&self, on_member: Sector) -> Row {
        self.row(self.row_number(on_member))
    }

    /// The members of the row with this number.
    pub fn row(&self, number: u64) -> Row {
        Row::new(self.layout, self.disks(), number)
    }

    /// The number of the row that contains a sector of the members' data areas.
    #[inline]
    pub fn row_number(&self, on_member: Sector) -> u64 {
        on_member.0 >> self.chunk_shift
    }

    /// The length of a row's data.
    #[inline]
    pub fn row_len(&self) -> Sectors {
        Sectors(self.chunk().0 * self.data_disks() as u64)
    }

    /// The numbers of the rows whose data a range of the array contains.
    pub fn whole_rows(&self, range: Range<Sector>) -> Range<u64> {
        let row = self.row_len().0;
        range.start.0.div_ceil(row)..range.end.0 / row
    }

    /// A range of the array by rows: the number of each, and the part of the range in it.
    pub fn split(
        &self,
        range: Range<Sector>,
    ) -> impl Iterator<Item = (u64, Range<Sector>)> + use<> {
        let row = self.row_len().0;
        let mut at = range.start;
        std::iter::from_fn(move || {
            let number = at.0 / row;
            let part = at..Sector((number + 1) * row).min(range.end);
            at = part.end;
            (!part.is_empty()).then_some((number, part))
        })
    }

    /// Where a sector of the array lies.
    pub fn map(&self, sector: Sector) -> Location {
        let (chunk, offset) = (sector.0 >> self.chunk_shift, sector.0 & (self.chunk().0 - 1));
        let data_disks = self.data_disks() as u64;
        let (row, index) = (chunk / data_disks, (chunk % data_disks) as usize);
        let disk = self.row(row).data(index);
        Location { disk, sector: Sector((row << self.chunk_shift) + offset) }
    }

    /// Sectors from `sector` on for which the result of [`Self::map`] holds. Of a member's sectors, those for which the result of
    /// [`Self::unmap`] holds.
    #[inline]
    pub fn chunk_left(&self, sector: Sector) -> Sectors {
        self.chunk() - Sectors(sector.0 & (self.chunk().0 - 1))
    }

    /// What the member in `slot` holds at a sector of its data area.
    pub fn unmap(&self, slot: usize, on_member: Sector) -> Held {
        if on_member >= self.used.as_end() || slot >= self.disks() {
            return Held::Nothing;
        }
        let row = self.row_at(on_member);
        match row.index(slot) {
            Some(index) => {
                let number = on_member.0 >> self.chunk_shift;
                let chunk = number * self.data_disks() as u64 + index as u64;
                let offset = on_member.0 & (self.chunk().0 - 1);
                Held::Data(Sector((chunk << self.chunk_shift) + offset))
            }
            None if slot == row.p => Held::P,
            None => Held::Q,
        }
    }

    /// The sectors of the members' data areas that hold a range of the array with its parity: whole rows of chunks where the range
    /// touches more than one row.
    pub fn rows(&self, range: Range<Sector>) -> Range<Sector> {
        let row = self.row_len().0;
        let (first, last) = (range.start.0 / row, range.end.0.div_ceil(row));
        Sector(first << self.chunk_shift)..Sector(last << self.chunk_shift)
    }

    /// The range of the array whose data are in the rows of a range of the members' data areas.
    pub fn data_of(&self, range: &Range<Sector>) -> Range<Sector> {
        let row = self.row_len().0;
        let (first, last) =
            (range.start.0 >> self.chunk_shift, range.end.0.div_ceil(self.chunk().0));
        Sector(first * row)..Sector(last * row).min(self.size().as_end())
    }

    /// Whether the member in `slot` holds data in some row. With others, only parity is lost.
    pub fn holds_data(&self, slot: usize) -> bool {
        // The pattern repeats after as many rows as there are members.
        let rows = (self.used.0 >> self.chunk_shift).min(u64::from(self.disks));
        (0..rows).any(|number| self.row(number).index(slot).is_some())
    }

    /// Whether all data can be read from the members for which `present` holds.
    pub fn is_readable_with(&self, present: impl Fn(usize) -> bool) -> bool {
        let missing = (0..self.disks()).filter(|slot| !present(*slot)).count();
        missing <= self.level.parities()
    }
}
