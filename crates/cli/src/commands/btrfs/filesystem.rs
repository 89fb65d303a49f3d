//! `ashlar btrfs filesystem`: the file system and its devices.

use std::process::ExitCode;

use ashlar_btrfs::inspect;
use ashlar_host::error::Result;
use clap::{Args, Subcommand};

use super::volumes::FileSystemArgs;
use super::with;
use crate::output;

/// Look at a file system as a whole
#[derive(Subcommand, Debug)]
pub(crate) enum Filesystem {
    Show(Show),
}

impl Filesystem {
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Show(command) => command.run(),
        }
    }
}

/// Print label, UUID and devices of a file system, as btrfs filesystem show does
///
/// Devices that are missing are no error here, whether --degraded is given or not.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar btrfs filesystem show disk*.img
  ashlar btrfs filesystem show --raw /dev/sdb")]
pub(crate) struct Show {
    #[command(flatten)]
    chosen: FileSystemArgs,

    /// Print sizes in bytes
    #[arg(long)]
    raw: bool,
}

impl Show {
    fn run(mut self) -> Result<ExitCode> {
        self.chosen.how.degraded = true;
        with(&self.chosen, async |fs| {
            output::print(&inspect::show(fs, self.raw))?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
