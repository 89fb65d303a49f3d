//! The daemon's side of a pool: its worker, and block devices whose I/O the worker does.
//!
//! # Theory
//!
//! A [`Worker`] is a process of this program with a control channel. A thread owns the channel and
//! answers calls in order, so that any reactor can wait for them. A [`Zvol`] is a block device: the
//! request queue, and behind it a driver ([`driver`]) with one data channel per thread that does
//! I/O.
//!
//! | state   | calls                     | I/O                                          | leads to          |
//! |---------|---------------------------|----------------------------------------------|-------------------|
//! | running | are answered              | goes to the worker                           | closing, dead     |
//! | closing | `Close`, then `ExportPool` | a volume's ends, then its channels are closed | ended             |
//! | dead    | fail with its last words  | what was in flight fails, so does all later  | -                 |
//!
//! Invariant: a request's memory belongs to the worker from submission until completion, or until
//! the end of the data channel, which the kernel closes when no thread of the worker is left that
//! could touch the memory. Meanwhile, the request is owned by its channel; a channel that must
//! close earlier waits, and leaks requests that do not complete.
//!
//! The worker reads this process's buffers, which are in memory shared with it ([`memory`]). It writes
//! the data of read requests there with the permissions of a process of the same user; where Yama
//! restricts this to ancestors, this process has permitted its descendants.
//!
//! A process in a sandbox cannot start a worker, and must not start one outside. A [`Launcher`] that it has started before
//! starts workers in sandboxes of their own. They reach nothing of this process: data go through a [`window`], with one more
//! copy, and disks are passed as open files.

mod channel;
pub mod driver;
mod import;
mod memory;
mod opening;
pub mod parameters;
pub mod part;
pub mod pool;
mod window;
mod worker;
pub mod zvol;

pub use crate::property::parse_size;
pub use driver::ZvolDriver;
pub use parameters::{Parameter, Parameters};
pub use part::DiskPart;
pub use pool::{Pool, PoolError};
pub use worker::{CallError, Launcher, Worker, WorkerEnds};
pub use zvol::Zvol;

#[cfg(test)]
mod tests;
