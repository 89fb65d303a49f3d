//! RAID 0: striping over members that may differ in size.
//!
//! [`zones`] is the address map, [`discard`] turns a discard of any length into at most one range
//! per member and zone. Both are pure: no I/O, no allocation after [`Zones::new`].
//!
//! [`Span`] and [`MemberRange`] are shared with RAID 10, which stripes the same way.

pub mod discard;
pub mod zones;

pub use zones::{Mapped, Zone, Zones, ZonesError};

use ashlar_block::units::{Sector, Sectors};

/// The most members an array can have: the device roles that fit in a 4 KiB version-1 superblock.
pub const MAX_MEMBERS: usize = 1920;

/// A run of sectors on one device (or on the array).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first sector.
    pub start: Sector,
    /// How many sectors; may be zero.
    pub len: Sectors,
}

impl Span {
    /// The run from `start` up to, not including, `end`; empty when `end` is not after `start`.
    #[inline]
    pub const fn between(start: Sector, end: Sector) -> Self {
        Self { start, len: Sectors(end.0.saturating_sub(start.0)) }
    }

    /// The first sector after the run (saturating at the end of the number space).
    #[inline]
    pub const fn end(self) -> Sector {
        Sector(self.start.0.saturating_add(self.len.0))
    }

    /// Whether it has no sectors.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len.is_zero()
    }
}

/// A run of sectors in the **data area** of one member: position 0 is where the array's data
/// begins on that member, not where the member begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemberRange {
    /// The member's slot in the array (the kernel's `raid_disk`).
    pub disk: usize,
    /// First sector and length, counted from the start of the data area.
    pub span: Span,
}
