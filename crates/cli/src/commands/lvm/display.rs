//! `ashlar lvm pvdisplay|vgdisplay|lvdisplay|pvscan|vgscan|lvscan`: texts.

use std::process::ExitCode;

use ashlar_commands::lvm::names::split_name;
use ashlar_daemon::error::{Error, Result};
use ashlar_lvm::report::VGS;
use ashlar_lvm::report::display::{self, Form, PvDetails};
use clap::Args;

use super::report::{Lvs, Pvs, Vgs};
use super::{Devices, groups, warn};
use crate::output;

/// Show the properties of physical volumes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm pvdisplay a.img b.img
  ashlar lvm pvdisplay --devices a.img,b.img --maps")]
pub(crate) struct Pvdisplay {
    #[command(flatten)]
    pvs: Pvs,

    /// Print one line with colons for each
    #[arg(short, long, conflicts_with_all = ["short", "maps"])]
    colon: bool,

    /// Print how much is free, one line for each
    #[arg(short, long)]
    short: bool,

    /// Also show which volumes use which extents
    #[arg(short, long)]
    maps: bool,

    /// Print a table, as pvs
    #[arg(short = 'C', long, conflicts_with_all = ["colon", "short", "maps"])]
    columns: bool,
}

/// Show the properties of volume groups
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgdisplay --devices a.img,b.img
  ashlar lvm vgdisplay -v vg
  ashlar lvm vgdisplay --devices a.img,b.img --short vg")]
pub(crate) struct Vgdisplay {
    #[command(flatten)]
    vgs: Vgs,

    /// Print one line with colons for each
    #[arg(short, long, conflicts_with = "short")]
    colon: bool,

    /// Print the sizes, one line for each
    #[arg(short, long)]
    short: bool,

    /// Print a table, as vgs
    #[arg(short = 'C', long, conflicts_with_all = ["colon", "short"])]
    columns: bool,
}

/// Show the properties of logical volumes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvdisplay --devices a.img,b.img
  ashlar lvm lvdisplay --devices a.img,b.img --maps vg/data")]
pub(crate) struct Lvdisplay {
    #[command(flatten)]
    lvs: Lvs,

    /// Print one line with colons for each
    #[arg(short, long, conflicts_with = "maps")]
    colon: bool,

    /// Also show where the extents are
    #[arg(short, long)]
    maps: bool,

    /// Print a table, as lvs
    #[arg(short = 'C', long, conflicts_with_all = ["colon", "maps"])]
    columns: bool,
}

/// List the physical volumes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm pvscan --devices a.img,b.img")]
pub(crate) struct Pvscan {
    #[command(flatten)]
    disks: Devices,

    /// Only those of exported groups
    #[arg(short, long, conflicts_with = "novolumegroup")]
    exported: bool,

    /// Only those of no group
    #[arg(short, long)]
    novolumegroup: bool,

    /// Print only their devices
    #[arg(short, long, conflicts_with = "uuid")]
    short: bool,

    /// Also print their UUIDs
    #[arg(short, long)]
    uuid: bool,
}

/// List the volume groups
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgscan --devices a.img,b.img")]
pub(crate) struct Vgscan {
    #[command(flatten)]
    disks: Devices,
}

/// List the logical volumes, and whether they are active
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvscan --devices a.img,b.img")]
pub(crate) struct Lvscan {
    #[command(flatten)]
    disks: Devices,

    /// Also list the components of other volumes
    #[arg(short, long)]
    all: bool,
}

impl Pvdisplay {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.columns {
            return self.pvs.run();
        }
        let form = form(self.colon, self.short, self.maps);
        self.pvs.look.display(self.pvs.report(), form, || self.pvs.rows())
    }
}

impl Vgdisplay {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.columns {
            return self.vgs.run();
        }
        // As for LVM, --verbose means the volumes, too.
        let form = match !self.colon && !self.short && output::is_verbose() {
            true => Form::Whole,
            false => form(self.colon, self.short, false),
        };
        self.vgs.look.display(&VGS, form, || self.vgs.rows())
    }
}

impl Lvdisplay {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.columns {
            return self.lvs.run();
        }
        let lvs = &self.lvs;
        lvs.look.display(lvs.report(), form(self.colon, false, self.maps), || {
            let groups = lvs.groups()?;
            for name in &lvs.names {
                let group = groups.group(split_name(name)?.0)?;
                if group.is_exported() {
                    let name = &group.metadata.group.name;
                    return Err(Error::failed(format_args!("Volume group {name} is exported")));
                }
            }
            let mut rows = groups.lvs(&lvs.names, lvs.all)?;
            rows.retain(|row| !row.facts.group.is_exported());
            Ok(rows)
        })
    }
}

fn form(colon: bool, short: bool, maps: bool) -> Form {
    match (colon, short) {
        (true, _) => Form::Colons,
        (false, true) => Form::Short,
        (false, false) => Form::Long { maps },
    }
}

impl Pvscan {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut rows = groups::read(&self.disks, &self.disks.devices)?.pvs(&[])?;
        if self.exported {
            warn("only considering physical volumes of exported volume group(s)");
            rows.retain(|row| row.facts().is_some_and(|facts| facts.group.is_exported()));
        } else if self.novolumegroup {
            warn("only considering physical volumes in no volume group");
            rows.retain(|row| row.facts().is_none());
        }
        let details = match (self.short, self.uuid) {
            (true, _) => PvDetails::Device,
            (false, true) => PvDetails::Uuid,
            (false, false) => PvDetails::All,
        };
        output::print(&display::pvscan(&rows, details))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Vgscan {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let groups = groups::read(&self.disks, &self.disks.devices)?;
        output::print(&display::vgscan(&groups.vgs(&[])?))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Lvscan {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let groups = groups::read(&self.disks, &self.disks.devices)?;
        let mut rows = groups.lvs(&[], self.all)?;
        rows.retain(|row| !row.facts.group.is_exported());
        output::print(&display::lvscan(&rows))?;
        Ok(ExitCode::SUCCESS)
    }
}
