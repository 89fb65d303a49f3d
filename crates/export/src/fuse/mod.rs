//! The FUSE export: volumes as files that can be loop-mounted, and their attributes as in sysfs.
//!
//! # Theory
//! The kernel sends requests through `/dev/fuse`; each is answered by one write that carries the
//! request's `unique`, in any order. [`request`] parses, [`session`] decides, [`job`] does what has
//! to wait for a volume, [`server`] moves bytes between the device ([`dev`]) and those three, on the
//! reactor of the thread it runs on: a request is read, its I/O submitted, completed and answered
//! without another thread. [`tree`] is what the mount shows; [`mount`] makes and ends the mount.
//!
//! Invariants: every request but FORGET is answered exactly once. A payload's buffer
//! belongs to its job until the volume has completed. A node id means one thing for ever. The memory
//! of requests in flight is bounded, by not reading further ones.
//!
//! Durability: WRITE is as durable as a write to the volume; O_DSYNC writes are FUA, FSYNC is a
//! flush, and neither is answered before the volume has said so.
//!
//! Assumed: the kernel does not reuse a handle before its RELEASE, and cuts requests to what INIT
//! negotiated. Neither is needed for memory safety.

mod abi;
pub mod dev;
pub mod job;
pub mod mount;
mod reply;
pub mod request;
pub mod server;
pub mod session;
pub mod tree;

#[cfg(test)]
mod tests;
