//! The core of an array: what all levels share.
//!
//! | part | decides |
//! |---|---|
//! | [`lifecycle`] | active, clean, stopped |
//! | [`records`] | whether everything is recorded; that of two copies only one may fail |
//! | [`membership`](crate::membership) | slots, superblocks |
//! | [`bitmap`](crate::bitmap) | which chunks may differ |
//! | [`barrier`](crate::barrier) | which I/O may pass |
//! | [`resync_offset`] | how far copies are the same |
//! | [`ppl`] | what rows are logged, so that no crash leaves parity that is wrong |
//!
//! The parts know nothing of each other. The other modules here act on several of them, in one order:
//!
//! ```text
//!   spares    write: a client's write
//!      \        |
//!       \     activity: go active, go clean
//!        \      |    \
//!         \     |     bitmap daemon: clear marks
//!          \    |    /
//!         record: superblocks, and failures in them
//!               |
//!         failing: a member fails; all are flushed; the bitmap's store
//! ```
//!
//! [`read_cost`] probes the members and sets what reads from them cost.
//!
//! Nothing here maps or moves a client's data: that is the [`Level`](crate::level::Level)'s task. The level's geometry
//! ([`Personality`]) says whether the array can lose a slot.

mod activity;
mod bitmap_daemon;
pub(crate) mod blocks;
pub(crate) mod failing;
pub(crate) mod lifecycle;
pub(crate) mod ppl;
mod read_cost;
mod record;
mod records;
mod resync_offset;
mod spares;
mod sync_wakeup;
mod write;

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use ashlar_block::sync::uncancellable::Uncancellable;
use ashlar_block::{Disk, Runtime, Sector, Sectors, Status};
use futures_util::lock::{Mutex, MutexGuard};

use crate::barrier::{Barrier, Raise};
use crate::bitmap::Bitmap;
use crate::level::parity::settings::ParitySettings;
use crate::membership::slots::Members;
use crate::membership::superblocks::Superblocks;
use crate::personality::Personality;
pub(crate) use blocks::{Part, Source};
pub(crate) use lifecycle::{Hold, Lifecycle};
pub(crate) use ppl::Ppl;
use resync_offset::ResyncOffset;
pub(crate) use sync_wakeup::SyncWakeup;
pub(crate) use write::Write;

/// See the module text.
pub(crate) struct Core {
    me: Weak<Self>,
    /// Name, size, limits, statistics.
    pub(crate) disk: Disk,
    pub(crate) runtime: Arc<dyn Runtime>,
    personality: Current<Personality>,
    bitmap: Current<Option<Bitmap>>,
    /// Locked by whatever changes slots, or what superblocks say.
    superblocks: Mutex<Superblocks>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) members: Members,
    pub(crate) barrier: Barrier,
    pub(crate) resync_offset: ResyncOffset,
    pub(crate) sync_wakeup: SyncWakeup,
    /// Settings of levels with parity.
    pub(crate) parity: ParitySettings,
    ppl: Option<Ppl>,
    /// A task that marks the array clean once it is idle is running.
    watched: AtomicBool,
    /// A task that clears marks of the bitmap is running.
    bitmap_daemon_runs: AtomicBool,
    /// The array's reads when they were last balanced.
    reads_seen: AtomicU64,
    /// Whether the members may be written at all. (The user's read-only flag is on the disk.)
    writable: bool,
    /// Reads use parity that may be wrong: the array lacks a member, and the user has forced its start.
    forced: bool,
}

/// What a core starts with.
pub(crate) struct Start {
    pub(crate) disk: Disk,
    pub(crate) personality: Personality,
    pub(crate) members: Members,
    pub(crate) superblocks: Superblocks,
    pub(crate) bitmap: Option<Bitmap>,
    pub(crate) ppl: Option<Ppl>,
    pub(crate) in_sync_to: Sectors,
    pub(crate) writable: bool,
    /// See [`Plan::forced`](crate::assemble::Plan).
    pub(crate) forced: bool,
    /// Some superblock may say active.
    pub(crate) dirty: bool,
}

