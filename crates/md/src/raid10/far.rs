//! The far layout (mdadm's `f2`, `f3`, ...): the array is striped like RAID 0 over the first part
//! of the members, and again over the next part, shifted by one member.
//!
//! Reads are as fast as RAID 0's, since they need only the first, outer part.
//!
//! ```
//! # use ashlar_md::raid10::draw;
//! assert_eq!(draw("f2", 4, 2)?.trim_end(), "   0   1   2   3
//!    4   5   6   7
//!    3   0   1   2
//!    7   4   5   6");
//! # Ok::<(), ashlar_md::raid10::GeometryError>(())
//! ```
//!
//! **Far sets.** With a shift over all members, the copies of any two neighbours overlap: with `f2` no
//! two neighbours may fail. With far sets the members are divided into sets, and copies stay within
//! their set. Only device mapper and hand-made arrays have them; see [`FarSets`].

use super::layout::{FarSets, Layout};

/// The layout with `copies` far copies, shifted over all members.
pub const fn layout(copies: u8) -> Layout {
    Layout { near: 1, far: copies, offset: false, far_sets: FarSets::Whole }
}
