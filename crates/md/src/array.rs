//! A running array: its members, its state, and their changes.
//!
//! # States
//!
//! ```text
//!            first write              200 ms without a write, or stop
//!   clean --------------> active --------------------------------------> clean
//!     |                     |
//!     +---- stop -----------+--> stopped: every I/O fails with `Offline`
//! ```
//!
//! A user can make a clean array *auto-read-only* (the kernel's `read-auto`): it stays so, and syncs nothing, until its first
//! write makes it active. That write finds `active` not set, as the first write of any clean array does, so
//! no other write looks at the state.
//!
//! `clean` on disk promises that all copies are the same. So the superblocks say `active` before
//! the first write goes to a member, and `clean` only after the last write has ended and the members
//! were flushed. A write increments `writing` and then reads `active`; the change back to clean
//! clears `active` and then reads `writing`; all accesses are sequentially consistent, so at least one of
//! the two sees the other. RAID 0 has no copies and keeps no such state.
//!
//! Stopping works the same way: a write increments `writing` and then reads `stopped`.
//!
//! A member fails permanently: `faulty` is set first, so that it gets no more I/O, then
//! the superblocks of the others record it, then the write that found the failure is acknowledged. The last copy
//! of any data never fails (md's rule): its errors go up to the caller instead. If it shares
//! other chunks with a member in sync, the two may differ from then on: the array is *unsynced*,
//! reads use only first copies, and the array is no longer called clean.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ashlar_block::stats::{SHARDS, thread_shard};
use ashlar_block::sync::finish::Finish;
use ashlar_block::{
    Bio, BioResult, BlockDevice, CopyNumber, Disk, Features, IoFuture, Limits, Op, Runtime, Sector,
    Sectors, Status, rate_limited,
};
use async_lock::OnceCell;
use futures_util::future::select;
use futures_util::lock::Mutex;
use tracing::{info, warn};

use crate::assemble::Plan;
use crate::barrier::Barrier;
use crate::bitmap::Store;
use crate::bitmap_store::Bitmaps;
use crate::canary::{Rule, broken};
use crate::io::behind::Behind;
use crate::members::Members;
use crate::personality::Personalities;
use crate::rdev::Rdev;
use crate::read_errors;
use crate::superblocks::{Change, Facts, Superblocks};
use crate::sync;

/// How long an array stays active without a write (the kernel's `safe_mode_delay`, in seconds its
/// "0.200").
pub const SAFE_MODE_DELAY: Duration = Duration::from_millis(200);

/// Number of writes under way, counted on the writing thread's own cache line.
#[derive(Default)]
#[repr(align(128))]
struct Writers(AtomicU64);

/// Holds the array active while a write is under way.
pub(crate) struct Writing<'a>(&'a Writers);

/// An assembled array.
pub struct Array {
    me: Weak<Self>,
    pub(crate) disk: Disk,
    pub(crate) personality: Personalities,
    pub(crate) members: Members,
    pub(crate) bitmaps: Bitmaps,
    pub(crate) behind: Behind,
    pub(crate) sync: sync::Control,
    pub(crate) barrier: Barrier,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) superblocks: Mutex<Superblocks>,
    /// Notes of the assembly: members left out, and why.
    pub(crate) notes: Vec<String>,
    /// Whether the members may be written at all. (The user's read-only flag is on the disk.)
    writable: bool,
    /// Copies are the same below this array sector, except for writes under way; [`u64::MAX`] for
    /// all. Beyond it only the first copy of each chunk is read.
    pub(crate) in_sync_to: AtomicU64,
    writing: Box<[Writers]>,
    /// Writes begun so far, to detect idle time.
    writes_begun: Box<[Writers]>,
    active: AtomicBool,
    /// The array writes nothing to its members before the first write of a client, which ends this state. Set with the
    /// superblocks locked, while the array is clean and not active.
    pub(crate) auto_read_only: AtomicBool,
    /// Some superblock may say active.
    dirty: AtomicBool,
    /// Counts the changes that writes depend on.
    changes: AtomicU64,
    /// How many of `changes` are in the superblocks. The rest are on their way or could not be
    /// recorded.
    recorded: AtomicU64,
    /// Counts the data that members lack although they stay in the array.
    pub(crate) lacking: AtomicU64,
    /// Held while a thread checks whether a member may fail, and fails it: of two members that
    /// hold the same data only one may fail.
    pub(crate) failing: std::sync::Mutex<()>,
    /// A task that clears bitmap marks is running.
    tended: AtomicBool,
    max_read_errors: AtomicU32,
    stopped: AtomicBool,
    /// The result of the stop.
    end: OnceCell<BioResult>,
}

