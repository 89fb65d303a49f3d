//! `ashlar`: Linux's block storage stack in user space. One program, command line and daemon.
//!
//! # Theory
//!
//! A command is a file in [`commands`]: its arguments, and a function that runs it to an
//! [`Error`](error::Error) or an exit code. Those that look at disks run to their end on one reactor;
//! `serve` becomes the [`daemon`]; `get`, `set`, `status`, `detail` and `stop` are clients of a running
//! daemon's control socket.
//!
//! States: a command parses, opens, probes, acts, reports. A daemon is starting, serving, draining,
//! stopping; the table is in [`daemon`].
//!
//! Invariants: nothing is written to a disk but by `md create`, the verbs of `lvm` that make or change, and
//! `serve`. What was refused has
//! changed nothing. A disk is opened once, locked against other programs unless it is only looked
//! at. Every failure ends in one line that says what, where and why, and in an exit code that is
//! not 0.
//!
//! Ordering: at the end of a daemon first the clients, then the arrays, then the threads.
//!
//! Assumed of the layers below: that an assembled array that was not written to has changed nothing,
//! and that one that was stopped is clean.

#![forbid(unsafe_code)]

mod cli;
mod client;
mod commands;
mod daemon;
mod disks;
mod error;
mod models;
mod output;
mod progress;
mod units;

use std::process::ExitCode;

use ashlar_engine::signal::{self, Signal};
use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse_from(commands::md::spelling::ours(std::env::args_os()));
    // A file that reaches the limit of sizes (ulimit -f) is to fail its write, not to end a daemon, nor a worker: what is
    // ignored stays so for the processes that are started. SIGPIPE is ignored by Rust's runtime already.
    let ignored = signal::ignore(Signal::XFSZ);
    if cli.quiet {
        output::be_quiet();
    }
    output::log(cli.verbose, cli.command.is_daemon());
    if let Err(error) = ignored {
        tracing::warn!(%error, "SIGXFSZ is not ignored");
    }
    match cli.command.run() {
        Ok(code) => code,
        Err(error) => error.report(),
    }
}
