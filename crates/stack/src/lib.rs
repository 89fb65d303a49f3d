//! Stacks: from disks to running volumes, and the user's view of them.
//!
//! # Theory
//!
//! Four steps, each a module that can be used without the next: the contents of a disk ([`signature`] and
//! [`partitions`] for bytes; [`probe`] for a device), assembly ([`assemble`], and
//! [`incremental`] for later members), the findings as a tree ([`scan`], [`graph`]), and the view
//! from outside ([`attributes`]). A device made of disks is probed in turn like a disk:
//! docs/internals/stack.md.
//!
//! Invariants: nothing here writes to a disk, but for the metadata of a volume group that a client changes or whose merge has
//! ended ([`incremental::Collector::apply`]); [`assemble`] starts the layers that do, which
//! write by their own rules. Every name is unique, and a device has one use. Changes happen one at a
//! time ([`turn`]). The control socket, the
//! FUSE tree and the command line are views of one table of
//! attributes.
//!
//! Assumed: the caller opens disks exclusively, so that the result of a probe is still valid
//! at assembly.

#![forbid(unsafe_code)]

pub mod arrays;
pub mod assemble;
pub mod attributes;
mod builder;
#[doc(hidden)]
pub mod canary;
pub mod changes;
mod claim;
pub mod ddrescue;
pub mod detail;
pub mod devices;
pub mod events;
pub mod examine;
mod findings;
pub mod graph;
pub mod incremental;
mod mapped;
pub mod names;
pub mod outsiders;
pub mod owners;
pub mod partitions;
pub mod pool_members;
pub mod pools;
pub mod probe;
pub mod progress;
mod refusals;
pub mod scan;
pub mod signature;
pub mod snapshots;
pub mod stopping;
pub mod turn;
pub mod unread;
pub mod view;
pub mod volume_groups;
pub mod wipe;
pub mod zfs_text;
mod zpools;

#[cfg(test)]
mod testing;
