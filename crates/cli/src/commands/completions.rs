//! `ashlar completions`: completion scripts for shells, and the words that a script asks the program for.

use std::env::VarError;
use std::ffi::OsStr;
use std::process::ExitCode;

use ashlar_client::client::Client;
use ashlar_client::interface::{Status, VolumeStatus};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::lending_client;
use clap::{Arg, Args, Command};
use clap_complete::Shell;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{CompleteEnv, Shells};

use crate::output;

/// The variable by which a script asks the program for words.
const VARIABLE: &str = "ASHLAR_COMPLETE";

/// Print a completion script
///
/// For bash: ashlar completions bash > /etc/bash_completion.d/ashlar
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,

    /// A script that asks ashlar at each completion: it completes also the arrays, volumes and jobs of the running daemon. To be
    /// made anew for each release
    #[arg(long)]
    dynamic: bool,
}

impl Completions {
    /// Prints the script for `cli`.
    pub(crate) fn run(self, mut cli: Command) -> Result<ExitCode> {
        let mut script = Vec::new();
        if self.dynamic {
            let shells = Shells::builtins();
            let name = self.shell.to_string();
            let completer = shells.completer(&name);
            let completer =
                completer.ok_or_else(|| Error::usage(format_args!("no shell {name}")))?;
            let written =
                completer.write_registration(VARIABLE, "ashlar", "ashlar", "ashlar", &mut script);
            written.map_err(|why| Error::plain("cannot make the script", why))?;
        } else {
            clap_complete::generate(self.shell, &mut cli, "ashlar", &mut script);
        }
        output::print(&String::from_utf8_lossy(&script))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Answers a completion script, and ends the process, if one has started it.
pub(crate) fn answer(cli: fn() -> Command) {
    if std::env::var(VARIABLE) == Err(VarError::NotPresent) {
        return;
    }
    CompleteEnv::with_factory(move || with_names(cli())).var(VARIABLE).complete();
}

/// Adds the names of the daemon's things to the arguments that take them.
fn with_names(command: Command) -> Command {
    let add = |arg: Arg, command: &str| match (command, arg.get_id().as_str()) {
        (_, "array" | "arrays") => arg.add(ArgValueCompleter::new(arrays)),
        ("detail" | "query", "what") => arg.add(ArgValueCompleter::new(arrays_and_files)),
        ("trace", "devices") => arg.add(ArgValueCompleter::new(volumes)),
        ("pause" | "resume" | "cancel", "job") => arg.add(ArgValueCompleter::new(jobs)),
        _ => arg,
    };
    let name = command.get_name().to_owned();
    command.mut_args(|arg| add(arg, &name)).mut_subcommands(with_names)
}

fn ask<T>(question: impl FnOnce(&mut Client) -> Result<T>) -> Option<T> {
    question(&mut lending_client(None).ok()?).ok()
}

/// Those names that begin with what was typed.
fn beginning(typed: &OsStr, names: Vec<String>) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    names
        .into_iter()
        .filter(|name| name.starts_with(&*typed))
        .map(CompletionCandidate::new)
        .collect()
}

/// The names of the volumes that are meant.
fn names(is_meant: fn(&VolumeStatus) -> bool) -> Vec<String> {
    let Some(Status { volumes, .. }) = ask(Client::status) else { return Vec::new() };
    let meant = volumes.into_iter().filter(is_meant);
    meant.flat_map(|volume| [Some(volume.name), volume.alias]).flatten().collect()
}

fn arrays(typed: &OsStr) -> Vec<CompletionCandidate> {
    beginning(typed, names(VolumeStatus::is_array))
}

fn arrays_and_files(typed: &OsStr) -> Vec<CompletionCandidate> {
    let files = PathCompleter::any().complete(typed);
    arrays(typed).into_iter().chain(files).collect()
}

fn volumes(typed: &OsStr) -> Vec<CompletionCandidate> {
    beginning(typed, names(|_| true))
}

fn jobs(typed: &OsStr) -> Vec<CompletionCandidate> {
    let jobs = ask(Client::jobs).unwrap_or_default();
    let names = jobs.into_iter().flat_map(|job| [Some(job.name), job.alias]).flatten();
    beginning(typed, names.collect())
}
