//! `scrub start` and `scrub resume`.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_btrfs::scrub::DEPTH;
use ashlar_host::btrfs::scrub::{
    self, BackgroundScrub, Occasion, ReportedProblem, ScrubDirectory, ScrubOptions, ScrubReport,
    ScrubStart,
};
use ashlar_host::btrfs::{OpenFileSystem, block_signals};
use ashlar_host::disks::{self, Access};
use ashlar_host::error::Result;
use clap::Args;
use serde_json::json;

use super::progress::Progress;
use super::{ReportArgs, exit_code};
use crate::commands::btrfs::volumes::FileSystemArgs;
use crate::output;

/// Options of both commands.
#[derive(Args, Debug)]
struct CommonOptions {
    #[command(flatten)]
    chosen: FileSystemArgs,

    /// Stay in the foreground, and print the result at the end
    #[arg(short = 'B', long)]
    foreground: bool,

    #[command(flatten)]
    shown: ReportArgs,

    /// Write nothing, only report errors
    #[arg(short, long)]
    readonly: bool,

    /// Read limit of each device in bytes per second, with K, M, G or T; 0 is no limit
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = ashlar_host::size::bytes)]
    limit: u64,

    /// Groups of 512 KiB in flight on each device
    #[arg(long, value_name = "N", default_value_t = DEPTH, value_parser = depth)]
    io_depth: usize,

    /// Directory of the status files [default: /var/lib/ashlar; as an ordinary user,
    /// ~/.local/state/ashlar]
    #[arg(long, value_name = "DIR")]
    status_dir: Option<PathBuf>,
}

fn depth(text: &str) -> std::result::Result<usize, String> {
    let depth = text.parse().ok().filter(|depth| (1..=256).contains(depth));
    depth.ok_or_else(|| format!("`{text}` is not a number from 1 to 256"))
}

/// Verify a file system, and repair it
///
/// Without -B, runs in the background like btrfs scrub start; see scrub status. The file system
/// must not be mounted. An ordinary user with write access to the images can run it.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar btrfs scrub start -B disk1.img disk2.img
  ashlar btrfs scrub start -B --readonly -R -d disk*.img
  ashlar btrfs scrub start --limit 20M /dev/sdb
  ashlar btrfs scrub start -B --degraded disk1.img")]
pub(crate) struct Start {
    #[command(flatten)]
    common: CommonOptions,

    /// Start even if the status file is damaged
    #[arg(short, long)]
    force: bool,
}

/// Resume an interrupted scrub
///
/// Each device continues at its last position. A finished scrub is not restarted: exit code 2.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar btrfs scrub resume -B disk1.img disk2.img")]
pub(crate) struct Resume {
    #[command(flatten)]
    common: CommonOptions,
}

impl Start {
    pub(super) fn run(self) -> Result<ExitCode> {
        self.common.run("started", ScrubStart::New { force: self.force })
    }
}

impl Resume {
    pub(super) fn run(self) -> Result<ExitCode> {
        self.common.run("resumed", ScrubStart::Resumed)
    }
}

impl CommonOptions {
    fn run(self, verb: &str, start: ScrubStart) -> Result<ExitCode> {
        if !self.foreground && !scrub::is_background() {
            return self.in_background(verb);
        }
        block_signals()?;
        let directory = ScrubDirectory::new(self.status_dir.as_deref())?;
        directory.create()?;
        let access = if self.readonly { Access::Read } else { Access::Write };
        disks::reactor()?.block_on(async {
            let opened = self.chosen.open(access).await?;
            let result = self.scrub(&opened, &directory, start).await;
            opened.close().await.and(result)
        })
    }

    async fn scrub(
        &self,
        opened: &OpenFileSystem,
        directory: &ScrubDirectory,
        start: ScrubStart,
    ) -> Result<ExitCode> {
        let options = ScrubOptions {
            start,
            read_only: self.readonly,
            limit: self.limit,
            depth: self.io_depth,
        };
        let run = directory.prepare(&opened.fs, &options)?;
        let is_background = scrub::is_background();
        if is_background {
            run.go_to_background()?;
        }
        let mut progress = Progress::new(is_background, self.shown.json);
        let report = run.run(&mut progress).await?;
        drop(progress);
        if !is_background {
            self.tell(&report)?;
        }
        Ok(exit_code(&report.record))
    }

    /// Starts this command in a background process, and returns once that is running.
    fn in_background(&self, verb: &str) -> Result<ExitCode> {
        let (pid, fsid) = match scrub::start_in_background(std::env::args_os())? {
            BackgroundScrub::Running { pid, fsid } => (pid, fsid),
            BackgroundScrub::Ended(code) => return Ok(code),
        };
        let on = self.chosen.devices.first().map(|path| path.display().to_string());
        let on = on.unwrap_or_default();
        output::tell(&format!("scrub {verb} on {on}, fsid {fsid} (pid={pid})\n"))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Prints the problems.
    fn tell(&self, report: &ScrubReport) -> Result<()> {
        let ScrubReport { record, problems } = report;
        if self.shown.json {
            let total = record.counters();
            return output::print_json(
                &json!({ "record": record, "total": total, "problems": problems }),
            );
        }
        let mut text = String::new();
        for ReportedProblem { problem, owners } in
            problems.iter().filter(|problem| problem.is_notable(self.readonly))
        {
            text += &format!("{problem}\n");
            text.extend(owners.iter().map(|owner| format!("  {}\n", owner.words)));
        }
        text += &record.report(self.shown.form(), Occasion::Done);
        output::tell(&text)?;
        let counters = record.counters();
        if counters.uncorrectable_errors > 0 {
            let count = counters.uncorrectable_errors;
            output::to_stderr(&format!("ERROR: there are {count} uncorrectable errors\n"));
        } else if report.has_uncorrected() {
            output::note("WARNING: errors detected during scrubbing, not all of them corrected\n");
        } else if !problems.is_empty() {
            output::note("WARNING: errors detected during scrubbing, corrected\n");
        }
        if !record.is_finished() {
            output::note(
                "WARNING: not all of the file system was scrubbed; ashlar btrfs scrub resume goes on\n",
            );
        }
        Ok(())
    }
}
