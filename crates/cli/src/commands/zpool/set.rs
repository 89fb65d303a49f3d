//! `ashlar zpool set`.

use std::process::ExitCode;

use ashlar_daemon::error::Result;
use ashlar_zfs::protocol::Command;
use clap::Args;

use super::place::PoolArgs;
use crate::commands::zvol::property;

/// Set a property of a pool, or enable a feature
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zpool set autotrim=on tank
  ashlar zpool set comment='of the lab' -d a.img,b.img tank
  ashlar zpool set feature@large_dnode=enabled tank")]
pub(crate) struct Set {
    /// The property and its value
    #[arg(value_name = "PROPERTY=VALUE", value_parser = property)]
    setting: (String, String),

    /// The pool
    pool: String,

    #[command(flatten)]
    place: PoolArgs,
}

impl Set {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (name, value) = self.setting;
        self.place.change(&self.pool, Command::SetPool { name, value })
    }
}
