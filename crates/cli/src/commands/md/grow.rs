//! `ashlar md grow`: another size or bitmap of a running array.

use std::process::ExitCode;

use ashlar_stack::graph::human_size;
use clap::Args;
use serde_json::json;

use super::ArrayName;
use crate::commands::Daemon;
use crate::daemon::interface;
use crate::error::{Error, Result};
use crate::{output, units};

/// Change the size or the bitmap of a running array
///
/// For raid1 and raid10 arrays. A larger array is resynced only in its new part. A reshape, which
/// changes the number of devices, the level, the layout or the chunk size, is refused.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage.

Examples:
  ashlar md grow md0 --size=max
  ashlar md grow md0 --bitmap=internal
  ashlar md grow /dev/md/data --bitmap=none")]
pub(crate) struct GrowCommand {
    /// The array: md0, /dev/md0 or /dev/md/NAME
    array: ArrayName,

    /// Space to use on each member, in KiB or with a suffix, or max
    #[arg(short = 'z', long, value_parser = units::limit, required_unless_present_any = ["bitmap", "raid_devices", "level", "layout", "chunk"])]
    size: Option<units::Limit>,

    /// Write-intent bitmap: internal, lockless or none
    #[arg(short, long, value_parser = ["internal", "lockless", "none"], conflicts_with = "size")]
    bitmap: Option<String>,

    /// Data per bit of the bitmap, in KiB or with a suffix [default: 64M, less for small arrays]
    #[arg(long, value_name = "SIZE", value_parser = units::size, requires = "bitmap")]
    bitmap_chunk: Option<ashlar_block::Sectors>,

    /// Assume that the new part is the same on all members
    #[arg(long, requires = "size")]
    assume_clean: bool,

    /// Shrink the array; data beyond the new end are lost
    #[arg(short, long, requires = "size")]
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
    #[arg(short = 'n', long, hide_short_help = true)]
    raid_devices: Option<String>,

    /// Refused
    #[arg(short, long, hide_short_help = true)]
    level: Option<String>,

    /// Refused
    #[arg(short = 'p', long, hide_short_help = true)]
    layout: Option<String>,

    /// Refused
    #[arg(short, long, hide_short_help = true)]
    chunk: Option<String>,
}

impl Reshape {
    /// Refuses what was asked for, if anything was.
    fn check(&self, array: &ArrayName) -> Result<()> {
        let all = [
            ("--raid-devices", &self.raid_devices),
            ("--level", &self.level),
            ("--layout", &self.layout),
            ("--chunk", &self.chunk),
        ];
        let Some((option, _)) = all.iter().find(|(_, value)| value.is_some()) else {
            return Ok(());
        };
        let why = "this needs a reshape, which ashlar does not do; nothing was changed";
        let error = Error::new("cannot grow", array.as_str(), format_args!("{option}: {why}"));
        Err(error.hint("stop the array, and let mdadm and the kernel reshape it"))
    }
}

impl GrowCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.reshape.check(&self.array)?;
        let size = self.size.map(|limit| match limit.0 {
            Some(size) => (size.0 / 2).to_string(),
            None => "max".to_owned(),
        });
        let change = interface::Grow {
            name: self.array.as_str().to_owned(),
            size,
            bitmap: self.bitmap.clone(),
            bitmap_chunk: self.bitmap_chunk.map(ashlar_block::Sectors::bytes),
            assume_clean: self.assume_clean.then_some(true),
            force: self.force.then_some(true),
        };
        let size = self.daemon.connect()?.grow(&change)?;
        if self.json {
            output::print_json(&json!({ "size": size }))?;
        } else if let Some(bitmap) = &self.bitmap {
            output::tell(&format!("{}: bitmap {bitmap}\n", self.array.as_str()))?;
        } else {
            output::tell(&format!("{}: {}\n", self.array.as_str(), human_size(size)))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
