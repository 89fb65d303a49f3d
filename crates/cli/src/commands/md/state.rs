//! `ashlar md readonly` and `readwrite`: whether a running array accepts writes.

use std::process::ExitCode;

use ashlar_commands::md::set_array_state;
use ashlar_daemon::error::Result;
use clap::Args;

use super::ArrayName;
use crate::commands::Daemon;
use crate::output;

/// The arrays of a command.
#[derive(Args, Debug)]
struct ArrayArgs {
    /// The arrays: md0, /dev/md0 or /dev/md/NAME
    #[arg(required = true, value_name = "ARRAY")]
    arrays: Vec<ArrayName>,

    #[command(flatten)]
    daemon: Daemon,
}

impl ArrayArgs {
    /// Writes `word` to their `array_state`.
    fn set(&self, word: &str, told: &str) -> Result<ExitCode> {
        let mut client = self.daemon.connect()?;
        for array in &self.arrays {
            let device = set_array_state(&mut client, array.as_str(), word)?;
            output::tell(&format!("{device} is {told} now\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Make running arrays read-only, as mdadm --readonly does
///
/// Their superblocks are marked clean, syncs stop, and writes fail from then on. The array_state becomes readonly. Refused while an array is
/// in use, as in the kernel: unmount it and disconnect its NBD clients first.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage.

Examples:
  ashlar md readonly md0
  ashlar md readwrite md0")]
pub(crate) struct ReadOnly {
    #[command(flatten)]
    which: ArrayArgs,
}

impl ReadOnly {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.which.set("readonly", "read-only")
    }
}

/// Have running arrays accept writes again, as mdadm --readwrite does
///
/// Syncs that were stopped continue. An array that was started with --read-only stays read-only: its disks are not open for
/// writing.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage.

Examples:
  ashlar md readwrite md0")]
pub(crate) struct ReadWrite {
    #[command(flatten)]
    which: ArrayArgs,
}

impl ReadWrite {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.which.set("active", "writable")
    }
}
