//! `snapshot-merge ORIGIN COW P|PO CHUNK [FEATURES...]`: a snapshot that is merged into its origin.
//!
//! The device shows the snapshot throughout. A task removes runs of exceptions from the end of the list:
//!
//! 1. the origin's other snapshots get their exceptions;
//! 2. the run is closed for writes, and writes in flight complete;
//! 3. it is copied to the origin;
//! 4. the origin is flushed;
//! 5. the list is written without the run, with PREFLUSH and FUA;
//! 6. the chunks are shared again: held writes go to the origin.
//!
//! A crash before step 5 leaves the exceptions, and they are merged again; after it, the origin has
//! the data. If step 5 fails, it is unknown which of both is on disk: the run stays closed, so that
//! no write goes to it that would be lost in one of the cases.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use ashlar_block::{
    Bio, BioResult, Buffer, Flags, IoFuture, Limits, LocalFuture, Op, Sectors, Status,
};
use event_listener::Event;
use futures_util::future::join;
use tracing::{error, info};

use super::canary::{Rule, broken};
use super::ondisk::Geometry;
use super::origin::Origin;
use super::state::{Loaded, Snapshot, copy, remap};
use super::store::Last;
use super::target::{Member, Tracked};
use super::task::Task;
use crate::target::{Construct, New, Target, TargetError};

/// Maximum of sectors that are merged, and closed for writes, at a time; a chunk may be larger.
const MOST: Sectors = Sectors(2048);

/// The state of a snapshot's merge.
#[derive(Default)]
pub(super) struct Merge {
    /// Whether there is a [`Claim`].
    claimed: AtomicBool,
    merging: AtomicBool,
    pub(super) task: Task,
    failed: AtomicBool,
    /// The list on disk is unknown: the run stays closed.
    stuck: AtomicBool,
    /// The closed run has changed, or a write to it ended.
    pub(super) changed: Event,
}

impl Merge {
    /// Whether the snapshot is being merged: then the origin makes no more exceptions in it.
    pub(super) fn is_merging(&self) -> bool {
        self.merging.load(SeqCst)
    }

    /// Whether the snapshot is being merged, or will be when a loaded table becomes live.
    pub(super) fn is_claimed(&self) -> bool {
        self.claimed.load(SeqCst) || self.is_merging()
    }

    /// Permanent: exceptions made later would have older data than the writes.
    pub(super) fn begin(&self) {
        self.merging.store(true, SeqCst);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(SeqCst)
    }

    /// Waits until `done` is true; every change of its result notifies `changed`.
    async fn until(&self, done: impl Fn() -> bool) {
        loop {
            let listener = self.changed.listen();
            if done() {
                return;
            }
            listener.await;
        }
    }
}

/// The right to merge a snapshot: one target holds it, from before its resume until its suspension.
/// Nothing changes until the merge begins, so a table that does not become live leaves no trace;
/// and no target suspends another target's merge.
pub(super) struct Claim(Arc<Snapshot>);

impl Claim {
    /// Takes the right, if it is free. [`Origin::claim_merge`] checks the origin's other snapshots.
    pub(super) fn take(snapshot: &Arc<Snapshot>) -> Option<Self> {
        let free = !snapshot.merge.claimed.swap(true, SeqCst);
        free.then(|| Self(Arc::clone(snapshot)))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The current run is the last one.
        self.0.merge.task.end();
        self.0.merge.claimed.store(false, SeqCst);
    }
}

/// Consecutive chunks.
#[derive(Clone, Copy)]
struct Run {
    old: u64,
    new: u64,
    len: u64,
}

/// Merges until nothing is left, the task is stopped, or an error occurs.
async fn merge(snapshot: Arc<Snapshot>, origin: Arc<Origin>) {
    let state = &snapshot.merge;
    if let Some(loaded) = snapshot.loaded() {
        while state.task.goes_on() && snapshot.is_valid() {
            match merge_last(&snapshot, &origin, loaded).await {
                Ok(true) => {}
                Ok(false) => {
                    info!(cow = snapshot.cow.disk().name(), "the snapshot is merged");
                    break;
                }
                Err(status) => {
                    error!(%status, cow = snapshot.cow.disk().name(), "the merge failed");
                    state.failed.store(true, SeqCst);
                    break;
                }
            }
        }
    }
    if !state.stuck.load(SeqCst) {
        snapshot.exceptions.set_window(&(0..0));
    }
    state.changed.notify(usize::MAX);
    state.task.ended();
}

