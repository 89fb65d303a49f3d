//! `ashlar stop`: ends a running daemon.

use std::process::ExitCode;

use clap::Args;

use super::Daemon;
use crate::error::Result;

/// Ask a running daemon to stop, as SIGTERM does
///
/// It ends I/O under way, unmounts, marks its arrays clean and exits; while its mount is in use it
/// waits for the users to finish.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar stop")]
pub(crate) struct Stop {
    #[command(flatten)]
    daemon: Daemon,
}

impl Stop {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.daemon.connect()?.stop()?;
        Ok(ExitCode::SUCCESS)
    }
}
