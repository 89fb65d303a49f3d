//! Scrubs of btrfs file systems on volumes that are served: jobs of the daemon.
//!
//! Each has its own thread and reactor, because checksums take a processor. The scrub claims its volumes: no client can open
//! them meanwhile, because a repair would write below a file system that a client has mounted, and a scrub of a changing file
//! system would report false errors. It has the status file, lock and socket of any other scrub ([`ashlar_commands::btrfs::scrub`]).
//!
//! A paused scrub is one that has ended early, and is listed until it is resumed or cancelled: clients may open its volumes.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use ashlar_block::byte_volume::ClaimedVolume;
use ashlar_btrfs::readahead::Reada;
use ashlar_btrfs::scrub::DEPTH;
use ashlar_btrfs::volume::FileSystem;
use ashlar_client::interface::{
    FileSystemReply, Job, JobAction, JobKind, JobState, Scrub, VolumeNames, refused, refused_by,
    reply,
};
use ashlar_client::stop::Stop;
use ashlar_commands::btrfs::Selection;
use ashlar_commands::btrfs::scrub::{
    Controls, DEPTHS, ScrubDirectory, ScrubObserver, ScrubOptions, ScrubRecord, ScrubRun,
    ScrubStart,
};
use ashlar_control::varlink::Reply;
use ashlar_disks::{self as disks, Access};
use ashlar_engine::oneshot::{self, Sender};
use ashlar_stack::assemble::Stack;
use futures_util::future::{join_all, select};
use serde_json::Value;
use uuid::Uuid;

use crate::clients::claim;
use crate::ending::Ending;
use crate::error::{self, Error};

/// All that run or are paused.
pub(crate) struct Scrubs {
    stack: Arc<Stack>,
    /// The access mode for disks.
    access: Access,
    ending: Ending,
    listed: RefCell<Vec<ServedScrub>>,
    /// For each thread, a flag that is set once it has released the volumes.
    threads: RefCell<Vec<Stop>>,
}

#[derive(Clone)]
struct ServedScrub {
    fsid: Uuid,
    task: ScrubTask,
    controls: Controls,
    ended: Stop,
    /// Its record, if it is paused.
    paused: Option<ScrubRecord>,
}

/// What is scrubbed, and how.
#[derive(Clone)]
struct ScrubTask {
    selection: Selection,
    options: ScrubOptions,
    directory: ScrubDirectory,
}

/// No messages: clients ask.
struct SilentObserver;

impl ScrubObserver for SilentObserver {
    fn progress(&mut self, _: &ScrubRecord) -> error::Result<()> {
        Ok(())
    }
}

impl Scrubs {
    /// None yet.
    pub(crate) fn new(stack: Arc<Stack>, access: Access, ending: Ending) -> Self {
        let (listed, threads) = (RefCell::default(), RefCell::default());
        Self { stack, access, ending, listed, threads }
    }

    /// A copy of those that run or are paused.
    fn all(&self) -> Vec<ServedScrub> {
        let mut all = self.listed.borrow_mut();
        all.retain(|scrub| scrub.paused.is_some() || !scrub.ended.is_stopped());
        all.clone()
    }

    fn forget(&self, fsid: Uuid) {
        self.listed.borrow_mut().retain(|scrub| scrub.fsid != fsid);
    }

    /// The jobs, with the file systems.
    pub(crate) fn jobs(&self) -> Vec<(Job, Uuid)> {
        let all = self.all().into_iter();
        all.filter_map(|scrub| Some((scrub.job()?, scrub.fsid))).collect()
    }

    fn wait_for(&self, thread: Stop) {
        let mut threads = self.threads.borrow_mut();
        threads.retain(|ended| !ended.is_stopped());
        threads.push(thread);
    }

    /// The file system on these volumes.
    pub(crate) async fn file_system(&self, at: &VolumeNames) -> Result<Value, Reply> {
        let found = selection(&at.devices)?.find(&self.stack).await;
        let (fsid, _) = found.map_err(refused_by)?;
        let directory = ScrubDirectory::new(None).map_err(refused_by)?;
        reply(FileSystemReply { fsid, status_dir: directory.path().to_owned() })
    }

    /// Begins a scrub, or resumes one.
    pub(crate) async fn scrub(&self, at: &Scrub) -> Result<Value, Reply> {
        if self.access != Access::Write && !at.read_only {
            let hint = "use ashlar btrfs scrub start --readonly";
            return Err(refused("the daemon serves its disks read-only", Some(hint)));
        }
        let depth = at.depth.unwrap_or(DEPTH);
        if !DEPTHS.contains(&depth) {
            return Err(Reply::invalid_parameter("depth"));
        }
        let start = match at.resume {
            true => ScrubStart::Resumed,
            false => ScrubStart::New { force: at.force },
        };
        let readahead = at.readahead.unwrap_or(Reada::Scan);
        let (read_only, limit) = (at.read_only, at.limit);
        let options = ScrubOptions { start, read_only, limit, depth, readahead };
        let (degraded, stale) = (at.degraded, at.stale);
        let selection = Selection { degraded, stale, ..selection(&at.devices)? };
        let directory = ScrubDirectory::new(None).map_err(refused_by)?;
        let status_dir = directory.path().to_owned();
        let fsid = self.begin(ScrubTask { selection, options, directory }).await?;
        reply(FileSystemReply { fsid, status_dir })
    }

