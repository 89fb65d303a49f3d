//! The address map of RAID 10: which members hold a sector of the array, and the other way round.
//!
//! Chunk `c` has its first copy at place `c * near` of the base area; place `p` is in row
//! `p / disks` on member `p % disks`, and the other near copies are at the next places. Repetition
//! `f` of row `r` is in row `f * stride + r` (far) or `r * far + f` (offset), with the members
//! permuted. One permutation table per direction covers all rotations and far-set modes.
//!
//! Invariants, checked when the geometry is made, enumerated in the tests `geometry_raid10`:
//! - for every repetition the table is a permutation, so no two chunks share a place;
//! - every place is below [`used_dev_sectors`](Geometry::used_dev_sectors), which is at most the
//!   device size given;
//! - `map` and `unmap` are inverse.
//!
//! Source of the facts: md(4) and the kernel's `raid10.c` (`setup_geo`, `calc_sectors`,
//! `raid10_size`, `__raid10_find_phys`, `raid10_find_virt`).

use ashlar_block::units::{Sector, Sectors};

use super::layout::{FarSets, Layout, LayoutError};
use crate::raid0::MAX_MEMBERS;

/// Why these parameters cannot form a RAID 10.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The layout word is invalid.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// There are no members, or more than an array can have.
    #[error("an array has 2 to {MAX_MEMBERS} members, not {0}")]
    MemberCount(usize),
    /// The chunk size is not a power of two.
    #[error("the chunk size of a raid10 must be a power of two, not {0} sectors")]
    Chunk(Sectors),
    /// Only one copy, or more copies than members.
    #[error("unsupported raid10 layout: {copies} copies of each chunk on {disks} members")]
    Copies {
        /// Near copies times far copies.
        copies: usize,
        /// The members.
        disks: usize,
    },
    /// Near copies that continue in the next row would overwrite the repetition of their row.
    /// The kernel accepts the layout and destroys data; no tool creates it.
    #[error(
        "raid10 offset layout with {near} near copies on {disks} members: copies of different \
         chunks would share a place (the members must be a multiple of the near copies)"
    )]
    OffsetRunsOver {
        /// Near copies.
        near: usize,
        /// The members.
        disks: usize,
    },
    /// The far copies of two members share a member. The kernel accepts the layout and destroys
    /// data; no tool creates it.
    #[error(
        "raid10 far sets of {set} members with {near} near copies on {disks} members: copies of \
         different chunks would share a place"
    )]
    FarSetsCollide {
        /// Members in a set.
        set: usize,
        /// Near copies.
        near: usize,
        /// The members.
        disks: usize,
    },
    /// The members have no room for a chunk.
    #[error("members of {0} sectors have no room for one chunk in each of their parts")]
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

/// A place of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// The member's slot.
    pub disk: usize,
    /// The sector in the member's data area.
    pub sector: Sector,
}

/// The address map of one array.
#[derive(Clone, Debug)]
pub struct Geometry {
    layout: Layout,
    disks: usize,
    chunk_shift: u32,
    /// Distance between the repetitions of a row.
    stride: Sectors,
    /// Used part of each member.
    used: Sectors,
    size: Sectors,
    /// `[repetition * disks + member of the base area]` -> member.
    forth: Box<[u16]>,
    /// `[repetition * disks + member]` -> member of the base area.
    back: Box<[u16]>,
}

