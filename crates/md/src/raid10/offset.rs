//! The offset layout (mdadm's `o2`, `o3`, ...): every row is repeated immediately, shifted by one
//! member.
//!
//! The same rotation as in the far layout, but the copies are close together on the members, so
//! that writes need not seek.
//!
//! ```
//! # use ashlar_md::raid10::draw;
//! assert_eq!(draw("o2", 4, 2)?.trim_end(), "   0   1   2   3
//!    3   0   1   2
//!    4   5   6   7
//!    7   4   5   6");
//! # Ok::<(), ashlar_md::raid10::GeometryError>(())
//! ```

use super::layout::{FarSets, Layout};

/// The layout with `copies` of each row.
pub const fn layout(copies: u8) -> Layout {
    Layout { near: 1, far: copies, offset: true, far_sets: FarSets::Whole }
}
