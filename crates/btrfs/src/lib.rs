//! Offline btrfs: on-disk structs, trees, scrub and repair, and reading files.
//!
//! # Theory
//!
//! Nothing here needs a mounted file system. The only writes are repairs, to blocks whose checksum
//! is wrong and for which a copy with the right checksum was found: a repair writes the bytes from
//! before the damage in place and reads them back. So a repair interrupted at any point leaves at
//! worst the damage that was already there.
//!
//! Layers, from the bottom:
//!
//! 1. [`ondisk`]: bytes to values. Every struct's offsets are asserted at compile time; no input
//!    makes it panic, loop or allocate without bound.
//! 2. [`chunk_map`]: maps the file system's space ([`units::Logical`]) to its devices
//!    ([`units::Physical`]), mirror by mirror, for each profile; [`raid_stripe`]: the same for data
//!    placed by a tree.
//! 3. [`volume`]: the available devices, opened through their superblocks; checked reads of mirrors
//!    and tree blocks; a bounded cache of tree blocks.
//! 4. [`path`]: descent into trees, with readahead.
//! 5. `scrub`, `backref`, `files`, `inspect`: the operations for users.
//!
//! Since nothing writes to the file system meanwhile, what the superblock points to *is* the commit
//! root: there is no locking, and a tree never changes during a walk.
//!
//! Block devices are assumed to return the medium's bytes, right or wrong, when a read succeeds:
//! every block read here is checked against what refers to it.

#![forbid(unsafe_code)]

pub mod backref;
mod cache;
pub mod check;
pub mod chunk_map;
pub mod compress;
pub mod csum;
pub mod error;
mod extent;
mod extent_leaf;
mod extent_leaves;
pub mod extent_walk;
pub mod files;
pub mod inspect;
mod mirror;
pub mod occupants;
pub mod ondisk;
pub mod path;
pub mod raid_stripe;
pub mod readahead;
mod root;
pub mod roots;
pub mod scrub;
mod sweep;
pub mod units;
pub mod volume;
