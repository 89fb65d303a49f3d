//! The device mapper: devices that are made of pieces of others.
//!
//! # Theory
//!
//! A device has a **table**: a list of adjacent pieces, each with a [`target::Target`] that maps the bios of its
//! piece to lower devices. A bio never crosses the end of a piece, nor a multiple of the target's
//! [`max_io_len`](target::Target::max_io_len): the device splits it, and nobody else has to.
//!
//! States of a device: active, suspending (new I/O is held, what is in flight ends), suspended (a new
//! table may take the place of the old one), active again. No I/O is lost on the way, none fails for it.
//!
//! Invariants: every bio is mapped by exactly one table; a table that was replaced has no I/O in
//! flight; pieces cover the device without gaps.
//!
//! Ordering: none between bios in flight, as everywhere; a flush goes to every lower device.
//!
//! Assumed of the layer below: what the block contract says of a gateway.

#![forbid(unsafe_code)]

pub mod device;
mod finish;
mod gate;
pub mod snapshot;
pub mod table;
pub mod target;
pub mod text;
pub mod thin;

pub use device::Device;
pub use table::{LoadError, Table};
pub use target::{Context, Devices, Target};
