//! The work of commands that need no daemon: arrays, volume groups, file systems and pools on disks that the command opens itself, or as a
//! client of the daemon that has them; and what the daemon does in the same way.
//!
//! # Theory
//!
//! A command opens its disks with [`ashlar_disks`], lets `stack` assemble what is on them, acts, and releases them. [`lvm`] changes volume
//! groups, [`btrfs`] reads, copies and scrubs a file system, [`md`] makes arrays and changes superblocks, [`pools`] imports a pool in a process of its own.
//! [`trace`] has the files of a trace and the names of what lies at its sectors. [`acceptance`] says whether a stack is what the user
//! asked for, [`background`] starts a process that outlives its command. The daemon uses the rules of [`lvm`], the scrub of [`btrfs`] and the last two.
//!
//! States: a command opens, reads, acts, releases. Those of a scrub are in [`btrfs::scrub`].
//!
//! Invariants: what is refused has changed nothing. A volume group's metadata is archived before it changes. This crate knows neither
//! options nor terminals: it never writes to the standard streams, but returns an [`error::Error`], calls an observer, or logs.
//!
//! Ordering: disks are opened before the sandbox is entered, and read after it.
//!
//! Assumed: an assembled array that was not written to has changed nothing on its disks. The caller blocks signals before the first thread starts.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod acceptance;
pub mod background;
pub mod btrfs;
pub mod lvm;
pub mod md;
pub mod pools;
pub mod trace;

// What this crate's functions return.
pub use ashlar_control::error;
