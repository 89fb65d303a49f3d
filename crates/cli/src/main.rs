//! `ashlar`: Linux's block storage stack in user space. One program, command line and daemon.
//!
//! # Theory
//!
//! A command is a file in [`commands`]: its arguments, and a function that runs it and returns an
//! [`Error`](ashlar_host::error::Error) or an exit code. Commands that look at disks run to their end on one reactor;
//! `serve` becomes the daemon of [`ashlar_host`]; `get`, `set`, `status`, `detail` and `stop` are clients of a running
//! daemon's control socket. Only this crate knows options, `stack.toml`'s place among them, and the terminal.
//!
//! States: a command parses, opens, probes, acts, reports. Those of a daemon: [`ashlar_host::daemon`].
//!
//! Invariants: only `serve` and commands that create, change or repair something write to disks. A refused command has
//! changed nothing. Every failure ends with one line that says what, where and why, and a nonzero exit code.
//!
//! Ordering: the signals that a daemon ignores or receives are set before it starts a thread.
//!
//! Assumptions about the layers below: an assembled array that was not written to has changed nothing on its disks, and
//! a stopped array is clean.

#![forbid(unsafe_code)]

mod cli;
mod commands;
mod progress;

use std::ffi::OsString;
use std::process::ExitCode;

use ashlar_engine::signal::{self, Signal};
use ashlar_host::error::Result;
use ashlar_host::options::MapFile;
use ashlar_host::{disks, sandbox};
use ashlar_terminal::{self as output, Voice};
use clap::{CommandFactory, Parser};

/// The words behind `lvm`, if a command is one of LVM's, which have exit codes of their own.
fn lvm_words(args: &[OsString]) -> Option<&[OsString]> {
    let is_option = |arg: &OsString| arg.as_encoded_bytes().starts_with(b"-");
    let first = args.iter().skip(1).position(|arg| !is_option(arg))? + 1;
    args.get(first).is_some_and(|arg| arg == "lvm").then(|| args.get(first + 1..)).flatten()
}

/// Prints why a command of LVM's cannot be parsed.
fn print_refusal(error: &clap::Error, words: &[OsString]) {
    let cli = cli::Cli::command();
    let verb = words.first().and_then(|verb| verb.to_str());
    let lvm = cli.find_subcommand("lvm").zip(verb);
    match lvm.and_then(|(lvm, verb)| commands::lvm::spellings::candidates(error, lvm, verb)) {
        Some(text) => output::to_stderr(&format!("error: {text}\n")),
        None => {
            // The message is all there is to say.
            let (Ok(()) | Err(_)) = error.print();
        }
    }
}

fn main() -> ExitCode {
    let args = commands::md::spelling::ours(std::env::args_os());
    let cli = match cli::Cli::try_parse_from(args.clone()) {
        Ok(cli) => cli,
        Err(error) => match lvm_words(&args).filter(|_| error.use_stderr()) {
            Some(words) => {
                print_refusal(&error, words);
                return ExitCode::from(commands::lvm::INVALID);
            }
            None => error.exit(),
        },
    };
    // Writing a file beyond the file size limit (ulimit -f) must fail with an error, and not kill a daemon or a worker:
    // an ignored signal stays ignored in child processes. Rust's runtime already ignores SIGPIPE.
    let ignored = signal::ignore(Signal::XFSZ);
    output::begin(Voice {
        program: "ashlar",
        verbose: cli.verbose,
        quiet: cli.quiet,
        daemon: cli.command.is_daemon(),
    });
    if let Err(error) = ignored {
        tracing::warn!(%error, "SIGXFSZ is not ignored");
    }
    if cli.no_sandbox {
        sandbox::switch_off();
    }
    let maps = || {
        if !cli.map.is_empty() {
            cli.command.refuse_maps()?;
        }
        // A daemon may leave the directory.
        let maps = cli.map.into_iter().map(MapFile::absolute).collect::<Result<Vec<_>>>()?;
        disks::use_maps(maps);
        Ok(())
    };
    let code = match maps().and_then(|()| cli.command.run()) {
        Ok(code) => code,
        Err(error) => ExitCode::from(output::report(&sandbox::explained(error))),
    };
    output::end();
    code
}
