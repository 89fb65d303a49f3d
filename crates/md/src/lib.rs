//! Linux software RAID (md): levels 0, 1 and 10 in the kernel's on-disk formats.
//!
//! # Theory
//!
//! Members carry superblocks ([`ondisk`]). [`probe`] reads them, [`assemble`] decides which members
//! make an array and whether it may start, and [`Array`] runs it: a block device whose
//! [`personality`] maps its sectors to the members', with common code for reading and writing copies of
//! all levels ([`raid0`] and [`raid10`] are pure geometry).
//!
//! The promises of an array, beyond a block device's contract:
//! - a write is acknowledged when every copy on a member in sync has it; a member that could not
//!   take it has failed by then, and the superblocks of the others record it;
//! - after a read error, the data come from another copy and are written over the bad one;
//! - the superblocks say `active` before a write may make copies differ and `clean` only when they
//!   are the same and flushed;
//! - a discard touches no sector outside its range, on any member, however it is split.
//!
//! Two concurrent writes to one sector may end differently on its copies, as in md.
//!
//! Ordering arguments are at the top of the modules: active and clean in `array`, the order of
//! superblock updates in `superblocks`, corrections against writes in
//! `barrier`, dropped futures in `ashlar_block::sync::finish`. docs/internals/crash-model.md has the
//! whole.
//!
//! Assumed of the layer below: a sector is written atomically; an acknowledged flush or FUA write
//! is durable; after a failed write each sector may be old, new or unreadable.

#![forbid(unsafe_code)]

pub mod array;
pub mod assemble;
pub mod badblocks;
pub mod barrier;
pub mod bitmap;
pub mod canary;
pub mod create;
pub mod dm_raid;
pub mod manage;
pub mod membership;
pub mod ondisk;
pub mod personality;
pub mod probe;
pub mod raid0;
pub mod raid10;
pub mod status;
pub mod sync;
pub mod update;

mod core;
mod level;

#[cfg(test)]
mod enumeration;

pub use membership::{rdev, slots as members};

pub use array::Array;
pub use assemble::{AssembleError, Candidate, Options, Plan, group, plan};
pub use status::{ArrayState, ArrayStatus, MemberStatus};
