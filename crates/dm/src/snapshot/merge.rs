//! `snapshot-merge ORIGIN COW P|PO CHUNK [FEATURES...]`: a snapshot that is merged into its origin.
//!
//! The device shows the snapshot throughout. A task removes exceptions from the end of the list, in
//! batches of runs:
//!
//! 1. the origin's other snapshots get their exceptions;
//! 2. the batch is closed for writes, and writes in flight complete;
//! 3. its runs are copied to the origin, all at a time;
//! 4. the origin is flushed;
//! 5. the list is written without the batch, with PREFLUSH and FUA;
//! 6. the chunks are shared again: held writes go to the origin.
//!
//! A crash before step 5 leaves the exceptions, and they are merged again; after it, the origin has
//! the data. A crash within step 5 leaves each sector of the list as it was before or after, and the list
//! ends at its first empty entry: so some first part of the batch is left and is merged again, with the same data. Any
//! exception may be missing from the list then, which is why step 4 is for all runs, and step 2 lasts until step 6.
//! If step 5 fails, it is unknown which of these is on disk: the batch stays closed, so that
//! no write goes to it that would be lost in one of the cases.
//!
//! The messages `pause` and `resume` are ours: a paused merge waits between two batches, also with the next tables of the
//! device. The message `is_paused` is answered with 1 or 0.
//!
//! A batch ends with its area: then one write in place removes it.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use ashlar_block::sync::{lock, until};
use ashlar_block::{
    Bio, BioResult, Buffer, Extents, Flags, Gateway, IoFuture, Limits, LocalFuture, Op, Sector,
    Sectors, Status,
};
use futures_util::future::{join, join_all};
use tracing::{error, info};

use super::canary::{Rule, broken};
use super::exceptions::Window;
use super::ondisk::Geometry;
use super::origin::{Claim, Origin};
use super::state::{LoadedState, Snapshot, remap};
use super::store::{ListEnd, Run};
use super::target::{Member, TrackedChunk};
use crate::copy::{copy, pieces};
use crate::target::{MessageError, Reply, TableTarget, Target, TargetError, TargetParameters};

/// Maximum of runs in a batch: with so many requests in flight a disk is busy, and the flush and the write of the list are a
/// small part of the time.
const MOST_RUNS: usize = 64;
/// Maximum of sectors in a batch; a chunk may be larger. All of it is in memory at a time, and writes to it wait as long as it
/// takes to copy it.
const MOST: Sectors = Sectors(8192);

