//! `ashlar bench`: measurements that users can repeat.

mod lvm_snapshot;
mod mounted;
mod readahead;
mod volumes;

use std::process::ExitCode;

use clap::Subcommand;

use crate::error::Result;

/// Measure what the stack does on disks as they are, and on models of others
#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    LvmSnapshot(lvm_snapshot::LvmSnapshot),
}

impl Bench {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Self::LvmSnapshot(command) => command.run(),
        }
    }
}
