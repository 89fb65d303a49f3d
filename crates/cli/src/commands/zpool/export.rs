//! `ashlar zpool export`.

use std::process::ExitCode;

use ashlar_commands::pools::{ImportMode, Session, only_pool_of};
use ashlar_daemon::error::Result;
use ashlar_zfs::protocol::Command;
use clap::Args;

use super::place::PoolArgs;

/// Export pools, so that they can be imported elsewhere
///
/// A daemon that serves the pool removes its volumes and releases its disks; it keeps serving
/// everything else. With --devices, cleans up a pool that was left in use, for example by a crash.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 exported, 1 failed, 2 wrong usage.

Examples:
  ashlar zpool export tank
  ashlar zpool export -a
  ashlar zpool export -d a.img,b.img tank")]
pub(crate) struct Export {
    /// All pools
    #[arg(short, long, conflicts_with = "pools")]
    all: bool,

    /// The pools
    #[arg(value_name = "POOL", required_unless_present = "all")]
    pools: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl Export {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.place.with(only_pool_of(&self.pools), ImportMode::WRITE, |session| {
            let pools = if self.all { session.pools()? } else { self.pools.clone() };
            match session {
                Session::Daemon(_) => {
                    pools.iter().try_for_each(|pool| session.run(pool, Command::ExportPool))
                }
                // One name is the only pool that is imported, and of several each must be among them.
                Session::Here { .. } if pools.len() > 1 => session.statuses(&pools).map(drop),
                // Every pool that was imported for a command is exported at the command's end.
                Session::Here { .. } => Ok(()),
            }
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