/// Merges the last run of the list; false if there is none.
async fn merge_last(snapshot: &Snapshot, origin: &Origin, loaded: &Loaded) -> Result<bool, Status> {
    let geometry = loaded.geometry;
    let most = geometry.chunks_in(MOST).max(1);
    let mut last = loaded.store().last(most);
    if let Last::InArea(area) = last {
        let at = geometry.sector(geometry.area_chunk(area));
        let bytes = snapshot.cow.read(at, geometry.chunk()).await?;
        let mut store = loaded.store();
        store.go_back(area, bytes.as_slice());
        last = store.last(most);
    }
    let run = match last {
        Last::Run { old, new, len } => Run { old, new, len },
        Last::Nothing => return Ok(false),
        Last::InArea(_) => return Err(Status::Io),
    };
    let (at, end) = (geometry.sector(run.old), geometry.sector(run.old + run.len));
    let len = (end - at).min(snapshot.origin.capacity().as_end() - at);
    if broken(Rule::MergeIsAWrite) {
        merge_run(snapshot, loaded, run, len).await?;
    } else {
        let work = async |_: &_| merge_run(snapshot, loaded, run, len).await;
        origin.change(at, len, work).await?;
    }
    Ok(true)
}

async fn merge_run(snapshot: &Snapshot, loaded: &Loaded, run: Run, len: Sectors) -> BioResult {
    let (geometry, chunks) = (loaded.geometry, run.old..run.old + run.len);
    let known = |chunk| {
        let copy = snapshot.exceptions.shard(chunk).complete.get(chunk);
        copy == Some(run.new + (chunk - run.old))
    };
    if !chunks.clone().all(known) {
        error!(chunk = run.old, "an exception that is on disk is not known");
        return Err(Status::Io);
    }
    if !broken(Rule::MergeHoldsWrites) {
        snapshot.exceptions.set_window(&chunks);
        let drained = |chunk| !snapshot.exceptions.shard(chunk).is_tracked(chunk);
        snapshot.merge.until(|| chunks.clone().all(drained)).await;
    }
    let (from, to) = (geometry.sector(run.new), geometry.sector(run.old));
    // Earlier runs were flushed, so only losses from now on concern the merge.
    snapshot.origin.acknowledge_losses();
    copy(&snapshot.cow, from, &snapshot.origin, to, len).await?;
    if !broken(Rule::MergeFlushes) {
        if broken(Rule::LossesAreKnown) {
            snapshot.origin.flush().await.ok();
        }
        // Fails if a user's flush failed since, and may have dropped the run's data.
        snapshot.origin.flush().await?;
    }
    let write = loaded.store().without_last(run.len).ok_or(Status::Io)?;
    let mut data = Buffer::from_slice(write.data.as_slice());
    let flags = Flags::PREFLUSH | Flags::FUA | Flags::META | Flags::SYNC;
    let bio = Bio::write_from(write.at, &mut data).with_flags(flags);
    // The list depends on nothing else in the COW device's cache.
    snapshot.cow.acknowledge_losses();
    let written = snapshot.cow.submit(bio).await;
    snapshot.merge.stuck.store(written.is_err(), SeqCst);
    written?;
    loaded.store().forget_last(run.len);
    for chunk in chunks {
        snapshot.exceptions.shard(chunk).complete.remove(chunk);
    }
    snapshot.exceptions.set_window(&(0..0));
    snapshot.merge.changed.notify(usize::MAX);
    Ok(())
}

/// The destination of a bio of the merged device.
enum Way {
    /// The copy.
    Copy(u64),
    /// None yet: the chunk is being merged.
    Closed,
    Origin,
}

/// See the module text.
pub(crate) struct MergeTarget {
    claim: Mutex<Option<Claim>>,
    member: Member,
}

impl MergeTarget {
    /// Takes the right to merge unless this target already has it; returns whether it has it now.
    fn claim(&self) -> bool {
        let mut claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        if claim.is_none() {
            *claim = self.member.origin.claim_merge(&self.member.snapshot);
        }
        claim.is_some()
    }

