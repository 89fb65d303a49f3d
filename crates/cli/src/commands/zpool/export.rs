//! `ashlar zpool export`.

use std::process::ExitCode;

use ashlar_host::error::Result;
use ashlar_host::pools::{ImportMode, Session};
use ashlar_zfs::protocol::Command;
use clap::Args;

use super::place::PoolArgs;

/// Export a pool, so that it can be imported elsewhere
///
/// A daemon that serves the pool removes its volumes and releases its disks; it keeps serving
/// everything else. With --devices, cleans up a pool that was left in use, for example by a crash.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 exported, 1 failed, 2 wrong usage.

Examples:
  ashlar zpool export tank
  ashlar zpool export -d a.img,b.img tank")]
pub(crate) struct Export {
    /// The pool
    pool: String,

    #[command(flatten)]
    place: PoolArgs,
}

impl Export {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.place.with(Some(&self.pool), ImportMode::WRITE, |session| match session {
            Session::Daemon(_) => session.run(&self.pool, Command::ExportPool),
            // Every pool that was imported for a command is exported at the command's end.
            Session::Here { .. } => Ok(()),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
