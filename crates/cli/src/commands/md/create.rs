//! `ashlar md create`: creates an array.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use ashlar_block::Sectors;
use ashlar_host::disks::{self, Access};
use ashlar_host::error::{Error, Result};
use ashlar_md::create::{Created, NewDevice, create, prepare};
use ashlar_md::ondisk::bitmap_super::MAX_WRITE_BEHIND;
use ashlar_md::ondisk::create::DeviceNumbers;
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap, NewMember, full_name};
use ashlar_md::ondisk::homehost::with_host;
use ashlar_md::ondisk::{DeviceFlags, Level, MdadmUuid, Version};
use ashlar_stack::graph::human_size;
use ashlar_stack::names::parse_array_name;
use ashlar_stack::probe::probe;
use ashlar_stack::wipe;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use uuid::Uuid;

use crate::{output, units};

/// Make a new array
///
/// Writes superblocks to the devices; `ashlar serve` then assembles them, or mdadm does. Devices
/// with known contents (a file system, a partition table, a member of an array) are refused without
/// --force; a refusal changes nothing.
///
/// The copies of a RAID1 or RAID10 are synchronised when the array is first served, unless its
/// members are empty image files or --assume-clean is given.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 made, 1 refused or failed, 2 wrong usage.

Examples:
  truncate -s 1G disk0.img disk1.img disk2.img disk3.img
  ashlar md create --level=10 --layout=f2 --chunk=512K --raid-devices=4 disk?.img
  ashlar md create /dev/md/data --level=mirror --raid-devices=2 disk0.img missing
  ashlar md create -l1 -n2 -x1 --bitmap=internal disk0.img disk1.img spare.img
  ashlar md create -l1 -n2 --dry-run /dev/sda1 /dev/sdb1
  ashlar md create -l1 -n2 --write-behind disk0.img --write-mostly slow.img")]
pub(crate) struct Create {
    /// RAID level: 0, raid0, stripe, 1, raid1, mirror, 10 or raid10
    #[arg(short, long, value_parser = units::level)]
    level: Level,

    /// Layout: n2, f2, o2 and the like for RAID10 (near, far, offset, and how many copies),
    /// original or alternate for RAID0
    #[arg(short = 'p', long)]
    layout: Option<String>,

    /// Chunk size in KiB, or with a suffix K, M, G [default: 512K]
    #[arg(short, long, value_name = "SIZE", value_parser = units::size)]
    chunk: Option<Sectors>,

    /// Number of devices in the array
    #[arg(short = 'n', long, value_name = "COUNT")]
    raid_devices: u32,

    /// Version of the superblocks: 1.2, 1.1, 1.0, or 0.90 for what knows no other (raid1 and raid10 of
    /// at most 27 members, less than 4 TiB of each)
    #[arg(short = 'e', long, value_name = "VERSION", default_value = "1.2", value_parser = units::metadata)]
    metadata: Version,

    /// Name of the array [default: that of NAME, or 0]
    #[arg(short = 'N', long)]
    name: Option<String>,

    /// Host to put in front of the name, with metadata 0.90 in the UUID; any for none [default: this host's name]
    #[arg(long, value_name = "HOST")]
    homehost: Option<String>,

    /// UUID of the array [default: a random one]
    #[arg(short, long, value_parser = units::uuid)]
    uuid: Option<Uuid>,

    /// Space to use on each device, in KiB or with a suffix, or max
    #[arg(short = 'z', long, value_parser = units::limit)]
    size: Option<units::Limit>,

    /// Start of the data on each device, in KiB or with a suffix (s: sectors)
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    data_offset: Option<Sectors>,

    /// Assume that the members are already equal; where they are not, reads return either copy
    #[arg(long)]
    assume_clean: bool,

    /// Number of spares, which follow the devices of the array
    #[arg(short = 'x', long, value_name = "COUNT", default_value_t = 0)]
    spare_devices: u32,

    /// Write-intent bitmap: internal, lockless or none [default: internal if a device is larger than
    /// 100G, or for --write-behind]
    #[arg(short, long, value_parser = ["internal", "lockless", "none"])]
    bitmap: Option<String>,

    /// Synchronisation after a crash: resync (all copies), or bitmap (marked ones; implied by
    /// --bitmap)
    #[arg(short = 'k', long, value_name = "POLICY", value_parser = ["resync", "bitmap"])]
    consistency_policy: Option<String>,

    /// Data per bit of the bitmap, in KiB or with a suffix [default: 64M, less for small arrays]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    bitmap_chunk: Option<Sectors>,

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
    #[arg(short = 'R', long, hide_short_help = true)]
    run: bool,

