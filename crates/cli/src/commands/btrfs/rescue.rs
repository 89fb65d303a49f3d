//! `ashlar btrfs rescue`: superblocks.

use std::process::ExitCode;

use ashlar_btrfs::scrub::{self, Problem, Repair};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::sandbox::Sandbox;
use ashlar_disks::{self as disks, Access};
use clap::{Args, Subcommand};

use super::volumes::FileSystemArgs;
use crate::commands::confirm;
use crate::commands::verbs::verbs;
use crate::output::{self, report};

verbs! {
    /// Repair what a mount needs first
    #[derive(Subcommand, Debug)]
    pub(crate) enum Rescue {
        SuperRecover(SuperRecover),
    }
}

/// The exit codes of `btrfs rescue super-recover` if it fails, or if the user does not want it.
const NOT_RECOVERED: u8 = 3;
const ABORTED: u8 = 4;

/// Rewrite bad superblocks from the newest good one of the same device
///
/// Asks before it writes. A superblock of another file system or device stays as it is. Exit code 2 of
/// btrfs rescue super-recover, which says that all were recovered, is 0 here.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 all are good, or are now; 1 failed or cannot ask; 2 wrong usage; 3 some are bad and
cannot be recovered; 4 the answer was no.

Examples:
  ashlar btrfs rescue super-recover disk*.img
  ashlar btrfs rescue super-recover -y /dev/sdb")]
pub(crate) struct SuperRecover {
    #[command(flatten)]
    chosen: FileSystemArgs,

    /// Answer the question with yes
    #[arg(short, long)]
    yes: bool,
}

impl SuperRecover {
    fn run(self) -> Result<ExitCode> {
        disks::reactor()?.block_on(async {
            let sandbox = Sandbox::of(&self.chosen.devices);
            let opened = self.chosen.open(Access::Write, sandbox).await?;
            let fs = &opened.fs;
            let found = scrub::superblocks(fs, true).await;
            let result = match self.may_write(&found) {
                Ok(None) => outcome(&scrub::superblocks(fs, false).await),
                Ok(Some(code)) => Ok(code),
                Err(error) => Err(error),
            };
            opened.close().await.and(result)
        })
    }

    /// Tells what is bad, and asks; otherwise the exit code.
    fn may_write(&self, found: &[Problem]) -> Result<Option<ExitCode>> {
        if found.is_empty() {
            output::print("all superblocks are good: there is nothing to recover\n")?;
            return Ok(Some(ExitCode::SUCCESS));
        }
        for problem in found {
            output::to_stderr(&format!("{problem}\n"));
        }
        let count = found.iter().filter(|it| it.repair == Repair::NotTried).count();
        if count == 0 {
            let why =
                "the device has no good superblock of the last transaction, or they are another's";
            report(&Error::plain("no superblock can be recovered", why));
            return Ok(Some(ExitCode::from(NOT_RECOVERED)));
        }
        let question = format!("Rewrite {count} superblocks from the good ones?");
        let is_wanted = confirm(&question, self.yes)?;
        Ok((!is_wanted).then(|| ExitCode::from(ABORTED)))
    }
}

/// Tells what was recovered.
fn outcome(done: &[Problem]) -> Result<ExitCode> {
    let lines: String = done.iter().map(|problem| format!("{problem}\n")).collect();
    output::print(&lines)?;
    let failed = done.iter().filter(|problem| !problem.is_repaired()).count();
    if failed == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    report(&Error::failed(format_args!("{failed} superblocks are still bad")));
    Ok(ExitCode::from(NOT_RECOVERED))
}
