//! `scrub start` and `scrub resume`.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use ashlar_block::CopyNumber;
use ashlar_btrfs::scrub::{DEPTH, Problem};
use ashlar_engine::signal;
use ashlar_host::btrfs::Opened;
use ashlar_host::disks::{self, Access};
use ashlar_host::error::{Error, Result};
use clap::Args;
use rustix::process::Signal;
use serde_json::json;
use uuid::Uuid;

use super::report::{self, Occasion, Shown};
use super::run::{self, Ended, Found, Run, Wanted};
use super::state::{Record, Store};
use super::{exit_code, running};
use crate::commands::btrfs::volumes::Chosen;
use crate::output;

/// The message of a background process once it is running.
const READY: &str = "ready";
/// The environment variable that marks the background process.
const BACKGROUND: &str = "ASHLAR_SCRUB_BACKGROUND";

/// Options of both commands.
#[derive(Args, Debug)]
struct Common {
    #[command(flatten)]
    chosen: Chosen,

    /// Stay in the foreground, and print the result at the end
    #[arg(short = 'B', long)]
    foreground: bool,

    #[command(flatten)]
    shown: Shown,

    /// Write nothing, only report errors
    #[arg(short, long)]
    readonly: bool,

    /// Read limit of each device in bytes per second, with K, M, G or T; 0 is no limit
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = crate::units::bytes)]
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
    common: Common,

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
    common: Common,
}

impl Start {
    pub(super) fn run(self) -> Result<ExitCode> {
        let force = self.force;
        self.common.run("started", |store, fsid| match store.load(fsid) {
            Err(error) if !force => Err(error),
            Ok(_) | Err(_) => Ok(None),
        })
    }
}

impl Resume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let readonly = self.common.readonly;
        self.common.run("resumed", |store, fsid| {
            let nothing = |why| Error::new("nothing to resume", fsid, why).code(2);
            let last = store.load(fsid)?.ok_or_else(|| nothing("it was never scrubbed"))?;
            if last.is_finished() {
                return Err(nothing("the last scrub finished"));
            }
            // Areas that were passed without repair must not count as repaired.
            if last.read_only != readonly {
                let (was, is) = if readonly { ("without", "with") } else { ("with", "without") };
                let why = format!("it was started {was} --readonly, not {is}");
                let error = Error::new("cannot resume the scrub", fsid, why);
                return Err(error.hint("resume it in the same way, or start a new one"));
            }
            Ok(Some(last))
        })
    }
}

impl Common {
    fn run(
        self,
        verb: &str,
        last: impl FnOnce(&Store, Uuid) -> Result<Option<Record>>,
    ) -> Result<ExitCode> {
        let is_background = std::env::var_os(BACKGROUND).is_some();
        if !self.foreground && !is_background {
            return self.in_background(verb);
        }
        let signals = [Signal::INT, Signal::TERM, Signal::HUP];
        signal::block(&signals).map_err(|error| Error::plain("cannot block signals", error))?;
        let store = Store::new(self.status_dir.as_deref())?;
        store.create()?;
        let access = if self.readonly { Access::Read } else { Access::Write };
        disks::reactor()?.block_on(async {
            let opened = self.chosen.open(access).await?;
            let result = self.scrub(&opened, &store, last, is_background).await;
            opened.close().await.and(result)
        })
    }

    async fn scrub(
        &self,
        opened: &Opened,
        store: &Store,
        last: impl FnOnce(&Store, Uuid) -> Result<Option<Record>>,
        is_background: bool,
    ) -> Result<ExitCode> {
        let fs = &opened.fs;
        let fsid = fs.superblock().fsid();
        // Held until the end.
        let Some(_lock) = store.lock(fsid)? else {
            let other = running(store, fsid)?.map(|other| format!("process {}", other.record.pid));
            let why = format!("{} does already", other.as_deref().unwrap_or("another process"));
            let error = Error::new("cannot scrub", fsid, why);
            return Err(error.hint("ashlar btrfs scrub cancel ends it"));
        };
        let last = last(store, fsid)?;
        let work = Run::new(fs, self.readonly, last);
        let wanted = Wanted {
            read_only: self.readonly,
            limit: self.limit,
            depth: self.io_depth,
            quiet: is_background,
            json: self.shown.json,
        };
        let begun = run::begin(fs, store, work, &wanted)?;
        if is_background {
            rustix::process::setsid().map_err(|error| Error::plain("cannot go on alone", error))?;
            output::print(&format!("{READY} {fsid}\n"))?;
            leave_terminal().map_err(|error| Error::plain("cannot go on alone", error))?;
        }
        let ended = begun.run(&wanted).await?;
        if !is_background {
            self.tell(&ended)?;
        }
        Ok(exit_code(&ended.record))
    }

