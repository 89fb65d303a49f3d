//! The FUSE export: volumes as files that can be loop-mounted, with their attributes as in sysfs.
//!
//! # Theory
//! The kernel sends requests through `/dev/fuse`; each is answered by one write that carries the request's `unique`, in
//! any order. [`request`] parses, [`session`] decides, [`job`] runs what must wait for a volume, [`server`] moves bytes
//! between the device ([`dev`]) and those three, on the reactor of its thread: a request is read, submitted, completed
//! and answered without another thread. [`tree`] is what the mount shows; [`mount`] creates and ends the mount.
//!
//! Invariants: every request but FORGET is answered exactly once. A payload's buffer belongs to its job until the
//! volume has completed. A node id is never reused for another file. The memory of requests in flight is bounded, by
//! not reading further ones ([`gate`]).
//!
//! Durability: WRITE is as durable as a write to the volume; O_DSYNC writes are FUA, FSYNC is a flush, and both are
//! answered only after the volume has completed them.
//!
//! Assumptions: the kernel does not reuse a handle before its RELEASE, and splits requests to what INIT negotiated.
//! Memory safety depends on neither.

mod abi;
pub mod dev;
mod emptied;
pub mod gate;
pub mod job;
pub mod mount;
mod reply;
pub mod request;
pub mod server;
pub mod session;
pub mod tree;
mod work;

#[cfg(test)]
mod tests;
