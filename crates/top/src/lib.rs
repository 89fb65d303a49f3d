//! `ashlar top`: what the devices of a daemon do, as a live table, as text, and as JSON.
//!
//! # Theory
//!
//! The daemon counts, this crate subtracts: [`Interval::between`] makes rates and percentiles of two samples. A
//! [`View`](view::View) has what the user chose: order, filter, selection. Both are plain data. `screen` writes them into a buffer of
//! cells, [`report`] into text; only `live` has a terminal, and threads.
//!
//! States of the live table: a table, with or without the help; a line that the user types (filter, search, delay). Pausing holds
//! the table, not the sampling.
//!
//! Invariants: no key is lost. The terminal passes keys one by one before anything is drawn, no typed input is thrown away, and
//! the source of keys asks for them again and again instead of waiting for a change (see the feature `use-dev-tty` of crossterm: its other
//! source drops a key that comes together with a change of the size). The terminal is as before when the program ends, also
//! by a panic, by a signal, or because the daemon has ended.
//!
//! Ordering: one thread draws, and gets keys, samples and signals from others through one channel, so it never waits for the daemon.
//!
//! Assumptions about the layers below: counters of a daemon only grow. If one is smaller than before, another device has its name now, and
//! it counts from zero.

#![forbid(unsafe_code)]

mod columns;
mod format;
mod head;
mod keys;
mod live;
mod rates;
pub mod report;
mod screen;
mod view;

pub use columns::Column;
pub use live::run;
pub use rates::Interval;

use std::time::Duration;

/// What the user chose.
#[derive(Clone, Debug)]
pub struct Options {
    /// The time between two samples.
    pub delay: Duration,
    /// The column that the devices are sorted by.
    pub sort: Column,
    /// Only devices with this in their name, alias, kind or use; all if it is empty.
    pub filter: String,
}

#[cfg(test)]
mod tests;
