//! `ashlar lvm`: volume groups, with LVM's verbs and option names.
//!
//! Each command opens the given disks, looks through partitions and arrays for physical volumes, works on the metadata
//! there, and ends. Nothing is activated. [`session`] defines the order in which a change is written:
//! docs/internals/lvm.md.

pub(crate) mod archive;
mod lvconvert;
mod lvcreate;
mod lvextend;
mod lvremove;
mod pv;
mod report;
mod session;
mod sizes;
mod vgcreate;
mod volumes;

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgAction, Args, Subcommand};

use crate::error::{Error, Result};
use crate::output;

/// Show, make and change LVM's physical volumes, volume groups and logical volumes
///
/// The verbs, options and messages are LVM's. --devices names all disks of a volume group. Physical
/// volumes are found on them, on their partitions, and on md arrays of these. Changes are refused
/// while a daemon serves a disk.
#[derive(Subcommand, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar lvm vgcreate vg a.img b.img
  ashlar lvm lvcreate --devices a.img,b.img -n data -L 4G vg
  ashlar lvm lvcreate --devices a.img,b.img -s -n before -L 1G vg/data
  ashlar lvm lvs --devices a.img,b.img
  ashlar lvm lvconvert --devices a.img,b.img --merge vg/before")]
pub(crate) enum Lvm {
    Pvs(report::Pvs),
    Vgs(report::Vgs),
    Lvs(report::Lvs),
    Pvcreate(pv::Pvcreate),
    Pvremove(pv::Pvremove),
    Vgcreate(vgcreate::Vgcreate),
    Lvcreate(Box<lvcreate::Lvcreate>),
    Lvremove(lvremove::Lvremove),
    Lvextend(lvextend::Lvextend),
    Lvconvert(lvconvert::Lvconvert),
}

impl Lvm {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Pvs(command) => command.run(),
            Self::Vgs(command) => command.run(),
            Self::Lvs(command) => command.run(),
            Self::Pvcreate(command) => command.run(),
            Self::Pvremove(command) => command.run(),
            Self::Vgcreate(command) => command.run(),
            Self::Lvcreate(command) => command.run(),
            Self::Lvremove(command) => command.run(),
            Self::Lvextend(command) => command.run(),
            Self::Lvconvert(command) => command.run(),
        }
    }
}

/// Which disks to look at.
#[derive(Args, Debug)]
pub(crate) struct Devices {
    /// Disks to search for physical volumes, separated by commas or as repeated options
    #[arg(long, value_name = "DISK", value_delimiter = ',')]
    devices: Vec<PathBuf>,
}

/// How a change is made.
#[derive(Args, Debug)]
pub(crate) struct Changing {
    /// Archive the group's description before and after the change, below
    /// $XDG_STATE_HOME/ashlar/lvm (as root /var/lib/ashlar/lvm)
    #[arg(short = 'A', long, value_name = "y|n", default_value = "y", action = ArgAction::Set, value_parser = yes_no)]
    autobackup: bool,

    /// Answer questions with yes
    #[arg(short, long)]
    yes: bool,
}

/// `y` or `n`, in LVM's syntax.
fn yes_no(text: &str) -> std::result::Result<bool, String> {
    match text {
        "y" | "yes" => Ok(true),
        "n" | "no" => Ok(false),
        _ => Err(format!("`{text}` is not y or n")),
    }
}

/// A name in LVM's syntax: `vg`, `vg/lv`, `/dev/vg/lv`. Returns group and volume.
fn split_name(text: &str) -> Result<(&str, Option<&str>)> {
    let name = text.strip_prefix("/dev/").unwrap_or(text);
    match name.split_once('/') {
        None => Ok((name, None)),
        Some((group, volume)) if !volume.is_empty() && !volume.contains('/') => {
            Ok((group, Some(volume)))
        }
        Some(_) => Err(Error::usage(format_args!("`{text}` is not a name as VG/LV"))),
    }
}

/// As [`split_name`], with a volume.
fn volume_name(text: &str) -> Result<(&str, &str)> {
    match split_name(text)? {
        (group, Some(volume)) => Ok((group, volume)),
        (_, None) => Err(Error::usage(format_args!("`{text}` names no volume: VG/LV"))),
    }
}

/// Asks the user; fails without a terminal.
fn confirm(question: &str, yes: bool) -> Result<bool> {
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(Error::failed(format_args!("{question} Nobody is there to answer"))
            .hint("-y answers with yes"));
    }
    let failed = |error| Error::plain("cannot ask", error);
    output::to_stderr(&format!("{question} [y/n]: "));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Prints a warning.
fn warn(text: impl std::fmt::Display) {
    output::note(&format!("  WARNING: {text}\n"));
}
