//! A scrub from start to end.

use std::fs::File;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ashlar_block::CopyNumber;
use ashlar_btrfs::readahead::{Reada, TreeReads};
use ashlar_btrfs::scrub::{Options, Problem, ProblemKind, Repair, Scrub, Sink};
use ashlar_btrfs::volume::FileSystem;
use ashlar_engine::signal;
use ashlar_engine::sleep;
use futures_util::future::{Either, select};
use serde::{Serialize, Serializer};
use serde_json::json;
use uuid::Uuid;

use super::control::{self, ControlSocket, Controls};
use super::handle::{ScrubHandle, ScrubOptions, ScrubStart};
use super::origin::Origin;
use super::owners::{self, BlockOwner};
use super::records::ScrubRecord;
use super::report::{Occasion, ReportForm};
use crate::btrfs::SIGNALS;
use crate::error::{Error, Result};

/// How often the status file is written (btrfs-progs' interval).
const SAVE: Duration = Duration::from_secs(5);
/// How often the scrub reports to the observer.
const TICK: Duration = Duration::from_millis(200);

/// Collects the problems found, to be reported at the end with the names of the files.
struct Findings {
    problems: Mutex<Vec<Problem>>,
}

/// The most problems that are kept for the report; further ones are only counted.
const TOLD: usize = 10_000;
/// The most lines about losses in the status file.
const LOST_LINES: usize = 10_000;

impl Sink for Findings {
    fn problem(&self, problem: &Problem) {
        tracing::debug!(%problem, "scrub");
        let mut all = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < TOLD {
            all.push(problem.clone());
        }
    }
}

/// What a scrub found.
pub struct ScrubReport {
    /// Its record.
    pub record: ScrubRecord,
    /// The problems, at most 10,000 of them.
    pub problems: Vec<ReportedProblem>,
}

/// A problem, and the owners of the lost data.
pub struct ReportedProblem {
    /// The problem.
    pub problem: Problem,
    /// The owners, if something is lost.
    pub owners: Vec<BlockOwner>,
}

impl ReportedProblem {
    /// Whether to report more about it than its count. Repaired blocks are only counted; but if a copy below the file system
    /// was wrong, the report names the disk that returned wrong bytes.
    fn is_notable(&self, read_only: bool) -> bool {
        !self.problem.is_repaired() || read_only || self.problem.copy != CopyNumber::ANY
    }
}

impl Serialize for ReportedProblem {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Self { problem, owners } = self;
        let value = json!({
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
        });
        value.serialize(serializer)
    }
}

impl Serialize for ScrubReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Self { record, problems } = self;
        let value = json!({ "record": record, "total": record.counters(), "problems": problems });
        value.serialize(serializer)
    }
}

impl ScrubReport {
    /// The notable problems with their owners, and the report about the record.
    pub fn text(&self, form: ReportForm) -> String {
        let Self { record, problems } = self;
        let mut text = String::new();
        for it in problems.iter().filter(|problem| problem.is_notable(record.read_only)) {
            text += &format!("{}\n", it.problem);
            text.extend(it.owners.iter().map(|owner| format!("  {}\n", owner.words)));
        }
        // A daemon has kept only these of its problems.
        if problems.is_empty() {
            text.extend(record.lost.iter().map(|line| format!("{line}\n")));
        }
        text + &record.report(form, Occasion::Done)
    }

    /// What went wrong, as `btrfs scrub` says it, whether or not the user wants to see warnings.
    pub fn verdict(&self) -> Option<String> {
        let count = self.record.counters().uncorrectable_errors;
        let errors =
            (count > 0).then(|| format!("ERROR: there are {count} uncorrectable errors\n"));
        let short = self.record.short.iter();
        let short = short.map(|device| format!("ERROR: the device is too small: {device}\n"));
        Some(errors.into_iter().chain(short).collect()).filter(|text: &String| !text.is_empty())
    }

    /// Warnings of other kinds.
    pub fn warning(&self) -> Option<String> {
        let counters = self.record.counters();
        let errors = if counters.uncorrectable_errors > 0 || !counters.has_errors() {
            ""
        } else if self.has_uncorrected() {
            "WARNING: errors detected during scrubbing, not all of them corrected\n"
        } else {
            "WARNING: errors detected during scrubbing, corrected\n"
        };
        let end = if self.record.is_finished() {
            ""
        } else {
            "WARNING: the scrub is incomplete; ashlar btrfs scrub resume continues it\n"
        };
        Some([errors, end].concat()).filter(|text| !text.is_empty())
    }

    /// Whether there are errors that were not corrected.
    fn has_uncorrected(&self) -> bool {
        let is_left = self.record.read_only && self.record.counters().has_errors();
        is_left || self.problems.iter().any(|it| !it.problem.is_repaired())
    }
}

/// Follows a scrub.
pub trait ScrubObserver {
    /// The scrub's progress, several times a second.
    ///
    /// # Errors
    /// Those of the observer, which end the scrub.
    fn progress(&mut self, record: &ScrubRecord) -> Result<()>;
}

/// A scrub that is about to begin: this process has the lock of the file system, the record is saved, and the socket answers.
pub struct ScrubRun {
    fs: Arc<FileSystem>,
    handle: ScrubHandle,
    origin: Arc<Origin>,
    scrub: Arc<Scrub>,
    controls: Controls,
    socket: Option<ControlSocket>,
    readahead: Reada,
    _lock: File,
}

