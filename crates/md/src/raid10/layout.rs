//! The layout word of a RAID 10 superblock.
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

const OFFSET: u32 = 1 << 16;
const FAR_SETS_SHIFT: u32 = 17;
const UNUSED_SHIFT: u32 = 19;

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
/// docs/formats/md.md has drawings.
///
/// The near layout (mdadm's `n2`, `n3`, ...): the copies of a chunk are neighbours.
///
/// Each chunk is placed `copies` times before the next one. The number of members need not be a
/// multiple of the copies: copies then continue in the next row.
///
/// The far layout (mdadm's `f2`, `f3`, ...): the array is striped like RAID 0 over the first part
/// of the members, and again over the next part, shifted by one member.
///
/// Reads are as fast as RAID 0's, since they need only the first, outer part. With a shift over
/// all members, the copies of any two neighbours overlap: with `f2` no two neighbours may fail.
/// [`FarSets`] limit the shift; only device mapper and hand-made arrays have them.
///
/// The offset layout (mdadm's `o2`, `o3`, ...): every row is repeated immediately, shifted by one
/// member.
///
/// The same rotation as in the far layout, but the copies are close together on the members, so
/// that writes need not seek.
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

/// Why a layout word is invalid.
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
}