impl Geometry {
    /// The geometry of an array of `disks` members, each with a data area of `dev_sectors`, with the
    /// superblock's `layout` word and chunk size.
    ///
    /// Any power of two is accepted as a chunk size. The kernel requires at least 4 KiB; code that
    /// creates arrays must check that.
    ///
    /// # Errors
    /// See [`GeometryError`].
    pub fn new(
        layout: u32,
        disks: usize,
        chunk: Sectors,
        dev_sectors: Sectors,
    ) -> Result<Self, GeometryError> {
        let layout = Layout::from_bits(layout)?;
        if !(2..=MAX_MEMBERS).contains(&disks) {
            return Err(GeometryError::MemberCount(disks));
        }
        if !chunk.0.is_power_of_two() {
            return Err(GeometryError::Chunk(chunk));
        }
        let (near, far) = (usize::from(layout.near), usize::from(layout.far));
        let copies = near * far;
        if copies < 2 || copies > disks {
            return Err(GeometryError::Copies { copies, disks });
        }
        if layout.offset && far > 1 && !disks.is_multiple_of(near) {
            return Err(GeometryError::OffsetRunsOver { near, disks });
        }

        let far_set_size = match layout.far_sets {
            FarSets::Whole => disks,
            FarSets::MembersByFar => disks / far,
            FarSets::Copies => copies,
        };
        let forth = far_members(disks, near, far, far_set_size);
        let back = invert(&forth, disks).ok_or(GeometryError::FarSetsCollide {
            set: far_set_size,
            near,
            disks,
        })?;

        let chunk_shift = chunk.0.trailing_zeros();
        let too_large = || GeometryError::TooLarge { disks, dev_sectors };
        // Checked in sectors, so that the computations below cannot overflow.
        dev_sectors.0.checked_mul(disks as u64).ok_or_else(too_large)?;
        let rows = (dev_sectors.0 >> chunk_shift) / far as u64;
        let chunks = rows * disks as u64 / near as u64;
        if chunks == 0 {
            return Err(GeometryError::Empty(dev_sectors));
        }
        let used_rows = (chunks * copies as u64).div_ceil(disks as u64);
        let stride_rows = if layout.offset { 1 } else { used_rows / far as u64 };
        Ok(Self {
            layout,
            disks,
            chunk_shift,
            stride: Sectors(stride_rows << chunk_shift),
            used: Sectors(used_rows << chunk_shift),
            size: Sectors(chunks << chunk_shift),
            forth,
            back,
        })
    }

    /// The array's size.
    #[inline]
    pub fn size(&self) -> Sectors {
        self.size
    }

    /// How much of each member's data area the array uses (the kernel's `dev_sectors`).
    #[inline]
    pub fn used_dev_sectors(&self) -> Sectors {
        self.used
    }

    /// The chunk size.
    #[inline]
    pub fn chunk(&self) -> Sectors {
        Sectors(1 << self.chunk_shift)
    }

    /// The number of members.
    #[inline]
    pub fn disks(&self) -> usize {
        self.disks
    }

    /// The layout.
    #[inline]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The distance between the repetitions of a row on the members.
    #[inline]
    pub fn stride(&self) -> Sectors {
        self.stride
    }

    /// Whether all members hold the same: then bios need no split at chunks.
    #[inline]
    pub fn is_plain_mirror(&self) -> bool {
        usize::from(self.layout.near) == self.disks
    }

    /// Sectors from `sector` to the end of its chunk, at least one.
    #[inline]
    pub fn chunk_left(&self, sector: Sector) -> Sectors {
        let chunk = 1u64 << self.chunk_shift;
        Sectors(chunk - (sector.0 & (chunk - 1)))
    }

    /// All copies of `sector`, which must be below [`size`](Self::size), in the kernel's order:
    /// each near copy followed by its repetitions. The map holds for
    /// [`chunk_left`](Self::chunk_left) sectors.
    #[inline]
    pub fn map(&self, sector: Sector) -> Copies<'_> {
        debug_assert!(sector < self.size.as_end(), "{sector} is not in the array");
        let edge = self.edge(sector);
        let offset = sector.0 & ((1 << self.chunk_shift) - 1);
        Copies {
            geometry: self,
            disk: edge.disk,
            sector: Sector((edge.row << self.chunk_shift) + offset),
            near: self.layout.near,
            far: 0,
        }
    }

    /// The array sector whose copy is at `sector` of the data area of the member in slot `disk`;
    /// `None` if the array does not use that sector.
    pub fn unmap(&self, disk: usize, sector: Sector) -> Option<Sector> {
        if disk >= self.disks || sector >= self.used.as_end() {
            return None;
        }
        let row = sector.0 >> self.chunk_shift;
        let (base_row, repetition) = if self.layout.offset {
            (row / self.far(), row % self.far())
        } else {
            let rows = self.stride.0 >> self.chunk_shift;
            (row % rows, row / rows)
        };
        let base_disk = self.base_member(repetition as usize, disk) as u64;
        let chunk = (base_row * self.disks as u64 + base_disk) / self.near();
        let offset = sector.0 & ((1 << self.chunk_shift) - 1);
        let found = Sector((chunk << self.chunk_shift) + offset);
        (found < self.size.as_end()).then_some(found)
    }

    /// Whether every chunk has a copy on a member for which `present` holds.
    ///
    /// Exact for all layouts, including far sets; the kernel's `enough` checks only neighbours.
    pub fn is_readable_with(&self, present: impl Fn(usize) -> bool) -> bool {
        self.phases().all(|sector| self.map(sector).any(|copy| present(copy.disk)))
    }

    /// One sector for each arrangement of a chunk on the members: the pattern repeats after `disks`
    /// chunks.
    fn phases(&self) -> impl Iterator<Item = Sector> + '_ {
        let chunks = (self.size.0 >> self.chunk_shift).min(self.disks as u64);
        (0..chunks).map(|c| Sector(c << self.chunk_shift))
    }

    #[inline]
    pub(super) fn near(&self) -> u64 {
        u64::from(self.layout.near)
    }

    #[inline]
    pub(super) fn far(&self) -> u64 {
        u64::from(self.layout.far)
    }

    /// The place in the base area of the first copy of the chunk that contains `sector`, which may be
    /// the array's end.
    #[inline]
    pub(super) fn edge(&self, sector: Sector) -> Edge {
        let place = (sector.0 >> self.chunk_shift) * self.near();
        let row = place / self.disks as u64;
        Edge {
            disk: (place % self.disks as u64) as usize,
            row: if self.layout.offset { row * self.far() } else { row },
        }
    }

    /// The member of the base area whose rows `disk` holds in `repetition`.
    #[inline]
    pub(super) fn base_member(&self, repetition: usize, disk: usize) -> usize {
        usize::from(self.back[repetition * self.disks + disk])
    }
}

