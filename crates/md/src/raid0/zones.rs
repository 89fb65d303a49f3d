//! Strip zones: how RAID 0 uses members of unequal size to their last chunk.
//!
//! Members are rounded down to whole chunks and stacked: the first zone stripes over all members
//! up to the size of the smallest, the next over those that are larger, and so on.
//!
//! ```text
//!            member 0   member 1   member 2
//! zone 1         .          7          8       (the two that are larger)
//!                .          5          6
//! zone 0         2          3          4       (all three)
//!                .          .          .
//! ```
//!
//! **Two layouts.** Kernels before 3.14 chose the member of a chunk in a later zone by the chunk's
//! number in the *array* (the original layout); 3.14 began, by mistake, to count from the start of
//! the *zone* (the alternate layout). Both kinds of array exist, and reading one as the other
//! returns the wrong data. The difference is where in the list of the zone's members its first
//! chunk goes, so [`Zones::new`] rotates that list once and nothing after it knows about layouts:
//! reads, writes and discards cannot disagree (the kernel's discards did until commit
//! e836007089ba and destroyed data).
//!
//! Source of the facts: md(4) and the kernel's `drivers/md/raid0.c`.

use ashlar_block::units::{Sector, Sectors};

use super::{MAX_MEMBERS, Span};
use crate::ondisk::create::{RAID0_ALTERNATE, RAID0_ORIGINAL};

/// Why these members cannot form a RAID 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZonesError {
    /// The superblock gives no chunk size.
    #[error("the chunk size must be set")]
    NoChunk,
    /// There are no members, or more than an array can have.
    #[error("an array has 1 to {MAX_MEMBERS} members, not {0}")]
    MemberCount(usize),
    /// No member has room for a single chunk.
    #[error("no member is as large as one chunk")]
    Empty,
    /// The members' sizes add up to more than 2^64 sectors.
    #[error("the members' sizes add up to more than a device can have")]
    TooLarge,
    /// Members of unequal size, and the superblock does not say which kernel's layout they have.
    #[error(
        "cannot assemble a multi-zone RAID0 of unknown layout ({0}): set the layout to 1 (written \
         by a kernel before 3.14) or 2 (by a later one); the wrong one returns wrong data"
    )]
    UnknownLayout(u32),
}

/// One zone: the same rows of a set of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// The array sectors in the zone. The start is a multiple of the chunk size.
    pub span: Span,
    /// Where the zone begins in the data area of each of its members.
    pub dev_start: Sector,
    /// The members, in the order in which they take the zone's chunks.
    members: Box<[u16]>,
}

impl Zone {
    /// The slots of the zone's members, starting with the member that holds its first chunk.
    pub fn members(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.members.iter().map(|&m| usize::from(m))
    }
}

/// Where an array sector lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The member's slot.
    pub disk: usize,
    /// The sector in the member's data area.
    pub sector: Sector,
    /// Sectors from here to the end of the chunk, at least one.
    pub left: Sectors,
}

/// A chunk that no member is larger than.
const WHOLE_MEMBER: Sectors = Sectors(1 << 63);

/// The chunk size, with its log2 if it is a power of two, which RAID 0 does not require.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    sectors: u64,
    shift: Option<u32>,
}

impl Chunk {
    fn new(size: Sectors) -> Self {
        let sectors = size.0;
        Self { sectors, shift: sectors.is_power_of_two().then_some(sectors.trailing_zeros()) }
    }

    /// The number of the chunk that holds `sector`, and the offset in it.
    #[inline]
    fn split(self, sector: u64) -> (u64, u64) {
        match self.shift {
            Some(shift) => (sector >> shift, sector & (self.sectors - 1)),
            None => (sector / self.sectors, sector % self.sectors),
        }
    }
}

/// A position in a zone: chunk row, place in the row (index into the zone's members), offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strip {
    pub(super) row: u64,
    pub(super) slot: u64,
    pub(super) offset: u64,
}

/// The address map of a RAID 0 array, or of a linear one.
///
/// Invariants: the zones follow one another without a gap, and none is empty. In RAID 0 every zone's start is a
/// multiple of the chunk size, and every zone has fewer members than the one before it.
#[derive(Clone, Debug)]
pub struct Zones {
    chunk: Chunk,
    zones: Box<[Zone]>,
    size: Sectors,
    disks: usize,
}

impl Zones {
    /// The map of an array whose member in slot `i` has a data area of `members[i]`.
    ///
    /// `layout` is the superblock's field. As in the kernel, it matters only if a zone after the
    /// first has several members; then only 1 and 2 are accepted.
    ///
    /// # Errors
    /// See [`ZonesError`].
    pub fn new(members: &[Sectors], chunk: Sectors, layout: u32) -> Result<Self, ZonesError> {
        if chunk.is_zero() {
            return Err(ZonesError::NoChunk);
        }
        if members.is_empty() || members.len() > MAX_MEMBERS {
            return Err(ZonesError::MemberCount(members.len()));
        }
        let used: Vec<u64> = members.iter().map(|m| m.round_down(chunk).0).collect();
        used.iter().try_fold(0u64, |sum, &u| sum.checked_add(u)).ok_or(ZonesError::TooLarge)?;

        let chunk = Chunk::new(chunk);
        let zones = stack(&used, chunk, layout)?;
        let size = array_size(&used, chunk);
        if size.is_zero() {
            return Err(ZonesError::Empty);
        }
        Ok(Self { chunk, zones, size, disks: members.len() })
    }

