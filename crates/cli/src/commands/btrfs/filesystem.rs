//! `ashlar btrfs filesystem`: the file system and its devices.

use std::fmt::Write;
use std::process::ExitCode;

use ashlar_btrfs::files::Name;
use ashlar_btrfs::volume::FileSystem;
use ashlar_host::error::Result;
use clap::{Args, Subcommand};

use super::scrub::report::human;
use super::volumes::Chosen;
use super::with;
use crate::output;

/// Look at a file system as a whole
#[derive(Subcommand, Debug)]
pub(crate) enum Filesystem {
    Show(Show),
}

impl Filesystem {
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Show(command) => command.run(),
        }
    }
}

/// Print label, UUID and devices of a file system, as btrfs filesystem show does
///
/// Devices that are missing are no error here, whether --degraded is given or not.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar btrfs filesystem show disk*.img
  ashlar btrfs filesystem show --raw /dev/sdb")]
pub(crate) struct Show {
    #[command(flatten)]
    chosen: Chosen,

    /// Print sizes in bytes
    #[arg(long)]
    raw: bool,
}

impl Show {
    fn run(mut self) -> Result<ExitCode> {
        self.chosen.how.degraded = true;
        with(&self.chosen, async |fs| {
            output::print(&self.text(fs))?;
            Ok(ExitCode::SUCCESS)
        })
    }

    fn text(&self, fs: &FileSystem) -> String {
        let size = |bytes: u64| if self.raw { bytes.to_string() } else { human(bytes as f64) };
        let superblock = fs.superblock();
        let label = match superblock.label() {
            [] => "none ".to_owned(),
            label => format!("'{}' ", Name(label.to_vec())),
        };
        let (fsid, total) = (superblock.fsid(), superblock.num_devices.get());
        let used = size(superblock.bytes_used.get());
        let mut text = format!("Label: {label} uuid: {fsid}\n");
        let mut line = |args: std::fmt::Arguments<'_>| {
            // Writing to a string cannot fail.
            text.write_fmt(args).and_then(|()| text.write_char('\n')).ok()
        };
        line(format_args!("\tTotal devices {total} FS bytes used {used}"));
        for device in fs.devices() {
            let item = &device.superblock.dev_item;
            let [all, used] = [&item.total_bytes, &item.bytes_used].map(|it| size(it.get()));
            let (devid, path) = (device.devid.0, &device.name);
            line(format_args!("\tdevid {devid:>4} size {all} used {used} path {path}"));
        }
        if !fs.missing().is_empty() {
            line(format_args!("\t*** Some devices missing"));
        }
        line(format_args!(""));
        text
    }
}
