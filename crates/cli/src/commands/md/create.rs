//! `ashlar md create`: creates an array.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_block::Sectors;
use ashlar_commands::md::{BitmapChoice, ConsistencyPolicy, CreateOptions, MemberPath, NewArray};
use ashlar_daemon::error::Result;
use ashlar_disks::size;
use ashlar_disks::{self as disks, Access};
use ashlar_md::ondisk::bitmap_super::MAX_WRITE_BEHIND;
use ashlar_md::ondisk::{DeviceFlags, Level, Version, words};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use uuid::Uuid;

use crate::output;

/// Make a new array
///
/// Writes superblocks to the devices; `ashlar serve` then assembles them, or mdadm does. Devices
/// with known contents (a file system, a partition table, a member of an array) are refused without
/// --force; a refusal changes nothing.
///
/// The copies of a RAID1 or RAID10 are synchronised, and the parity of a RAID4, RAID5 or RAID6 is made, when the
/// array is first served, unless its members are empty image files or --assume-clean is given.
#[derive(Args, Debug)]
#[command(
    override_usage = "ashlar md create [OPTIONS] -l <LEVEL> -n <COUNT> <[NAME] DEVICE>...",
    after_help = "\
Exit codes: 0 made, 1 refused or failed, 2 wrong usage.

Examples:
  truncate -s 1G disk0.img disk1.img disk2.img disk3.img
  ashlar md create --level=10 --layout=f2 --chunk=512K --raid-devices=4 disk?.img
  ashlar md create /dev/md/data --level=mirror --raid-devices=2 disk0.img missing
  ashlar md create -l1 -n2 -x1 --bitmap=internal disk0.img disk1.img spare.img
  ashlar md create --level=5 --raid-devices=3 disk0.img disk1.img disk2.img
  ashlar md create -l1 -n2 --dry-run /dev/sda1 /dev/sdb1
  ashlar md create -l1 -n2 --write-behind disk0.img --write-mostly slow.img"
)]
pub(crate) struct Create {
    /// RAID level: linear, 0, 1, 4, 5, 6 or 10
    ///
    /// The words raid0, stripe, raid1, mirror, raid4, raid5, raid6 and raid10 stand for these, too
    #[arg(short, long, value_parser = words::level)]
    level: Level,

    /// Layout, as n2 of RAID10
    ///
    /// n2, f2, o2 and the like for RAID10 (near, far, offset, and how many copies); original or alternate for RAID0; left-symmetric (ls),
    /// right-asymmetric (ra), parity-last and the like for RAID5 and RAID6 [default: left-symmetric]
    #[arg(short = 'p', long, visible_alias = "parity")]
    layout: Option<String>,

    /// Chunk size [default: 512K]
    ///
    /// In KiB, or with a suffix K, M, G; with linear, what devices are rounded down to [default: 0]
    #[arg(short, long, visible_alias = "rounding", value_name = "SIZE", value_parser = size::size)]
    chunk: Option<Sectors>,

    /// Number of devices in the array
    #[arg(short = 'n', long, value_name = "COUNT")]
    raid_devices: u32,

    /// Version of the superblocks: 1.2, 1.1, 1.0, or 0.90 for what knows no other (raid1, 4, 5, 6
    /// and 10 of at most 27 members, less than 4 TiB of each)
    #[arg(short = 'e', long, value_name = "VERSION", default_value = "1.2", value_parser = words::version)]
    metadata: Version,

    /// Name of the array [default: that of NAME, or 0]
    #[arg(short = 'N', long)]
    name: Option<String>,

    /// Host to put in front of the name, with metadata 0.90 in the UUID; any for none [default: this host's name]
    #[arg(long, value_name = "HOST", hide_short_help = true)]
    homehost: Option<String>,

    /// UUID of the array [default: a random one]
    #[arg(short, long, value_parser = words::uuid)]
    uuid: Option<Uuid>,

    /// Space to use on each device, in KiB or with a suffix, or max
    #[arg(short = 'z', long, value_parser = size::limit)]
    size: Option<size::Limit>,

    /// Start of the data on each device, in KiB or with a suffix (s: sectors)
    #[arg(long, value_name = "SIZE", value_parser = size::size, hide_short_help = true)]
    data_offset: Option<Sectors>,

    /// Assume that the members are already equal; where they are not, reads return either copy
    #[arg(long)]
    assume_clean: bool,

    /// Number of spares, which follow the devices of the array
    #[arg(short = 'x', long, value_name = "COUNT", default_value_t = 0)]
    spare_devices: u32,

