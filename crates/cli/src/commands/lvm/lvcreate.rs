//! `ashlar lvm lvcreate`: new volumes and snapshots.

use std::process::ExitCode;

use ashlar_block::Sectors;
use ashlar_commands::lvm::names::split_name;
use ashlar_daemon::error::{Error, Result};
use ashlar_lvm::command::{Amount, Command, Create, PolicyName};
use ashlar_lvm::metadata::parse_tag;
use ashlar_lvm::sizes;
use clap::{ArgAction, Args};

use super::session::change;
use super::{ChangeOptions, Devices};

/// Make a logical volume, or a snapshot of one
///
/// Zeroes the first 4 KiB of a new volume, so that old signatures on the disk do not reappear
/// there.
#[derive(Args, Debug)]
// For LVM, -V is the size of a thin volume.
#[command(disable_version_flag = true)]
#[command(
    override_usage = "ashlar lvm lvcreate [OPTIONS] <-L <SIZE>|-l <COUNT>> <VG[/LV]> [PV]...",
    after_help = "\
Examples:
  ashlar lvm lvcreate -n data -L 4G vg
  ashlar lvm lvcreate --devices a.img,b.img -n data -L 4G vg
  ashlar lvm lvcreate --devices a.img,b.img -n fast -l 100%FREE -i 2 -I 64 vg
  ashlar lvm lvcreate --devices a.img,b.img -s -n before -l 20%ORIGIN -c 64 vg/data"
)]
pub(crate) struct Lvcreate {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    #[command(flatten)]
    size: Size,

    /// The name [default: lvol0 or the next free number]
    #[arg(short, long, value_name = "LV")]
    name: Option<String>,

    /// Make a snapshot of the named volume; the size is that of the space for changes
    #[arg(short, long)]
    snapshot: bool,

    /// Chunk size of the snapshot, in KiB or with a unit: 4K to 512K
    #[arg(short, long, value_name = "SIZE", default_value = "4", value_parser = sizes::small_size)]
    chunksize: Sectors,

    /// Number of stripes, each on a physical volume of its own
    #[arg(short = 'i', long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=128))]
    stripes: u32,

    /// Amount of data on one stripe before the next, in KiB or with a unit [default: 64K]
    #[arg(short = 'I', long, value_name = "SIZE", value_parser = sizes::small_size)]
    stripesize: Option<Sectors>,

    /// Permission: r or rw
    #[arg(short, long, value_name = "r|rw", default_value = "rw", value_parser = ["r", "rw"])]
    permission: String,

    /// A tag for the administrator; may be repeated
    #[arg(long, value_name = "TAG", value_parser = parse_tag)]
    addtag: Vec<String>,

    /// Allocation policy: contiguous, cling, normal, or the group's (inherit)
    #[arg(long, value_name = "POLICY", default_value = "inherit", value_parser = ["contiguous", "cling", "normal", "inherit"])]
    alloc: String,

    /// Whether to zero the first 4 KiB; the necessary parts of a snapshot are always zeroed
    #[arg(short = 'Z', long, value_name = "y|n", default_value = "y", action = ArgAction::Set, value_parser = super::yes_no)]
    zero: bool,

    /// Taken for LVM's sake: old signatures are not looked for
    #[arg(short = 'W', long, value_name = "y|n", hide = true, value_parser = super::yes_no)]
    wipesignatures: Option<bool>,

    /// Taken for LVM's sake: nothing is activated
    #[arg(short, long, value_name = "y|n", hide = true)]
    activate: Option<String>,

    /// The group, optionally with the name of the volume; for a snapshot its origin, VG/LV
    #[arg(value_name = "VG[/LV]")]
    target: String,

    /// Physical volumes to place it on [default: any of the group's]
    #[arg(value_name = "PV")]
    pvs: Vec<String>,
}

/// How large.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(super) struct Size {
    /// Size, in MiB or with a unit (b, s, k, m, g, t, p, e); rounded up to extents
    #[arg(short = 'L', long = "size", value_name = "SIZE", value_parser = sizes::amount)]
    size: Option<Amount>,

    /// Size in extents, or a share of something: COUNT, N%VG, N%FREE, N%PVS, N%ORIGIN
    #[arg(short = 'l', long = "extents", value_name = "COUNT", value_parser = sizes::extents)]
    extents: Option<Amount>,
}

impl Lvcreate {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (group, target) = split_name(&self.target)?;
        let named = self.name.as_deref().map(|name| match split_name(name)? {
            (of, Some(name)) if of == group => Ok(name),
            (name, None) => Ok(name),
            (_, Some(_)) => Err(Error::usage("-n names another group")),
        });
        let named = named.transpose()?;
        let (origin, name) = match (self.snapshot, target, named) {
            (true, Some(origin), name) => (Some(origin), name),
            (true, None, _) => return Err(Error::usage("a snapshot needs its origin, VG/LV")),
            (false, Some(_), Some(_)) => return Err(Error::usage("two names are given")),
            (false, target, name) => (None, target.or(name)),
        };
        let policy = match self.alloc.as_str() {
            "contiguous" => Some(PolicyName::Contiguous),
            "cling" => Some(PolicyName::Cling),
            "normal" => Some(PolicyName::Normal),
            _ => None,
        };
        let amount = self.size.size.or(self.size.extents);
        let create = Create {
            name: name.map(str::to_owned),
            origin: origin.map(str::to_owned),
            amount: amount.ok_or_else(|| Error::usage("no size is given"))?,
            chunk_sectors: self.chunksize.0,
            stripes: self.stripes,
            stripe_sectors: self.stripesize.map(|size| size.0),
            policy,
            writable: self.permission == "rw",
            tags: self.addtag,
            zero: self.zero,
            physical: self.pvs,
        };
        change(&self.disks, &self.change_options, group, &Command::Create(create))
    }
}
