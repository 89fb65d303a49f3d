//! `ashlar md query`: what a device is to md.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::md::{query_array, query_disk, served_arrays};
use ashlar_daemon::error::Result;
use ashlar_disks::sandbox::Sandbox;
use ashlar_disks::{self as disks, Access, Opener};
use clap::Args;

use super::ArrayName;
use crate::commands::Daemon;
use crate::output;

/// Tell whether devices are arrays or members of arrays, as mdadm --query does
///
/// With a name (md0, /dev/md0, /dev/md/NAME), asks the running daemon; of a device, reads the superblock, and asks the daemon, if
/// one is running, whether it has an array with that member.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, whatever the devices are, 1 failed, 2 wrong usage.

Examples:
  ashlar md query disk*.img
  ashlar md query /dev/md0 /dev/sda1")]
pub(crate) struct Query {
    /// Running arrays' names, image files or block devices
    #[arg(required = true, value_name = "NAME|DEVICE")]
    what: Vec<PathBuf>,

    #[command(flatten)]
    daemon: Daemon,
}

impl Query {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let name = |path: &PathBuf| path.to_str().and_then(ArrayName::of_running);
        let names = self.what.iter().filter_map(name);
        for array in names {
            let detail = self.daemon.connect()?.detail(array.as_str())?;
            output::print(&query_array(&detail))?;
        }
        let devices: Vec<PathBuf> =
            self.what.iter().filter(|path| name(path).is_none()).cloned().collect();
        // Without a daemon no array has them.
        let running = match self.daemon.connect() {
            Ok(mut client) => served_arrays(&mut client)?,
            Err(error) if self.daemon.is_named() => return Err(error),
            Err(_) => Vec::new(),
        };
        let sandbox = Sandbox::of(&devices);
        let disks = Opener::new(Access::Look).all(&devices)?;
        let reactor = disks::reactor()?;
        sandbox.enter()?;
        for disk in &disks {
            output::print(&reactor.block_on(query_disk(disk, &running))?)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