/// Merges until nothing is left, the task is stopped, or an error occurs.
async fn merge(snapshot: Arc<Snapshot>, origin: Arc<Origin>) {
    let state = &snapshot.merge;
    if let Some(loaded) = snapshot.loaded() {
        while state.goes_on().await && snapshot.is_valid() {
            match merge_batch(&snapshot, &origin, loaded).await {
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
        snapshot.exceptions.set_window(&Window::default());
    }
    state.task.changed.notify(usize::MAX);
    state.task.ended();
}

/// Merges the last runs of the list; false if the list is empty.
async fn merge_batch(
    snapshot: &Snapshot,
    origin: &Origin,
    loaded: &LoadedState,
) -> Result<bool, Status> {
    let geometry = loaded.geometry;
    let most = geometry.chunks_in(MOST).max(1);
    let mut last = lock(&loaded.store).last(MOST_RUNS, most);
    if let ListEnd::InArea(area) = last {
        let at = geometry.sector(geometry.area_chunk(area));
        let bytes = snapshot.cow.read(at, geometry.chunk()).await?;
        let mut store = lock(&loaded.store);
        store.go_back(area, bytes.as_slice());
        last = store.last(MOST_RUNS, most);
    }
    let runs = match last {
        ListEnd::Runs(runs) => runs,
        ListEnd::Nothing => return Ok(false),
        ListEnd::InArea(_) => return Err(Status::Io),
    };
    // What is read once more may have changed on the disk: nothing is computed from other numbers.
    let known = |(old, new)| snapshot.exceptions.shard(old).complete.get(old) == Some(new);
    if !runs.iter().flat_map(Run::chunks).all(known) {
        error!(cow = snapshot.cow.disk().name(), "an exception that is on disk is not known");
        return Err(Status::Io);
    }
    let _pass = origin.enter().await;
    if !broken(Rule::MergeIsAWrite) {
        let range = |run: &Run| (geometry.sector(run.old), snapshot.len_of(geometry, run));
        let ready = runs.iter().map(range).map(|(at, len)| origin.ready(at, len));
        join_all(ready).await;
    }
    merge_runs(snapshot, loaded, &runs).await?;
    Ok(true)
}

/// Merges runs that end the list, and are known.
async fn merge_runs(snapshot: &Snapshot, loaded: &LoadedState, runs: &[Run]) -> BioResult {
    let Snapshot { exceptions, merge, .. } = snapshot;
    if !broken(Rule::MergeHoldsWrites) {
        exceptions.set_window(&Window::of(runs.iter().map(|run| run.old..run.old + run.len)));
        until(&merge.task.changed, || exceptions.window_is_idle()).await;
    }
    // Earlier batches were flushed, so only losses from now on concern the merge.
    snapshot.origin.acknowledge_losses();
    let copies = runs.iter().map(|run| copy_back(snapshot, loaded.geometry, run));
    let copied = join_all(copies).await;
    // One that cannot be copied must not keep those behind it in the list.
    let runs = &runs[..copied.iter().take_while(|copy| copy.is_ok()).count()];
    if runs.is_empty() {
        return copied.into_iter().collect();
    }
    if !broken(Rule::MergeFlushes) {
        if broken(Rule::LossesAreKnown) {
            snapshot.origin.flush().await.ok();
        }
        // Fails if a user's flush failed since, and may have dropped the batch's data.
        snapshot.origin.flush().await?;
    }
    let count = runs.iter().map(|run| run.len).sum();
    let write = lock(&loaded.store).without_last(count).ok_or(Status::Io)?;
    let mut data = Buffer::from_slice(write.data.as_slice());
    let flags = Flags::PREFLUSH | Flags::FUA | Flags::META | Flags::SYNC;
    let bio = Bio::write_from(write.at, &mut data).with_flags(flags);
    // The list depends on nothing else in the COW device's cache.
    snapshot.cow.acknowledge_losses();
    let written = snapshot.cow.submit(bio).await;
    merge.stuck.store(written.is_err(), SeqCst);
    written?;
    lock(&loaded.store).forget_last(count);
    for (old, _) in runs.iter().flat_map(Run::chunks) {
        exceptions.shard(old).complete.remove(old);
    }
    exceptions.set_window(&Window::default());
    merge.task.changed.notify(usize::MAX);
    Ok(())
}

/// Copies a run to the origin. All its pieces have ended at the end, after an error too: a late one would overwrite what is
/// merged, or written, after the next resume.
async fn copy_back(snapshot: &Snapshot, geometry: Geometry, run: &Run) -> BioResult {
    let (from, to) = (geometry.sector(run.new), geometry.sector(run.old));
    let pieces = pieces(snapshot.len_of(geometry, run))
        .map(|(done, len)| copy(&snapshot.cow, from + done, &snapshot.origin, to + done, len));
    join_all(pieces).await.into_iter().collect()
}

/// The destination of a bio of the merged device.
enum BioDestination {
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
        let mut claim = lock(&self.claim);
        if claim.is_none() {
            *claim = self.member.origin.claim_merge(&self.member.snapshot);
        }
        claim.is_some()
    }

    /// Determines the destination; tracks a write to a copy.
    fn destination(&self, geometry: Geometry, bio: &Bio) -> BioDestination {
        let snapshot = &self.member.snapshot;
        let chunk = geometry.chunk_of(bio.sector);
        let mut shard = snapshot.exceptions.shard(chunk);
        let valid = snapshot.is_valid();
        match shard.complete.get(chunk).filter(|_| valid) {
            None => BioDestination::Origin,
            Some(_) if bio.op.is_write() && shard.window.contains(chunk) => BioDestination::Closed,
            Some(new) => {
                if bio.op.is_write() {
                    shard.track(chunk);
                }
                BioDestination::Copy(new)
            }
        }
    }

    fn read(&self, geometry: Geometry, bio: Bio) -> IoFuture<'_> {
        let snapshot = &self.member.snapshot;
        match self.destination(geometry, &bio) {
            BioDestination::Copy(new) => snapshot.cow.submit(remap(geometry, &bio, new)),
            BioDestination::Origin | BioDestination::Closed => snapshot.origin.submit(bio),
        }
    }

    async fn write(&self, geometry: Geometry, bio: Bio) -> BioResult {
        let Member { snapshot, origin, .. } = &self.member;
        let chunk = geometry.chunk_of(bio.sector);
        loop {
            match self.destination(geometry, &bio) {
                BioDestination::Copy(new) => {
                    let _tracked = TrackedChunk { snapshot, chunk };
                    return snapshot.submit_to_cow(remap(geometry, &bio, new)).await;
                }
                BioDestination::Origin => return origin.submit(bio).await,
                BioDestination::Closed if snapshot.merge.stuck.load(SeqCst) => {
                    return Err(Status::Io);
                }
                BioDestination::Closed => {
                    let open = || !snapshot.exceptions.shard(chunk).window.contains(chunk);
                    let stuck = || snapshot.merge.stuck.load(SeqCst);
                    until(&snapshot.merge.task.changed, || open() || stuck()).await;
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

impl TableTarget for MergeTarget {
    const NAME: &'static str = "snapshot-merge";

    async fn construct(parameters: TargetParameters<'_>) -> Result<Self, TargetError> {
        let member = Member::construct(parameters, true).await?;
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
        self.member.status().to_string()
    }

    fn max_io_len(&self) -> Sectors {
        self.member.chunk()
    }

    fn iterate_devices(&self, seen: &mut dyn FnMut(&Gateway)) {
        seen(&self.member.snapshot.origin);
        seen(&self.member.snapshot.cow);
    }

    fn stack_limits(&self, limits: &mut Limits) {
        self.member.stack_limits(limits);
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        let Member { snapshot, .. } = &self.member;
        Box::pin(async move {
            let geometry = snapshot.loaded().ok_or(Status::Io)?.geometry;
            snapshot.extents(geometry, at, len).await
        })
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

    fn message<'a>(&'a self, words: &'a [&'a str]) -> Reply<'a> {
        let unknown = || MessageError::Unknown { target: Self::NAME, message: words.join(" ") };
        let reply = self.member.snapshot.merge.task.answer(words).ok_or_else(unknown);
        Box::pin(std::future::ready(reply))
    }

    fn suspended(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(async {
            let claim = lock(&self.claim).take();
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
