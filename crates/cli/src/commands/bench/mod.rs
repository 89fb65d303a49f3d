//! `ashlar bench`: measurements that users can repeat.

mod btrfs_scrub;
mod loops;
mod lvm_snapshot;
mod modelled;
mod mounted;
mod populated;
mod program;
mod readahead;
mod volumes;
mod zvol;

use std::process::ExitCode;

use ashlar_host::error::Result;
use clap::Subcommand;

/// Measure the stack on real disks, and on models of others
#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    LvmSnapshot(lvm_snapshot::LvmSnapshot),
    BtrfsScrub(btrfs_scrub::BtrfsScrub),
    Zvol(zvol::Zvol),
}

impl Bench {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Self::LvmSnapshot(command) => command.run(),
            Self::BtrfsScrub(command) => command.run(),
            Self::Zvol(command) => command.run(),
        }
    }
}
