//! The daemon's side of a pool: its worker, and block devices whose I/O the worker does.
//!
//! # Theory
//!
//! A [`Worker`] is a process that was started from this program, with a control channel. Calls are answered in order, by a
//! thread that owns the channel, so that they can be waited for on any reactor. A [`Zvol`] is a block device: the request
//! queue, and behind it a driver ([`driver`]) with a data channel for each thread that does I/O.
//!
//! | state   | calls                     | I/O                                          | leads to          |
//! |---------|---------------------------|----------------------------------------------|-------------------|
//! | running | are answered              | goes to the worker                           | closing, dead     |
//! | closing | `Close`, then `ExportPool` | a volume's ends, then its channels are closed | ended             |
//! | dead    | fail with its last words  | what was in flight fails, so does all later  | -                 |
//!
//! Invariant: memory of a request belongs to the worker from its submission until its completion, or until the end of the data
//! channel, which the kernel closes when no thread of the worker is left that could touch it. A request is owned
//! by its channel meanwhile; a channel that must go before waits, and leaks what does not end.
//!
//! The worker reads this process's buffers, which are in memory that is lent to it ([`memory`]). What is read it writes there as a process
//! may: as the same user, and where Yama restricts that to ancestors, because this process has named itself as one whose descendants may.

mod channel;
pub mod driver;
mod import;
mod memory;
pub mod parameters;
pub mod part;
pub mod pool;
mod worker;
pub mod zvol;

pub use crate::property::parse_size;
pub use driver::ZvolDriver;
pub use parameters::{Parameter, Parameters};
pub use part::Part;
pub use pool::{Pool, PoolError};
pub use worker::{CallError, Worker};
pub use zvol::Zvol;

#[cfg(test)]
mod tests;
