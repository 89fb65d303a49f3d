//! `ashlar`: Linux's block storage stack in user space. One program, command line and daemon.
//!
//! # Theory
//!
//! A command is a file in [`commands`]: its arguments, and a function that runs it and returns an
//! [`Error`](ashlar_daemon::error::Error) or an exit code. Commands that look at disks run to their end on one reactor;
//! `serve` becomes the daemon of [`ashlar_daemon`]; `get`, `set`, `status`, `detail` and `stop` are clients of a running
//! daemon's control socket. Only this crate knows options, `stack.toml`'s place among them, and the terminal.
//!
//! States: a command parses, opens, probes, acts, reports. Those of a daemon: [`ashlar_daemon`].
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
mod help;
mod progress;
mod words;

use std::ffi::OsString;
use std::process::ExitCode;

use ashlar_daemon::error::{Result, USAGE};
use ashlar_disks::MapFile;
use ashlar_disks::sandbox;
use ashlar_disks::{Decorators, Maps};
use ashlar_engine::signal::{self, Signal};
use ashlar_terminal::{self as output, Voice};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

/// The name of the program.
const PROGRAM: &str = "ashlar";

/// The words behind `lvm`, if a command is one of LVM's, which have exit codes of their own.
fn lvm_words(args: &[OsString]) -> Option<&[OsString]> {
    let is_option = |arg: &OsString| arg.as_encoded_bytes().starts_with(b"-");
    let first = args.iter().skip(1).position(|arg| !is_option(arg))? + 1;
    args.get(first).is_some_and(|arg| arg == "lvm").then(|| args.get(first + 1..)).flatten()
}

/// The options of an LVM verb that an abbreviation may stand for, as a message, if that is why a command was not understood.
fn lvm_candidates(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let cli = cli::Cli::command();
    let verb = words.first()?.to_str()?;
    commands::lvm::spellings::candidates(error, cli.find_subcommand("lvm")?, verb)
}

/// Says why the command line was not understood, or prints the help that it asks for. Returns the exit code.
fn refused(mut error: clap::Error, args: &[OsString]) -> u8 {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        let arranged = help::arranged(cli::Cli::command()).try_get_matches_from(args);
        error = arranged.err().unwrap_or(error);
    }
    let lvm = lvm_words(args);
    let code = match error.use_stderr() {
        true if lvm.is_some() => commands::lvm::INVALID,
        true => USAGE,
        false => 0,
    };
    if let Some(text) = lvm.and_then(|words| lvm_candidates(&error, words)) {
        output::to_stderr(&format!("error: {text}\n"));
        return code;
    }
    match words::explained(error, args) {
        Ok(explained) => {
            output::begin(Voice { program: PROGRAM, ..Voice::default() });
            output::report(&explained);
        }
        Err(error) => {
            // The message is all there is to say.
            let (Ok(()) | Err(_)) = error.print();
        }
    }
    code
}

fn main() -> ExitCode {
    commands::completions::answer(<cli::Cli as clap::CommandFactory>::command);
    let args = commands::md::spelling::ours(std::env::args_os());
    let cli = match cli::Cli::try_parse_from(args.clone()) {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(refused(error, &args)),
    };
    // Writing a file beyond the file size limit (ulimit -f) must fail with an error, and not kill a daemon or a worker:
    // an ignored signal stays ignored in child processes. Rust's runtime already ignores SIGPIPE.
    let ignored = signal::ignore(Signal::XFSZ);
    output::begin(Voice {
        program: PROGRAM,
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
        Decorators { maps: Maps::new(maps), ..Decorators::default() }.use_in_process();
        Ok(())
    };
    let code = match maps().and_then(|()| cli.command.run()) {
        Ok(code) => code,
        Err(error) => ExitCode::from(output::report(&sandbox::explained(error))),
    };
    output::end();
    code
}
