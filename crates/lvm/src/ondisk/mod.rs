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
