//! `scrub start` and `scrub resume`.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_btrfs::readahead::Reada;
use ashlar_btrfs::scrub::DEPTH;
use ashlar_client::client::Client;
use ashlar_client::interface::Scrub;
use ashlar_commands::btrfs::scrub::{
    self, BackgroundProcess, BackgroundScrub, ScrubDirectory, ScrubOptions, ScrubReport,
    ScrubStart, ServedScrub,
};
use ashlar_commands::btrfs::{OpenFileSystem, block_signals};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::{self as disks, Access};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::ReportArgs;
use super::progress::ScrubDisplay;
use crate::commands::Daemon;
use crate::commands::btrfs::volumes::{FileSystemArgs, OpenArgs};
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

    /// Read limit of each device in bytes per second
    ///
    /// With K, M, G or T; 0 means no limit
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = ashlar_disks::size::bytes)]
    limit: u64,

    /// Groups of 512 KiB in flight on each device
    #[arg(long, value_name = "N", default_value_t = DEPTH, value_parser = scrub::depth, hide_short_help = true)]
    io_depth: usize,

    /// Readahead of the extent and checksum trees: a mode of the kernel's paths (forward is that of
    /// its scrub from 5.17 to 6.3), or scan, which reads the leaves of both in one pass of the head
    #[arg(long, value_name = "MODE", default_value = Reada::Scan.name(), value_parser = mode(), hide_short_help = true)]
    readahead: Reada,

    /// Directory of the status files [default: /var/lib/ashlar; as an ordinary user,
    /// ~/.local/state/ashlar]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    status_dir: Option<PathBuf>,

    #[command(flatten)]
    daemon: Daemon,
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

fn mode() -> impl TypedValueParser<Value = Reada> {
    let names = PossibleValuesParser::new(Reada::ALL.map(Reada::name));
    names.try_map(|name| Reada::named(&name).ok_or("there is no such mode"))
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
        if let Some((client, devices)) = self.daemon.serving(&self.chosen.devices)? {
            return self.by_daemon(client, devices, verb, start);
        }
        if !self.foreground && !scrub::is_background() {
            return self.in_background(verb);
        }
        block_signals()?;
        let directory = ScrubDirectory::new(self.status_dir.as_deref())?;
        directory.create()?;
        let access = if self.readonly { Access::Read } else { Access::Write };
        let background = scrub::leave_terminal()?;
        let sandbox = directory.sandbox(&self.chosen.devices);
        disks::reactor()?.block_on(async {
            let opened = self.chosen.open(access, sandbox).await?;
            let result = self.scrub(&opened, &directory, start, background.as_ref()).await;
            opened.close().await.and(result)
        })
    }

    /// Has the daemon do it.
    fn by_daemon(
        &self,
        client: Client,
        devices: Vec<String>,
        verb: &str,
        start: ScrubStart,
    ) -> Result<ExitCode> {
        let OpenArgs { degraded, stale, fsid, on } = &self.chosen.how;
        if fsid.is_some() || !on.is_empty() || self.status_dir.is_some() {
            let why = "the daemon serves these volumes, and has its own status files";
            return Err(Error::new("cannot scrub", devices.join(" "), why)
                .hint("leave out --fsid, --on and --status-dir"));
        }
        if self.foreground {
            block_signals()?;
        }
        let on = devices[0].clone();
        let mut scrub = ServedScrub::start(
            client,
            &Scrub {
                devices,
                resume: start == ScrubStart::Resumed,
                read_only: self.readonly,
                limit: self.limit,
                depth: Some(self.io_depth),
                readahead: Some(self.readahead).filter(|mode| *mode != Reada::Scan),
                degraded: *degraded,
                stale: *stale,
                force: start == ScrubStart::New { force: true },
            },
        )?;
        if !self.foreground {
            return begun(verb, &on, &scrub.handle().fsid().to_string(), scrub.pid()?);
        }
        let record = scrub.wait(&mut ScrubDisplay::new(false, self.shown.json))?;
        let report = ScrubReport { record, problems: Vec::new() };
        self.tell(&report)?;
        Ok(report.record.exit_code().into())
    }

    async fn scrub(
        &self,
        opened: &OpenFileSystem,
        directory: &ScrubDirectory,
        start: ScrubStart,
        background: Option<&BackgroundProcess>,
    ) -> Result<ExitCode> {
        let options = ScrubOptions {
            start,
            read_only: self.readonly,
            limit: self.limit,
            depth: self.io_depth,
            readahead: self.readahead,
        };
        let run = directory.prepare(&opened.fs, &options)?;
        let is_background = background.is_some();
        if let Some(process) = background {
            run.go_to_background(process)?;
        }
        let mut progress = ScrubDisplay::new(is_background, self.shown.json);
        let report = run.run(&mut progress).await?;
        drop(progress);
        if !is_background {
            self.tell(&report)?;
        }
        Ok(report.record.exit_code().into())
    }

    /// Starts this command in a background process, and returns once that is running.
    fn in_background(&self, verb: &str) -> Result<ExitCode> {
        let (pid, fsid) = match scrub::start_in_background(std::env::args_os())? {
            BackgroundScrub::Running { pid, fsid } => (pid, fsid),
            BackgroundScrub::Ended(code) => return Ok(code),
        };
        let on = self.chosen.devices.first().map(|path| path.display().to_string());
        begun(verb, &on.unwrap_or_default(), &fsid, pid)
    }

    /// Prints the problems.
    fn tell(&self, report: &ScrubReport) -> Result<()> {
        if self.shown.json {
            return output::print_json(report);
        }
        output::tell(&report.text(self.shown.form()))?;
        if let Some(verdict) = report.verdict() {
            output::to_stderr(&verdict);
        }
        if let Some(warning) = report.warning() {
            output::note(&warning);
        }
        Ok(())
    }
}

/// Tells that a process scrubs now.
fn begun(verb: &str, on: &str, fsid: &str, pid: u32) -> Result<ExitCode> {
    output::tell(&format!("scrub {verb} on {on}, fsid {fsid} (pid={pid})\n"))?;
    Ok(ExitCode::SUCCESS)
}
