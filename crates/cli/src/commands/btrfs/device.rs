//! `ashlar btrfs device`: the kernel's error counters of devices.

use std::fmt::Write;
use std::process::ExitCode;

use ashlar_btrfs::ondisk::items::DevStats;
use ashlar_host::error::{Error, Result};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::volumes::Chosen;
use super::with;
use crate::output;

/// Look at the devices of a file system
#[derive(Subcommand, Debug)]
pub(crate) enum Device {
    Stats(Stats),
}

impl Device {
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Stats(command) => command.run(),
        }
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
    chosen: Chosen,

    /// End with the exit code 64 if a counter is not zero
    #[arg(short, long)]
    check: bool,

    /// Print JSON: an array of objects
    #[arg(long)]
    json: bool,
}

/// The counters of a device.
#[derive(Serialize)]
struct Counted {
    device: String,
    devid: u64,
    write_io_errs: u64,
    read_io_errs: u64,
    flush_io_errs: u64,
    corruption_errs: u64,
    generation_errs: u64,
}

impl Counted {
    fn all(&self) -> [(&'static str, u64); 5] {
        [
            ("write_io_errs", self.write_io_errs),
            ("read_io_errs", self.read_io_errs),
            ("flush_io_errs", self.flush_io_errs),
            ("corruption_errs", self.corruption_errs),
            ("generation_errs", self.generation_errs),
        ]
    }
}

impl Stats {
    fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let mut all = Vec::new();
            for device in fs.devices() {
                let stats = fs.device_stats(device.devid).await;
                let stats = stats.map_err(|why| Error::plain("cannot read the counters", why))?;
                let DevStats {
                    write_errs,
                    read_errs,
                    flush_errs,
                    corruption_errs,
                    generation_errs,
                } = stats;
                all.push(Counted {
                    device: device.name.clone(),
                    devid: device.devid.0,
                    write_io_errs: write_errs,
                    read_io_errs: read_errs,
                    flush_io_errs: flush_errs,
                    corruption_errs,
                    generation_errs,
                });
            }
            if self.json {
                output::print_json(&all)?;
            } else {
                output::print(&text(&all))?;
            }
            let counted = all.iter().flat_map(Counted::all).any(|(_, count)| count > 0);
            Ok(if self.check && counted { ExitCode::from(COUNTED) } else { ExitCode::SUCCESS })
        })
    }
}

fn text(all: &[Counted]) -> String {
    let mut text = String::new();
    for device in all {
        for (name, count) in device.all() {
            // Writing to a string cannot fail.
            writeln!(text, "[{}].{name:<16} {count}", device.device).ok();
        }
    }
    text
}
