//! `ashlar md examine`: the superblocks on devices.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::md::{ExamineForm, examine};
use ashlar_daemon::error::{Error, FAILURE, Result};
use ashlar_disks::sandbox::Sandbox;
use ashlar_disks::{self as disks, Access, Opener};
use clap::Args;

use crate::output;

/// Print the superblocks on devices, as mdadm --examine does
///
/// With --bitmap or --badblocks, their write-intent bitmaps or bad block logs instead, as mdadm
/// --examine-bitmap and --examine-badblocks do. Of a disk with partitions those are printed that have
/// superblocks. With --brief a line for each array, for mdadm.conf.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 all have one, 1 some have none or a damaged one.

Examples:
  ashlar md examine disk*.img
  ashlar md examine --json /dev/sda1
  ashlar md examine --scan
  ashlar md examine --export /dev/sda1
  ashlar md examine --bitmap disk0.img
  ashlar md examine --badblocks disk*.img")]
pub(crate) struct Examine {
    /// Image files or block devices
    #[arg(required_unless_present = "scan", value_name = "DEVICE")]
    devices: Vec<PathBuf>,

    /// Print a line for each array; with -v with its level and devices
    #[arg(short, long, conflicts_with_all = ["json", "bitmap", "badblocks"])]
    brief: bool,

    /// Look at all block devices if none are given, pass over those without array, and print as with
    /// --brief, or with -vv everything
    #[arg(short, long, conflicts_with_all = ["json", "bitmap", "badblocks"])]
    scan: bool,

    /// Print variables for scripts
    #[arg(short = 'Y', long, conflicts_with_all = ["json", "bitmap", "badblocks"])]
    export: bool,

    /// Print more with --brief and --scan
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Print the write-intent bitmaps
    #[arg(short = 'X', long, conflicts_with_all = ["json", "badblocks"])]
    bitmap: bool,

    /// Print the known bad blocks
    #[arg(long, conflicts_with = "json")]
    badblocks: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Examine {
    fn form(&self) -> ExamineForm {
        // As in mdadm, --scan implies --brief unless more detail is requested.
        if self.bitmap {
            ExamineForm::Bitmaps
        } else if self.badblocks {
            ExamineForm::BadBlocks
        } else if self.brief || self.scan && self.verbose < 2 {
            ExamineForm::Brief { verbose: self.verbose > 0 }
        } else if self.export {
            ExamineForm::Export
        } else {
            ExamineForm::Text
        }
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        let sandbox = Sandbox::of(&self.devices);
        let opener = Opener::new(Access::Look);
        let disks = match self.scan {
            true => opener.openable(&self.devices),
            false => opener.all(&self.devices)?,
        };
        let mut code = ExitCode::SUCCESS;
        let mut fail = |error: Error| {
            output::report(&error);
            code = ExitCode::from(FAILURE);
        };
        let fail = (!self.scan).then_some::<&mut dyn FnMut(Error)>(&mut fail);
        let reactor = disks::reactor()?;
        sandbox.enter()?;
        let found = reactor.block_on(examine(disks, self.form(), fail))?;
        if self.json {
            output::print_json(&found.superblocks)?;
        } else {
            output::print(&found.text)?;
        }
        Ok(code)
    }
}