impl ScrubRun {
    /// Prepares a scrub.
    ///
    /// # Errors
    /// It is scrubbed already, there is nothing to resume, or the status file cannot be read or written.
    pub(super) fn new(
        fs: &Arc<FileSystem>,
        handle: ScrubHandle,
        options: &ScrubOptions,
    ) -> Result<Self> {
        let lock = handle.lock()?;
        let last = match options.start {
            ScrubStart::New { force } => match handle.last() {
                Err(error) if !force => return Err(error),
                Ok(_) | Err(_) => None,
            },
            ScrubStart::Resumed => Some(handle.resumable(options.read_only)?),
        };
        let origin = Arc::new(Origin::new(fs, options.read_only, last));
        let limit = Arc::new(AtomicU64::new(options.limit));
        let limits = fs.devices().iter().map(|device| (device.devid, Arc::clone(&limit)));
        let scrub_options = Options {
            read_only: options.read_only,
            limits: limits.collect(),
            depth: options.depth,
            extent_reada: options.readahead,
            csum_reada: options.readahead,
            resume_at: origin.open.clone(),
            devices: origin.open.keys().copied().collect(),
        };
        let scrub = Scrub::new(Arc::clone(fs), scrub_options);
        handle.store.save(&origin.record(&scrub))?;
        let controls =
            Controls { scrub: Arc::downgrade(&scrub), limit, origin: Arc::clone(&origin) };
        let socket = match control::listen(&handle.socket(), controls.clone()) {
            Ok(socket) => Some(socket),
            // For example because the directory's name is too long for a socket.
            Err(error) => {
                let (error, _) = error.into_parts();
                tracing::warn!(error, "status, cancel and limit will not reach this scrub");
                None
            }
        };
        let (fs, readahead) = (Arc::clone(fs), options.readahead);
        Ok(Self { fs, handle, origin, scrub, controls, socket, readahead, _lock: lock })
    }

    /// The UUID of the file system.
    pub fn fsid(&self) -> Uuid {
        self.handle.fsid()
    }

    /// What other threads use while it runs.
    pub fn controls(&self) -> Controls {
        self.controls.clone()
    }

    /// As [`Self::run_until`]; SIGINT, SIGTERM and SIGHUP, which [`block_signals`](crate::btrfs::block_signals) has blocked,
    /// end the scrub early.
    ///
    /// # Errors
    /// Those of [`Self::run_until`].
    pub async fn run(self, observer: &mut dyn ScrubObserver) -> Result<ScrubReport> {
        self.run_until(signal::wait(&SIGNALS), observer).await
    }

    /// Scrubs, keeps the status file up to date, and tells `observer`. Once `end` has ended, the scrub ends early, so that it can
    /// be resumed.
    ///
    /// # Errors
    /// Nothing can be scrubbed, the status file cannot be written, or the observer failed.
    pub async fn run_until<E>(
        self,
        end: impl Future<Output = E>,
        observer: &mut dyn ScrubObserver,
    ) -> Result<ScrubReport> {
        let findings = Findings { problems: Mutex::default() };
        let result = {
            let work = std::pin::pin!(self.scrub.run(&findings));
            let kept = std::pin::pin!(self.keep_records(end, observer));
            match select(work, kept).await {
                Either::Left((result, _)) => result.map(|_| ()),
                // The status file or the observer failed: still end the work cleanly.
                Either::Right((Err(error), work)) => {
                    self.scrub.cancel();
                    work.await.map_err(|error| Error::plain("cannot scrub", error))?;
                    return Err(error);
                }
                Either::Right((Ok(never), _)) => match never {},
            }
        };
        let TreeReads { waits, ahead } = self.fs.tree_reads();
        tracing::debug!(mode = self.readahead.name(), waits, ahead, "readahead of tree blocks");
        let found = findings.problems.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut record = self.origin.record(&self.scrub);
        record.error = result.as_ref().err().map(ToString::to_string);
        let mut problems = Vec::with_capacity(found.len());
        for problem in found {
            let mut owners = Vec::new();
            if is_lost(&problem) {
                owners = owners::owners_of(&self.fs, &problem).await;
                if record.lost.len() < LOST_LINES {
                    record.lost.push(problem.to_string());
                    record.lost.extend(owners.iter().map(|owner| format!("  {}", owner.words)));
                }
            }
            problems.push(ReportedProblem { problem, owners });
        }
        self.handle.store.save(&record)?;
        drop(self.socket);
        result.map_err(|error| Error::plain("cannot scrub", error))?;
        Ok(ScrubReport { record, problems })
    }

    /// Keeps the status file and the observer up to date forever, and cancels the scrub once `end` has ended.
    async fn keep_records<E>(
        &self,
        end: impl Future<Output = E>,
        observer: &mut dyn ScrubObserver,
    ) -> Result<std::convert::Infallible> {
        let mut ends = std::pin::pin!(end);
        let mut ended = false;
        let mut saved = Instant::now();
        loop {
            if ended {
                sleep(TICK).await;
            } else if let Either::Left(_) = select(ends.as_mut(), std::pin::pin!(sleep(TICK))).await
            {
                ended = true;
                self.scrub.cancel();
            }
            let record = self.origin.record(&self.scrub);
            if saved.elapsed() >= SAVE {
                saved = Instant::now();
                self.handle.store.save(&record)?;
            }
            observer.progress(&record)?;
        }
    }
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
