//! RAID 10: every chunk on several members, in one of three arrangements that can be combined.
//!
//! [`geometry`] is the address map, [`discard`] turns a long discard into one range per member and
//! pass, [`layout`] is the layout word of the superblock. All of it is pure: no I/O, no allocation after [`Geometry::new`].
//!
//! The one idea behind the map: number the copies of all chunks consecutively, each chunk `near`
//! times, and distribute them over the members row by row like RAID 0. That is the *base area*. A
//! layout with `far` copies repeats the base area (far) or each of its rows (offset), and every
//! repetition is the same rows with the members permuted. The permutations are a table.

pub mod discard;
pub mod geometry;
pub mod layout;

pub use discard::{DiscardPlan, StripedDiscard};
pub use geometry::{Copies, Geometry, GeometryError, Location};
pub use layout::{FarSets, Layout, LayoutError};
