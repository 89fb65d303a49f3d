//! `ashlar set`: changes settings of a running daemon.

use std::process::ExitCode;

use ashlar_daemon::error::Result;
use clap::Args;

use super::Daemon;

/// Change an attribute of a running daemon
///
/// Attributes and their values are as in sysfs. Changes hold until the daemon ends; permanent ones
/// belong in the [set] table of stack.toml.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar set sys/block/md0/queue/nomerges 2
  ashlar set sys/block/md0/queue/discard_max_bytes 524288")]
pub(crate) struct Set {
    /// The attribute
    path: String,

    /// Its new value
    #[arg(allow_hyphen_values = true)]
    value: String,

    #[command(flatten)]
    daemon: Daemon,
}

impl Set {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.daemon.connect()?.set(self.path.trim_matches('/'), &self.value)?;
        Ok(ExitCode::SUCCESS)
    }
}
