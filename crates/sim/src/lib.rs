//! The simulator: the block contract on virtual time.
//!
//! # Theory
//!
//! A [`Sim`] is the runtime of one thread. Nothing in it is left to the machine: the order of
//! runnable tasks, the times of devices and what a power cut destroys are drawn from one seed, and
//! time jumps from event to event. So a run is a function of its seed, a failure found by one seed
//! can be had again, and hours of a disk's life take milliseconds.
//!
//! A [`SimDisk`] is a driver behind the block layer's own queue. Its [`Media`] keeps three things
//! apart: what is durable, what is only in the cache, and faults. [`Sim::power_cut`] ends a
//! simulation at any point; a new one goes on with the media that are left.
//!
//! Invariants:
//! - a command takes effect at one moment, just before it is acknowledged; cut off in flight it may
//!   have taken effect in any part;
//! - what a flush covered, or FUA wrote, survives every cut; of the rest each sector survives by
//!   itself, the newest surviving change of a sector is what it holds;
//! - a medium's contents are never changed by faults, only what is read from it is.
//!
//! It assumes of the layers above that they use no other clock, thread or source of chance, and of
//! the block layer that a driver is called on the thread that submitted.
//!
//! docs/internals/fault-model.md has the details.

#![forbid(unsafe_code)]

pub mod disk;
pub mod faults;
pub mod media;
pub mod oracle;
pub mod ranges;
pub mod rng;
pub mod runs;
pub mod scheduler;
mod state;
pub mod store;
pub mod workload;

pub use ashlar_block::model::{self, Model};
pub use disk::SimDisk;
pub use faults::Corruption;
pub use media::{Command, Counts, DiscardReads, Media, Snapshot};
pub use oracle::{Oracle, Value, Violation};
pub use rng::{Rng, seeds};
pub use scheduler::{Join, Sim, SimRuntime, Stop};
pub use workload::{Mix, Workload};