    /// Starts this command in a background process, and returns once that is running.
    fn in_background(&self, verb: &str) -> Result<ExitCode> {
        let failed = |error: std::io::Error| Error::plain("cannot start in the background", error);
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .args(std::env::args_os().skip(1))
            .env(BACKGROUND, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        // Its messages are passed on, so that it does not block.
        let said = child.stderr.take().map(|mut from| {
            std::thread::spawn(move || std::io::copy(&mut from, &mut std::io::stderr()))
        });
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(failed)?;
        }
        // It closes this pipe when it is running, and when it ends.
        if let Some(Ok(Err(error))) = said.map(std::thread::JoinHandle::join) {
            return Err(failed(error));
        }
        if let Some(fsid) = line.trim().strip_prefix(READY) {
            let first = self.chosen.devices.first().map(|path| path.display().to_string());
            let (on, pid) = (first.unwrap_or_default(), child.id());
            output::tell(&format!("scrub {verb} on {on}, fsid {} (pid={pid})\n", fsid.trim()))?;
            return Ok(ExitCode::SUCCESS);
        }
        let status = child.wait().map_err(failed)?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(ExitCode::from(code.unwrap_or(ashlar_host::error::FAILURE)))
    }

    /// Prints the problems.
    fn tell(&self, ended: &Ended) -> Result<()> {
        let Ended { record, found } = ended;
        if self.shown.json {
            let all: Vec<_> = found.iter().map(problem_json).collect();
            let total = record.counters();
            return output::print_json(
                &json!({ "record": record, "total": total, "problems": all }),
            );
        }
        let mut text = String::new();
        for Found { problem, owners } in
            found.iter().filter(|it| is_told(&it.problem, self.readonly))
        {
            text += &format!("{problem}\n");
            text.extend(owners.iter().map(|owner| format!("  {}\n", owner.words)));
        }
        text += &report::text(record, self.shown, Occasion::Done);
        output::tell(&text)?;
        let counters = record.counters();
        if counters.uncorrectable_errors > 0 {
            let count = counters.uncorrectable_errors;
            output::to_stderr(&format!("ERROR: there are {count} uncorrectable errors\n"));
        } else if found.iter().any(|it| !it.problem.is_repaired()) {
            output::note("WARNING: errors detected during scrubbing, not all of them corrected\n");
        } else if !found.is_empty() {
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

/// Detaches from the terminal, and from the process that reads this command's output.
fn leave_terminal() -> std::io::Result<()> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Whether a line is printed about it: repaired blocks are only counted, but of a copy below the file
/// system its user learns which disk returns wrong bytes.
fn is_told(problem: &Problem, read_only: bool) -> bool {
    !problem.is_repaired() || read_only || problem.copy != CopyNumber::ANY
}

fn problem_json(found: &Found) -> serde_json::Value {
    let Found { problem, owners } = found;
    json!({
        "devid": problem.devid.0,
        "physical": problem.physical.0,
        "bytes": problem.len,
        "logical": problem.logical.map(|at| at.0),
        "mirror": problem.mirror.map(|mirror| mirror.0),
        "copy": (problem.copy != CopyNumber::ANY).then_some(problem.copy.0),
        "is_metadata": problem.is_metadata(),
        "tree": problem.tree.map(|tree| json!({
            "generation": tree.generation, "level": tree.level, "owner": tree.owner,
        })),
        "what": problem.kind.to_string(),
        "repaired": problem.is_repaired(),
        "repair": format!("{:?}", problem.repair),
        "names": owners.iter().filter_map(|owner| owner.path.as_deref()).collect::<Vec<_>>(),
        "owners": owners.iter().map(|owner| owner.words.as_str()).collect::<Vec<_>>(),
    })
}