impl Core {
    pub(crate) fn new(start: Start, runtime: Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            disk: start.disk,
            runtime,
            personality: Current::new(start.personality),
            bitmap: Current::new(start.bitmap),
            superblocks: Mutex::new(start.superblocks),
            lifecycle: Lifecycle::new(start.dirty),
            members: start.members,
            barrier: Barrier::default(),
            resync_offset: ResyncOffset::new(start.in_sync_to),
            sync_wakeup: SyncWakeup::default(),
            parity: ParitySettings::default(),
            ppl: start.ppl,
            watched: false.into(),
            bitmap_daemon_runs: false.into(),
            reads_seen: AtomicU64::new(0),
            writable: start.writable,
            forced: start.forced,
        })
    }

    /// The array's name.
    pub(crate) fn name(&self) -> &str {
        self.disk.name()
    }

    /// The level's geometry.
    #[inline]
    pub(crate) fn personality(&self) -> &Personality {
        &self.personality
    }

    /// Sets the geometry. No I/O may be in flight: the array is frozen.
    pub(crate) fn set_personality(&self, new: Personality) {
        self.personality.set(new);
    }

    /// Whether the level has copies, and so a clean/active state.
    pub(crate) fn is_redundant(&self) -> bool {
        self.personality.is_redundant()
    }

    /// Whether the members may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether the array's own I/O must not write: a user made the array read-only or auto-read-only.
    pub(crate) fn is_only_read(&self) -> bool {
        self.disk.is_read_only() || self.lifecycle.is_auto_read_only()
    }

    /// Whether a failed read may change the members: as in the kernel, not if the array is (auto-)read-only.
    pub(crate) fn may_correct(&self) -> bool {
        self.writable && !self.is_only_read()
    }

    /// Whether every slot has a member in sync.
    pub(crate) fn is_complete(&self) -> bool {
        self.members.degraded() == 0
    }

    /// The write-intent bitmap in use.
    #[inline]
    pub(crate) fn bitmap(&self) -> Option<&Bitmap> {
        self.bitmap.as_ref()
    }

    /// Sets the bitmap in use, or none. No write may be in flight: the array is frozen.
    pub(crate) fn set_bitmap(&self, bitmap: Option<Bitmap>) {
        self.bitmap.set(bitmap);
    }

    /// The end of sync space, in whole blocks.
    pub(crate) fn sync_end(&self) -> Sector {
        self.personality.sync_size().round_down(self.disk.limits().logical_block()).as_end()
    }

    /// Whether parity may not fit its row somewhere in a range of sync space.
    pub(crate) fn is_suspect(&self, range: &Range<Sector>) -> bool {
        !self.forced
            && self.resync_offset.is_beyond(range.end)
            && self.bitmap().is_none_or(|bitmap| bitmap.may_differ(range))
    }

    /// Whether what is recovered from parity may be wrong, and is used: the user has forced the array's start.
    pub(crate) fn is_forced(&self) -> bool {
        self.forced
    }

    /// The ranges of the array in whose rows parity may not fit, although it is used: what is recovered there may be wrong.
    pub(crate) fn suspects(&self) -> Vec<Range<Sector>> {
        let (from, end) = (self.resync_offset.get().as_end(), self.sync_end());
        if !self.personality.level().has_parity() || from >= end {
            return Vec::new();
        }
        let runs = self
            .bitmap()
            .map_or_else(|| vec![(Sector::ZERO, end - Sector::ZERO)], Bitmap::needed_runs);
        let beyond = runs.into_iter().map(|(at, len)| at.max(from)..(at + len).min(end));
        beyond
            .filter(|range| !range.is_empty())
            .map(|range| self.personality.array_range(&range))
            .collect()
    }

    /// Raises the barrier over all that a range of sync space belongs to.
    pub(crate) async fn raise(&self, range: &Range<Sector>) -> Raise<'_> {
        let range = self.personality.array_range(range);
        self.barrier.raise(range.start, range.end - range.start).await
    }

    /// Locks the superblocks.
    pub(crate) async fn superblocks(&self) -> MutexGuard<'_, Superblocks> {
        self.superblocks.lock().await
    }

    /// The core itself, for tasks.
    fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// Runs `work` to its end, even if the future is dropped.
    pub(crate) fn uncancellable<T, F>(
        &self,
        work: impl FnOnce(Arc<Self>) -> F + 'static,
    ) -> Uncancellable<'_, T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        Uncancellable::new(&self.runtime, &self.me, work)
    }
}

/// What an array replaces only while it is frozen: its geometry, its bitmap. The earlier ones stay until the array is dropped, so that I/O
/// finds the current one with a load, without a lock or a count, and references stay valid.
struct Current<T> {
    all: boxcar::Vec<T>,
    current: AtomicUsize,
}

impl<T> Current<T> {
    fn new(first: T) -> Self {
        let this = Self { all: boxcar::Vec::new(), current: AtomicUsize::new(0) };
        this.set(first);
        this
    }

    fn set(&self, new: T) {
        self.current.store(self.all.push(new), SeqCst);
    }
}

impl<T> Deref for Current<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.all[self.current.load(SeqCst)]
    }
}
