//! A snapshot: the state shared by its targets, those of its origin, and a merge.
//!
//! It lives as long as a target uses its COW device, so a reloaded table finds the exceptions of
//! the previous one: the kernel hands them over between targets, here they have one owner.
//!
//! Each exception is made by a separate task, which runs to completion even if its waiters go away:
//! it copies the chunk (or takes the write that fills it), commits, and wakes the waiters. A task
//! commits if no other task is committing.
//!
//! An error, or a lack of room, makes the snapshot invalid: this is on disk, durably, before the
//! origin may change. States only advance: loading, valid, failing (being recorded), invalid.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};

use ashlar_block::sync::gate::Gate;
use ashlar_block::sync::rwlock::RwLock;
use ashlar_block::sync::{lock, until};
use ashlar_block::{
    Bio, BioResult, Buffer, Extents, Flags, Gateway, Runtime, Sector, Sectors, Status,
};
use event_listener::Event;
use tracing::{debug, error, warn};

use super::canary::{Rule, broken};
use super::exceptions::{Exceptions, PendingException};
use super::load::{self, CowContents, StoreError};
use super::merge_state::Merge;
use super::ondisk::Geometry;
use super::store::{Area, Batch, Run, Store};
use crate::copy::{PIECE, copy};

/// Maximum of exceptions being made at a time (the kernel's `snapshot_cow_threshold`)...
const COPIES: usize = 2048;
/// ... and of memory for their copies.
const COPY_BYTES: usize = 64 << 20;
/// Number of attempts to record that a snapshot is invalid before the origin continues.
const RECORD_TRIES: usize = 3;

const LOADING: u8 = 0;
const VALID: u8 = 1;
const FAILING: u8 = 2;
const INVALID: u8 = 3;

/// Where a snapshot stores its exceptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Persistence {
    /// `P`, or `PO` if an overflow by the snapshot's own writes need not make it invalid: on the COW device.
    Persistent {
        /// Whether the maker of the table knows the status `Overflow`.
        overflow: bool,
    },
    /// `N`: in memory.
    Transient,
}

/// The state after the COW device was read.
pub(super) struct LoadedState {
    pub(super) geometry: Geometry,
    pub(super) store: Mutex<Store>,
}

/// The result of a request for an exception.
pub(super) enum Start {
    /// It exists.
    Complete,
    /// It is now being made.
    Begun(Arc<PendingException>),
    /// It was already being made.
    Pending(Arc<PendingException>),
    /// Too many are being made: wait for [`Snapshot::has_room`] first.
    Busy,
    /// The COW device is full.
    Full,
}

/// See the module text.
pub(super) struct Snapshot {
    pub(super) origin: Gateway,
    /// The opener for copies, exceptions and the merge.
    pub(super) cow: Gateway,
    /// The opener for users' data in the COW device.
    users_cow: Gateway,
    pub(super) runtime: Arc<dyn Runtime>,
    persistent: bool,
    /// Whether an overflow may leave it valid.
    overflow_known: AtomicBool,
    overflowed: AtomicBool,
    pub(super) exceptions: Exceptions,
    loaded: OnceLock<LoadedState>,
    loading: RwLock,
    state: AtomicU8,
    /// Its invalidity could not be written to the COW device.
    unrecorded: AtomicBool,
    /// Writes to the origin make exceptions in it.
    active: AtomicBool,
    /// Sectors of the origin that it shows.
    len: AtomicU64,
    /// Number of exceptions being made.
    in_flight: AtomicUsize,
    ended: Event,
    /// Notified when it uses another percent of its COW device, or can take no more writes.
    fills: Arc<Event>,
    pub(super) merge: Merge,
    /// I/O of the snapshot's own devices passes it; closed permanently when the snapshot is merged.
    pub(super) users: Gate,
}

impl Snapshot {
    pub(super) fn new(
        origin: Gateway,
        cow: Gateway,
        runtime: Arc<dyn Runtime>,
        persistence: Persistence,
        fills: Arc<Event>,
    ) -> Arc<Self> {
        Arc::new(Self {
            origin,
            users_cow: cow.clone(),
            cow,
            runtime,
            persistent: persistence != Persistence::Transient,
            overflow_known: AtomicBool::new(false),
            overflowed: AtomicBool::new(false),
            exceptions: Exceptions::default(),
            loaded: OnceLock::new(),
            loading: RwLock::new(),
            state: AtomicU8::new(LOADING),
            unrecorded: AtomicBool::new(false),
            active: AtomicBool::new(false),
            len: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            ended: Event::new(),
            fills,
            merge: Merge::default(),
            users: Gate::default(),
        })
    }

