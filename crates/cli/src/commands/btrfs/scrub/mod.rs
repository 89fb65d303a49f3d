//! `ashlar btrfs scrub`: verifies and repairs a file system that is not mounted.

mod progress;
mod start;

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::btrfs::scrub::{
    Occasion, ReportForm, ScrubDirectory, ScrubHandle, ScrubStatus, ServedScrub,
};
use ashlar_commands::btrfs::{fsid_of, is_uuid};
use ashlar_daemon::error::Result;
use ashlar_disks as disks;
use ashlar_disks::sandbox::Sandbox;
use ashlar_engine::wall_clock;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::commands::Daemon;
use crate::commands::verbs::verbs;
use crate::output;

verbs! {
    /// Verify an unmounted file system, and repair it from good copies
    ///
    /// The verbs and options are those of btrfs scrub. Reads every block and compares it with its checksum; rewrites a bad
    /// block from a good copy. Blocks without a good copy are reported, with the files that contain them.
    ///
    /// A file system on volumes of a running daemon is scrubbed by the daemon: say their names (md/data, vg/lv). No client
    /// may have them open, and none can open them until the scrub ends. It is a job: see ashlar jobs.
    #[derive(Subcommand, Debug)]
    #[command(after_help = "\
Exit codes are those of btrfs scrub: 0 done, 1 failed, 2 nothing to resume (or wrong usage), 3 some
errors could not be corrected, or with --readonly were not, or a device is too small for its file system.

Examples:
  ashlar btrfs scrub start -B disk1.img disk2.img
  ashlar btrfs scrub start -B --readonly -d disk*.img
  ashlar btrfs scrub start --limit 20M /dev/sdb
  ashlar btrfs scrub start md/data
  ashlar btrfs scrub status /dev/sdb
  ashlar btrfs scrub limit --limit 100M /dev/sdb
  ashlar btrfs scrub cancel /dev/sdb
  ashlar btrfs scrub resume /dev/sdb")]
    pub(crate) enum ScrubCommand {
        Start(start::Start),
        Resume(start::Resume),
        Status(Status),
        Cancel(Cancel),
        Limit(Limit),
    }
}

/// How much is said.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug)]
struct ReportArgs {
    /// Print the numbers of each device, not their sums
    #[arg(short = 'd', long)]
    per_device: bool,

    /// Print all counters, by the kernel's names
    #[arg(short = 'R', long)]
    raw: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ReportArgs {
    const fn form(self) -> ReportForm {
        ReportForm { per_device: self.per_device, raw: self.raw }
    }
}

/// A file system, by its devices or its UUID.
#[derive(Args, Debug)]
struct ScrubArgs {
    /// The devices of the file system, or its UUID
    #[arg(required = true, value_name = "DEVICE|UUID")]
    devices: Vec<PathBuf>,

    #[command(flatten)]
    daemon: Daemon,

    /// Directory of the status files [default: /var/lib/ashlar; as an ordinary user, ~/.local/state/ashlar]
    #[arg(long, value_name = "DIR")]
    status_dir: Option<PathBuf>,
}

impl ScrubArgs {
    /// Its scrub.
    fn scrub(&self) -> Result<ScrubHandle> {
        let directory = ScrubDirectory::new(self.status_dir.as_deref())?;
        let is_uuid = matches!(&self.devices[..], [one] if is_uuid(one));
        if let Some((client, names)) =
            self.daemon.serving(&self.devices)?.filter(|_| !is_uuid && self.status_dir.is_none())
        {
            return Ok(ServedScrub::find(client, names)?.handle().clone());
        }
        // It uses the files and the socket of the scrub.
        let fsid = disks::reactor()?.block_on(fsid_of(&self.devices, Sandbox::none()))?;
        Ok(directory.scrub_of(fsid))
    }
}

/// Show the progress of a scrub, or the result of the last one
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar btrfs scrub status disk1.img
  ashlar btrfs scrub status -d -R disk1.img
  ashlar btrfs scrub status --json 302febbc-0ed9-47f8-8e5e-532b647805cd")]
pub(crate) struct Status {
    #[command(flatten)]
    which: ScrubArgs,
    #[command(flatten)]
    shown: ReportArgs,
}

impl Status {
    fn run(self) -> Result<ExitCode> {
        let scrub = self.which.scrub()?;
        let fsid = scrub.fsid();
        let (record, occasion) = match scrub.status()? {
            Some(ScrubStatus { record, limit }) => (record, asked(true, Some(limit))),
            None => match scrub.last()? {
                Some(record) => (record, asked(false, None)),
                None if self.shown.json => {
                    return output::print_json(&json!({ "fsid": fsid, "started": null }))
                        .map(|()| ExitCode::SUCCESS);
                }
                None => {
                    output::print(&format!("UUID:             {fsid}\n\tno stats available\n"))?;
                    return Ok(ExitCode::SUCCESS);
                }
            },
        };
        if self.shown.json {
            let running = matches!(occasion, Occasion::Asked { is_running: true, .. });
            output::print_json(&json!({
                "running": running,
                "seconds_left": record.seconds_left().filter(|_| running),
                "total": record.counters(),
                "record": record,
            }))?;
        } else {
            output::print(&record.report(self.shown.form(), occasion))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn asked(is_running: bool, limit: Option<u64>) -> Occasion {
    let limit = limit.filter(|limit| *limit > 0);
    Occasion::Asked { is_running, now: wall_clock().as_secs(), limit }
}

/// End a running scrub; it can be resumed
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar btrfs scrub cancel disk1.img")]
pub(crate) struct Cancel {
    #[command(flatten)]
    which: ScrubArgs,
}

impl Cancel {
    fn run(self) -> Result<ExitCode> {
        self.which.scrub()?.cancel()?;
        output::tell("scrub cancelled\n")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Change the read rate limit of a running scrub
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar btrfs scrub limit --limit 100M disk1.img
  ashlar btrfs scrub limit --limit 0 disk1.img")]
pub(crate) struct Limit {
    #[command(flatten)]
    which: ScrubArgs,

    /// Bytes per second, with K, M, G or T; 0 means no limit
    #[arg(short, long, value_name = "SIZE", value_parser = ashlar_disks::size::bytes)]
    limit: u64,
}

impl Limit {
    fn run(self) -> Result<ExitCode> {
        self.which.scrub()?.limit(self.limit)?;
        Ok(ExitCode::SUCCESS)
    }
}
