//! `ashlar lvm lvchange|vgchange`: which volumes of a served group are active.

use std::process::ExitCode;

use ashlar_host::error::{Error, Result};
use ashlar_host::interface::Activate;
use ashlar_host::lvm::names::{group_name, split_name};
use clap::Args;

use super::session::described;
use super::yes_no;
use crate::commands::Daemon;
use crate::output;

/// Have logical volumes of a served group become active, or be active no more
///
/// Clients find only active volumes. A snapshot and its origin are active together. When the group is served anew, all of
/// its volumes are active.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvchange -an vg/data
  ashlar lvm lvchange -ay vg/data")]
pub(crate) struct Lvchange {
    /// Whether they shall be active
    #[arg(short, long, value_name = "y|n", required = true, action = clap::ArgAction::Set, value_parser = yes_no)]
    activate: bool,

    /// The volumes, all of one group
    #[arg(required = true, value_name = "VG/LV")]
    names: Vec<String>,

    #[command(flatten)]
    daemon: Daemon,
}

/// Have all logical volumes of served groups become active, or be active no more
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgchange -an vg
  ashlar lvm vgchange -ay")]
pub(crate) struct Vgchange {
    /// Whether they shall be active
    #[arg(short, long, value_name = "y|n", required = true, action = clap::ArgAction::Set, value_parser = yes_no)]
    activate: bool,

    /// The groups [default: all]
    #[arg(value_name = "VG")]
    names: Vec<String>,

    #[command(flatten)]
    daemon: Daemon,
}

impl Lvchange {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let names: Vec<_> =
            self.names.iter().map(|name| split_name(name)).collect::<Result<_>>()?;
        let group = names[0].0;
        let mut volumes = Vec::new();
        for (of, volume) in &names {
            let Some(volume) = volume.filter(|_| *of == group) else {
                return Err(Error::usage("volumes of one group at a time, as VG/LV"));
            };
            volumes.push(volume.to_owned());
        }
        let at = Activate { group: group.to_owned(), volumes, active: self.activate };
        self.daemon.connect()?.activate(&at)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Vgchange {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut client = self.daemon.connect()?;
        let mut groups = self.names;
        if groups.is_empty() {
            for group in client.groups()?.groups {
                groups.push(described(&group)?.group.name);
            }
        }
        for name in groups {
            let group = group_name(&name).to_owned();
            let at = Activate { group: group.clone(), volumes: Vec::new(), active: self.activate };
            let active = client.activate(&at)?;
            output::tell(&format!(
                "  {active} logical volume(s) in volume group \"{group}\" now active\n"
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
