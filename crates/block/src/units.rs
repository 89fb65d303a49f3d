//! Units that cannot be mixed.
//!
//! The block layer counts in **sectors of 512 bytes**, whatever the device's logical block size
//! (like the kernel's `sector_t`). A position and a length are different types, so that
//! `position + position` does not compile.

use core::fmt;
use core::ops::{Add, AddAssign, Sub, SubAssign};

/// log2 of the sector size.
pub const SECTOR_SHIFT: u32 = 9;
/// Bytes in a sector: always 512, the block layer's unit, not the device's logical block size.
pub const SECTOR_SIZE: u64 = 1 << SECTOR_SHIFT;

/// A position on a device, in 512-byte sectors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sector(pub u64);

/// A length, in 512-byte sectors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sectors(pub u64);

impl Sector {
    /// The first sector of a device.
    pub const ZERO: Self = Self(0);

    /// The byte position. Saturates: no device has positions beyond 2^64 bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.0.saturating_mul(SECTOR_SIZE)
    }

    /// The sector that contains byte `bytes`.
    #[inline]
    pub const fn from_bytes_floor(bytes: u64) -> Self {
        Self(bytes >> SECTOR_SHIFT)
    }

    /// `self + n`, or `None` past the end of the number space.
    #[inline]
    pub const fn checked_add(self, n: Sectors) -> Option<Self> {
        match self.0.checked_add(n.0) {
            Some(v) => Some(Self(v)),
            None => None,
        }
    }

    /// Rounds down to a multiple of `unit` (any non-zero length, not only powers of two).
    #[inline]
    pub const fn round_down(self, unit: Sectors) -> Self {
        Self(self.0 - self.0 % unit.0)
    }

    /// Rounds up to a multiple of `unit`.
    #[inline]
    pub const fn round_up(self, unit: Sectors) -> Self {
        Self(self.0.div_ceil(unit.0) * unit.0)
    }

    /// Whether this is a multiple of `unit`.
    #[inline]
    pub const fn is_aligned(self, unit: Sectors) -> bool {
        self.0.is_multiple_of(unit.0)
    }
}

impl Sectors {
    /// No sectors.
    pub const ZERO: Self = Self(0);
    /// "No limit".
    pub const MAX: Self = Self(u64::MAX);

    /// The length in bytes (saturating).
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.0.saturating_mul(SECTOR_SIZE)
    }

    /// Whole sectors in `bytes`, rounded down.
    #[inline]
    pub const fn from_bytes_floor(bytes: u64) -> Self {
        Self(bytes >> SECTOR_SHIFT)
    }

    /// Sectors needed to hold `bytes`.
    #[inline]
    pub const fn from_bytes_ceil(bytes: u64) -> Self {
        Self(bytes.div_ceil(SECTOR_SIZE))
    }

    /// Whether this is zero.
    #[inline]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The smaller of two lengths.
    #[inline]
    pub const fn min(self, other: Self) -> Self {
        if self.0 < other.0 { self } else { other }
    }

    /// Rounds down to a multiple of `unit`.
    #[inline]
    pub const fn round_down(self, unit: Self) -> Self {
        Self(self.0 - self.0 % unit.0)
    }

    /// Rounds up to a multiple of `unit`.
    #[inline]
    pub const fn round_up(self, unit: Self) -> Self {
        Self(self.0.div_ceil(unit.0) * unit.0)
    }

    /// The position this many sectors from the start.
    #[inline]
    pub const fn as_end(self) -> Sector {
        Sector(self.0)
    }
}

impl Add<Sectors> for Sector {
    type Output = Self;
    #[inline]
    fn add(self, n: Sectors) -> Self {
        Self(self.0 + n.0)
    }
}

impl AddAssign<Sectors> for Sector {
    #[inline]
    fn add_assign(&mut self, n: Sectors) {
        self.0 += n.0;
    }
}

impl Sub<Sectors> for Sector {
    type Output = Self;
    #[inline]
    fn sub(self, n: Sectors) -> Self {
        Self(self.0 - n.0)
    }
}

impl Sub for Sector {
    type Output = Sectors;
    #[inline]
    fn sub(self, other: Self) -> Sectors {
        Sectors(self.0 - other.0)
    }
}

impl Add for Sectors {
    type Output = Self;
    #[inline]
    fn add(self, n: Self) -> Self {
        Self(self.0 + n.0)
    }
}

impl AddAssign for Sectors {
    #[inline]
    fn add_assign(&mut self, n: Self) {
        self.0 += n.0;
    }
}

impl Sub for Sectors {
    type Output = Self;
    #[inline]
    fn sub(self, n: Self) -> Self {
        Self(self.0 - n.0)
    }
}

impl SubAssign for Sectors {
    #[inline]
    fn sub_assign(&mut self, n: Self) {
        self.0 -= n.0;
    }
}

macro_rules! plain_fmt {
    ($($t:ty),*) => {$(
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )*};
}
plain_fmt!(Sector, Sectors);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_units_that_are_no_powers_of_two() {
        assert_eq!(Sector(17).round_down(Sectors(6)), Sector(12));
        assert_eq!(Sector(17).round_up(Sectors(6)), Sector(18));
        assert_eq!(Sector(18).round_up(Sectors(6)), Sector(18));
        assert!(Sector(18).is_aligned(Sectors(6)));
    }

    #[test]
    fn bytes_and_sectors() {
        assert_eq!(Sectors::from_bytes_ceil(513), Sectors(2));
        assert_eq!(Sectors::from_bytes_floor(513), Sectors(1));
        assert_eq!(Sector(u64::MAX).bytes(), u64::MAX);
        assert_eq!(Sector(u64::MAX).checked_add(Sectors(1)), None);
    }
}
