//! `ashlar lvm lvextend|lvreduce|lvresize`: other sizes of volumes, and of the space of snapshots.

use std::process::ExitCode;

use ashlar_commands::lvm::names::volume_name;
use ashlar_daemon::error::{Error, Result};
use ashlar_lvm::command::{Amount, Base, Command, Direction, NewSize, Resize, Sign};
use ashlar_lvm::sizes;
use clap::{ArgAction, Args};

use super::session::change;
use super::{ChangeOptions, Devices};

/// Extend a logical volume, or the space for changes of a snapshot
///
/// The contents of the volume do not grow by themselves: a file system has its own command for that.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvextend -L +1G vg/data
  ashlar lvm lvextend --devices a.img,b.img -L +1G vg/data
  ashlar lvm lvextend --devices a.img,b.img -l +100%FREE vg/data")]
pub(crate) struct Lvextend {
    #[command(flatten)]
    size: LargerSize,

    #[command(flatten)]
    target: Target,

    /// Physical volumes to place the new part on [default: any of the group's]
    #[arg(value_name = "PV")]
    pvs: Vec<String>,
}

/// How large, or by how much larger.
#[derive(Args, Debug)]
#[group(multiple = false)]
struct LargerSize {
    /// New size, or with + the increase, in MiB or with a unit; rounded up to extents [default: larger by all free extents of the PVs]
    #[arg(short = 'L', long = "size", value_name = "[+]SIZE", action = ArgAction::Set, value_parser = sizes::new_size)]
    size: Option<NewSize>,

    /// The same in extents, or a share of something: COUNT, N%VG, N%FREE, N%PVS, N%ORIGIN, N%LV
    #[arg(short = 'l', long = "extents", value_name = "[+]COUNT", action = ArgAction::Set, value_parser = sizes::new_extents)]
    extents: Option<NewSize>,
}

/// How large, or by how much larger or smaller.
#[derive(Args, Debug)]
#[group(multiple = false)]
struct OtherSize {
    /// New size, or with + or - the change, in MiB or with a unit; rounded up to extents [default: larger by all free extents of the PVs]
    #[arg(short = 'L', long = "size", value_name = "[+|-]SIZE", action = ArgAction::Set, allow_hyphen_values = true, value_parser = sizes::new_size)]
    size: Option<NewSize>,

    /// The same in extents, or a share of something: COUNT, N%VG, N%FREE, N%PVS, N%ORIGIN, N%LV
    #[arg(short = 'l', long = "extents", value_name = "[+|-]COUNT", action = ArgAction::Set, allow_hyphen_values = true, value_parser = sizes::new_extents)]
    extents: Option<NewSize>,
}

/// The volume, and how it is changed.
#[derive(Args, Debug)]
struct Target {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// Resize the file system, too: refused, because the file system's own tool does that (resize2fs, xfs_growfs, btrfs filesystem
    /// resize)
    #[arg(short, long)]
    resizefs: bool,

    /// The volume
    #[arg(value_name = "VG/LV")]
    name: String,
}

impl Target {
    /// Refuses what only a file system's tool can do.
    fn check(&self) -> Result<()> {
        if !self.resizefs {
            return Ok(());
        }
        let hint = "larger: omit -r, and then use the file system's tool, resize2fs, xfs_growfs (mounted) or btrfs filesystem resize \
                    (mounted); smaller: use the tool first, and then omit -r here (XFS cannot become smaller)";
        Err(Error::usage("--resizefs: ashlar resizes volumes, and no file systems in them")
            .hint(hint))
    }

    /// Changes the size; with `force` without asking.
    fn resize(
        mut self,
        size: NewSize,
        direction: Direction,
        force: bool,
        physical: Vec<String>,
    ) -> Result<ExitCode> {
        self.change_options.yes |= force;
        let (group, volume) = volume_name(&self.name)?;
        let resize = Resize { volume: volume.to_owned(), size, direction, force, physical };
        change(&self.disks, &self.change_options, group, &Command::Resize(resize))
    }
}

/// How large, or by how much smaller.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct SmallerSize {
    /// New size, or with - the decrease, in MiB or with a unit; rounded up to extents
    #[arg(short = 'L', long = "size", value_name = "[-]SIZE", action = ArgAction::Set, allow_hyphen_values = true, value_parser = sizes::new_size)]
    size: Option<NewSize>,

    /// The same in extents, or a share of something: COUNT, N%VG, N%FREE, N%LV
    #[arg(short = 'l', long = "extents", value_name = "[-]COUNT", action = ArgAction::Set, allow_hyphen_values = true, value_parser = sizes::new_extents)]
    extents: Option<NewSize>,
}

/// Reduce a logical volume
///
/// What is beyond the new size is lost: reduce the file system in it first. Asks for confirmation, unless -y or -f is given.
#[derive(Args, Debug)]
#[command(
    override_usage = "ashlar lvm lvreduce [OPTIONS] <-L <[-]SIZE>|-l <[-]COUNT>> <VG/LV>",
    after_help = "\
Examples:
  ashlar lvm lvreduce -L 2G vg/data
  ashlar lvm lvreduce --devices a.img,b.img -y -L -1G vg/data"
)]
pub(crate) struct Lvreduce {
    /// Do not ask, and reduce the volume even below what a file system in it needs
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    size: SmallerSize,

    #[command(flatten)]
    target: Target,
}

/// Resize a logical volume, or the space for changes of a snapshot
///
/// What is beyond a smaller size is lost: reduce the file system in it first. A reduction asks for confirmation, unless -y or -f is
/// given.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvresize -L 2G vg/data
  ashlar lvm lvresize --devices a.img,b.img -l +50%FREE vg/data
  ashlar lvm lvresize --devices a.img,b.img vg/data b.img")]
pub(crate) struct Lvresize {
    /// Do not ask, and reduce the volume even below what a file system in it needs
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    size: OtherSize,

    #[command(flatten)]
    target: Target,

    /// Physical volumes to place a new part on [default: any of the group's]
    #[arg(value_name = "PV")]
    pvs: Vec<String>,
}

/// The size that is given, or if there are physical volumes, larger by all that is free there.
fn size_or_rest(size: Option<NewSize>, pvs: &[String]) -> Result<NewSize> {
    let rest = NewSize { sign: Sign::Plus, amount: Amount::Share(100, Base::Named) };
    let size = size.or_else(|| (!pvs.is_empty()).then_some(rest));
    size.ok_or_else(|| {
        let hint = "-L SIZE, -l EXTENTS, or physical volumes whose free extents the volume gets";
        Error::usage("no size is given").hint(hint)
    })
}

impl Lvextend {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.target.check()?;
        let size = size_or_rest(self.size.size.or(self.size.extents), &self.pvs)?;
        if size.sign == Sign::Minus {
            return Err(Error::usage("a volume is extended by +SIZE; lvreduce makes it smaller"));
        }
        self.target.resize(size, Direction::Extend, false, self.pvs)
    }
}

impl Lvreduce {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.target.check()?;
        let size = self.size.size.or(self.size.extents);
        let size = size.ok_or_else(|| Error::usage("no size is given"))?;
        if size.sign == Sign::Plus {
            return Err(Error::usage("a volume is reduced by -SIZE; lvextend makes it larger"));
        }
        self.target.resize(size, Direction::Reduce, self.force, Vec::new())
    }
}

impl Lvresize {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.target.check()?;
        let size = size_or_rest(self.size.size.or(self.size.extents), &self.pvs)?;
        self.target.resize(size, Direction::Any, self.force, self.pvs)
    }
}
