//! The simulator: the block contract on virtual time.
//!
//! # Theory
//!
//! A [`Sim`] is the runtime of one thread. Nothing in it depends on the machine: the order of
//! runnable tasks, the times of devices and the damage of a power cut are drawn from one seed, and
//! time jumps from event to event. So a run is a function of its seed, a failure can be reproduced
//! from its seed, and hours of a disk's life take milliseconds.
//!
//! A [`SimDisk`] is a driver behind the block layer's queue. Its [`Media`] keeps three things
//! apart: durable data, data that is only in the cache, and faults. [`Sim::power_cut`] ends a
//! simulation at any point; a new one continues with the remaining media.
//!
//! Invariants:
//! - a command takes effect at one moment, just before it is acknowledged; if it is cut off in
//!   flight, any part of it may have taken effect;
//! - data covered by a flush, or written with FUA, survives every cut; of all other data each sector
//!   survives independently, and holds its newest surviving change;
//! - faults never change a medium's contents, only what is read from it.
//!
//! A [`Model`] is how long a device takes. It drives the simulator's disks and, in front of any device and in
//! real time, a [`ModelledDevice`].
//!
//! Assumed: the layers above use no other clock, thread or source of randomness, and the block layer
//! calls a driver on the submitting thread.
//!
//! docs/internals/fault-model.md has the details.

#![forbid(unsafe_code)]

pub mod disk;
pub mod faults;
pub mod media;
pub mod model;
pub mod modelled;
pub mod oracle;
pub mod rng;
pub mod runs;
pub mod scheduler;
mod state;
pub mod store;
pub mod workload;

pub use disk::SimDisk;
pub use faults::Corruption;
pub use media::{Break, Command, Counts, DiscardReads, Media, Snapshot};
pub use model::{Model, Tail};
pub use modelled::{ModelledDevice, modelled};
pub use oracle::{Oracle, Value, Violation};
pub use rng::{Rng, seeds};
pub use scheduler::{JoinHandle, Sim, SimRuntime, Standing, Stop, stand_still};
pub use workload::{Mix, Workload};
