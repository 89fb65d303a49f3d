//! Where a pool is, among the options.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ashlar_commands::pools::{ImportMode, Session, pool_of};
use ashlar_daemon::error::Result;
use ashlar_zfs::protocol::Command;
use clap::Args;

use crate::commands::Daemon;
use crate::help::GLOBAL;

/// Where the pool is.
#[derive(Args, Debug)]
pub(crate) struct PoolArgs {
    /// Import the pool for this command from these disks, or those in a directory, separated by
    /// commas or as repeated options [default: the pool of a running daemon]
    #[arg(short = 'd', long, value_name = "DISK", value_delimiter = ',', help_heading = GLOBAL)]
    devices: Vec<PathBuf>,

    #[command(flatten)]
    daemon: Daemon,
}

impl PoolArgs {
    /// The disks named on the command line.
    pub(crate) fn devices(&self) -> &[PathBuf] {
        &self.devices
    }

    /// Adds those of `names` that are disks, not pool names. A directory with disks is distinguished from a pool of the
    /// same name by a slash.
    pub(crate) fn with_named(mut self, names: Vec<String>) -> (Self, Vec<String>) {
        let is_disk = |name: &String| {
            name.contains('/') || Path::new(name).metadata().is_ok_and(|found| !found.is_dir())
        };
        let (disks, names): (Vec<_>, Vec<_>) = names.into_iter().partition(is_disk);
        self.devices.extend(disks.into_iter().map(PathBuf::from));
        (self, names)
    }

    /// Sends one command to the pool of a dataset.
    ///
    /// # Errors
    /// As [`Self::with`]; the pool refuses.
    pub(crate) fn change(&self, dataset: &str, command: Command) -> Result<ExitCode> {
        let pool = pool_of(dataset);
        self.with(Some(pool), ImportMode::WRITE, |session| session.run(pool, command))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Calls `work` with a pool, or with all of them. Pools that were imported for it are exported, even after an
    /// error.
    ///
    /// # Errors
    /// Those of the work; there is no such pool; it cannot be imported or exported.
    pub(crate) fn with<T>(
        &self,
        pool: Option<&str>,
        mode: ImportMode,
        work: impl FnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        if self.devices.is_empty() {
            let client = self.daemon.connect().map_err(|error| {
                error.hint("name its disks with --devices, or start a daemon with ashlar serve")
            })?;
            return work(&mut Session::Daemon(client));
        }
        let mut session = Session::import(&self.devices, pool, mode)?;
        let done = work(&mut session);
        let ended = session.end();
        let done = done?;
        ended.map(|()| done)
    }
}
