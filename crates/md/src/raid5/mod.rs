//! RAID 4, 5 and 6: each row of chunks has one or two chunks of parity.
//!
//! A *row* is one chunk of every member at the same place of its data area. [`layout`] says which members of a row hold parity and which
//! hold data, and what Q counts them as; [`geometry`] is the address map made of it. All of it is pure: no I/O, no allocation.

pub mod geometry;
pub mod layout;

pub use geometry::{Geometry, GeometryError, Held, Row};
pub use layout::{Layout, LayoutError, ParityLevel};
