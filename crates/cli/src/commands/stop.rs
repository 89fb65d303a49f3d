//! `ashlar stop`: ends a running daemon.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::Daemon;
use crate::error::Result;
use crate::output;

/// Stop a running daemon, as SIGTERM does, and wait until it is gone
///
/// The daemon ends I/O under way, unmounts, marks its arrays clean and exits. While its mount is in use it
/// waits for the users to finish: this says which they are. When this has ended well, the disks are free.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 stopped in good order, 1 not stopped, not in time, or not in good order, 2 wrong usage.

Examples:
  ashlar stop
  ashlar stop --timeout 60 || ashlar stop --force")]
pub(crate) struct Stop {
    /// Wait for no client, as at a second signal: a mount in use is taken away from its users, a device that does not
    /// stop in time is left as it is, as after a power cut; the daemon is gone within 10 seconds
    #[arg(long)]
    force: bool,

    /// Give up waiting after some seconds; the daemon goes on stopping [default: wait as long as it takes]
    #[arg(long, value_name = "SECONDS", conflicts_with = "no_wait")]
    timeout: Option<u32>,

    /// Return at once, and let the daemon stop by itself
    #[arg(long)]
    no_wait: bool,

    #[command(flatten)]
    daemon: Daemon,
}

impl Stop {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut client = self.daemon.connect()?;
        if self.no_wait {
            client.stop(self.force)?;
        } else {
            let patience = self.timeout.map(|seconds| Duration::from_secs(seconds.into()));
            client.stop_and_wait(self.force, patience, |waits_for| {
                for what in waits_for {
                    output::note(&format!("waiting: {what}\n"));
                }
            })?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
