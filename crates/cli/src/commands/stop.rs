//! `ashlar stop`: stops a running daemon.

use std::process::ExitCode;
use std::time::Duration;

use ashlar_daemon::error::Result;
use clap::Args;

use super::Daemon;
use crate::output;

/// Stop a running daemon, as SIGTERM does, and wait until it has ended
///
/// The daemon completes I/O in flight, unmounts, marks its arrays clean and exits. While its mount is in use it waits
/// for the users to finish; this command names them. After success, the disks are free.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 stopped cleanly, 1 not stopped, not in time, or not cleanly, 2 wrong usage.

Examples:
  ashlar stop
  ashlar stop --timeout 60 || ashlar stop --force")]
pub(crate) struct Stop {
    /// Wait for no client, like a second signal: a mount in use is taken away from its users, a device that does not
    /// stop in time is left as after a power cut; the daemon ends within 10 seconds
    #[arg(long)]
    force: bool,

    /// Stop waiting after this number of seconds; the daemon continues to stop [default: wait as long as it takes]
    #[arg(long, value_name = "SECONDS", conflicts_with = "no_wait")]
    timeout: Option<u32>,

    /// Return at once, without waiting for the daemon
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
            client.stop_and_wait(self.force, patience, tell)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Reports what a stopping daemon waits for.
pub(crate) fn tell(waits_for: &[String]) {
    for what in waits_for {
        output::note(&format!("waiting: {what}\n"));
    }
}