    fn take_claim(&self) -> Option<Claim> {
        self.claim.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Determines the destination; tracks a write to a copy.
    fn way(&self, geometry: Geometry, bio: &Bio) -> Way {
        let snapshot = &self.member.snapshot;
        let chunk = geometry.chunk_of(bio.sector);
        let mut shard = snapshot.exceptions.shard(chunk);
        let valid = snapshot.is_valid();
        match shard.complete.get(chunk).filter(|_| valid) {
            None => Way::Origin,
            Some(_) if bio.op.is_write() && shard.window.contains(&chunk) => Way::Closed,
            Some(new) => {
                if bio.op.is_write() {
                    shard.track(chunk);
                }
                Way::Copy(new)
            }
        }
    }

    fn read(&self, geometry: Geometry, bio: Bio) -> IoFuture<'_> {
        let snapshot = &self.member.snapshot;
        match self.way(geometry, &bio) {
            Way::Copy(new) => snapshot.cow.submit(remap(geometry, &bio, new)),
            Way::Origin | Way::Closed => snapshot.origin.submit(bio),
        }
    }

    async fn write(&self, geometry: Geometry, bio: Bio) -> BioResult {
        let Member { snapshot, origin, .. } = &self.member;
        let chunk = geometry.chunk_of(bio.sector);
        loop {
            match self.way(geometry, &bio) {
                Way::Copy(new) => {
                    let _tracked = Tracked { snapshot, chunk };
                    return snapshot.submit_to_cow(remap(geometry, &bio, new)).await;
                }
                Way::Origin => return origin.submit(bio).await,
                Way::Closed if snapshot.merge.stuck.load(SeqCst) => return Err(Status::Io),
                Way::Closed => {
                    let open = || !snapshot.exceptions.shard(chunk).window.contains(&chunk);
                    let stuck = || snapshot.merge.stuck.load(SeqCst);
                    snapshot.merge.until(|| open() || stuck()).await;
                }
            }
        }
    }

    async fn flush(&self, bio: Bio) -> BioResult {
        let Member { snapshot, origin, .. } = &self.member;
        let (one, other) =
            join(origin.device.submit(bio.clone()), snapshot.submit_to_cow(bio)).await;
        one.and(other)
    }
}

impl Construct for MergeTarget {
    const NAME: &'static str = "snapshot-merge";

    async fn construct(new: New<'_>) -> Result<Self, TargetError> {
        let member = Member::construct(new, true).await?;
        if member.origin.has_other_merge(&member.snapshot) {
            let text = "another snapshot of the origin is being merged".to_owned();
            return Err(TargetError::Invalid(text));
        }
        Ok(Self { claim: Mutex::default(), member })
    }
}

impl Target for MergeTarget {
    fn type_name(&self) -> &'static str {
        Self::NAME
    }

    fn arguments(&self) -> String {
        self.member.arguments()
    }

    fn status(&self) -> String {
        self.member.status()
    }

    fn max_io_len(&self) -> Sectors {
        self.member.chunk()
    }

    fn stack_limits(&self, limits: &mut Limits) {
        self.member.stack_limits(limits);
    }

    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        let Some(geometry) = self.member.snapshot.loaded().map(|loaded| loaded.geometry) else {
            return IoFuture::failed(Status::Io);
        };
        match bio.op {
            Op::Flush => IoFuture::boxed(self.flush(bio)),
            Op::Read => self.read(geometry, bio),
            Op::Write | Op::WriteZeroes => IoFuture::boxed(self.write(geometry, bio)),
            // As in the kernel: the discard has no effect then.
            Op::Discard if self.member.discard_zeroes_cow => IoFuture::ready(Ok(())),
            Op::Discard => IoFuture::failed(Status::NotSupported),
        }
    }

    fn suspended(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(async {
            let claim = self.take_claim();
            if claim.is_some() {
                self.member.snapshot.merge.task.stop().await;
            }
            Ok(())
        })
    }

    fn resuming(&self) -> LocalFuture<'_, BioResult> {
        let claimed = self.claim();
        if !claimed {
            error!("the snapshot or another one of its origin is being merged by another device");
        }
        let result = if claimed { Ok(()) } else { Err(Status::Invalid) };
        Box::pin(std::future::ready(result))
    }

    fn resumed(&self) -> LocalFuture<'_, ()> {
        Box::pin(async {
            let Member { snapshot, origin, len, persistence, .. } = &self.member;
            origin.begin_merge(snapshot, *len, *persistence).await;
            snapshot.idle().await;
            if snapshot.merge.task.begin().await {
                snapshot.merge.failed.store(false, SeqCst);
                let task = merge(Arc::clone(snapshot), Arc::clone(origin));
                snapshot.runtime.spawn(Box::pin(task));
            }
        })
    }
}
