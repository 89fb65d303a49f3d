//! What a user sees of a stack: the texts about its devices, in the words of the kernel, mdadm, zpool and zfs.
//!
//! # Theory
//!
//! Texts are of the moment: each asks the registry and the devices of [`ashlar_stack`] when it is made. [`attributes`] is the one
//! table of what can be read and set while a stack runs: the control socket, the FUSE tree and the command line are views of it.
//! [`detail`] and [`events`] say of arrays what mdadm says, [`examine`] does so for superblocks without a stack, and [`zfs_text`]
//! has the columns of pools. [`scan`] draws what is found on disks as a [`graph`], without a daemon.
//!
//! Invariants: nothing here decides what becomes of a device, and a stack runs without it. The text of an attribute never waits for
//! a device. What is written to an attribute and changes the stack has the stack's turn ([`ashlar_stack::turn`]).
//!
//! Assumed: the registry says of each device what it is when no change is under way; a daemon that serves the stack gives the turns
//! ([`attributes::Attributes::turns`]) and ends arrays ([`attributes::Attributes::set_ender`]), because it knows their clients.

#![forbid(unsafe_code)]

pub mod attributes;
pub mod detail;
pub mod events;
pub mod examine;
pub mod graph;
pub mod progress;
pub mod scan;
pub mod snapshot;
pub mod zfs_text;
mod zpools;

#[cfg(test)]
mod testing;
