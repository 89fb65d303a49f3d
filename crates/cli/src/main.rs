//! `ashlar`: Linux's block storage stack in user space. One program, command line and daemon.
//!
//! # Theory
//!
//! A command is a file in [`commands`]: its arguments, and a function that runs it to an [`Error`] or
//! an exit code. Those that look at disks run to their end on one reactor; `serve` becomes the
//! [`daemon`]; `get`, `set`, `status`, `detail` and `stop` are clients of a running daemon's control
//! socket. Nothing is written to a disk by any but `md create` and `serve`.

#![forbid(unsafe_code)]

mod cli;
mod client;
mod commands;
mod daemon;
mod disks;
mod error;
mod output;
mod units;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    output::log(cli.verbose, cli.command.is_daemon());
    match cli.command.run() {
        Ok(code) => code,
        Err(error) => error.report(),
    }
}
