//! `ashlar btrfs filesystem`: the file system and its devices.

use std::process::ExitCode;

use ashlar_btrfs::inspect;
use ashlar_daemon::error::Result;
use ashlar_files::Name;
use clap::{Args, Subcommand};

use super::volumes::FileSystemArgs;
use super::{SizedArgs, with};
use crate::commands::verbs::verbs;
use crate::output;

verbs! {
    /// Look at a file system as a whole
    #[derive(Subcommand, Debug)]
    pub(crate) enum Filesystem {
        Show(Show),
        Df(Df),
        Usage(Usage),
        Label(Label),
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

/// Print allocated and used space of each kind of data, as btrfs filesystem df does
///
/// GlobalReserve is the metadata reserve that a kernel has after a mount.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar btrfs filesystem df disk*.img
  ashlar btrfs filesystem df -b /dev/sdb")]
pub(crate) struct Df {
    #[command(flatten)]
    of: SizedArgs,
}

impl Df {
    fn run(self) -> Result<ExitCode> {
        self.of.printed(async |fs, form, out| inspect::df(fs, form, out).await)
    }
}

/// Print allocated and used space, as btrfs filesystem usage does
///
/// Two lines give a kernel's values for the mounted file system: the free space that df shows, and
/// the reserve for metadata.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar btrfs filesystem usage disk*.img
  ashlar btrfs filesystem usage -b /dev/sdb")]
pub(crate) struct Usage {
    #[command(flatten)]
    of: SizedArgs,
}

impl Usage {
    fn run(self) -> Result<ExitCode> {
        self.of.printed(async |fs, form, out| inspect::usage(fs, form, out).await)
    }
}

/// Print the label of a file system, as btrfs filesystem label does
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar btrfs filesystem label disk*.img")]
pub(crate) struct Label {
    #[command(flatten)]
    chosen: FileSystemArgs,
}

impl Label {
    fn run(mut self) -> Result<ExitCode> {
        self.chosen.how.degraded = true;
        with(&self.chosen, async |fs| {
            output::print(&format!("{}\n", Name(fs.superblock().label().to_vec())))?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
