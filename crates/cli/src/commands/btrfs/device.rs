//! `ashlar btrfs device`: the kernel's error counters of devices, and what they are used for.

use std::process::ExitCode;

use ashlar_btrfs::inspect;
use ashlar_commands::btrfs::{DeviceCounters, device_counters};
use ashlar_daemon::error::Result;
use clap::{Args, Subcommand};

use super::volumes::FileSystemArgs;
use super::{SizedArgs, with};
use crate::commands::verbs::verbs;
use crate::output;

verbs! {
    /// Look at the devices of a file system
    #[derive(Subcommand, Debug)]
    pub(crate) enum Device {
        Stats(Stats),
        Usage(Usage),
    }
}

/// The exit code of `btrfs device stats -c` if a counter is not zero.
const COUNTED: u8 = 64;

/// Print the errors that the kernel has counted on each device, as btrfs device stats does
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, with -c 64 a counter is not zero.

Examples:
  ashlar btrfs device stats disk*.img
  ashlar btrfs device stats -c /dev/sdb")]
pub(crate) struct Stats {
    #[command(flatten)]
    chosen: FileSystemArgs,

    /// End with the exit code 64 if a counter is not zero
    #[arg(short, long)]
    check: bool,

    /// Print JSON: an array of objects
    #[arg(long)]
    json: bool,
}

impl Stats {
    fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let all = device_counters(fs).await?;
            if self.json {
                output::print_json(&all)?;
            } else {
                output::print(&all.iter().map(DeviceCounters::text).collect::<String>())?;
            }
            let counted = all.iter().any(DeviceCounters::is_any);
            Ok(if self.check && counted { ExitCode::from(COUNTED) } else { ExitCode::SUCCESS })
        })
    }
}

/// Print what each device is used for, as btrfs device usage does
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar btrfs device usage disk*.img
  ashlar btrfs device usage -b /dev/sdb")]
pub(crate) struct Usage {
    #[command(flatten)]
    of: SizedArgs,
}

impl Usage {
    fn run(self) -> Result<ExitCode> {
        self.of.printed(async |fs, form, out| inspect::device_usage(fs, form, out).await)
    }
}
