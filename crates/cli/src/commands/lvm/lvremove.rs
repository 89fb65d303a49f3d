//! `ashlar lvm lvremove`: removes volumes, with their snapshots.

use std::process::ExitCode;

use ashlar_commands::lvm::names::split_name;
use ashlar_daemon::error::{Error, Result};
use ashlar_lvm::command::Command;
use clap::{ArgAction, Args};

use super::session::change;
use super::{ChangeOptions, Devices};

/// Remove logical volumes
///
/// Removing a volume also removes its snapshots; removing a snapshot leaves its origin unchanged.
/// Asks for confirmation, unless -y or -f is given.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvremove vg/before
  ashlar lvm lvremove --devices a.img,b.img vg/before
  ashlar lvm lvremove --devices a.img,b.img -y vg/data vg/scratch")]
pub(crate) struct Lvremove {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// Do not ask
    #[arg(short, long, action = ArgAction::Count)]
    force: u8,

    /// The volumes, all of one group; a group for all of its volumes
    #[arg(required = true, value_name = "VG[/LV]")]
    names: Vec<String>,
}

impl Lvremove {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        let names: Vec<_> =
            self.names.iter().map(|name| split_name(name)).collect::<Result<_>>()?;
        let group = names[0].0;
        if names.iter().any(|(other, _)| *other != group) {
            return Err(Error::usage("volumes of one group at a time"));
        }
        let whole = names.iter().any(|(_, volume)| volume.is_none());
        let volumes = names.iter().filter_map(|(_, volume)| volume.map(str::to_owned));
        let volumes = if whole { Vec::new() } else { volumes.collect() };
        self.change_options.yes |= self.force > 0;
        change(&self.disks, &self.change_options, group, &Command::Remove { volumes })
    }
}
