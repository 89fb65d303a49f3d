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

/// What positions and lengths have in common.
macro_rules! count_of_sectors {
    ($($t:ident: $zero:literal),*) => {$(
        impl $t {
            #[doc = $zero]
            pub const ZERO: Self = Self(0);

            /// The same in bytes. Saturates: no device has 2^64 bytes.
            #[inline]
            pub const fn bytes(self) -> u64 {
                self.0.saturating_mul(SECTOR_SIZE)
            }

            /// Whole sectors in `bytes`, rounded down: for a position, the sector that contains this byte.
            #[inline]
            pub const fn from_bytes_floor(bytes: u64) -> Self {
                Self(bytes >> SECTOR_SHIFT)
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
        }

        impl AddAssign<Sectors> for $t {
            #[inline]
            fn add_assign(&mut self, n: Sectors) {
                self.0 += n.0;
            }
        }

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
count_of_sectors!(Sector: "The first sector of a device.", Sectors: "No sectors.");

impl Sector {
    /// `self + n`, or `None` past the end of the number space.
    #[inline]
    pub const fn checked_add(self, n: Sectors) -> Option<Self> {
        match self.0.checked_add(n.0) {
            Some(v) => Some(Self(v)),
            None => None,
        }
    }

    /// Whether this is a multiple of `unit`.
    #[inline]
    pub const fn is_aligned(self, unit: Sectors) -> bool {
        self.0.is_multiple_of(unit.0)
    }
}

impl Sectors {
    /// "No limit".
    pub const MAX: Self = Self(u64::MAX);

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

    /// The position this many sectors from the start.
    #[inline]
    pub const fn as_end(self) -> Sector {
        Sector(self.0)
    }
}

impl SubAssign for Sectors {
    #[inline]
    fn sub_assign(&mut self, n: Self) {
        self.0 -= n.0;
    }
}

/// The sums and differences that have a meaning.
macro_rules! operators {
    ($($left:ident $sign:tt $right:ident = $result:ident: $name:ident, $method:ident;)*) => {$(
        impl $name<$right> for $left {
            type Output = $result;

            #[inline]
            fn $method(self, other: $right) -> $result {
                $result(self.0 $sign other.0)
            }
        }
    )*};
}
operators! {
    Sector + Sectors = Sector: Add, add;
    Sectors + Sectors = Sectors: Add, add;
    Sector - Sectors = Sector: Sub, sub;
    Sector - Sector = Sectors: Sub, sub;
    Sectors - Sectors = Sectors: Sub, sub;
}

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
