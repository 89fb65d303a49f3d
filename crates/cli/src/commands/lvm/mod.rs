//! `ashlar lvm`: volume groups, with LVM's verbs and option names.
//!
//! Each command has the daemon work on a group that it serves, or opens the disks given with `--devices`, looks through partitions and
//! arrays for physical volumes, works on the metadata there, and ends; then nothing is activated. [`ashlar_commands::lvm`] has the
//! order in which a change is written: docs/internals/lvm.md.

mod activation;
mod check;
mod display;
mod groups;
mod lvconvert;
mod lvcreate;
mod lvremove;
mod lvresize;
mod pv;
mod pvmove;
mod regrouping;
mod rename;
mod report;
pub(crate) mod session;
pub(crate) mod spellings;
mod vg;
mod vgcfg;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_client::client::Client;
use ashlar_commands::lvm::archive::{self, Archives};
use ashlar_daemon::error::{Error, Result};
use clap::{ArgAction, Args, Subcommand};

use self::spellings::Common;
use crate::commands::Daemon;
use crate::commands::verbs::verbs;
use crate::help::GLOBAL;
use crate::output;

/// Show and change LVM's physical volumes, groups and logical volumes
///
/// The verbs, options and messages are LVM's. Volume groups are those of the running daemon, whose volumes may be in
/// use meanwhile; or those on the disks given with --devices, which must then be all disks of a group. Physical volumes are
/// found on these, on their partitions, and on md arrays of these.
#[derive(Subcommand, Debug)]
#[command(infer_long_args = true)]
#[command(after_help = "\
Exit codes, as of LVM: 0 done, 2 no such command, 3 wrong usage, 5 failed.

Long options may be abbreviated.

Examples:
  ashlar lvm vgcreate vg a.img b.img
  ashlar lvm lvcreate --devices a.img,b.img -n data -L 4G vg
  ashlar serve a.img b.img --nbd unix:/run/ashlar.nbd &
  ashlar lvm lvcreate -s -n before -L 1G vg/data
  ashlar lvm lvs --devices a.img,b.img
  ashlar lvm lvconvert --devices a.img,b.img --merge vg/before")]
pub(crate) enum Lvm {
    #[command(flatten)]
    Verb(Box<Verb>),
    /// A verb that ashlar does not have.
    #[command(external_subcommand)]
    Unknown(Vec<OsString>),
}

verbs! {
    #[derive(Subcommand, Debug)]
    pub(crate) enum Verb {
        Pvs(report::Pvs),
        Vgs(report::Vgs),
        Lvs(report::Lvs),
        Pvdisplay(display::Pvdisplay),
        Vgdisplay(display::Vgdisplay),
        Lvdisplay(display::Lvdisplay),
        Pvscan(display::Pvscan),
        Vgscan(display::Vgscan),
        Lvscan(display::Lvscan),
        Pvcreate(pv::Pvcreate),
        Pvremove(pv::Pvremove),
        Pvresize(pv::Pvresize),
        Pvchange(activation::Pvchange),
        Pvck(check::Pvck),
        Pvmove(pvmove::Pvmove),
        Vgcreate(vg::Vgcreate),
        Vgextend(vg::Vgextend),
        Vgreduce(vg::Vgreduce),
        Vgremove(vg::Vgremove),
        Vgexport(vg::Vgexport),
        Vgimport(vg::Vgimport),
        Vgck(check::Vgck),
        Vgsplit(regrouping::Vgsplit),
        Vgmerge(regrouping::Vgmerge),
        Lvcreate(Box<lvcreate::Lvcreate>),
        Lvremove(lvremove::Lvremove),
        Lvextend(lvresize::Lvextend),
        Lvreduce(lvresize::Lvreduce),
        Lvresize(lvresize::Lvresize),
        Lvrename(rename::Lvrename),
        Vgrename(rename::Vgrename),
        Lvconvert(lvconvert::Lvconvert),
        Lvchange(activation::Lvchange),
        Vgchange(activation::Vgchange),
        Vgcfgbackup(vgcfg::Vgcfgbackup),
        Vgcfgrestore(vgcfg::Vgcfgrestore),
    }
}

/// LVM's exit codes for failed commands, and for invalid ones (`ECMD_FAILED` and `EINVALID_CMD_LINE`).
const FAILED: u8 = 5;
pub(crate) const INVALID: u8 = 3;

impl Lvm {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Verb(verb) => verb.run().map_err(|error| error.codes(FAILED, INVALID)),
            Self::Unknown(words) => spellings::unknown_verb(&words),
        }
    }
}

/// Which disks to look at.
#[derive(Args, Debug)]
pub(crate) struct Devices {
    /// Disks to search for physical volumes, separated by commas or as repeated options [default: the groups of a running
    /// daemon]
    #[arg(long, value_name = "DISK", value_delimiter = ',', help_heading = GLOBAL)]
    devices: Vec<PathBuf>,

    #[command(flatten)]
    daemon: Daemon,

    #[command(flatten)]
    common: Common,
}

impl Devices {
    /// The daemon that serves the groups.
    ///
    /// # Errors
    /// There is no daemon.
    fn connect(&self) -> Result<Client> {
        let connected = self.daemon.connect();
        connected.map_err(|error| {
            error
                .hint("name the disks with --devices DISK,..., or start a daemon with ashlar serve")
        })
    }
}

/// Options of the commands that change a group.
#[derive(Args, Debug)]
pub(crate) struct ChangeOptions {
    /// Archive the group's description
    ///
    /// Before and after the change, below $XDG_STATE_HOME/ashlar/lvm (as root /var/lib/ashlar/lvm)
    #[arg(short = 'A', long, value_name = "y|n", default_value = "y", action = ArgAction::Set, value_parser = yes_no, hide_short_help = true)]
    autobackup: bool,

    /// Answer questions with yes
    #[arg(short, long)]
    yes: bool,
}

impl ChangeOptions {
    /// The copies of the descriptions that this command changes.
    fn archives(&self) -> Result<Archives> {
        Archives::new(self.autobackup, &archive::command())
    }
}

/// Refuses what is done only on disks that no daemon serves.
fn on_disks_only(disks: &Devices, verb: &str) -> Result<()> {
    if !disks.devices.is_empty() {
        return Ok(());
    }
    let hint = "name all disks of the group with --devices DISK,..., once ashlar stop has ended the daemon that serves it";
    Err(Error::usage(format_args!("{verb} works only on disks that no daemon serves")).hint(hint))
}

/// `y` or `n`, in LVM's syntax.
fn yes_no(text: &str) -> std::result::Result<bool, String> {
    match text {
        "y" | "yes" => Ok(true),
        "n" | "no" => Ok(false),
        _ => Err(format!("`{text}` is not y or n")),
    }
}

/// Prints a warning.
fn warn(text: impl std::fmt::Display) {
    output::note(&format!("  WARNING: {text}\n"));
}
