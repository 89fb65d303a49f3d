//! `ashlar md stop`: stops arrays that a daemon serves.

use std::process::ExitCode;

use ashlar_commands::md::stop_array;
use ashlar_daemon::error::Result;
use clap::Args;

use super::ArrayName;
use crate::commands::Daemon;
use crate::commands::stop::tell;
use crate::output;

/// Stop arrays of a running daemon, as mdadm --stop does
///
/// An array that is in use is not stopped: the command fails, and the array is served on. A stopped array is marked clean, and
/// its disks are free. With its last array or volume, or with --scan, the daemon ends, unless a volume of it is in use.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 stopped, 1 refused or failed, 2 wrong usage.

Examples:
  ashlar md stop md0
  ashlar md stop --scan")]
pub(crate) struct Stop {
    /// The array: md0, /dev/md0 or /dev/md/NAME
    #[arg(required_unless_present = "scan")]
    array: Option<ArrayName>,

    /// All arrays of the daemon
    #[arg(short, long, conflicts_with = "array")]
    scan: bool,

    #[command(flatten)]
    daemon: Daemon,
}

impl Stop {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut client = self.daemon.connect()?;
        if let Some(array) = &self.array
            && let Some(device) = stop_array(&mut client, array.as_str())?
        {
            output::tell(&format!("stopped {device}\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        client.stop_unused(tell)?;
        if let Some(array) = &self.array {
            output::tell(&format!("stopped /dev/{}\n", array.as_str()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
