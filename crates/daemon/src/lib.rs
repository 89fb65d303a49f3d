//! The control plane: a daemon that assembles volumes, serves them and stops cleanly.
//!
//! # Theory
//!
//! [`serve()`] takes a [`config::Config`] and returns when everything has stopped. It opens the [`disks`](ashlar_disks),
//! lets `stack` assemble them, accepts or refuses the result ([`ashlar_commands::acceptance`]), and starts the front ends of `export`: the
//! mount and the NBD servers. From then on its main thread answers calls on the control socket
//! ([`ashlar_client`]). Commands that need no daemon are in [`ashlar_commands`].
//!
//! States of a daemon: starting, serving, draining, stopping. The table is in `serve.rs`.
//!
//! Invariants: a disk is opened once, and locked against other programs unless it is only looked at. A refused call has
//! changed nothing. Each change of the stack holds its turn, from the first check to the last write. While the daemon shuts down
//! it grants no turn, and the shutdown waits for the current one. This crate knows neither options nor terminals: it never writes
//! to the standard streams, but returns an [`error::Error`], calls an [`ashlar_control::console::Console`], or logs.
//!
//! Ordering: a daemon first stops its clients, then the arrays, then the threads.
//!
//! Assumptions about the layers below: an assembled array that was not written to has changed nothing on its disks, and
//! a stopped array is clean. About the caller: no other thread runs when [`serve()`] is called, because all
//! threads must inherit the blocked signals.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod absent;
mod announcement;
mod array_end;
mod balance;
mod claimed;
pub mod cleanup_helper;
mod clients;
pub mod config;
mod confinement;
mod control;
mod copies_end;
#[cfg(debug_assertions)]
mod defect;
mod ending;
mod filling;
mod front_ends;
mod groups;
mod incremental;
mod jobs;
mod machine;
mod manage;
mod membership;
mod metrics;
mod notify;
mod options;
mod places;
mod pools_end;
mod returns;
mod scrubs;
mod serve;
mod service;
#[cfg(test)]
mod simulation;
mod speeds;
mod stopping;
mod trace;
mod watch;
mod zfs;

// What this crate's functions return.
pub use ashlar_control::error;
pub use serve::{Filter, serve};
