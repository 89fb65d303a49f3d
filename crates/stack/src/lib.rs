//! Stacks: from disks to running volumes, and what a user sees of them.
//!
//! # Theory
//!
//! Four steps, each a module that can be used without the next: what is on a disk ([`signature`],
//! bytes alone; [`probe`], through a device), what belongs together ([`graph`]), what is made of it
//! ([`assemble`], and [`incremental`] for what comes later), and how it looks from outside
//! ([`attributes`], and [`trace`] for what happens in it). [`spec`] is the file that says which disks and how.
//!
//! Invariants: nothing here writes to a disk; the layers that do are started by [`assemble`] and
//! write by their own rules. Every name is given once: a volume's name is unique, and so is a
//! member's. There is one table of attributes; the control socket, the FUSE tree and the command
//! line are views of it.
//!
//! Assumed: that disks are opened exclusively by the caller, so that what was probed is still so
//! when it is assembled.

#![forbid(unsafe_code)]

pub mod arrays;
pub mod assemble;
pub mod attributes;
pub mod detail;
pub mod disks;
pub mod events;
pub mod graph;
pub mod incremental;
pub mod names;
pub mod probe;
pub mod progress;
pub mod scan;
pub mod signature;
pub mod spec;
pub mod trace;
pub mod view;

#[cfg(test)]
mod testing;
