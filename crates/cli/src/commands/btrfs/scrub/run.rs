//! A scrub from start to end: the work, and the reports meanwhile.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use ashlar_btrfs::scrub::{Options, Problem, ProblemKind, Repair, Scrub, Sink, State};
use ashlar_btrfs::units::{DevId, Physical};
use ashlar_btrfs::volume::FileSystem;
use ashlar_engine::socket_file::SocketFile;
use ashlar_engine::{sleep, wall_clock};
use ashlar_host::error::{Error, Result};
use futures_util::future::{Either, select};
use rustix::process::Signal;

use super::control::{self, Controls};
use super::names::{self, Owner};
use super::report::{clock, human, percent, rate};
use super::state::{Before, CountersRecord, DeviceRecord, DeviceState, Record, Store};
use crate::{output, progress};

/// How often the status file is written (btrfs-progs' interval).
const SAVE: Duration = Duration::from_secs(5);
/// How often the progress bar is updated.
const TICK: Duration = Duration::from_millis(200);
/// How often a line is printed without a progress bar.
const LINE: Duration = Duration::from_secs(60);

/// The user's options.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) read_only: bool,
    pub(super) limit: u64,
    pub(super) depth: usize,
    /// Print nothing while it runs.
    pub(super) quiet: bool,
    pub(super) json: bool,
}

/// The state of a run that is known from its start.
pub(super) struct Run {
    start: Record,
    since: Instant,
    /// The devices that are scrubbed, and where each continues.
    open: BTreeMap<DevId, Physical>,
}

impl Run {
    /// A run that continues `last`, or a new one.
    ///
    /// A device continues where it was if it is still the same disk; a new device starts from the beginning, and the
    /// record of a missing device is kept.
    pub(super) fn new(fs: &FileSystem, read_only: bool, last: Option<Record>) -> Self {
        let now = wall_clock().as_secs();
        let pid = std::process::id();
        let mut start = match last {
            Some(last) => {
                let before = Before { duration: last.duration, passed_bytes: last.passed_bytes() };
                Record { resumed: Some(now), pid, before, error: None, ..last }
            }
            None => Record {
                fsid: fs.superblock().fsid(),
                started: now,
                resumed: None,
                duration: 0.0,
                read_only,
                pid,
                before: Before::default(),
                devices: Vec::new(),
                error: None,
                lost: Vec::new(),
            },
        };
        let mut open = BTreeMap::new();
        for device in fs.devices() {
            let known = start.devices.iter_mut().find(|known| known.uuid == device.uuid);
            match known {
                Some(known) if known.state == DeviceState::Finished => {}
                Some(known) => {
                    known.state = DeviceState::Running;
                    open.insert(device.devid, Physical(known.counters.last_physical));
                }
                None => {
                    start.devices.retain(|other| other.devid != device.devid.0);
                    start.devices.push(DeviceRecord {
                        devid: device.devid.0,
                        uuid: device.uuid,
                        name: device.name.clone(),
                        counters: CountersRecord::default(),
                        total_bytes: 0,
                        passed_bytes: 0,
                        state: DeviceState::Running,
                    });
                    open.insert(device.devid, Physical(0));
                }
            }
        }
        start.devices.sort_by_key(|device| device.devid);
        Self { start, since: Instant::now(), open }
    }

    /// The scrub's current record.
    pub(super) fn record(&self, scrub: &Scrub) -> Record {
        let mut record = self.start.clone();
        record.duration = self.start.before.duration + self.since.elapsed().as_secs_f64();
        for progress in scrub.progress() {
            let mut devices = record.devices.iter_mut();
            let Some(device) = devices.find(|device| device.devid == progress.devid.0) else {
                continue;
            };
            device.state = match progress.state {
                // It has no progress yet.
                State::Waiting => continue,
                State::Running => DeviceState::Running,
                State::Finished => DeviceState::Finished,
                State::Cancelled => DeviceState::Cancelled,
                State::Failed => DeviceState::Aborted,
            };
            let before = (&device.counters).into();
            device.counters = (&progress.counters.plus(&before)).into();
            device.total_bytes = progress.bytes_total;
            device.passed_bytes = progress.bytes_scanned;
        }
        record
    }
}

/// Collects the problems found, to be reported at the end with the names of the files.
struct Findings {
    problems: std::sync::Mutex<Vec<Problem>>,
}

/// The most problems that are kept for the report; further ones are only counted.
const TOLD: usize = 10_000;
/// The most lines about losses in the status file.
const LOST_LINES: usize = 10_000;

impl Sink for Findings {
    fn problem(&self, problem: &Problem) {
        tracing::debug!(%problem, "scrub");
        let mut all = self.problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if all.len() < TOLD {
            all.push(problem.clone());
        }
    }
}

/// The result of a scrub.
pub(super) struct Ended {
    pub(super) record: Record,
    pub(super) found: Vec<Found>,
}

/// A problem, and the owners of the lost data.
pub(super) struct Found {
    pub(super) problem: Problem,
    pub(super) owners: Vec<Owner>,
}

/// A scrub that is about to begin: its record is saved, and its socket answers.
pub(super) struct Begun<'a> {
    fs: &'a Arc<FileSystem>,
    store: &'a Store,
    run: Arc<Run>,
    scrub: Arc<Scrub>,
    socket: Option<SocketFile>,
}

