//! Btrfs offline: its structs, its trees, scrub and repair, and files taken out of it.
//!
//! # Theory
//!
//! Nothing here needs a mounted file system, and nothing is changed but blocks whose checksum is
//! wrong and for which a copy with the right one was found: a repair writes the bytes that were
//! there before the damage, in place, and reads them back. So a repair that is cut off at any point
//! leaves at worst the damage that was there.
//!
//! Layers, from below:
//!
//! 1. [`ondisk`]: bytes to values. Every struct's offsets are asserted at compile time; whatever the
//!    bytes are, nothing panics, loops or allocates without bound.
//! 2. [`chunk_map`]: where the bytes of the file system's space ([`units::Logical`]) are on its devices
//!    ([`units::Physical`]), mirror by mirror, for each profile; [`raid_stripe`]: the same of data that a tree places.
//! 3. [`volume`]: the devices that are there, opened through their superblocks; reads of a mirror,
//!    and of tree blocks, each checked; a bounded cache of these.
//! 4. [`path`]: descent into trees, with readahead.
//! 5. `scrub`, `backref`, `files`, `inspect`: what users ask for.
//!
//! Since nobody writes to the file system meanwhile, what the superblock points to *is* the commit
//! root: there is no locking, and a tree never changes under a walk.
//!
//! Of the layers below (block devices) it is assumed that a read that ends well gave the medium's
//! bytes, right or wrong: every block read here is checked by what refers to it.

#![forbid(unsafe_code)]

pub mod backref;
mod cache;
pub mod chunk_map;
pub mod compress;
pub mod csum;
pub mod error;
mod extent_leaf;
pub mod extent_walk;
pub mod files;
pub mod inspect;
mod mirror;
pub mod ondisk;
pub mod path;
pub mod raid56;
pub mod raid_stripe;
pub mod readahead;
pub mod roots;
pub mod scrub;
mod sweep;
pub mod units;
pub mod volume;
