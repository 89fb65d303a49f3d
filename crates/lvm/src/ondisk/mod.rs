//! LVM2's labels and metadata areas: bytes to structs and back, nothing else.
//!
//! | layer | modules |
//! |---|---|
//! | bytes as the disk has them, sizes and offsets asserted at compile time | [`layout`], [`crc`] |
//! | what they mean, and whether that is possible | [`label`], [`mda`] |
//!
//! No I/O happens here. Nothing here panics, loops or allocates without bound on any input.

pub mod crc;
pub mod label;
pub mod layout;
pub mod mda;

pub use label::{Extension, LabelError, Labelled, PvLabel, find_label};
pub use mda::{MdaError, MdaHeader, Placement, Range, RawText, WriteError};

/// Asserts at compile time that a struct has exactly this size and that its fields are at exactly
/// these byte offsets. Every field of an on-disk struct is listed.
macro_rules! ondisk_layout {
    ($t:ty, $size:expr, { $($field:ident: $offset:expr),+ $(,)? }) => {
        const _: () = {
            assert!(core::mem::size_of::<$t>() == $size);
            $(assert!(core::mem::offset_of!($t, $field) == $offset);)+
        };
    };
}
pub(crate) use ondisk_layout;
