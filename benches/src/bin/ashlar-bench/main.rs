//! `ashlar-bench`: measurements of the stack on real disks, and on models of others, that users can repeat.
//!
//! The micro-benches for developers are in `ashlar-benches`.

#![forbid(unsafe_code)]

mod btrfs_scrub;
mod loops;
mod lvm_snapshot;
mod man;
mod modelled;
mod mounted;
mod populated;
mod program;
mod readahead;
mod volumes;
mod zvol;

use std::process::ExitCode;

use ashlar_commands::error::Result;
use ashlar_engine::signal::{self, Signal};
use ashlar_terminal::{self as output, Voice};
use clap::{Parser, Subcommand};

/// Measure ashlar's stack on real disks, and on models of others
#[derive(Parser, Debug)]
#[command(
    name = "ashlar-bench",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Environment: ASHLAR_LOG filters the log (error, warn, info, debug, trace, or per module as in
ashlar_md=debug).

Examples:
  ashlar-bench lvm-snapshot --quick
  sudo ashlar-bench btrfs-scrub
  ashlar-bench zvol --volblocksize 16K"
)]
struct Cli {
    /// Log more: debug with -v, trace with -vv
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,

    /// Log only errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,

    #[command(subcommand)]
    command: Command,
}

/// The measurements.
#[derive(Subcommand, Debug)]
enum Command {
    LvmSnapshot(lvm_snapshot::LvmSnapshot),
    BtrfsScrub(btrfs_scrub::BtrfsScrub),
    Zvol(zvol::Zvol),
    #[command(hide = true)]
    Man(man::Man),
    /// Have a ZFS pool, for the process that started this one
    #[command(hide = true)]
    ZfsWorker,
}

impl Command {
    fn run(self) -> Result<ExitCode> {
        match self {
            Self::LvmSnapshot(command) => command.run(),
            Self::BtrfsScrub(command) => command.run(),
            Self::Zvol(command) => command.run(),
            Self::Man(command) => command.run(),
            Self::ZfsWorker => ashlar_zfs::worker::main(None),
        }
    }
}

fn main() -> ExitCode {
    let Cli { verbose, quiet, command } = Cli::parse();
    // Writing a file beyond the file size limit (ulimit -f) must fail with an error, so that files are removed. An ignored
    // signal stays ignored in the worker.
    let ignored = signal::ignore(Signal::XFSZ);
    output::begin(Voice { program: "ashlar-bench", verbose, quiet, daemon: false });
    if let Err(error) = ignored {
        tracing::warn!(%error, "SIGXFSZ is not ignored");
    }
    match command.run() {
        Ok(code) => code,
        Err(error) => ExitCode::from(output::report(&error)),
    }
}
