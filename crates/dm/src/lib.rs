//! The device mapper: devices composed of pieces of others.
//!
//! # Theory
//!
//! A device has a **table**: a list of adjacent pieces, each with a [`target::Target`] that maps
//! the bios of its piece to lower devices. A bio never crosses the end of a piece, nor a multiple
//! of the target's [`max_io_len`](target::Target::max_io_len): the device splits it, so targets
//! need not.
//!
//! States of a device: active, suspending (new I/O is held, I/O in flight completes), suspended (a
//! new table may replace the old one), active again. No I/O is lost or fails because of this.
//!
//! Invariants: every bio is mapped by exactly one table; a replaced table has no I/O in flight;
//! pieces cover the device without gaps.
//!
//! Ordering: none between bios in flight, as everywhere; a flush goes to every lower device.
//!
//! Assumed of the layer below: the block contract for gateways.

#![forbid(unsafe_code)]

mod copy;
pub mod device;
pub mod snapshot;
pub mod table;
pub mod target;
mod task;
pub mod text;
pub mod thin;

pub use device::Device;
pub use table::{LoadError, Table};
pub use target::{Context, Devices, Target};
