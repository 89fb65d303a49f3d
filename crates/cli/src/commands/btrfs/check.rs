//! `ashlar btrfs check`: the structures of a file system.

use std::process::ExitCode;

use ashlar_btrfs::check::{CheckSummary, check};
use ashlar_btrfs::scrub;
use ashlar_daemon::error::{Error, FAILURE, Result};
use clap::Args;

use super::volumes::FileSystemArgs;
use super::with;
use crate::output::{self, report};

/// Check the structures of a file system, and change nothing
///
/// Verifies superblocks; checksums, generations, levels and keys of all tree blocks; the form of items; the
/// number of references of each extent; what block groups count as used; and that chunks, block groups and
/// device extents agree. Does not verify directories and inodes against each other, the trees and files that
/// back references name, the free space tree, quota groups, the log, and further mirrors: btrfs check
/// verifies most of these, and ashlar btrfs scrub all mirrors and the data. Memory: less than 100 bytes
/// for each tree block and extent.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 no errors, 1 failed or something is damaged, 2 wrong usage.

Examples:
  ashlar btrfs check disk*.img
  ashlar btrfs check --readonly /dev/sdb")]
pub(crate) struct Check {
    #[command(flatten)]
    chosen: FileSystemArgs,

    /// Change nothing; that is so in any case
    #[arg(long)]
    readonly: bool,
}

impl Check {
    pub(super) fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let supers = scrub::superblocks(fs, true).await;
            for problem in &supers {
                report(&Error::failed(format_args!("{problem}")));
            }
            let mut tell = |fault| {
                report(&Error::failed(fault));
            };
            let found = check(fs, &mut tell).await;
            let CheckSummary { trees, blocks, extents, faults, uncounted } = found;
            let (fsid, errors) = (fs.superblock().fsid(), faults + supers.len() as u64);
            let mut text = format!(
                "checked the file system {fsid}: {trees} trees, {blocks} tree blocks, {extents} extents\n"
            );
            if let Some(why) = uncounted {
                text += &format!("references were not compared: {why}\n");
            }
            if fs.log_root().is_some() {
                text += "not checked: the log, which the next mount replays\n";
            }
            text += "not checked: directories and inodes, free space, quotas, data\n";
            text += &match errors {
                0 => "no errors found\n".to_owned(),
                1 => "1 error found\n".to_owned(),
                _ => format!("{errors} errors found\n"),
            };
            output::print(&text)?;
            Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) })
        })
    }
}
