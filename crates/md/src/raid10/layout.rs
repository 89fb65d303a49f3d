//! The layout word of a RAID 10 superblock, and mdadm's names for it.
//!
//! | bits | meaning |
//! |---|---|
//! | 0-7 | near copies |
//! | 8-15 | far copies |
//! | 16 | far copies are offset copies |
//! | 17-18 | far sets, see [`FarSets`] |
//! | 19-31 | zero |
//!
//! Source of the facts: the kernel's `setup_geo`, md(4), mdadm(8).

use core::fmt;
use core::str::FromStr;

use super::{far, near, offset};

const OFFSET: u32 = 1 << 16;
const FAR_SETS_SHIFT: u32 = 17;
const UNUSED_SHIFT: u32 = 19;
/// The most copies that mdadm's names can ask for.
const MAX_NAMED_COPIES: u8 = 200;

/// The sets of members within which far copies are shifted. If the members do not divide evenly,
/// the last set takes the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FarSets {
    /// One set of all members (mode 0, the only one that mdadm creates).
    Whole,
    /// Sets of `members / far` (mode 1). Written by some versions of device mapper; the copies of
    /// a chunk may share a member.
    MembersByFar,
    /// Sets of `near * far` (mode 2): as many members as a chunk has copies.
    Copies,
}

/// A decoded layout word. [`Geometry::new`](super::Geometry::new) decides whether it is possible with
/// the array's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Adjacent copies of a chunk; at least 1.
    pub near: u8,
    /// Repetitions of the whole arrangement; at least 1.
    pub far: u8,
    /// Whether the repetitions are row by row (offset) and not area by area (far).
    pub offset: bool,
    /// The sets within which the repetitions are shifted.
    pub far_sets: FarSets,
}

/// Why a layout word or name is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Bits above 18 are set.
    #[error("unsupported raid10 layout {0:#x}: bits above 18 are set")]
    UnknownBits(u32),
    /// Far-set mode 3.
    #[error("unsupported raid10 layout {0:#x}: there is no far-set mode 3")]
    FarSetMode(u32),
    /// No near or no far copies. (Upstream divided by it.)
    #[error("unsupported raid10 layout {0:#x}: near and far copies must both be at least 1")]
    ZeroCopies(u32),
    /// Not an mdadm name.
    #[error("\"{0}\" is no raid10 layout: n, f or o followed by 1 to {MAX_NAMED_COPIES} copies")]
    Name(String),
}

impl Layout {
    /// Decodes the superblock's field.
    ///
    /// # Errors
    /// Unknown bits or modes, and zero copies of either kind.
    pub const fn from_bits(bits: u32) -> Result<Self, LayoutError> {
        if bits >> UNUSED_SHIFT != 0 {
            return Err(LayoutError::UnknownBits(bits));
        }
        let far_sets = match bits >> FAR_SETS_SHIFT {
            0 => FarSets::Whole,
            1 => FarSets::MembersByFar,
            2 => FarSets::Copies,
            _ => return Err(LayoutError::FarSetMode(bits)),
        };
        let [near, far, ..] = bits.to_le_bytes();
        if near == 0 || far == 0 {
            return Err(LayoutError::ZeroCopies(bits));
        }
        Ok(Self { near, far, offset: bits & OFFSET != 0, far_sets })
    }

    /// The superblock's field.
    pub const fn bits(self) -> u32 {
        let mode = match self.far_sets {
            FarSets::Whole => 0,
            FarSets::MembersByFar => 1,
            FarSets::Copies => 2,
        };
        u32::from_le_bytes([self.near, self.far, self.offset as u8, 0]) | mode << FAR_SETS_SHIFT
    }
}

/// mdadm's name, such as `n2`; a mixture, for which mdadm has no name, is written as `n2f2` or
/// `n2o2`. Far sets are not part of the name.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.near > 1 || self.far == 1 {
            write!(f, "n{}", self.near)?;
        }
        if self.far > 1 {
            write!(f, "{}{}", if self.offset { 'o' } else { 'f' }, self.far)?;
        }
        Ok(())
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    /// Reads mdadm's names: `n2`, `f3`, `o2`.
    fn from_str(name: &str) -> Result<Self, LayoutError> {
        let mut rest = name.chars();
        let kind = rest.next();
        let digits = rest.as_str();
        // u8's parser would accept a sign.
        let copies = match digits.parse::<u8>() {
            Ok(n) if digits.starts_with(|c: char| c.is_ascii_digit()) => n,
            Ok(_) | Err(_) => 0,
        };
        if !(1..=MAX_NAMED_COPIES).contains(&copies) {
            return Err(LayoutError::Name(name.into()));
        }
        match kind {
            Some('n') => Ok(near::layout(copies)),
            Some('f') => Ok(far::layout(copies)),
            Some('o') => Ok(offset::layout(copies)),
            Some(_) | None => Err(LayoutError::Name(name.into())),
        }
    }
}
