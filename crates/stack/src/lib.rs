//! Stacks: from disks to running volumes, and what a user sees of them.
//!
//! # Theory
//!
//! Four steps, each a module that can be used without the next: what is on a disk ([`signature`] and
//! [`partitions`], bytes alone; [`probe`], through a device), what is made of it ([`assemble`], and
//! [`incremental`] for what comes later), what was found, as a tree ([`scan`], [`graph`]), and how it
//! looks from outside ([`attributes`], and [`trace`] for what happens in it). [`spec`] is the file that says
//! which disks and how. What is made of a disk is a device like a disk, and looked at in turn:
//! docs/internals/stack.md.
//!
//! Invariants: nothing here writes to a disk; the layers that do are started by [`assemble`] and
//! write by their own rules. Every name is given once, and a device is used for one thing. There
//! is one table of attributes; the control socket, the FUSE tree and the command
//! line are views of it.
//!
//! Assumed: that disks are opened exclusively by the caller, so that what was probed is still so
//! when it is assembled.

#![forbid(unsafe_code)]

pub mod arrays;
pub mod assemble;
pub mod attributes;
mod builder;
mod claim;
pub mod detail;
pub mod devices;
pub mod events;
pub mod graph;
pub mod incremental;
mod mapped;
pub mod names;
pub mod owners;
pub mod partitions;
pub mod pool_members;
pub mod pools;
pub mod probe;
pub mod progress;
pub mod scan;
pub mod signature;
pub mod spec;
pub mod trace;
pub mod view;
pub mod volume_groups;
pub mod wipe;
mod zpools;

#[cfg(test)]
mod testing;