    /// Write-intent bitmap: internal, lockless or none [default: internal if a device is larger than
    /// 100G, or for --write-behind]
    #[arg(short, long, value_parser = PossibleValuesParser::new(["internal", "lockless", "none"])
        .try_map(|word| word.parse::<BitmapChoice>()))]
    bitmap: Option<BitmapChoice>,

    /// Synchronisation: resync, bitmap or ppl
    ///
    /// What is done after a crash: resync (all copies), bitmap (marked ones; implied by --bitmap), or ppl (raid5: by
    /// a partial parity log, also if a device is missing then)
    #[arg(short = 'k', long, value_name = "POLICY",
        value_parser = PossibleValuesParser::new(["resync", "bitmap", "ppl"])
            .try_map(|word| word.parse::<ConsistencyPolicy>()))]
    consistency_policy: Option<ConsistencyPolicy>,

    /// Data per bit of the bitmap, in KiB or with a suffix [default: 64M, less for small arrays]
    #[arg(long, value_name = "SIZE", value_parser = size::size, hide_short_help = true)]
    bitmap_chunk: Option<Sectors>,

    /// Let write-mostly devices lag behind
    ///
    /// Acknowledge writes before write-mostly devices have them, up to this number at a time
    #[arg(long, value_name = "COUNT", num_args = 0..=1, require_equals = true, default_missing_value = "256", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WRITE_BEHIND)))]
    write_behind: Option<u32>,

    /// Print what would be created and overwritten, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Overwrite the contents of the devices
    #[arg(short, long)]
    force: bool,

    /// Taken for mdadm's sake: this never asks
    #[arg(short = 'R', long, hide = true)]
    run: bool,

    #[command(flatten)]
    devices: Devices,
}

/// The devices. As in mdadm, device flags apply to the devices after them.
#[derive(Clone, Debug)]
struct Devices {
    list: Vec<MemberPath>,
}

const DEVICES: &str = "devices";
const WRITE_MOSTLY: &str = "write-mostly";
const FAILFAST: &str = "failfast";

impl Args for Devices {
    fn augment_args(command: Command) -> Command {
        let flag = |name, help, long| {
            let flag = Arg::new(name).long(name).action(ArgAction::SetTrue);
            flag.help(help).long_help(long)
        };
        let write_mostly = flag(
            WRITE_MOSTLY,
            "Read later devices only if necessary",
            "Read from the devices after this option only if no other is readable",
        );
        let failfast = flag(
            FAILFAST,
            "Fail later devices at their first error",
            "Fail the devices after this option at their first error",
        );
        let devices = Arg::new(DEVICES)
            .value_name("[NAME] DEVICE")
            .required(true)
            .num_args(1..)
            .value_parser(clap::value_parser!(PathBuf))
            .help(
                "The array, as /dev/md0, md0 or /dev/md/NAME, if wanted; then the devices: image \
                 files, block devices, or the word missing for one that is to come later",
            );
        command.arg(write_mostly.short('W')).arg(failfast).arg(devices)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Devices {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let from = |flag| match matches.get_flag(flag) {
            true => matches.index_of(flag),
            false => None,
        };
        let (write_mostly, failfast) = (from(WRITE_MOSTLY), from(FAILFAST));
        let paths = matches.get_many::<PathBuf>(DEVICES).into_iter().flatten();
        let places = matches.indices_of(DEVICES).into_iter().flatten();
        let device = |(path, place): (&PathBuf, usize)| MemberPath {
            path: path.clone(),
            flags: DeviceFlags {
                write_mostly: write_mostly.is_some_and(|from| from < place),
                failfast: failfast.is_some_and(|from| from < place),
            },
        };
        Ok(Self { list: paths.zip(places).map(device).collect() })
    }

    fn update_from_arg_matches(
        &mut self,
        matches: &ArgMatches,
    ) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Create {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (dry_run, force) = (self.dry_run, self.force);
        let (options, devices) = self.into_options();
        let access = if dry_run { Access::Read } else { Access::Write };
        let array = NewArray::open(&options, &devices, access)?;
        let reactor = disks::reactor()?;
        if dry_run {
            let plan = reactor.block_on(array.plan())?;
            output::print(&plan.dry_report())?;
            return match plan.refusal() {
                Some(refusal) if !force => Err(refusal),
                Some(_) | None => Ok(ExitCode::SUCCESS),
            };
        }
        let created = reactor.block_on(array.create(force))?;
        output::tell(&created.report())?;
        Ok(ExitCode::SUCCESS)
    }

    fn into_options(self) -> (CreateOptions, Vec<MemberPath>) {
        let options = CreateOptions {
            level: self.level,
            layout: self.layout,
            chunk: self.chunk,
            raid_devices: self.raid_devices,
            spare_devices: self.spare_devices,
            version: self.metadata,
            name: self.name,
            homehost: self.homehost,
            uuid: self.uuid,
            size: self.size.and_then(|limit| limit.0),
            data_offset: self.data_offset,
            assume_clean: self.assume_clean,
            bitmap: self.bitmap,
            policy: self.consistency_policy,
            bitmap_chunk: self.bitmap_chunk,
            write_behind: self.write_behind,
        };
        (options, self.devices.list)
    }
}