    /// The map of a linear array: each member is a zone of its own, after those before it. Members are rounded down to `rounding`, which
    /// need not be a power of two, unless it is zero.
    ///
    /// # Errors
    /// See [`ZonesError`].
    ///
    /// Source of the facts: md(4) and the kernel's `md-linear.c`.
    pub fn concatenated(members: &[Sectors], rounding: Sectors) -> Result<Self, ZonesError> {
        if members.is_empty() || members.len() > MAX_MEMBERS {
            return Err(ZonesError::MemberCount(members.len()));
        }
        let mut zones = Vec::with_capacity(members.len());
        let mut start = Sector(0);
        for (slot, size) in (0u16..).zip(members) {
            let len = if rounding.is_zero() { *size } else { size.round_down(rounding) };
            let end = start.checked_add(len).ok_or(ZonesError::TooLarge)?;
            if !len.is_zero() {
                let span = Span { start, len };
                zones.push(Zone { span, dev_start: Sector::ZERO, members: [slot].into() });
            }
            start = end;
        }
        if zones.is_empty() {
            return Err(ZonesError::Empty);
        }
        let (size, disks) = (start - Sector::ZERO, members.len());
        Ok(Self { chunk: Chunk::new(WHOLE_MEMBER), zones: zones.into(), size, disks })
    }

    /// The array's size. If the chunk size is not a power of two, it is up to a chunk per member
    /// smaller than the zones, as in the kernel.
    #[inline]
    pub fn size(&self) -> Sectors {
        self.size
    }

    /// How many members the array has.
    pub fn disks(&self) -> usize {
        self.disks
    }

    /// The chunk size.
    #[inline]
    pub fn chunk(&self) -> Sectors {
        Sectors(self.chunk.sectors)
    }

    /// The zones in array order.
    #[inline]
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    /// Where array sector `sector` lies. It must be below [`size`](Self::size); a sector beyond is
    /// mapped past the end of its member, where the member's gateway refuses it.
    #[inline]
    pub fn map(&self, sector: Sector) -> Mapped {
        debug_assert!(sector < self.size.as_end(), "{sector} is not in the array");
        let zone = self
            .zones
            .iter()
            .find(|z| sector < z.span.end())
            .unwrap_or(&self.zones[self.zones.len() - 1]);
        let at = self.strip(zone, sector);
        let end = zone.span.end().max(sector + Sectors(1));
        Mapped {
            disk: usize::from(zone.members[at.slot as usize]),
            sector: zone.dev_start + Sectors(at.row * self.chunk.sectors + at.offset),
            left: Sectors(self.chunk.sectors - at.offset).min(end - sector),
        }
    }

    /// The array sector that lies at `sector` of the data area of the member in slot `disk`;
    /// `None` if the array does not use that sector.
    pub fn unmap(&self, disk: usize, sector: Sector) -> Option<Sector> {
        // Zones with a common member are stacked: the last one that begins at or below the sector is the only candidate.
        let mut below = self.zones.iter().rev().filter(|z| z.dev_start <= sector);
        let found = |zone| Some((zone, Zone::members(zone).position(|m| m == disk)?));
        let (zone, slot) = below.find_map(found)?;
        let (row, offset) = self.chunk.split((sector - zone.dev_start).0);
        let chunk = row.checked_mul(zone.members.len() as u64)?.checked_add(slot as u64)?;
        let in_zone = chunk.checked_mul(self.chunk.sectors)?.checked_add(offset)?;
        let found = zone.span.start.checked_add(Sectors(in_zone))?;
        (found < zone.span.end() && found < self.size.as_end()).then_some(found)
    }

    /// The place of array sector `sector` in `zone`. It may be the zone's end.
    #[inline]
    pub(super) fn strip(&self, zone: &Zone, sector: Sector) -> Strip {
        let (chunk, offset) = self.chunk.split((sector - zone.span.start).0);
        let width = zone.members.len() as u64;
        Strip { row: chunk / width, slot: chunk % width, offset }
    }
}

/// Stacks the zones. `used` are the members' sizes, multiples of the chunk; their sum fits.
fn stack(used: &[u64], chunk: Chunk, layout: u32) -> Result<Box<[Zone]>, ZonesError> {
    let mut tops: Vec<u64> = used.iter().copied().filter(|&u| u > 0).collect();
    tops.sort_unstable();
    tops.dedup();

    let mut zones = Vec::with_capacity(tops.len());
    let (mut start, mut bottom) = (0u64, 0u64);
    for top in tops {
        let mut members: Vec<u16> =
            (0u16..).zip(used).filter(|&(_, &u)| u > bottom).map(|(slot, _)| slot).collect();
        let width = members.len() as u64;
        if start > 0 && width > 1 {
            match layout {
                RAID0_ORIGINAL => members.rotate_left((chunk.split(start).0 % width) as usize),
                RAID0_ALTERNATE => {}
                _ => return Err(ZonesError::UnknownLayout(layout)),
            }
        }
        let len = (top - bottom) * width;
        zones.push(Zone {
            span: Span { start: Sector(start), len: Sectors(len) },
            dev_start: Sector(bottom),
            members: members.into(),
        });
        start += len;
        bottom = top;
    }
    Ok(zones.into())
}

/// The array's size as the kernel computes it: the members' sizes with the bits of `chunk - 1`
/// cleared. For a power of two that changes nothing; for other chunk sizes it wastes part of each
/// member, but an array must have the same size under the kernel and ashlar.
fn array_size(used: &[u64], chunk: Chunk) -> Sectors {
    Sectors(used.iter().map(|u| u & !(chunk.sectors - 1)).sum())
}
