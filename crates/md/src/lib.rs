//! Linux software RAID (md): levels 0, 1 and 10 in the kernel's on-disk formats.
//!
//! # Theory
//!
//! Members carry superblocks ([`ondisk`]). [`probe`] reads them, [`assemble`] decides which members
//! make an array and whether it may start, and [`Array`] runs it: a block device whose
//! [`personality`] maps its sectors to the members', with one way of reading and writing copies for
//! all levels ([`raid0`] and [`raid10`] are pure geometry).
//!
//! What an array promises, beyond a block device's contract:
//! - a write is acknowledged when every copy on a member in sync has it; a member that could not
//!   take it has failed by then, and the superblocks of the others say so;
//! - a read error is made good from another copy and written over the bad one;
//! - the superblocks say `active` before a write may make copies differ and `clean` only when they
//!   are the same and flushed;
//! - a discard touches no sector beside it, on any member, however it is cut up.
//!
//! Two writes to one sector that are in flight together may end differently on its copies, as in md.
//!
//! Ordering arguments stand where they are needed: active and clean at the top of `array`, what the
//! superblocks must say before what at the top of `superblocks`, corrections against writes at the top
//! of `barrier`, dropped futures at the top of `finish`. docs/internals/crash-model.md has the whole.
//!
//! Assumed of the layer below: a sector is written whole or not at all; a flush or FUA write that was
//! acknowledged is durable; what failed to be written may be old, new or unreadable, sector by sector.

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
pub mod members;
pub mod ondisk;
pub mod personality;
pub mod probe;
pub mod raid0;
pub mod raid10;
pub mod rdev;
pub mod read_errors;
pub mod status;
pub mod superblocks;
pub mod sync;
pub mod update;

mod bitmap_store;
mod failing;
mod finish;
mod io;

#[cfg(test)]
mod enumeration;

pub use array::Array;
pub use assemble::{AssembleError, Candidate, Options, Plan, group, plan};
pub use status::{ArrayState, ArrayStatus, MemberStatus};
