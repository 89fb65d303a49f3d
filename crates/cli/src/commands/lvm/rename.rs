//! `ashlar lvm lvrename|vgrename`: other names.

use std::process::ExitCode;

use ashlar_commands::lvm::names::{group_name, split_name};
use ashlar_daemon::error::{Error, Result};
use ashlar_lvm::command::Command;
use clap::Args;

use super::session::change;
use super::{ChangeOptions, Devices};

/// Rename a logical volume
///
/// Clients that have it open keep it; others find it under its new name.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvrename vg/data vg/archive
  ashlar lvm lvrename --devices a.img,b.img vg data archive")]
pub(crate) struct Lvrename {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// The volume and its new name: VG/LV NEW, or VG LV NEW
    #[arg(required = true, num_args = 2..=3, value_name = "NAME")]
    names: Vec<String>,
}

/// Rename a volume group
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgrename vg archive
  ashlar lvm vgrename --devices a.img,b.img vg archive")]
pub(crate) struct Vgrename {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// The group, by its name or UUID
    #[arg(value_name = "VG")]
    from: String,

    /// Its new name
    #[arg(value_name = "NEW")]
    to: String,
}

impl Lvrename {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (group, from, to) = match &self.names[..] {
            [group, from, to] => (split_name(group)?.0, from.as_str(), to),
            [name, to] => match split_name(name)? {
                (group, Some(volume)) => (group, volume, to),
                (_, None) => return Err(Error::usage(format_args!("`{name}` names no volume"))),
            },
            _ => return Err(Error::usage("VG/LV NEW, or VG LV NEW")),
        };
        let last = |name: &str| match split_name(name)? {
            (of, Some(volume)) if of == group => Ok(volume.to_owned()),
            (_, Some(_)) => Err(Error::usage("a volume stays in its group")),
            (volume, None) => Ok(volume.to_owned()),
        };
        let (from, to) = (last(from)?, last(to)?);
        change(&self.disks, &self.change_options, group, &Command::Rename { from, to })
    }
}

impl Vgrename {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (from, to) = (group_name(&self.from), group_name(&self.to).to_owned());
        change(&self.disks, &self.change_options, from, &Command::RenameGroup { to })
    }
}
