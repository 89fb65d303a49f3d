//! `ashlar md grow`: changes the size, bitmap or number of devices of a running array.

use std::process::ExitCode;

use ashlar_client::client::Client;
use ashlar_client::interface;
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::size;
use ashlar_view::graph::human_size;
use clap::Args;
use serde_json::json;

use super::ArrayName;
use crate::commands::Daemon;
use crate::output;

/// Change the size, the bitmap or the number of devices of a running array
///
/// For raid1 and raid10 arrays. A larger array is resynced only in its new part. A raid1 can get more devices, which
/// spares fill and are rebuilt as, or fewer, if the highest slots are empty or have failed members. A reshape, which
/// moves data, is refused: another number of devices of a raid10, another level, layout or chunk size.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage.

Examples:
  ashlar md grow md0 --size=max
  ashlar md grow md0 --bitmap=internal
  ashlar md grow md0 --raid-devices=3 --add disk3.img
  ashlar md grow /dev/md/data --bitmap=none")]
pub(crate) struct GrowCommand {
    /// The array: md0, /dev/md0 or /dev/md/NAME
    array: ArrayName,

    /// Space to use on each member, in KiB or with a suffix, or max
    #[arg(short = 'z', long, value_parser = size::limit, required_unless_present_any = ["bitmap", "raid_devices", "level", "layout", "chunk"])]
    size: Option<size::Limit>,

    /// Write-intent bitmap: internal, lockless or none
    #[arg(short, long, value_parser = ["internal", "lockless", "none"], conflicts_with = "size")]
    bitmap: Option<String>,

    /// Data per bit of the bitmap, in KiB or with a suffix [default: 64M, less for small arrays]
    #[arg(long, value_name = "SIZE", value_parser = size::size, requires = "bitmap")]
    bitmap_chunk: Option<ashlar_block::Sectors>,

    /// Number of devices in the array, of a raid1
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with_all = ["size", "bitmap"])]
    raid_devices: Option<usize>,

    /// First add this disk, as by `md add`
    #[arg(short, long, value_name = "DISK", requires = "raid_devices")]
    add: Vec<String>,

    /// Assume that the new part is equal on all members
    #[arg(long, requires = "size")]
    assume_clean: bool,

    /// Shrink the array; data beyond the new end are lost. Or leave a raid1 with a single device, or with
    /// fewer disks than devices
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    reshape: Reshape,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// What mdadm would reshape. Any value will do: nothing is done with it.
#[derive(Args, Debug)]
struct Reshape {
    /// Refused
    #[arg(short, long, hide = true)]
    level: Option<String>,

    /// Refused
    #[arg(short = 'p', long, hide = true)]
    layout: Option<String>,

    /// Refused
    #[arg(short, long, hide = true)]
    chunk: Option<String>,
}

impl Reshape {
    /// Refuses options that need a reshape.
    fn check(&self, array: &ArrayName) -> Result<()> {
        let all = [("--level", &self.level), ("--layout", &self.layout), ("--chunk", &self.chunk)];
        let Some((option, _)) = all.iter().find(|(_, value)| value.is_some()) else {
            return Ok(());
        };
        Err(no_reshape(array, option))
    }
}

fn no_reshape(array: &ArrayName, option: &str) -> Error {
    let why = "this needs a reshape, which ashlar does not do; nothing was changed";
    let error = Error::new("cannot grow", array.as_str(), format_args!("{option}: {why}"));
    error.hint("stop the array, and let mdadm and the kernel reshape it")
}

impl GrowCommand {
    /// Refuses what must not add disks first: a reshape, and more devices than there are spares for, as mdadm does.
    fn check_devices(&self, client: &mut Client, count: usize) -> Result<()> {
        let detail = client.detail(self.array.as_str())?;
        if detail.level != "raid1" {
            let is_reshape = count != detail.raid_devices && !self.add.is_empty();
            return if is_reshape {
                Err(no_reshape(&self.array, "--raid-devices"))
            } else {
                Ok(())
            };
        }
        let more = count.saturating_sub(detail.raid_devices);
        let spares = detail.spare_devices + self.add.len();
        if self.force || more <= spares {
            return Ok(());
        }
        let why = format!("{more} more devices need as many spares, and there are {spares}");
        let error = Error::new("cannot grow", self.array.as_str(), why);
        Err(error.hint("--add DISK adds a spare first; with --force the array is degraded"))
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        self.reshape.check(&self.array)?;
        let size = self.size.map(|limit| match limit.0 {
            Some(size) => (size.0 / 2).to_string(),
            None => "max".to_owned(),
        });
        let mut client = self.daemon.connect()?;
        if self.raid_devices == Some(1) && !self.force {
            let error = Error::usage("an array of a single device has no copies");
            return Err(error.hint("use --force to make it one"));
        }
        if let Some(count) = self.raid_devices {
            self.check_devices(&mut client, count)?;
        }
        for disk in &self.add {
            let add = interface::ManageAction::Add;
            client.manage(&interface::Manage::new(self.array.as_str(), add, disk))?;
        }
        let change = interface::Grow {
            name: self.array.as_str().to_owned(),
            size,
            bitmap: self.bitmap.clone(),
            bitmap_chunk: self.bitmap_chunk.map(ashlar_block::Sectors::bytes),
            raid_devices: self.raid_devices,
            assume_clean: self.assume_clean.then_some(true),
            force: self.force.then_some(true),
        };
        let size = client.grow(&change)?;
        if self.json {
            output::print_json(&json!({ "size": size }))?;
        } else if let Some(count) = self.raid_devices {
            output::print(&format!("{}: {count} devices\n", self.array.as_str()))?;
        } else if let Some(bitmap) = &self.bitmap {
            output::tell(&format!("{}: bitmap {bitmap}\n", self.array.as_str()))?;
        } else {
            output::tell(&format!("{}: {}\n", self.array.as_str(), human_size(size)))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
