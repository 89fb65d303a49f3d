//! ublk: volumes as block devices of this machine, `/dev/ublkbN`, without a kernel module of our own.
//!
//! # Theory
//!
//! The kernel's driver `ublk_drv` has a control file, `/dev/ublk-control`, and for each block device `/dev/ublkbN` a file for its server,
//! `/dev/ublkcN`. The server maps the descriptions of requests, one for each tag of a queue, and has one command of its io_uring in flight
//! for each tag: it ends when the driver has a request for that tag, and the next one carries the result and fetches again.
//!
//! ```text
//! FETCH --request--> I/O on the volume --result, COMMIT_AND_FETCH--> ... --STOP_DEV--> ENODEV
//! ```
//!
//! Layers, each of which knows only those above it: `abi` (numbers and structs), `control` (commands of the control file), [`Controller`] (finds,
//! makes and ends devices, in a process outside the server's sandbox), `queue` (a task on a reactor, which fetches for all its tags: the
//! driver wants them from one thread), [`Server`]. Commands may wait, so the pool sends them to the controller.
//!
//! **Data** are copied by the driver between a request and the memory of its tag, on the reactor's thread. This works for every kernel
//! that has ublk and for every client; the driver's zero copy lets this process never see the data, which parity and copies need.
//!
//! **Restart.** A device outlives its server: I/O waits until another server takes the device over, and what was in flight is issued
//! again. The device carries the identity of its volume's data ([`identity_of`]), by which a successor finds it. It must keep what the
//! device has promised its users: a size, writes, flushes.
//!
//! **Order.** None between requests in flight. A flush covers the writes that ended before it was issued.
//!
//! Source: `include/uapi/linux/ublk_cmd.h` and `Documentation/block/ublk.rst`, Linux 6.12.

#![deny(unsafe_code)]

mod abi;
mod control;
mod controller;
mod device;
mod queue;

pub use control::{Control, Unavailable};
pub use controller::{Channel, Controller};
pub use device::{Config, Server, identity_of};
