//! `ashlar md incremental`: adds members one by one.

use std::process::ExitCode;

use ashlar_client::interface::{Attach, disk_for_daemon};
use ashlar_daemon::error::{Error, FAILURE, Result};
use clap::Args;

use crate::commands::Daemon;
use crate::output;

/// Hand members to a running daemon one at a time, as mdadm --incremental does
///
/// The daemon collects them by array. An array starts and is served once all members are present
/// that worked when it was last used; with --run, as soon as all data are present. A member of a
/// running array returns to its slot if the bitmap knows the writes that it missed, and a spare
/// becomes a spare; any other is refused, because it would be overwritten. The daemon may start
/// without any array: see `ashlar serve --incremental`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes are mdadm's: 0 accepted (whether or not an array has started), 1 no member, in use, or the
array cannot be started, 2 refused by its array, or wrong usage.

Examples:
  ashlar serve --incremental --mount /mnt/volumes
  ashlar md incremental disk0.img
  ashlar md incremental disk1.img disk2.img
  ashlar md incremental --run --scan
  ashlar md incremental --fail disk1.img")]
pub(crate) struct Incremental {
    /// Image files or block devices
    #[arg(required_unless_present = "scan", value_name = "DEVICE")]
    devices: Vec<String>,

    /// Start arrays with fewer members than they had last time
    #[arg(short = 'R', long)]
    run: bool,

    /// With --run: start all waiting arrays whose members have all data
    #[arg(short, long, requires = "run", conflicts_with = "devices")]
    scan: bool,

    /// Remove the devices from their arrays
    #[arg(short, long, conflicts_with_all = ["run", "scan"])]
    fail: bool,

    #[command(flatten)]
    daemon: Daemon,
}

impl Incremental {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut client = self.daemon.connect()?;
        if self.scan {
            let started = client.start_waiting()?;
            tell(&started.done)?;
            started.failed.iter().for_each(|line| {
                output::report(&Error::failed(line));
            });
            return Ok(ExitCode::from(if started.failed.is_empty() { 0 } else { FAILURE }));
        }
        // As in mdadm, each device is handled independently.
        let mut code = 0;
        for device in &self.devices {
            let disk = disk_for_daemon(device);
            let done = if self.fail {
                client.detach(&disk)
            } else {
                client.attach(&Attach { disk, run: self.run.then_some(true) })
            };
            match done {
                Ok(lines) => tell(&lines)?,
                Err(error) => code |= output::report(&error),
            }
        }
        Ok(ExitCode::from(code))
    }
}

/// Reports what was done with the devices.
fn tell(lines: &[String]) -> Result<()> {
    output::tell(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}