/// A chunk boundary in the base area: before `row` of member `disk`. Rows are those of the members:
/// with the offset layout repetitions count too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) disk: usize,
    pub(super) row: u64,
}

/// The copies of one sector; see [`Geometry::map`].
#[derive(Clone, Debug)]
pub struct Copies<'g> {
    geometry: &'g Geometry,
    /// The near copy being repeated: its member and sector in the base area.
    disk: usize,
    sector: Sector,
    /// Near copies left, this one included.
    near: u8,
    /// The next repetition of it.
    far: u8,
}

impl Iterator for Copies<'_> {
    type Item = Location;

    #[inline]
    fn next(&mut self) -> Option<Location> {
        if self.near == 0 {
            return None;
        }
        let g = self.geometry;
        let far = usize::from(self.far);
        let copy = Location {
            disk: usize::from(g.forth[far * g.disks + self.disk]),
            sector: self.sector + Sectors(u64::from(self.far) * g.stride.0),
        };
        self.far += 1;
        if self.far == g.layout.far {
            self.far = 0;
            self.near -= 1;
            self.disk += 1;
            if self.disk == g.disks {
                self.disk = 0;
                self.sector += g.chunk();
            }
        }
        Some(copy)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let far = usize::from(self.geometry.layout.far);
        let left = usize::from(self.near) * far - usize::from(self.far);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Copies<'_> {}

/// The table `[repetition * disks + member of the base area]` -> member, by the kernel's rule:
/// each repetition is shifted by `near` members and wraps around within the far set. The last set
/// includes the members that do not fill a set.
fn far_members(disks: usize, near: usize, far: usize, set_size: usize) -> Box<[u16]> {
    let rest = disks % set_size;
    let last_set = (disks / set_size - 1) * set_size;
    let moved_on = |disk: usize| {
        let to = disk + near;
        if rest != 0 && to > last_set {
            last_set + (to - last_set) % (set_size + rest)
        } else {
            disk / set_size * set_size + to % set_size
        }
    };
    let mut table = Vec::with_capacity(disks * far);
    table.extend(0..disks);
    for i in 0..disks * (far - 1) {
        table.push(moved_on(table[i]));
    }
    // A slot is less than MAX_MEMBERS.
    table.into_iter().map(|d| d as u16).collect()
}

/// The inverse of a table of permutations of `disks` members; `None` if an entry is not a permutation.
fn invert(table: &[u16], disks: usize) -> Option<Box<[u16]>> {
    const NONE: u16 = u16::MAX;
    let mut inverse = vec![NONE; table.len()];
    for (to, from) in table.chunks(disks).zip(inverse.chunks_mut(disks)) {
        for (&t, f) in to.iter().zip(0u16..) {
            let slot = from.get_mut(usize::from(t))?;
            if *slot != NONE {
                return None;
            }
            *slot = f;
        }
    }
    Some(inverse.into())
}