/// Prepares a scrub.
///
/// # Errors
/// The status file cannot be written.
pub(super) fn begin<'a>(
    fs: &'a Arc<FileSystem>,
    store: &'a Store,
    run: Run,
    wanted: &Wanted,
) -> Result<Begun<'a>> {
    let limit = Arc::new(AtomicU64::new(wanted.limit));
    let limits = fs.devices().iter().map(|device| (device.devid, Arc::clone(&limit)));
    let options = Options {
        read_only: wanted.read_only,
        limits: limits.collect(),
        depth: wanted.depth,
        resume_at: run.open.clone(),
        devices: run.open.keys().copied().collect(),
        ..Options::default()
    };
    let scrub = Scrub::new(Arc::clone(fs), options);
    let run = Arc::new(run);
    store.save(&run.record(&scrub))?;
    let controls = Controls { scrub: Arc::downgrade(&scrub), limit, run: Arc::clone(&run) };
    let socket = match control::listen(&store.socket(fs.superblock().fsid()), controls) {
        Ok(socket) => Some(socket),
        // For example because the directory's name is too long for a socket.
        Err(error) => {
            let (error, _) = error.into_parts();
            tracing::warn!(error, "status, cancel and limit will not reach this scrub");
            None
        }
    };
    Ok(Begun { fs, store, run, scrub, socket })
}

impl Begun<'_> {
    /// Scrubs, and keeps the status file and the terminal up to date.
    ///
    /// # Errors
    /// Nothing can be scrubbed, or the status file cannot be written.
    pub(super) async fn run(self, wanted: &Wanted) -> Result<Ended> {
        let findings = Findings { problems: std::sync::Mutex::default() };
        let result = {
            let work = std::pin::pin!(self.scrub.run(&findings));
            let told = std::pin::pin!(tell(&self.run, &self.scrub, self.store, wanted));
            match select(work, told).await {
                Either::Left((result, _)) => result.map(|_| ()),
                // The status file or the output failed: still end the work cleanly.
                Either::Right((Err(error), work)) => {
                    self.scrub.cancel();
                    work.await.map_err(|error| Error::plain("cannot scrub", error))?;
                    return Err(error);
                }
                Either::Right((Ok(never), _)) => match never {},
            }
        };
        let problems = findings.problems.into_inner();
        let problems = problems.unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut record = self.run.record(&self.scrub);
        record.error = result.as_ref().err().map(ToString::to_string);
        let mut found = Vec::with_capacity(problems.len());
        for problem in problems {
            let mut owners = Vec::new();
            if is_lost(&problem) {
                owners = names::of(self.fs, &problem).await;
                if record.lost.len() < LOST_LINES {
                    record.lost.push(problem.to_string());
                    record.lost.extend(owners.iter().map(|owner| format!("  {}", owner.words)));
                }
            }
            found.push(Found { problem, owners });
        }
        self.store.save(&record)?;
        drop(self.socket);
        result.map_err(|error| Error::plain("cannot scrub", error))?;
        Ok(Ended { record, found })
    }
}

/// Keeps the status file and the terminal up to date forever, and cancels the scrub on a signal.
async fn tell(
    run: &Run,
    scrub: &Scrub,
    store: &Store,
    wanted: &Wanted,
) -> Result<std::convert::Infallible> {
    let bar = progress::bar().filter(|_| !wanted.quiet && !wanted.json);
    let lines =
        bar.is_none() && !wanted.quiet && !output::is_quiet() && std::io::stdout().is_terminal();
    let mut ends =
        std::pin::pin!(ashlar_engine::signal::wait(&[Signal::INT, Signal::TERM, Signal::HUP]));
    let mut ended = false;
    let (mut saved, mut printed) = (Instant::now(), Instant::now());
    loop {
        if ended {
            sleep(TICK).await;
        } else if let Either::Left(_) = select(ends.as_mut(), std::pin::pin!(sleep(TICK))).await {
            ended = true;
            scrub.cancel();
        }
        let record = run.record(scrub);
        if saved.elapsed() >= SAVE {
            saved = Instant::now();
            store.save(&record)?;
        }
        if let Some(bar) = &bar {
            bar.set_position((percent(record.passed_bytes(), record.total_bytes()) * 10.0) as u64);
            bar.set_message(words(&record));
            bar.tick();
        } else if lines && printed.elapsed() >= LINE {
            printed = Instant::now();
            output::print(&format!("{}\n", words(&record)))?;
        }
    }
}

/// `27.00% of 1.00GiB, 95.30MiB/s, 0:00:07 left, 3 errors`.
fn words(record: &Record) -> String {
    let counters = record.counters();
    let share = percent(record.passed_bytes(), record.total_bytes());
    let total = human(record.total_bytes() as f64);
    let rate = human(rate(counters.bytes(), record.duration));
    let left = record.seconds_left().map(|left| format!(", {} left", clock(left)));
    let errors = counters.read_errors + counters.csum_errors + counters.verify_errors;
    let errors = match errors + counters.super_errors {
        0 => String::new(),
        1 => ", 1 error".to_owned(),
        errors => format!(", {errors} errors"),
    };
    format!("{share:.2}% of {total}, {rate}/s{}{errors}", left.unwrap_or_default())
}

/// Whether to name the files: no good copy was found, or the repair could not be written.
fn is_lost(problem: &Problem) -> bool {
    match problem.repair {
        Repair::Done | Repair::NotTried => false,
        Repair::Impossible | Repair::Failed(_) => match problem.kind {
            ProblemKind::Read(_)
            | ProblemKind::Place(_)
            | ProblemKind::Checksum
            | ProblemKind::Verify(_)
            | ProblemKind::Crossing => true,
            ProblemKind::Super(_)
            | ProblemKind::Parity
            | ProblemKind::ParityUnverified
            | ProblemKind::Tree(_) => false,
        },
    }
}