    /// Chunk size and store; `None` before [`Self::load`].
    pub(super) fn loaded(&self) -> Option<&LoadedState> {
        self.loaded.get()
    }

    pub(super) fn is_persistent(&self) -> bool {
        self.persistent
    }

    pub(super) fn is_valid(&self) -> bool {
        self.state.load(SeqCst) == VALID
    }

    pub(super) fn is_overflowed(&self) -> bool {
        self.overflowed.load(SeqCst)
    }

    /// Reads the metadata, once; creates a new store if the COW device contains no store.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) async fn load(&self, chunk: Sectors) -> Result<(), StoreError> {
        let _alone = self.loading.write().await;
        if self.loaded.get().is_some() {
            return Ok(());
        }
        let block = |gateway: &Gateway| gateway.disk().limits().logical_block().0;
        let block = Sectors(block(&self.origin).max(block(&self.cow)));
        let device = || self.cow.disk().name().to_owned();
        let (geometry, store, state) = if self.persistent {
            match load::find(&self.cow, chunk, block, self.origin.capacity()).await? {
                CowContents::New(geometry) => {
                    load::create(&self.cow, geometry).await?;
                    (geometry, Store::persistent(geometry, Area::first(geometry), 2), VALID)
                }
                CowContents::Invalid(geometry) => {
                    warn!(device = device(), "the snapshot is marked invalid");
                    (geometry, Store::persistent(geometry, Area::first(geometry), 2), INVALID)
                }
                CowContents::Valid(found) => {
                    self.exceptions.set_complete(found.exceptions);
                    let geometry = found.geometry;
                    (geometry, Store::persistent(geometry, found.area, found.next_free), VALID)
                }
            }
        } else {
            let geometry = Geometry::new(chunk, block)
                .map_err(|error| StoreError::ChunkSize { device: device(), error })?;
            (geometry, Store::transient(geometry), VALID)
        };
        if self.loaded.set(LoadedState { geometry, store: Mutex::new(store) }).is_ok() {
            self.state.store(state, SeqCst);
        }
        Ok(())
    }

    /// Makes it show the first `len` sectors of the origin, as they are now.
    pub(super) fn activate(&self, len: Sectors, persistence: Persistence) {
        self.len.store(len.0, SeqCst);
        let known = persistence == Persistence::Persistent { overflow: true };
        self.overflow_known.store(known, SeqCst);
        self.active.store(true, SeqCst);
    }

    /// Called when no target uses it: the origin ignores it then.
    pub(super) fn deactivate(&self) {
        self.active.store(false, SeqCst);
    }

    /// Whether only users of the snapshot write to the COW device.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.load(SeqCst) == 0 && !self.merge.task.is_running()
    }

    /// Waits until no exception is being made.
    pub(super) async fn idle(&self) {
        until(&self.ended, || self.in_flight.load(SeqCst) == 0).await;
    }

    /// The chunks in a range of the origin, if the snapshot needs exceptions for writes there.
    fn chunks(&self, at: Sector, len: Sectors) -> Option<Range<u64>> {
        let end = (at.0 + len.0).min(self.len.load(SeqCst));
        let cares = self.active.load(SeqCst) && !self.merge.is_merging() && at.0 < end;
        let geometry = self.loaded.get().filter(|_| cares)?.geometry;
        Some(geometry.chunk_of(at)..geometry.chunk_of(Sector(end - 1)) + 1)
    }

    /// The chunks of a range, with all states where the snapshot has no copy, and so shows the origin, and no state where it has
    /// one. Combined with an answer about the origin it hides what the copies replace.
    pub(super) fn uncopied(&self, geometry: Geometry, at: Sector, len: Sectors) -> Extents {
        let (mut extents, end) = (Extents::new(at), at + len);
        let chunks = geometry.chunk_of(at)..geometry.chunk_of(end - Sectors(1)) + 1;
        let sector = |chunk| geometry.sector(chunk).min(end);
        self.exceptions.uncopied(chunks, sector, &mut extents);
        extents
    }

    /// What is known of a range of what the snapshot shows: where it shows the origin, what is known of that.
    ///
    /// Copies are looked at before and after the origin is asked: a chunk may be copied meanwhile, and then zeroed in the origin; or it may
    /// be merged into the origin, which was asked before.
    pub(super) async fn extents(
        &self,
        geometry: Geometry,
        at: Sector,
        len: Sectors,
    ) -> Result<Extents, Status> {
        let before = self.uncopied(geometry, at, len);
        let below = self.origin.extents(at, before.end() - at).await?;
        let len = below.end() - at;
        if len.is_zero() {
            return Ok(below);
        }
        Ok(below.and(&before).and(&self.uncopied(geometry, at, len)))
    }

    /// Where neither a range of the origin nor the snapshot has changed since the snapshot was taken: all states there. An invalid,
    /// merged or inactive snapshot records no changes, so all counts as changed.
    pub(super) fn unchanged(&self, at: Sector, len: Sectors) -> Extents {
        let all_changed = || Extents::data(at, len);
        let Some(LoadedState { geometry, .. }) = self.loaded.get() else { return all_changed() };
        let known = Sectors(self.len.load(SeqCst).saturating_sub(at.0)).min(len);
        if known.is_zero() {
            return all_changed();
        }
        let extents = self.uncopied(*geometry, at, known);
        // After the look: until now every change has waited for its copy.
        let keeps = self.is_valid() && self.active.load(SeqCst) && !self.merge.is_merging();
        if keeps { extents } else { all_changed() }
    }

    /// Whether a range of the origin may change now.
    pub(super) fn lets_change(&self, at: Sector, len: Sectors) -> bool {
        let Some(chunks) = self.chunks(at, len) else { return true };
        match self.state.load(SeqCst) {
            VALID => self.exceptions.are_complete(chunks),
            FAILING => false,
            _ => true,
        }
    }

    /// Starts all exceptions that a change of a range of the origin needs, and adds pending ones to
    /// `waits`; if one cannot be made, the snapshot is invalid at the end.
    pub(super) async fn prepare_change(
        self: &Arc<Self>,
        at: Sector,
        len: Sectors,
        waits: &mut Vec<Arc<PendingException>>,
    ) {
        let Some(chunks) = self.chunks(at, len) else { return };
        for chunk in chunks {
            loop {
                match self.state.load(SeqCst) {
                    VALID => {}
                    FAILING => return self.invalid().await,
                    _ => return,
                }
                match self.start(chunk, None) {
                    Start::Complete => {}
                    Start::Begun(pending) | Start::Pending(pending) => waits.push(pending),
                    Start::Busy => {
                        self.has_room().await;
                        continue;
                    }
                    Start::Full => {
                        self.invalidate("there is no room for another exception");
                        continue;
                    }
                }
                break;
            }
        }
    }

    fn copy_limit(geometry: Geometry) -> usize {
        let bytes = geometry.chunk().min(PIECE).bytes() as usize;
        (COPY_BYTES / bytes).min(COPIES)
    }

    /// Waits until an exception can be started.
    pub(super) async fn has_room(&self) {
        let Some(loaded) = self.loaded.get() else { return };
        let limit = Self::copy_limit(loaded.geometry);
        until(&self.ended, || self.in_flight.load(SeqCst) < limit).await;
    }

    /// Starts the exception of a chunk that has no exception. With `data`, a write to the snapshot that
    /// fills the whole chunk, nothing is copied.
    pub(super) fn start(self: &Arc<Self>, chunk: u64, data: Option<&Bio>) -> Start {
        let Some(LoadedState { geometry, store }) = self.loaded.get() else { return Start::Full };
        let mut shard = self.exceptions.shard(chunk);
        if let Some(pending) = shard.pending.get(&chunk) {
            return Start::Pending(Arc::clone(pending));
        }
        if shard.complete.get(chunk).is_some() {
            return Start::Complete;
        }
        if self.in_flight.load(SeqCst) >= Self::copy_limit(*geometry) {
            return Start::Busy;
        }
        let total = geometry.chunks_in(self.cow.capacity());
        let mut store = lock(store);
        let Some((sequence, new)) = store.prepare(total) else { return Start::Full };
        if self.in_flight.fetch_add(1, SeqCst) == 0 {
            // All copies are committed, so no earlier loss can have taken one. No other copy begins under this lock.
            self.cow.acknowledge_losses();
        }
        let fills = store.uses_another_percent(total);
        drop(store);
        let pending = PendingException::new(chunk, new, sequence);
        shard.pending.insert(chunk, Arc::clone(&pending));
        drop(shard);
        if fills {
            self.fills.notify(usize::MAX);
        }
        let data = data.map(|bio| remap(*geometry, bio, new));
        let task = Arc::clone(self).make(Arc::clone(&pending), data);
        self.runtime.spawn(Box::pin(task));
        Start::Begun(pending)
    }

    /// Makes an exception, from the first copied byte until the last waiter is woken.
    async fn make(self: Arc<Self>, pending: Arc<PendingException>, data: Option<Bio>) {
        if broken(Rule::DataComesFirst) {
            self.finish(Arc::clone(&pending)).await;
        }
        if broken(Rule::CommitComesFirst) {
            self.leave(&pending, true);
        }
        let copied = match data {
            Some(bio) => self.submit_to_cow(bio).await,
            None => self.copy_out(&pending).await,
        };
        if let Err(status) = copied {
            error!(%status, chunk = pending.old, "a chunk cannot be copied");
            self.invalidate("a chunk could not be copied");
            self.invalid().await;
        }
        if !broken(Rule::DataComesFirst) {
            self.finish(pending).await;
        }
    }

    async fn copy_out(&self, pending: &PendingException) -> BioResult {
        let Some(LoadedState { geometry, .. }) = self.loaded.get() else { return Err(Status::Io) };
        let (from, to) = (geometry.sector(pending.old), geometry.sector(pending.new));
        let len = geometry.chunk().min(self.origin.capacity().as_end() - from);
        copy(&self.origin, from, &self.cow, to, len).await
    }

    /// The copy is done: commits it, and other finished ones, unless another task does.
    async fn finish(&self, pending: Arc<PendingException>) {
        let Some(loaded) = self.loaded.get() else { return };
        let mut mine = lock(&loaded.store).finish(pending);
        while mine {
            let Some(batch) = lock(&loaded.store).next_batch() else { return };
            if self.is_valid()
                && let Err(status) = self.write(&batch).await
            {
                self.invalidate(&format!("exceptions could not be written: {status}"));
            }
            let made = self.is_valid();
            if !made {
                self.invalid().await;
            }
            lock(&loaded.store).committed();
            for exception in &batch.exceptions {
                self.leave(exception, made);
            }
            mine = true;
        }
    }

    /// Submits a user's bio to the COW device.
    pub(super) async fn submit_to_cow(&self, bio: Bio) -> BioResult {
        let before = self.cow.disk().losses();
        let result = self.users_cow.submit(bio).await;
        // A commit would notice; a transient snapshot commits nothing.
        if result.is_err() && self.cow.disk().losses() != before && !broken(Rule::LossesAreKnown) {
            let needed = self.loaded.get().is_some_and(|loaded| lock(&loaded.store).needs_cache());
            if needed {
                self.invalidate("a flush failed, and copies may be lost that were in a cache");
            }
        }
        result
    }

    /// Writes a batch: no part of it may be trusted before all of it is durable.
    async fn write(&self, batch: &Batch) -> BioResult {
        let durable = Flags::FUA | Flags::META | Flags::SYNC;
        if let Some(clean) = &batch.clean {
            let mut data = Buffer::from_slice(clean.data.as_slice());
            self.cow.submit(Bio::write_from(clean.at, &mut data).with_flags(durable)).await?;
        }
        if let (Some(at), Some(loaded)) = (batch.next_area, self.loaded.get())
            && !broken(Rule::NextAreaIsEmpty)
        {
            load::zero(&self.cow, at, loaded.geometry.chunk(), Flags::empty()).await?;
        }
        let Some(write) = &batch.write else { return Ok(()) };
        // The flush makes the copies and the empty next area durable.
        let mut flags = durable;
        flags.set(Flags::PREFLUSH, !broken(Rule::CommitFlushes));
        flags.set(Flags::FUA, !broken(Rule::CommitIsDurable));
        if broken(Rule::LossesAreKnown) {
            self.cow.flush().await.ok();
        }
        let mut data = Buffer::from_slice(write.data.as_slice());
        self.cow.submit(Bio::write_from(write.at, &mut data).with_flags(flags)).await
    }

    /// Ends a pending exception: it is on disk, or will never be.
    fn leave(&self, pending: &Arc<PendingException>, made: bool) {
        let mut shard = self.exceptions.shard(pending.old);
        if made {
            shard.complete.insert(pending.old, pending.new);
            if shard.is_tracked(pending.old) {
                // The last tracked read releases it.
                return;
            }
        }
        let there = shard.pending.remove(&pending.old);
        drop(shard);
        if there.is_some() {
            self.let_go(pending, made);
        }
    }

    fn let_go(&self, pending: &PendingException, made: bool) {
        self.in_flight.fetch_sub(1, SeqCst);
        pending.end(made);
        self.ended.notify(usize::MAX);
    }

    /// The length of a run in the origin, which may end within its last chunk.
    pub(super) fn len_of(&self, geometry: Geometry, run: &Run) -> Sectors {
        let (at, end) = (geometry.sector(run.old), geometry.sector(run.old + run.len));
        end.min(self.origin.capacity().as_end()) - at
    }

    /// Ends the tracking of I/O on a chunk.
    pub(super) fn untrack(&self, chunk: u64) {
        let mut shard = self.exceptions.shard(chunk);
        let drained = shard.untrack(chunk);
        let merging = shard.window.contains(chunk);
        drop(shard);
        if let Some(pending) = drained {
            self.let_go(&pending, true);
        }
        if merging {
            self.merge.task.changed.notify(usize::MAX);
        }
    }

    /// Makes the snapshot invalid: from now on its I/O fails, and the origin may change when
    /// [`Self::invalid`] has ended.
    pub(super) fn invalidate(&self, why: &str) {
        if self.state.compare_exchange(VALID, FAILING, SeqCst, SeqCst).is_err() {
            return;
        }
        let cow = self.cow.disk().name();
        match self.active.load(SeqCst) {
            true => error!(cow, why, "the snapshot is invalid"),
            // It is gone, and copies were in flight.
            false => debug!(cow, why, "a snapshot without users is invalid"),
        }
        self.fills.notify(usize::MAX);
    }

    /// Waits until an invalidated snapshot is recorded as invalid on disk, or cannot be.
    pub(super) async fn invalid(&self) {
        let _one = self.loading.write().await;
        if self.state.load(SeqCst) != FAILING {
            return;
        }
        self.record().await;
        self.state.store(INVALID, SeqCst);
    }

    async fn record(&self) {
        let Some(LoadedState { geometry, .. }) = self.loaded.get() else { return };
        if !self.persistent || broken(Rule::InvalidIsRecorded) {
            return;
        }
        // Everything depends on this write, and a device that fails some writes may accept the next one.
        let mut written = Err(Status::Io);
        for _ in 0..RECORD_TRIES {
            written = load::write_header(&self.cow, *geometry, false).await;
            let Err(status) = written else { break };
            if self.active.load(SeqCst) {
                let cow = self.cow.disk().name();
                error!(%status, cow, "that the snapshot is invalid cannot be written");
            }
        }
        self.unrecorded.store(written.is_err(), SeqCst);
    }

    /// Last attempt to record the invalidity, if it failed before, or was not yet attempted.
    pub(super) async fn settle(&self) {
        self.invalid().await;
        if self.unrecorded.load(SeqCst) {
            self.record().await;
        }
    }

    /// Called when the snapshot's own write finds no room; returns whether it stays valid for reading.
    pub(super) fn overflow(&self) {
        if self.overflow_known.load(SeqCst) {
            if !self.overflowed.swap(true, SeqCst) {
                error!(cow = self.cow.disk().name(), "the snapshot overflowed");
                self.fills.notify(usize::MAX);
            }
        } else {
            self.invalidate("there is no room for another exception");
        }
    }
}

/// The bio, which is in one chunk, redirected to the chunk's copy.
pub(super) fn remap(geometry: Geometry, bio: &Bio, new: u64) -> Bio {
    bio.slice_to(bio.sector, bio.len, geometry.sector(new) + geometry.offset(bio.sector))
}
