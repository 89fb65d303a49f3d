//! `ashlar md zero-superblock`: erases the superblocks of former members.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::md::erase_superblocks;
use ashlar_daemon::error::Result;
use ashlar_disks::sandbox::Sandbox;
use ashlar_disks::{self as disks, Access, Opener};
use clap::Args;

use crate::output;

/// Erase the md superblocks of devices, as mdadm --zero-superblock does
///
/// Nothing takes the devices for members of an array any more. Their other contents do not change. A device that an array in use
/// has is refused: remove it from the array first. All devices are checked before the first superblock is erased. A device
/// without a superblock is named, and is not an error.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 none of the devices has a superblock now, 1 refused or failed, 2 wrong usage.

Examples:
  ashlar md zero-superblock disk1.img
  ashlar md fail md0 disk1.img && ashlar md remove md0 disk1.img && ashlar md zero-superblock disk1.img")]
pub(crate) struct ZeroSuperblock {
    /// Image files or block devices
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,

    /// Erase damaged superblocks, too, and those at the end of a disk with partitions, which may be the last partition's
    #[arg(short, long)]
    force: bool,
}

impl ZeroSuperblock {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let sandbox = Sandbox::of(&self.devices);
        let disks = Opener::new(Access::Write).all(&self.devices)?;
        let reactor = disks::reactor()?;
        sandbox.enter()?;
        for disk in reactor.block_on(erase_superblocks(&disks, self.force))? {
            if disk.had_one {
                output::tell(&format!("erased the md superblock of {}\n", disk.path))?;
            } else {
                output::note(&format!("{} has no md superblock\n", disk.path));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