    #[command(flatten)]
    devices: Devices,
}

/// The word for a missing device.
const MISSING: &str = "missing";

/// A device that becomes a member.
#[derive(Clone, Debug)]
struct NewPath {
    path: PathBuf,
    flags: DeviceFlags,
}

impl NewPath {
    fn is_missing(&self) -> bool {
        self.path == Path::new(MISSING)
    }
}

/// The devices. As in mdadm, device flags apply to the devices after them.
#[derive(Clone, Debug)]
struct Devices {
    list: Vec<NewPath>,
}

const DEVICES: &str = "devices";
const WRITE_MOSTLY: &str = "write-mostly";
const FAILFAST: &str = "failfast";

impl Args for Devices {
    fn augment_args(command: Command) -> Command {
        let flag = |name, help| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
        let write_mostly = "Read from the devices after this option only if no other is readable";
        let devices = Arg::new(DEVICES)
            .value_name("[NAME] DEVICE")
            .required(true)
            .num_args(1..)
            .value_parser(clap::value_parser!(PathBuf))
            .help(
                "The array, as /dev/md0, md0 or /dev/md/NAME, if wanted; then the devices: image \
                 files, block devices, or the word missing for one that is to come later",
            );
        command
            .arg(flag(WRITE_MOSTLY, write_mostly).short('W'))
            .arg(flag(FAILFAST, "Fail the devices after this option at their first error"))
            .arg(devices)
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
        let device = |(path, place): (&PathBuf, usize)| NewPath {
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
        self.check_policy()?;
        self.check_name()?;
        self.check_write_behind()?;
        let (name, devices) = self.split_name()?;
        let paths: Vec<PathBuf> = devices.iter().map(|device| device.path.clone()).collect();
        let layout = self.layout.as_deref().map(|text| units::layout(self.level, text));
        let layout =
            layout.transpose().map_err(|why| Error::usage(format_args!("--layout: {why}")))?;
        let here: Vec<PathBuf> =
            paths.iter().filter(|path| **path != Path::new(MISSING)).cloned().collect();
        let access = if self.dry_run { Access::Read } else { Access::Write };
        let mut opened = disks::open_all(&here, access)?.into_iter();
        let reactor = disks::reactor()?;
        let mut members: Vec<Option<NewDevice>> = paths
            .iter()
            .map(|path| {
                if path == Path::new(MISSING) {
                    return None;
                }
                let gateway = opened.next()?.gateway;
                let known_zero = disks::is_all_hole(path);
                let path = path.display().to_string();
                Some(NewDevice { gateway, path, known_zero, wiped: Vec::new() })
            })
            .collect();
        let flags: Vec<DeviceFlags> = devices.iter().map(|device| device.flags).collect();
        let numbers = DeviceNumbers {
            array: preferred_number(&name),
            members: paths
                .iter()
                .map(|path| disks::device_number(path).unwrap_or((0, 0)))
                .collect(),
        };
        let spec = CreateSpec { numbers, ..self.spec(&name, layout, &members, &flags) };
        let not_created = |error| Error::new("cannot create", display(&spec.name), error);
        if self.dry_run {
            let used = reactor.block_on(used(&members))?;
            let would_be = prepare(&spec, &members).map_err(not_created)?;
            output::print(&dry_report(&spec, &would_be, &members, &used))?;
            return match used.first() {
                Some(first) if !self.force => Err(first.refusal()),
                Some(_) | None => Ok(ExitCode::SUCCESS),
            };
        }
        let created = reactor.block_on(async {
            if self.force {
                take_over(&mut members).await?;
            } else if let Some(first) = used(&members).await?.first() {
                return Err(first.refusal());
            }
            create(&spec, &members).await.map_err(not_created)
        })?;
        output::tell(&report(&spec, &created, &paths))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Version 0.90 superblocks have no name.
    fn check_name(&self) -> Result<()> {
        if self.metadata == Version::V0_90 && self.name.is_some() {
            let error = Error::usage("version 0.90 superblocks have no place for a --name");
            return Err(error.hint("give the array's number, as in /dev/md0"));
        }
        Ok(())
    }

    /// The policy and the bitmap must not contradict each other.
    fn check_policy(&self) -> Result<()> {
        let bitmap = self.bitmap.as_deref();
        let wants_bitmap = bitmap.is_some_and(|bitmap| bitmap != "none")
            || self.bitmap_chunk.is_some()
            || self.write_behind.is_some();
        let clash = match self.consistency_policy.as_deref() {
            Some("resync") => wants_bitmap,
            Some("bitmap") => bitmap == Some("none"),
            Some(_) | None => false,
        };
        if !clash {
            return Ok(());
        }
        let policy = self.consistency_policy.as_deref().unwrap_or_default();
        let text =
            format_args!("--consistency-policy={policy} contradicts what is said of a bitmap");
        Err(Error::usage(text))
    }

    /// Write-behind needs write-mostly members, and is stored in the bitmap.
    fn check_write_behind(&self) -> Result<()> {
        let written_only = self.devices.list.iter().any(|device| device.flags.write_mostly);
        let why = match self.write_behind {
            None => return Ok(()),
            Some(_) if self.level != Level::Raid1 => "is for raid1",
            Some(_) if !written_only => "needs a device behind --write-mostly",
            Some(_) if matches!(self.bitmap.as_deref(), Some("none" | "lockless")) => {
                "needs an internal bitmap"
            }
            Some(_) => return Ok(()),
        };
        Err(Error::usage(format_args!("--write-behind {why}")))
    }

    /// The name for the superblock and the devices.
    fn split_name(&self) -> Result<(String, &[NewPath])> {
        let mut devices = self.devices.list.as_slice();
        let first = devices.first().map(|device| device.path.as_path());
        let named = first.filter(|path| !path.exists()).and_then(Path::to_str);
        let named = named.and_then(parse_array_name).map(str::to_owned);
        if named.is_some() {
            devices = &devices[1..];
        }
        let wanted = self.raid_devices as usize + self.spare_devices as usize;
        if devices.len() != wanted {
            let spares = match self.spare_devices {
                0 => String::new(),
                spares => format!(" --spare-devices={spares}"),
            };
            let (raid, given) = (self.raid_devices, devices.len());
            let text = format!("--raid-devices={raid}{spares} but {given} devices are given");
            let hint = "give as many devices, with the word missing for those to come later";
            return Err(Error::usage(text).hint(hint));
        }
        if devices[self.raid_devices as usize..].iter().any(|spare| spare.is_missing()) {
            return Err(Error::usage("a spare cannot be missing"));
        }
        let name = self.name.clone().or(named).unwrap_or_else(|| "0".to_owned());
        Ok((name, devices))
    }

    fn bitmap(&self) -> NewBitmap {
        let policy = self.consistency_policy.as_deref();
        match self.bitmap.as_deref() {
            Some("none") => NewBitmap::None,
            Some("lockless") => NewBitmap::Lockless,
            None if policy == Some("resync") => NewBitmap::None,
            None if policy.is_none() && self.bitmap_chunk.is_none() => NewBitmap::Auto,
            Some(_) | None => NewBitmap::Internal { chunk: self.bitmap_chunk.map(Sectors::bytes) },
        }
    }

    fn spec(
        &self,
        name: &str,
        layout: Option<u32>,
        members: &[Option<NewDevice>],
        flags: &[DeviceFlags],
    ) -> CreateSpec {
        let host = homehost(self.homehost.as_deref());
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let member = |(device, flags): (&Option<NewDevice>, &DeviceFlags)| {
            let device = device.as_ref()?.gateway.capacity();
            Some(NewMember { device, device_uuid: Uuid::new_v4(), flags: *flags })
        };
        CreateSpec {
            version: self.metadata,
            level: self.level,
            layout,
            chunk: self.chunk,
            raid_devices: self.raid_devices,
            members: members.iter().zip(flags).map(member).collect(),
            size: self.size.and_then(|limit| limit.0),
            data_offset: self.data_offset,
            set_uuid: self.uuid.unwrap_or_else(|| new_uuid(self.metadata, host.as_deref())),
            name: match self.metadata {
                Version::V0_90 => String::new(),
                Version::V1_0 | Version::V1_1 | Version::V1_2 => full_name(host.as_deref(), name),
            },
            ctime: since_epoch.map_or(0, |time| time.as_secs()),
            assume_clean: self.assume_clean,
            bitmap: self.bitmap(),
            write_behind: self.write_behind.unwrap_or(0),
            daemon_sleep: ashlar_md::ondisk::create::DEFAULT_DAEMON_SLEEP,
            bad_block_log: true,
            numbers: DeviceNumbers::default(),
        }
    }
}

/// The host that `--homehost` means, or this one; none for `any`.
pub(super) fn homehost(option: Option<&str>) -> Option<String> {
    match option {
        Some("any" | "none" | "<none>" | "") => None,
        Some(host) => Some(host.to_owned()),
        None => hostname(),
    }
}

/// A random UUID for an array of `host`, of which it tells in version 0.90.
fn new_uuid(version: Version, host: Option<&str>) -> Uuid {
    match (version, host) {
        (Version::V0_90, Some(host)) => with_host(Uuid::new_v4(), host),
        (Version::V0_90 | Version::V1_0 | Version::V1_1 | Version::V1_2, _) => Uuid::new_v4(),
    }
}

/// This host's name.
pub(super) fn hostname() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = text.trim();
    (!name.is_empty() && name != "(none)").then(|| name.to_owned())
}

fn display(name: &str) -> &str {
    if name.is_empty() { "without name" } else { name }
}

/// The array's preferred number; 127 for a name that is not a number, the first that mdadm tries.
fn preferred_number(name: &str) -> u32 {
    name.parse().unwrap_or(127)
}

/// A device that is not empty.
struct Used {
    path: String,
    claims: String,
}

impl Used {
    fn refusal(&self) -> Error {
        Error::new("cannot create", &self.path, format_args!("has {}", self.claims))
            .hint("nothing was changed; --force overwrites what is there")
    }
}

/// The devices that are not empty.
async fn used(devices: &[Option<NewDevice>]) -> Result<Vec<Used>> {
    let mut used = Vec::new();
    for device in devices.iter().flatten() {
        let contents = probe(&device.gateway).await;
        let contents =
            contents.map_err(|status| Error::new("cannot read", &device.path, status))?;
        if !contents.is_empty() {
            let (path, claims) = (device.path.clone(), contents.claims().join(", "));
            used.push(Used { path, claims });
        }
    }
    Ok(used)
}

/// What would be created, and what would be lost on which device.
fn dry_report(
    spec: &CreateSpec,
    would_be: &Created,
    devices: &[Option<NewDevice>],
    used: &[Used],
) -> String {
    let mut text = format!("array would be created: {}\n", facts(spec, would_be, devices.len()));
    for (number, (device, new)) in devices.iter().zip(&would_be.superblocks).enumerate() {
        let (Some(device), Some(new)) = (device, new) else {
            text += &format!("{number}: {MISSING}\n");
            continue;
        };
        let sb = &new.superblock;
        let kind = if number < spec.raid_devices as usize { "" } else { "spare, " };
        let data = match sb.level.is_redundant() {
            true => sb.size,
            false => sb.data_size,
        };
        text += &format!(
            "{number}: {}: {kind}superblock {} at sector {}, data from sector {}, {}",
            device.path,
            sb.version,
            sb.super_offset.0,
            sb.data_offset.0,
            human_size(data.bytes())
        );
        if let (Some(bitmap), Some(at)) = (&new.bitmap, sb.bitmap_start()) {
            let chunk = human_size(bitmap.chunksize.get().into());
            text += &format!(", bitmap of {chunk} chunks at sector {}", at.0);
        }
        text.push('\n');
        if let Some(used) = used.iter().find(|used| used.path == device.path) {
            text += &format!("   overwrites {}\n", used.claims);
        }
    }
    text + "nothing was changed\n"
}

/// A summary of the array.
fn facts(spec: &CreateSpec, created: &Created, members: usize) -> String {
    let spares = match members.saturating_sub(spec.raid_devices as usize) {
        0 => String::new(),
        1 => ", 1 spare".to_owned(),
        spares => format!(", {spares} spares"),
    };
    let size = human_size(created.size.bytes());
    let (level, devices, uuid) = (spec.level, spec.raid_devices, MdadmUuid(spec.set_uuid));
    format!("{level}, {devices} devices{spares}, {size}, UUID {uuid}")
}

/// Lists what must be wiped on the devices, once it is certain that they become members.
async fn take_over(devices: &mut [Option<NewDevice>]) -> Result<()> {
    for device in devices.iter_mut().flatten() {
        let ranges = wipe::ranges(&device.gateway).await;
        device.wiped = ranges.map_err(|status| Error::new("cannot read", &device.path, status))?;
    }
    Ok(())
}

fn report(spec: &CreateSpec, created: &Created, devices: &[PathBuf]) -> String {
    let paths: Vec<String> = devices
        .iter()
        .filter(|path| **path != Path::new(MISSING))
        .map(|path| path.display().to_string())
        .collect();
    let degraded = if paths.len() < devices.len() { " --run" } else { "" };
    format!(
        "array {} created: {}\nserve it with: ashlar serve{degraded} {}\n",
        display(&spec.name),
        facts(spec, created, devices.len()),
        paths.join(" "),
    )
}
