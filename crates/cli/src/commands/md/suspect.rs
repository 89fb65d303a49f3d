//! `ashlar md suspect`: what may be wrong of an array that `--force` serves.

use std::process::ExitCode;

use ashlar_commands::md::suspects;
use ashlar_daemon::error::Result;
use clap::Args;
use serde::Serialize;

use super::ArrayName;
use crate::commands::Daemon;
use crate::output;

/// List the ranges of an array that may be wrong
///
/// If an array with parity was not stopped cleanly, the parity of some rows may not fit their data. If it also lacks a member,
/// the blocks that ashlar recovers in these rows may be wrong; only --force serves such an array. Prints the first byte and the length in bytes
/// of each range, so that a file system with checksums can judge the blocks there. With a write-intent bitmap the ranges are the chunks
/// that were being written; without one they are everything behind the end of the last resync.
///
/// The list follows from the superblocks and the bitmap. Once a disk was added, the missing member's data are recovered, and a resync makes parity
/// fit them: then the list is empty, but what was recovered wrong stays wrong, and nothing says where. Save the list before you add a disk.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 nothing is suspect, 1 some ranges are, or it failed.

Examples:
  ashlar serve --read-only --run --force d1.img d2.img
  ashlar md suspect md0
  ashlar md suspect md0 --json")]
pub(crate) struct Suspect {
    /// The array: md0, /dev/md0 or /dev/md/NAME
    array: ArrayName,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// A range, in bytes.
#[derive(Serialize)]
struct Bytes {
    offset: u64,
    length: u64,
}

impl Suspect {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut client = self.daemon.connect()?;
        let ranges = suspects(&mut client, self.array.as_str())?;
        let bytes = ranges.iter().map(|range| Bytes {
            offset: range.start.bytes(),
            length: (range.end - range.start).bytes(),
        });
        let bytes: Vec<Bytes> = bytes.collect();
        if self.json {
            output::print_json(&bytes)?;
        } else {
            let line = |range: &Bytes| format!("{} {}\n", range.offset, range.length);
            output::print(&bytes.iter().map(line).collect::<String>())?;
        }
        Ok(if bytes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