    async fn begin(&self, task: ScrubTask) -> Result<Uuid, Reply> {
        let (begun, beginning) = oneshot::channel();
        let (end, ended) = (self.ending.draining(), Stop::default());
        let (stack, over, its) = (Arc::clone(&self.stack), ended.clone(), task.clone());
        let work = move || {
            let _end = EndSignal(over);
            its.work(&stack, end, begun);
        };
        let thread = thread::Builder::new().name("ashlar-scrub".to_owned()).spawn(work);
        thread.map_err(|error| refused(format_args!("no thread for a scrub: {error}"), None))?;
        // The daemon's shutdown waits for it even if it has not begun.
        self.wait_for(ended.clone());
        let begun =
            beginning.await.map_err(|error| refused(error, Some("see the daemon's log")))?;
        let (fsid, controls) = begun.map_err(refused_by)?;
        self.forget(fsid);
        let scrub = ServedScrub { fsid, task, controls, ended, paused: None };
        self.listed.borrow_mut().push(scrub);
        Ok(fsid)
    }

    /// Pauses, resumes or cancels a scrub, which knows the action.
    pub(crate) async fn control(&self, fsid: Uuid, action: JobAction) -> Result<(), Reply> {
        let scrub = self.all().into_iter().find(|scrub| scrub.fsid == fsid);
        let has_ended = || refused(format_args!("the scrub of {fsid} has ended"), None);
        let mut scrub = scrub.ok_or_else(has_ended)?;
        if action == JobAction::Resume {
            let options = ScrubOptions { start: ScrubStart::Resumed, ..scrub.task.options };
            self.begin(ScrubTask { options, ..scrub.task }).await?;
            return Ok(());
        }
        if scrub.paused.is_none() {
            scrub.controls.cancel();
            scrub.ended.clone().await;
        }
        self.forget(fsid);
        if action == JobAction::Pause {
            let last = scrub.task.directory.scrub_of(fsid).last().map_err(refused_by)?;
            let last = last.filter(|record| !record.is_finished());
            scrub.paused = Some(last.ok_or_else(has_ended)?);
            self.listed.borrow_mut().push(scrub);
        }
        Ok(())
    }

    /// Waits until the scrubs that the daemon's shutdown cancels have released their volumes, unless the shutdown is forced.
    pub(crate) async fn ended(&self, forced: Stop) {
        select(join_all(self.threads.take()), forced).await;
    }
}

impl ServedScrub {
    fn job(&self) -> Option<Job> {
        // One that ends has saved its record already.
        let saved = || self.task.directory.scrub_of(self.fsid).last().ok()?;
        let record = self.paused.clone().or_else(|| self.controls.record()).or_else(saved)?;
        let (state, change) = match self.paused {
            Some(_) => (JobState::Paused, JobAction::Resume),
            None => (JobState::Running, JobAction::Pause),
        };
        let is_running = state == JobState::Running;
        Some(Job {
            name: self.fsid.to_string(),
            alias: None,
            kind: JobKind::Scrub,
            state,
            done_bytes: record.passed_bytes(),
            total_bytes: record.total_bytes(),
            bytes_per_second: record.bytes_per_second().filter(|_| is_running),
            seconds_left: record.seconds_left().map(|left| left as u64).filter(|_| is_running),
            actions: vec![change, JobAction::Cancel],
        })
    }
}

/// The volumes with these names. Without any, a selection would be of all volumes.
fn selection(names: &[String]) -> Result<Selection, Reply> {
    if names.is_empty() {
        return Err(Reply::invalid_parameter("devices"));
    }
    let devices = names.iter().map(PathBuf::from).collect();
    Ok(Selection { devices, on: names.to_vec(), ..Selection::default() })
}

/// Sets the flag when it is dropped, however the thread has ended.
struct EndSignal(Stop);

impl Drop for EndSignal {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What the thread of a scrub sends once it scrubs.
type StartResult = error::Result<(Uuid, Controls)>;

impl ScrubTask {
    /// All of a scrub, on a thread of its own, until `end` has ended at the latest.
    fn work(&self, stack: &Stack, end: Stop, begun: Sender<StartResult>) {
        let reactor = match disks::reactor() {
            Ok(reactor) => reactor,
            Err(error) => return begun.send(Err(error)),
        };
        reactor.block_on(async {
            // The volumes are claimed until the file system is closed.
            let (run, fs, claimed) = match self.begin(stack).await {
                Ok(scrub) => scrub,
                Err(error) => return begun.send(Err(error)),
            };
            let fsid = run.fsid();
            begun.send(Ok((fsid, run.controls())));
            tracing::info!(%fsid, "scrub");
            match run.run_until(end, &mut SilentObserver).await {
                Ok(report) => {
                    let (record, counters) = (&report.record, report.record.counters());
                    let is_finished = record.is_finished();
                    for device in &record.short {
                        tracing::warn!(%fsid, "too small: {device}");
                    }
                    if counters.has_errors() {
                        let uncorrectable = counters.uncorrectable_errors;
                        tracing::warn!(%fsid, is_finished, uncorrectable, "the scrub found errors");
                    } else {
                        tracing::info!(%fsid, is_finished, "the scrub found no errors");
                    }
                }
                Err(error) => tracing::error!(%fsid, %error, "the scrub failed"),
            }
            drop(fs);
            drop(claimed);
        });
    }

    async fn begin(
        &self,
        stack: &Stack,
    ) -> error::Result<(ScrubRun, Arc<FileSystem>, Vec<ClaimedVolume>)> {
        let Self { selection, options, directory } = self;
        let (_, devices) = selection.find(stack).await?;
        let mut claimed = Vec::new();
        for device in &devices {
            let name = device.export_name();
            let busy = || {
                let error = Error::new("cannot scrub", name, "it is open");
                error.hint("disconnect its clients; ashlar jobs shows whether it is being scrubbed")
            };
            claimed.push(claim(&disks::runtime(), device).await.ok_or_else(busy)?);
        }
        let fs = selection.open_devices(&devices, stack, !options.read_only).await?;
        directory.create()?;
        let run = directory.prepare(&fs, options)?;
        Ok((run, fs, claimed))
    }
}
