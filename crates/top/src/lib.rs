//! `ashlar top`: what the devices of a daemon do, as a live table, as text, and as JSON.
//!
//! # Theory
//!
//! The daemon counts, this crate subtracts: [`Interval::between`] computes rates and percentiles from two samples. A
//! [`View`](view::View) holds the user's choices: order, filter, selection. Both are plain data. `screen` writes them into a
//! buffer of cells, [`report`] into text; only `live` uses a terminal and threads.
//!
//! States of the live table: a table, with or without the help; a line that the user types (filter, search, delay). Pausing holds
//! the table, not the sampling.
//!
//! Invariants: no key is lost. The terminal passes keys one by one before anything is drawn, no typed input is discarded, and
//! the source of keys polls for them instead of waiting for a change (see the feature `use-dev-tty` of crossterm: its other
//! source drops a key that arrives together with a change of the size). The program restores the terminal when it ends, also
//! after a panic, after a signal, or because the daemon has ended.
//!
//! Ordering: one thread draws, and receives keys, samples and signals from other threads through one channel, so it never waits
//! for the daemon.
//!
//! Assumptions about the layers below: counters of a daemon only grow. If one is smaller than before, another device has the name
//! now, and counts from zero.

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

/// The user's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The time between two samples.
    pub delay: Duration,
    /// The column that the devices are sorted by.
    pub sort: Column,
    /// Show only devices with this text in their name, alias, kind or use; all if it is empty.
    pub filter: String,
}

#[cfg(test)]
mod tests;
