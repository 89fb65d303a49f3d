//! `ashlar md create`: makes an array.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use ashlar_block::Sectors;
use ashlar_md::create::{Created, NewDevice, create};
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap, NewMember, full_name};
use ashlar_md::ondisk::{DeviceFlags, Level, MdadmUuid, Version};
use ashlar_stack::graph::human_size;
use ashlar_stack::names::parse_array_name;
use ashlar_stack::probe::probe;
use clap::Args;
use uuid::Uuid;

use crate::disks::{self, Access};
use crate::error::{Error, Result};
use crate::{output, units};

/// Make a new array
///
/// Writes superblocks to the devices; `ashlar serve` then assembles them, or mdadm does. Devices on
/// which anything is known to be (a file system, a partition table, a member of an array) are
/// refused without --force, and then nothing has been changed.
///
/// RAID1 and RAID10 want members that are alike: empty image files, or --assume-clean.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 made, 1 refused or failed, 2 wrong usage.

Examples:
  truncate -s 1G disk0.img disk1.img disk2.img disk3.img
  ashlar md create --level=10 --layout=f2 --chunk=512K --raid-devices=4 disk?.img
  ashlar md create /dev/md/data --level=mirror --raid-devices=2 disk0.img missing")]
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

    /// Version of the superblocks: 1.2, 1.1 or 1.0
    #[arg(short = 'e', long, value_name = "VERSION", default_value = "1.2", value_parser = units::metadata)]
    metadata: Version,

    /// Name of the array [default: that of NAME, or 0]
    #[arg(short = 'N', long)]
    name: Option<String>,

    /// Host to put in front of the name; any for none [default: this host's name]
    #[arg(long, value_name = "HOST")]
    homehost: Option<String>,

    /// UUID of the array [default: a random one]
    #[arg(short, long, value_parser = units::uuid)]
    uuid: Option<Uuid>,

    /// How much to use of each device, in KiB or with a suffix, or max
    #[arg(short = 'z', long, value_parser = units::limit)]
    size: Option<units::Limit>,

    /// Where data begins on each device, in KiB or with a suffix (s: sectors)
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    data_offset: Option<Sectors>,

    /// Take the members to be alike already; if they are not, reads give one or the other
    #[arg(long)]
    assume_clean: bool,

    /// Write-intent bitmap: none is the only choice so far
    #[arg(short, long, default_value = "none", value_parser = ["none"])]
    bitmap: String,

    /// Overwrite whatever is on the devices
    #[arg(short, long)]
    force: bool,

    /// Taken for mdadm's sake: this never asks
    #[arg(short = 'R', long, hide_short_help = true)]
    run: bool,

    /// The array, as /dev/md0, md0 or /dev/md/NAME, if wanted; then the devices: image files, block
    /// devices, or the word missing for one that is to come later
    #[arg(required = true, value_name = "[NAME] DEVICE")]
    devices: Vec<PathBuf>,
}

/// The word that stands for a device that is not there.
const MISSING: &str = "missing";

impl Create {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (name, devices) = self.split_name()?;
        let layout = self.layout.as_deref().map(|text| units::layout(self.level, text));
        let layout =
            layout.transpose().map_err(|why| Error::usage(format_args!("--layout: {why}")))?;
        let here: Vec<PathBuf> =
            devices.iter().filter(|path| **path != Path::new(MISSING)).cloned().collect();
        let mut opened = disks::open_all(&here, Access::Write)?.into_iter();
        let reactor = disks::reactor()?;
        let members: Vec<Option<NewDevice>> = devices
            .iter()
            .map(|path| {
                if path == Path::new(MISSING) {
                    return None;
                }
                let gateway = opened.next()?.gateway;
                let known_zero = disks::is_all_hole(path);
                Some(NewDevice { gateway, path: path.display().to_string(), known_zero })
            })
            .collect();
        let spec = self.spec(&name, layout, &members);
        let created = reactor.block_on(async {
            if !self.force {
                refuse_used(&members).await?;
            }
            create(&spec, &members)
                .await
                .map_err(|error| Error::new("cannot create", display(&spec.name), error))
        })?;
        output::print(&report(&spec, &created, &devices))?;
        Ok(ExitCode::SUCCESS)
    }

    /// The name for the superblock and the devices.
    fn split_name(&self) -> Result<(String, Vec<PathBuf>)> {
        let mut devices = self.devices.clone();
        let first = devices[0].to_str().unwrap_or_default();
        let named = parse_array_name(first).filter(|_| !devices[0].exists()).map(str::to_owned);
        if named.is_some() {
            devices.remove(0);
        }
        if devices.len() != self.raid_devices as usize {
            let text = format!(
                "--raid-devices={} but {} devices are given",
                self.raid_devices,
                devices.len()
            );
            let hint = "give as many devices, with the word missing for those to come later";
            return Err(Error::usage(text).hint(hint));
        }
        let name = self.name.clone().or(named).unwrap_or_else(|| "0".to_owned());
        Ok((name, devices))
    }

    fn spec(&self, name: &str, layout: Option<u32>, members: &[Option<NewDevice>]) -> CreateSpec {
        let host = match self.homehost.as_deref() {
            Some("any" | "none" | "<none>" | "") => None,
            Some(host) => Some(host.to_owned()),
            None => hostname(),
        };
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let member = |device: &NewDevice| NewMember {
            device: device.gateway.capacity(),
            device_uuid: Uuid::new_v4(),
            flags: DeviceFlags::default(),
        };
        CreateSpec {
            version: self.metadata,
            level: self.level,
            layout,
            chunk: self.chunk,
            raid_devices: self.raid_devices,
            members: members.iter().map(|device| device.as_ref().map(member)).collect(),
            size: self.size.and_then(|limit| limit.0),
            data_offset: self.data_offset,
            set_uuid: self.uuid.unwrap_or_else(Uuid::new_v4),
            name: full_name(host.as_deref(), name),
            ctime: since_epoch.map_or(0, |time| time.as_secs()),
            assume_clean: self.assume_clean,
            bitmap: NewBitmap::None,
            write_behind: 0,
            daemon_sleep: ashlar_md::ondisk::create::DEFAULT_DAEMON_SLEEP,
            bad_block_log: true,
        }
    }
}

fn hostname() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = text.trim();
    (!name.is_empty() && name != "(none)").then(|| name.to_owned())
}

fn display(name: &str) -> &str {
    if name.is_empty() { "the array" } else { name }
}

/// Refuses if anything is on one of the devices.
async fn refuse_used(devices: &[Option<NewDevice>]) -> Result<()> {
    for device in devices.iter().flatten() {
        let contents = probe(&device.gateway).await;
        let contents =
            contents.map_err(|status| Error::new("cannot read", &device.path, status))?;
        if !contents.is_empty() {
            let why = format!("has {}", contents.claims().join(", "));
            return Err(Error::new("cannot create", &device.path, why)
                .hint("nothing was changed; --force overwrites what is there"));
        }
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
        "array {} created: {}, {} devices, {}, UUID {}\nserve it with: ashlar serve{degraded} {}\n",
        spec.name,
        spec.level,
        spec.raid_devices,
        human_size(created.size.bytes()),
        MdadmUuid(spec.set_uuid),
        paths.join(" "),
    )
}
