//! ZFS's on-disk pool metadata, read without libzpool: `scan` and import must know which disks
//! belong to which pool before libzpool opens them.
//!
//! | module | what |
//! |---|---|
//! | [`nvlist`] | lists of named values, in the encoding of labels |
//! | [`layout`] | structs, their offsets and their checksum |
//! | [`uberblock`] | the ring of uberblocks, and the newest of them |
//! | [`label`] | the contents of a label, and the four labels of a device |
//! | [`vdev`] | the tree of virtual devices in a label |
//! | [`config`] | the pools on a set of devices, and the configuration to import one |
//!
//! No input makes this code panic, loop or allocate without bound. Layouts are those of OpenZFS's
//! `include/sys/vdev_impl.h`, `uberblock_impl.h` and `zio.h`; docs/formats/zfs.md describes them in
//! one place.

pub mod config;
pub mod label;
pub mod layout;
pub mod nvlist;
pub mod uberblock;
pub mod vdev;
