//! `ashlar md stop`: stops the daemon that serves an array.

use std::process::ExitCode;

use clap::Args;

use super::ArrayName;
use crate::commands::Daemon;
use crate::commands::stop::tell;
use crate::error::{Error, Result};

/// Stop the arrays of a running daemon, as mdadm --stop does
///
/// They are marked clean, and the daemon ends, as by `ashlar stop`. A daemon stops what it serves as
/// a whole: of several arrays none is stopped alone.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 asked to stop, 1 refused or failed, 2 wrong usage.

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
        if let Some(array) = &self.array {
            let device = client.detail(array.as_str())?.device;
            let volumes = client.status()?.volumes;
            let other = volumes.iter().find(|other| format!("/dev/{}", other.name) != device);
            if let Some(other) = other {
                let why = format_args!("its daemon serves {} as well", other.name);
                let error = Error::new("cannot stop", array.as_str(), why);
                return Err(error.hint("ashlar md stop --scan stops everything it serves"));
            }
        }
        client.stop_and_wait(false, None, tell)?;
        Ok(ExitCode::SUCCESS)
    }
}
