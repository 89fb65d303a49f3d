//! `ashlar md action` and `wait`: an array's background work.

use std::process::ExitCode;

use ashlar_commands::md::start_action;
use ashlar_daemon::error::{FAILURE, Result};
use clap::Args;

use super::ArrayName;
use crate::commands::Daemon;
use crate::progress::{ProgressArgs, follow};

/// Start or stop a check or repair of a running array
///
/// The actions are the kernel's: check compares all copies and counts differences (see
/// mismatch_cnt); repair also makes the copies equal; idle ends the running action, after which a
/// necessary one (a resync after a crash, the rebuild of a member) starts again; frozen prevents
/// new actions; resync and recover start a necessary action now. Of a RAID 6 a check logs which member has a wrong
/// block, if one alone has; a repair writes that block instead of the parity if the attribute repair_liar is 1. Shows the progress of a started
/// action until its end; interrupting this command does not end the action.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 refused.

The speed is bounded by sys/block/md0/md/sync_speed_max, and by sync_speed_min while the array is
used; both can be changed at any time.

Examples:
  ashlar md action md0 check
  ashlar md action md0 repair --no-wait
  ashlar md action md0 idle
  ashlar set sys/block/md0/md/repair_liar 1
  ashlar set sys/block/md0/md/sync_speed_max 50000")]
pub(crate) struct Action {
    /// The array: md0, /dev/md0 or /dev/md/NAME
    array: ArrayName,

    /// What to do: check, repair, idle, frozen, resync or recover
    #[arg(value_parser = ["check", "repair", "idle", "frozen", "resync", "recover"])]
    action: String,

    /// Return at once
    #[arg(long)]
    no_wait: bool,

    #[command(flatten)]
    shown: ProgressArgs,

    #[command(flatten)]
    daemon: Daemon,
}

impl Action {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut client = self.daemon.connect()?;
        start_action(&mut client, self.array.as_str(), &self.action)?;
        if !self.no_wait && !matches!(self.action.as_str(), "idle" | "frozen") {
            follow(&mut client, self.array.as_str(), self.shown)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Wait for resyncs, rebuilds, checks and repairs to end
///
/// Shows the progress until the end, one array after another.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 every array had an action to wait for, 1 some had none, or it failed.

Examples:
  ashlar md wait md0
  ashlar md wait md0 md1 --interval 60")]
pub(crate) struct Wait {
    /// The arrays: md0, /dev/md0 or /dev/md/NAME
    #[arg(required = true)]
    arrays: Vec<ArrayName>,

    #[command(flatten)]
    shown: ProgressArgs,

    #[command(flatten)]
    daemon: Daemon,
}

impl Wait {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut client = self.daemon.connect()?;
        let mut waited = true;
        for array in &self.arrays {
            waited &= follow(&mut client, array.as_str(), self.shown)?;
        }
        Ok(if waited { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) })
    }
}
