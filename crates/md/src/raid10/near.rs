//! The near layout (mdadm's `n2`, `n3`, ...): the copies of a chunk are neighbours.
//!
//! Each chunk is placed `near` times before the next one. The number of members need not be a
//! multiple of the copies: copies then continue in the next row.
//!
//! ```
//! # use ashlar_md::raid10::draw;
//! assert_eq!(draw("n2", 4, 3)?.trim_end(), "   0   0   1   1
//!    2   2   3   3
//!    4   4   5   5");
//!
//! assert_eq!(draw("n2", 3, 4)?.trim_end(), "   0   0   1
//!    1   2   2
//!    3   3   4
//!    4   5   5");
//! # Ok::<(), ashlar_md::raid10::GeometryError>(())
//! ```

use super::layout::{FarSets, Layout};

/// The layout with `copies` near copies.
pub const fn layout(copies: u8) -> Layout {
    Layout { near: copies, far: 1, offset: false, far_sets: FarSets::Whole }
}
