//! Stacks: from disks to running volumes.
//!
//! # Theory
//!
//! Two steps, of which the first can be used without the other: the contents of a disk ([`signature`] and
//! [`partitions`] for bytes; [`probe`] for a device), and assembly ([`assemble`], and
//! [`incremental`] for later members). A device made of disks is probed in turn like a disk:
//! docs/internals/stack.md. What a user sees of a stack is the crate above, `view`.
//!
//! Invariants: nothing here writes to a disk, but for the metadata of a volume group that a client changes or whose merge has
//! ended ([`incremental::Collector::apply`]); [`assemble`] starts the layers that do, which
//! write by their own rules. Every name is unique, and a device has one use. Changes happen one at a
//! time ([`turn`]).
//!
//! Assumed: the caller opens disks exclusively, so that the result of a probe is still valid
//! at assembly.

#![forbid(unsafe_code)]

pub mod arrays;
pub mod assemble;
mod builder;
#[doc(hidden)]
pub mod canary;
pub mod changes;
mod claim;
pub mod ddrescue;
pub mod devices;
mod findings;
pub mod incremental;
mod mapped;
pub mod names;
pub mod outsiders;
pub mod owners;
pub mod partitions;
pub mod pool_members;
pub mod pools;
pub mod probe;
mod refusals;
mod served_groups;
pub mod signature;
pub mod snapshots;
pub mod stopping;
pub mod turn;
pub mod unread;
pub mod view;
pub mod volume_groups;
pub mod wipe;
