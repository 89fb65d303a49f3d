//! LVM2's labels and metadata areas: conversion between bytes and structs, nothing else.
//!
//! | layer | modules |
//! |---|---|
//! | on-disk bytes, sizes and offsets asserted at compile time | [`layout`], [`crc`] |
//! | their meaning and validity | [`label`], [`mda`] |
//!
//! No I/O happens here. No input makes this code panic, loop or allocate without bound.

pub mod crc;
pub mod label;
pub mod layout;
pub mod mda;

pub use label::{Extension, LabelError, LocatedLabel, PvLabel, find_label};
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