impl Array {
    /// Starts the array that `plan` describes under the name `name` (`md0`). Nothing is written:
    /// the superblocks change with the first write.
    pub fn start(plan: Plan, name: &str, runtime: Arc<dyn Runtime>) -> Arc<Self> {
        let Plan {
            personality,
            members,
            superblocks,
            freshest,
            read_only,
            in_sync_to,
            bitmap,
            notes,
        } = plan;
        let members = Members::new(personality.disks(), members);
        let mut limits = Limits::stacking();
        for (_, rdev) in members.iter() {
            limits.stack(rdev.limits(), rdev.data_offset().as_end());
        }
        let mut limits = limits.finish_stacking();
        if personality.is_redundant() {
            // A write-behind may be missing even on a member without a volatile cache.
            if !limits.features.contains(Features::WRITE_CACHE) {
                limits.features |= Features::FUA;
            }
            limits.features |= Features::WRITE_CACHE;
        }
        // The array keeps the block size it was created with, even if its members changed.
        limits.logical_block_bytes = limits.logical_block_bytes.max(freshest.logical_block_size);
        personality.narrow(&mut limits, members.slots());
        let size = personality.size().round_down(limits.logical_block());
        let disk = Disk::new(name, size, limits);
        disk.set_read_only(read_only);
        let dirty = !freshest.is_clean() && personality.is_redundant();
        let writers = || std::iter::repeat_with(Writers::default).take(SHARDS).collect();
        for note in &notes {
            warn!(array = name, "{note}");
        }
        info!(array = name, level = %personality.level(), size = %personality.size(), "started");
        let array = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            disk,
            personality: Personalities::new(personality),
            superblocks: Mutex::new(Superblocks::new(superblocks, &members, &freshest)),
            members,
            behind: Behind::default(),
            bitmaps: Bitmaps::new(bitmap),
            sync: sync::Control::new(in_sync_to),
            barrier: Barrier::default(),
            runtime,
            notes,
            writable: !read_only,
            in_sync_to: AtomicU64::new(in_sync_to.0),
            writing: writers(),
            writes_begun: writers(),
            active: AtomicBool::new(false),
            auto_read_only: AtomicBool::new(false),
            dirty: AtomicBool::new(dirty),
            changes: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
            lacking: AtomicU64::new(0),
            failing: std::sync::Mutex::default(),
            tended: AtomicBool::new(false),
            max_read_errors: read_errors::DEFAULT_MAX.into(),
            stopped: AtomicBool::new(false),
            end: OnceCell::new(),
        });
        if let Some(bitmap) = array.bitmap() {
            array.behind.set_limit(bitmap.superblock().write_behind.get());
        }
        array.start_sync();
        array
    }

    /// The array itself, for tasks that outlive the caller's reference.
    pub(crate) fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// Whether the level has copies, and so a clean/active state.
    pub(crate) fn is_redundant(&self) -> bool {
        self.personality.is_redundant()
    }

    /// Whether the array was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    /// Whether the superblocks say that writes are under way.
    pub fn is_active(&self) -> bool {
        self.dirty.load(SeqCst)
    }

    /// How far copies are known to be the same, except for writes under way; [`Sectors::MAX`] for
    /// all. Beyond it only the first copy of each chunk is read.
    pub fn in_sync_to(&self) -> Sectors {
        Sectors(self.in_sync_to.load(SeqCst))
    }

    /// Whether copies may differ somewhere.
    pub fn is_unsynced(&self) -> bool {
        self.in_sync_to() != Sectors::MAX
    }

    /// Whether the members may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Runs `work` to its end, even if the future is dropped.
    pub(crate) fn finish<T, F>(&self, work: impl FnOnce(Arc<Self>) -> F + 'static) -> Finish<'_, T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        Finish::new(&self.runtime, &self.me, work)
    }

    fn writers(&self) -> u64 {
        self.writing.iter().map(|w| w.0.load(SeqCst)).sum()
    }

    fn writes_begun(&self) -> u64 {
        self.writes_begun.iter().map(|w| w.0.load(SeqCst)).sum()
    }

    /// Begins a write, once the superblocks say that the array is active.
    pub(crate) async fn write_start(&self) -> Result<Option<Writing<'_>>, Status> {
        if !self.is_redundant() {
            return Ok(None);
        }
        self.writes_begun[thread_shard()].0.fetch_add(1, SeqCst);
        let guard = self.hold_open();
        if self.is_stopped() {
            return Err(Status::Offline);
        }
        if !self.active.load(SeqCst) {
            Box::pin(self.go_active()).await?;
        }
        Ok(Some(guard))
    }

    /// Keeps the array from being marked clean or stopped until the guard is dropped.
    pub(crate) fn hold_open(&self) -> Writing<'_> {
        let writing = &self.writing[thread_shard()];
        writing.0.fetch_add(1, SeqCst);
        Writing(writing)
    }

    #[cold]
    async fn go_active(&self) -> BioResult {
        let mut superblocks = self.superblocks.lock().await;
        // Another write may have done it while this one waited for the lock.
        if !self.active.load(SeqCst) {
            self.dirty.store(true, SeqCst);
            if !broken(Rule::ActiveIsRecorded) {
                self.record(&mut superblocks, Change::Active).await?;
            }
            self.active.store(true, SeqCst);
            // Only now, so that no sync writes before the superblocks say active.
            self.end_auto_read_only();
            self.watch();
            self.tend();
        }
        Ok(())
    }

    /// Starts the task that clears bitmap marks, if it is not running.
    pub(crate) fn tend(&self) {
        if let Some(array) = self.me.upgrade()
            && !self.tended.swap(true, SeqCst)
        {
            self.runtime.spawn(Box::pin(array.tend_bitmap()));
        }
    }

    /// Writes a change to the superblocks. Until it succeeds, no write is acknowledged (see
    /// [`Self::recorded`]).
    pub(crate) async fn record(&self, superblocks: &mut Superblocks, change: Change) -> BioResult {
        self.must_record();
        // Later changes may or may not be in the superblocks that are now written.
        let changes = self.changes.load(SeqCst);
        let fail = |rdev: &Rdev| {
            self.try_fail(rdev, |rdev| {
                rdev.set_faulty();
            })
        };
        superblocks.update(self.facts(), change, fail).await?;
        self.recorded.fetch_max(changes, SeqCst);
        Ok(())
    }

    /// What superblocks say about the array.
    pub(crate) fn facts(&self) -> Facts<'_> {
        Facts {
            members: &self.members,
            in_sync_to: self.recordable_bound(),
            now: self.runtime.wall_clock(),
            bitmap: self.bitmap().map(|bitmap| (bitmap, self as &dyn Store)),
        }
    }

    /// The sector up to which superblocks may say that copies are the same.
    fn recordable_bound(&self) -> Sectors {
        let bound = self.in_sync_to().min(self.sync.durable());
        if self.is_unsynced() && broken(Rule::BoundIsReached) {
            return Sectors(bound.0.saturating_add(crate::sync::WINDOW.0));
        }
        bound
    }

    /// Waits until every failure of a member is in the superblocks. A write that left out a failed
    /// member may be acknowledged only then: after a crash the failed member must not count as
    /// up to date.
    pub(crate) async fn recorded(&self) -> BioResult {
        if self.is_recorded() {
            return Ok(());
        }
        Box::pin(async {
            let mut superblocks = self.superblocks.lock().await;
            self.record_what_is_left(&mut superblocks).await
        })
        .await
    }

    /// Requires that the caller's change is recorded before any write is acknowledged. Call it after
    /// the change, so that superblocks written without it do not count.
    pub(crate) fn must_record(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    /// Whether the superblocks record all failures of members and all other changes that
    /// acknowledgements depend on.
    #[inline]
    pub fn is_recorded(&self) -> bool {
        // In this order: `recorded` never exceeds `changes`.
        let recorded = self.recorded.load(SeqCst);
        recorded == self.changes.load(SeqCst)
    }

    /// Retries what could not be recorded.
    pub(crate) async fn record_what_is_left(&self, superblocks: &mut Superblocks) -> BioResult {
        if !self.is_recorded() {
            self.record(superblocks, Change::Members).await?;
        }
        Ok(())
    }

    /// Starts a task that marks the array clean once it is idle.
    pub(crate) fn watch(&self) {
        if let Some(array) = self.me.upgrade() {
            self.runtime.spawn(Box::pin(array.watch_idle()));
        }
    }

    /// Marks the array clean once it has been idle for [`SAFE_MODE_DELAY`], then ends.
    async fn watch_idle(self: Arc<Self>) {
        let mut seen = self.writes_begun();
        loop {
            self.doze(SAFE_MODE_DELAY).await;
            if self.is_stopped() {
                return;
            }
            let now = self.writes_begun();
            if now == seen && self.writers() == 0 {
                match self.go_clean().await {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(status) => {
                        rate_limited!(error, array = self.disk.name(), %status, "cannot mark the array clean");
                        return;
                    }
                }
            }
            seen = now;
        }
    }

    /// Sleeps, at most until the array has stopped: a task that holds the array also holds its members' devices.
    async fn doze(&self, time: Duration) {
        select(self.runtime.sleep(time), pin!(self.end.wait())).await;
    }

    /// Clears bitmap marks until the array is clean and no mark is left that may be cleared.
    async fn tend_bitmap(self: Arc<Self>) {
        loop {
            let sleep = self.bitmap().map_or(SAFE_MODE_DELAY, |bitmap| bitmap.daemon_sleep());
            self.doze(sleep).await;
            // So a stop either waits for this bitmap write, or this task sees the stop and ends.
            let _open = self.hold_open();
            let Some(bitmap) = self.bitmap().filter(|_| !self.is_stopped()) else { break };
            let may_clear = self.is_complete_array();
            if let Err(status) = bitmap.clean(may_clear, &*self).await {
                rate_limited!(warn, array = self.disk.name(), %status, "marks stay in the bitmap");
            }
            // A member may have failed in this pass, and perhaps no write follows that records it.
            if let Err(status) = self.recorded().await {
                rate_limited!(warn, array = self.disk.name(), %status, "cannot record what failed");
            }
            if !self.active.load(SeqCst) && (!may_clear || bitmap.marked_chunks() == 0) {
                break;
            }
        }
        self.tended.store(false, SeqCst);
        // A write that saw `tended` set a moment ago relies on this task.
        if self.active.load(SeqCst) && !self.is_stopped() && !self.tended.swap(true, SeqCst) {
            self.runtime.spawn(Box::pin(Self::tend_again(self.clone())));
        }
    }

    fn tend_again(self: Arc<Self>) -> ashlar_block::LocalFuture<'static, ()> {
        Box::pin(self.tend_bitmap())
    }

    /// Whether every slot has a member in sync.
    pub(crate) fn is_complete_array(&self) -> bool {
        self.members.degraded() == 0
    }

    /// Read errors that a member may have within about an hour (the kernel's `max_read_errors`).
    pub fn max_read_errors(&self) -> u32 {
        self.max_read_errors.load(SeqCst)
    }

    /// Sets how many read errors a member may have.
    pub fn set_max_read_errors(&self, max: u32) {
        self.max_read_errors.store(max, SeqCst);
    }

    /// Marks the array clean if no write is under way; true if it is then clean.
    pub(crate) async fn go_clean(&self) -> Result<bool, Status> {
        self.go_clean_with(&mut *self.superblocks.lock().await).await
    }

    /// As [`Self::go_clean`]; an array that is then clean becomes auto-read-only, without a mark in its bitmap that
    /// could be cleared later.
    pub(crate) async fn go_auto_read_only(&self) -> Result<bool, Status> {
        // Locked to the end: a write that begins meanwhile waits for the lock, and finds the array auto-read-only.
        let mut superblocks = self.superblocks.lock().await;
        if self.is_redundant() {
            if !self.go_clean_with(&mut superblocks).await? {
                return Ok(false);
            }
            self.clear_marks().await;
            self.record_what_is_left(&mut superblocks).await?;
        }
        self.auto_read_only.store(true, SeqCst);
        Ok(true)
    }

    async fn go_clean_with(&self, superblocks: &mut Superblocks) -> Result<bool, Status> {
        if superblocks.is_clean() {
            return Ok(true);
        }
        let was_active = self.active.swap(false, SeqCst);
        if self.writers() != 0 {
            // If the array was not active, that write is waiting for our lock to make it active.
            self.active.store(was_active, SeqCst);
            return Ok(false);
        }
        // No write is under way: a new one waits for our lock. A member that cannot be flushed
        // may hold less than the others, so it fails.
        let in_sync_to = self.in_sync_to();
        if !broken(Rule::CleanIsFlushed) {
            self.flush_members(superblocks).await?;
        }
        self.sync.set_durable(in_sync_to);
        if self.is_stopped() {
            self.clear_marks().await;
        }
        self.record(superblocks, Change::Clean).await?;
        self.dirty.store(false, SeqCst);
        Ok(true)
    }

    /// Clears marks of the bitmap while nothing is written. Leftover marks only cost a sync; an error here must not
    /// prevent the clean state.
    async fn clear_marks(&self) {
        let Some(bitmap) = self.bitmap() else { return };
        let may_clear = self.is_complete_array() && !self.is_unsynced();
        if let Err(status) = bitmap.clean_now(may_clear, self).await {
            warn!(array = self.disk.name(), %status, "marks stay in the bitmap");
        }
    }

    /// Stops the array: refuses new I/O, waits for I/O in flight, flushes everything, and marks the
    /// superblocks clean. An array that cannot be marked clean is stopped anyway.
    ///
    /// # Errors
    /// The flush or the superblocks failed: the array will have to be resynced.
    pub async fn stop(&self) -> BioResult {
        self.stopped.store(true, SeqCst);
        self.finish(|array| async move { *array.end.get_or_init(|| array.wind_up()).await }).await
    }

    async fn wind_up(&self) -> BioResult {
        let _held = self.hold_sync().await;
        // The gateway counted an I/O as started before the I/O asked whether the array is stopped.
        while !self.disk.stats().is_idle() || self.writers() != 0 {
            self.runtime.sleep(Duration::from_millis(1)).await;
        }
        if !self.writable {
            return Ok(());
        }
        if !self.is_redundant() {
            return self.submit_flush().await;
        }
        // Writes that arrive after the stop are counted for a moment before they fail.
        while !self.go_clean().await? {
            self.runtime.sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

impl BlockDevice for Array {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        Self::copies(self, at, len)
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        if self.is_stopped() {
            return IoFuture::failed(Status::Offline);
        }
        match bio.op {
            Op::Read | Op::Write if !self.is_redundant() => self.submit_striped(bio),
            Op::Read if bio.copy != CopyNumber::ANY => IoFuture::boxed(self.read_named(bio)),
            Op::Read => IoFuture::boxed(self.read_chunk(bio)),
            Op::Write | Op::Discard | Op::WriteZeroes => self.submit_write(bio),
            Op::Flush => self.finish(|array| async move { array.submit_flush().await }).into(),
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}
