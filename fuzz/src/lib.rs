//! The checks of the fuzz targets, as functions of bytes.
//!
//! Each target has a module of its name: the module text says what must hold and how the input is laid out, and `run`
//! checks it, and panics if it does not hold. Two drivers provide inputs. libFuzzer, on a nightly toolchain, searches
//! for new paths by coverage (`fuzz_targets`, `scripts/fuzz`). An ordinary test changes the [`seeds`] at random, with a
//! fixed seed and for a fixed number of rounds (`tests/bounded.rs`).

#![forbid(unsafe_code)]

pub mod btrfs_image;
pub mod btrfs_structs;
pub mod ddrescue_map;
pub mod dm_exception_store;
pub mod dm_raid;
pub mod dm_table;
pub mod dm_thin_metadata;
pub mod fuse_request;
pub mod lvm_label;
pub mod lvm_text;
pub mod md_assembly;
pub mod md_superblock;
mod memory;
pub mod mutate;
pub mod nbd_client;
pub mod nbd_handshake;
pub mod nbd_transmission;
pub mod partition_table;
pub mod seeds;
mod vhost_guest;
pub mod vhost_message;
pub mod vhost_ring;
pub mod zfs_label;

/// A fuzz target.
pub struct Target {
    /// Its name, which is the module's.
    pub name: &'static str,
    /// Checks one input; panics if something does not hold. Returns whether part of the input was accepted.
    pub run: fn(&[u8]) -> bool,
    /// Good inputs to start with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// The number of inputs in the bounded test: about a second at most.
    pub rounds: u32,
}

macro_rules! target {
    ($name:ident, $rounds:expr) => {
        Target { name: stringify!($name), run: $name::run, seeds: seeds::$name, rounds: $rounds }
    };
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target!(btrfs_image, 100),
    target!(btrfs_structs, 30_000),
    target!(ddrescue_map, 50_000),
    target!(dm_exception_store, 15_000),
    target!(dm_raid, 20_000),
    target!(dm_table, 100_000),
    target!(dm_thin_metadata, 1_000),
    target!(fuse_request, 5_000),
    target!(lvm_label, 100_000),
    target!(lvm_text, 4_000),
    target!(md_assembly, 500),
    target!(md_superblock, 30_000),
    target!(nbd_client, 150),
    target!(nbd_handshake, 100_000),
    target!(nbd_transmission, 100_000),
    target!(partition_table, 30_000),
    target!(vhost_message, 5_000),
    target!(vhost_ring, 5_000),
    target!(zfs_label, 5_000),
];
