//! Resync, recovery, check and repair: the array's own I/O.
//!
//! # Choice of action
//!
//! One task for each array, on the reactor that started it. It checks for work when the array
//! starts and whenever it is woken, and performs the first action that applies:
//!
//! | condition | action |
//! |---|---|
//! | the array is stopped, held or frozen | nothing |
//! | a member in a slot that is not in sync, or a replacement; spares are put into empty slots before | recover |
//! | a part of the array where copies may differ (`in_sync_to`, or by the bitmap) | resync |
//! | a request of the user | check, repair |
//!
//! *idle* ends the running action, and a necessary one starts again, as in the kernel; *frozen* prevents
//! new actions. An action that could not complete is not retried until the state changes.
//!
//! A sync is divided into windows of 1 MiB or more, several of them in flight. Each raises the
//! barrier for its own part of the array only, reads the slots, reads, writes, and lowers it.
//!
//! # No write is lost
//!
//! A window reads from a good copy and writes to others. The barrier keeps regular writes out of its part of
//! the array meanwhile. So the window writes what the good copy holds when the barrier is lowered.
//! Regular writes go to all members that have not failed, rebuilt or not: ranges already copied stay
//! as new as their source, and ranges to be copied later do not matter. A write that began before a
//! member entered its slot does not go to that member; but the window that copies its part waits
//! for the write, because it reads the slots under the barrier.
//!
//! # Reads are correct at every moment
//!
//! The two bounds that reads obey move only over completed windows, in order:
//!
//! - beyond `in_sync_to` reads return the first copy, block by block, by the rule of [`source`]. A
//!   resync takes the same copy by the same rule and changes the others. So a block reads the same
//!   before, during and after; below the bound any copy will do.
//! - a member under rebuild is read only below `recovered`. Recovery copies the data that reads returned
//!   before. So if the member becomes the first copy of a block that is yet to be
//!   resynced, the block reads as before.
//! - a replacement ranks like the member that it replaces, read last or not. If a resync is still
//!   due when it takes the slot, it inherits from the member whether it is read last: otherwise another
//!   copy would become the first.
//!
//! # Order of durability
//!
//! | first | then |
//! |---|---|
//! | windows ended, all members flushed | superblocks say "in sync up to here" (`resync_offset`, only without concurrent writes: otherwise zero) |
//! | windows ended, all members flushed | superblock of a member says "rebuilt up to here" (`recovery_offset`) |
//! | all members flushed | a member counts as in sync, and its superblock says so |
//! | superblocks say that a replacement is complete | it takes the slot, and they record the old member as failed |
//! | marks needed by a re-added member | they stay: none are cleared while a slot is without a member in sync |
//!
//! Superblocks are also written for other reasons during a sync. So they never contain `in_sync_to` and
//! `recovered`, but their values at the last flush ([`Control::durable`],
//! [`Rdev::durably_recovered`]). A crash at any point therefore finds superblocks that claim less than
//! the disks hold; the sync continues from there, and repeats some work. The half-written part of a crashed
//! window is beyond both bounds.
//!
//! A regular write that fails on a copy that must stay resets `in_sync_to` to zero at any time. A
//! resync moves the bound only by compare-and-exchange, so it notices and restarts.
//!
//! # Read and write errors
//!
//! A block that its copy cannot return is read from the next readable copy, and written over the former
//! (as regular reads do). A block without a readable copy is listed as bad on members that have a log; otherwise
//! a resync leaves it (an unreadable block cannot differ) unless it may become readable again, and
//! a member under rebuild fails. A member that cannot be written fails; if it holds
//! the last copy of any data it stays, and the resync is incomplete there.
//!
//! # Cancellation
//!
//! A caller that ends a sync (stop, idle, frozen, a change of the array) requests it; windows that hold
//! the barrier complete, others give up when they get it, progress is recorded, and chunks that the
//! bitmap has as syncing need a sync again. [`Array::hold_sync`] waits for all that. It must not be
//! called while holding the barrier or the superblocks.

mod check;
mod drive;
mod pace;
mod recovery;
mod resync;
pub(crate) mod source;
mod status;
mod window;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ashlar_block::{BioResult, Sectors};
use event_listener::Event;
use tracing::error;

use crate::array::Array;
use crate::canary::{Rule, broken};
use crate::members::Index;
use crate::rdev::Rdev;
use crate::superblocks::Change;
use drive::Ended;
use pace::Marks;
pub(crate) use window::WINDOW;

pub use status::{
    Action, DEFAULT_SPEED_MAX_KIB, DEFAULT_SPEED_MIN_KIB, Request, SyncError, SyncSettings,
    SyncStatus,
};

/// State of the sync task, and the requests to it.
#[derive(Default)]
struct Orders {
    /// The task is working, or deciding what to do.
    busy: bool,
    running: Option<Action>,
    last: Action,
    requested: Option<Action>,
    frozen: bool,
    /// Number of [`SyncHeld`] guards.
    holds: usize,
    /// The running action must end.
    interrupted: bool,
    /// Counts events after which the task should check for work again.
    news: u64,
    /// The value of `news` when spares were last put into slots.
    spares_seen: Option<u64>,
    /// An action that did not succeed, and the value of `news` before it.
    gave_up: Option<(Action, u64)>,
}

/// Progress of the running action.
#[derive(Default)]
struct Progress {
    done: Sectors,
    total: Sectors,
    /// Sectors read or written, not those skipped.
    moved: Sectors,
    marks: Marks,
    mismatches: Sectors,
}

/// Control of the array's own I/O.
pub(crate) struct Control {
    orders: Mutex<Orders>,
    progress: Mutex<Progress>,
    settings: SyncSettings,
    /// Notified when an action, or a check for work, ends.
    ended: Event,
    /// `in_sync_to` at the last flush, which is what the superblocks may say.
    durable: AtomicU64,
}

impl Control {
    /// For an array whose copies are durably the same up to a sector.
    pub(crate) fn new(in_sync_to: Sectors) -> Self {
        Self {
            orders: Mutex::default(),
            progress: Mutex::default(),
            settings: SyncSettings::default(),
            ended: Event::new(),
            durable: AtomicU64::new(in_sync_to.0),
        }
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        // A poisoned lock is consistent: no panic can occur between two changes that belong together.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mismatches(&self) -> Sectors {
        self.progress().mismatches
    }

    fn count_mismatch(&self, sectors: Sectors) {
        self.progress().mismatches += sectors;
    }

    /// The sector up to which copies are durably the same.
    pub(crate) fn durable(&self) -> Sectors {
        Sectors(self.durable.load(SeqCst))
    }

    /// All members have been flushed since `in_sync_to` had this value. The caller must have held the
    /// superblocks' lock since then.
    pub(crate) fn set_durable(&self, in_sync_to: Sectors) {
        self.durable.store(in_sync_to.0, SeqCst);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The task sleeps without a reference to the array: wake it, so that it ends.
        self.settings.changed.notify(usize::MAX);
    }
}

/// Nothing is synced while this exists.
#[must_use = "a sync may begin when it is dropped"]
pub(crate) struct SyncHeld<'a>(&'a Array);

impl Drop for SyncHeld<'_> {
    fn drop(&mut self) {
        self.0.sync.orders().holds -= 1;
        self.0.wake_sync();
    }
}

impl Array {
    /// The running sync, and its progress.
    pub fn sync_status(&self) -> SyncStatus {
        let orders = self.sync.orders();
        let frozen = if orders.frozen { Action::Frozen } else { Action::Idle };
        let (running, last) = (orders.running, orders.last);
        drop(orders);
        let progress = self.sync.progress();
        let idle = SyncStatus {
            action: frozen,
            last,
            mismatches: progress.mismatches,
            ..SyncStatus::default()
        };
        let Some(action) = running else { return idle };
        let speed_kib = progress.marks.speed_kib(self.runtime.now_ns(), progress.moved);
        let left = progress.total.0.saturating_sub(progress.done.0);
        SyncStatus {
            action,
            done: progress.done,
            total: progress.total,
            speed_kib,
            eta: (speed_kib > 0).then(|| Duration::from_secs(left / 2 / speed_kib)),
            ..idle
        }
    }

    /// The limits of a sync.
    pub fn sync_settings(&self) -> &SyncSettings {
        &self.sync.settings
    }

    /// Sets where a check or repair begins, and where any sync waits ([`Sectors::MAX`]: nowhere).
    ///
    /// # Errors
    /// [`SyncError::Bound`] if they are not in ascending order, or not multiples of the chunk;
    /// [`SyncError::Busy`] if the upper bound would be lowered while an action runs (as in the kernel).
    pub fn set_sync_bounds(&self, min: Sectors, max: Sectors) -> Result<(), SyncError> {
        let settings = &self.sync.settings;
        let chunk = self.personality.chunk().0.max(8);
        let whole = |at: Sectors| at == Sectors::MAX || at.0.is_multiple_of(chunk);
        if min > max || !whole(min) || !whole(max) {
            return Err(SyncError::Bound);
        }
        if max < settings.sync_max() && self.sync.orders().running.is_some() {
            return Err(SyncError::Busy);
        }
        settings.set_sync_min(min);
        settings.set_sync_max(max);
        Ok(())
    }

    /// Starts what the user requests. Returns at once: [`Self::sync_ended`] waits.
    ///
    /// # Errors
    /// [`SyncError`].
    pub fn request_sync(&self, request: Request) -> Result<(), SyncError> {
        if !self.is_redundant() {
            return Err(SyncError::NotRedundant);
        }
        if !self.is_writable() || self.disk.is_read_only() {
            return Err(SyncError::ReadOnly);
        }
        if self.is_stopped() {
            return Err(SyncError::Stopped);
        }
        let mut orders = self.sync.orders();
        let wanted = match request {
            Request::Idle | Request::Frozen => {
                orders.frozen = request == Request::Frozen;
                orders.interrupted |= orders.running.is_some();
                orders.requested = None;
                None
            }
            Request::Resync | Request::Recover => None,
            Request::Check => Some(Action::Check),
            Request::Repair => Some(Action::Repair),
        };
        if !matches!(request, Request::Idle | Request::Frozen) {
            if orders.running.is_some() || orders.requested.is_some() {
                return Err(SyncError::Busy);
            }
            orders.frozen = false;
            orders.requested = wanted;
        }
        drop(orders);
        // As in the kernel.
        self.end_auto_read_only();
        self.wake_sync();
        Ok(())
    }

    /// Makes the sync task check for work.
    pub fn wake_sync(&self) {
        self.sync.orders().news += 1;
        self.sync.settings.changed.notify(usize::MAX);
    }

    /// Waits until nothing is being synced and no further action can begin.
    pub async fn sync_ended(&self) {
        loop {
            let listener = self.sync.ended.listen();
            let (busy, stands, spares_seen) = {
                let orders = self.sync.orders();
                let stands = self.stands(&orders);
                let busy = orders.busy || (orders.requested.is_some() && !stands);
                (busy, stands, orders.spares_seen == Some(orders.news))
            };
            let idle = stands || self.is_stopped() || !self.is_writable();
            let busy = busy || (!idle && !spares_seen && self.wants_spares());
            if !busy && (idle || self.next_action().is_none()) {
                return;
            }
            listener.await;
        }
    }

    /// Ends the running sync, waits for its end, and lets none begin until the guard is dropped.
    pub(crate) async fn hold_sync(&self) -> SyncHeld<'_> {
        self.sync.orders().holds += 1;
        let held = SyncHeld(self);
        self.wake_sync();
        loop {
            let listener = self.sync.ended.listen();
            if !self.sync.orders().busy {
                return held;
            }
            listener.await;
        }
    }

    /// Whether no action may begin: the user froze it, the array is being changed, or it is read-only.
    fn stands(&self, orders: &Orders) -> bool {
        orders.frozen || orders.holds > 0 || self.is_only_read()
    }

    /// Whether the running action must end.
    fn is_sync_interrupted(&self) -> bool {
        let orders = self.sync.orders();
        orders.interrupted || self.stands(&orders) || self.is_stopped()
    }

    /// Starts the task, on the current reactor.
    pub(crate) fn start_sync(self: &Arc<Self>) {
        if self.is_redundant() && self.is_writable() {
            self.runtime.spawn(Box::pin(task(Arc::downgrade(self))));
        }
    }

    /// Performs all pending actions.
    async fn sync_all(&self) {
        loop {
            {
                let mut orders = self.sync.orders();
                if self.stands(&orders) || self.is_stopped() {
                    return;
                }
                orders.busy = true;
                orders.interrupted = false;
                orders.spares_seen = Some(orders.news);
            }
            self.take_spares().await;
            let action = self.begin_sync();
            if let Some(action) = action {
                let ended = match action {
                    Action::Recover => self.recover().await,
                    Action::Resync => self.resync().await,
                    Action::Check | Action::Repair => self.check(action == Action::Repair).await,
                    Action::Idle | Action::Frozen => Ended::Complete,
                };
                self.end_sync(action, ended);
            }
            self.sync.orders().busy = false;
            self.sync.ended.notify(usize::MAX);
            if action.is_none() {
                return;
            }
        }
    }

    /// The next action; `None` if there is none, or it failed and nothing has changed since.
    fn next_action(&self) -> Option<Action> {
        let necessary = if self.wants_recovery() {
            Some(Action::Recover)
        } else if self.wants_resync() {
            Some(Action::Resync)
        } else {
            None
        };
        let orders = self.sync.orders();
        let able = |action: &Action| orders.gave_up != Some((*action, orders.news));
        necessary.filter(able).or(orders.requested)
    }

    fn wants_resync(&self) -> bool {
        // While a slot is empty, chunks stay needed for its next member: a resync would not change that.
        let marked = || self.bitmap().is_some_and(|bitmap| bitmap.needed_chunks() > 0);
        self.is_unsynced() || (self.members.degraded() == 0 && marked())
    }

    /// Chooses the next action, and marks it as running.
    fn begin_sync(&self) -> Option<Action> {
        let action = self.next_action()?;
        let mut orders = self.sync.orders();
        // A request that arrived meanwhile is handled next.
        if self.stands(&orders) || orders.interrupted {
            return None;
        }
        orders.running = Some(action);
        orders.last = action;
        orders.gave_up = Some((action, orders.news));
        if matches!(action, Action::Check | Action::Repair) {
            orders.requested = None;
            orders.gave_up = None;
        }
        drop(orders);
        let mut progress = self.sync.progress();
        let kept = if action == Action::Recover { progress.mismatches } else { Sectors::ZERO };
        *progress = Progress { mismatches: kept, ..Progress::default() };
        progress.marks.note(self.runtime.now_ns(), Sectors::ZERO);
        Some(action)
    }

    fn end_sync(&self, action: Action, ended: Ended) {
        let done = self.sync.progress().done;
        let mut orders = self.sync.orders();
        orders.running = None;
        let asked_for = matches!(action, Action::Check | Action::Repair);
        let settings = &self.sync.settings;
        match ended {
            Ended::Complete => {
                // As in the kernel, bounds apply to one action.
                if asked_for {
                    settings.set_sync_min(Sectors::ZERO);
                } else if self.bitmap().is_some() {
                    // Marks kept for this action may now be cleared, even without writes.
                    self.tend();
                }
                settings.set_sync_max(Sectors::MAX);
                orders.gave_up = None;
            }
            Ended::Failed => error!(array = self.disk.name(), action = action.name(), "gave up"),
            Ended::Interrupted | Ended::Overtaken => {
                if asked_for {
                    settings.set_sync_min(done.min(settings.sync_max()));
                }
                orders.gave_up = None;
            }
        }
    }

    /// Flushes the members and records the progress of the sync.
    async fn checkpoint_sync(&self) -> BioResult {
        let mut superblocks = self.superblocks.lock().await;
        let in_sync_to = self.in_sync_to();
        let rebuilt = self.members.placed().filter(|(_, rdev)| !rdev.is_in_sync());
        let rebuilt: Vec<(Index, &Rdev, Sectors)> =
            rebuilt.map(|(index, rdev)| (index, rdev, rdev.recovered())).collect();
        if !broken(Rule::RebuiltIsFlushed) {
            self.flush_members(&mut superblocks).await?;
        }
        self.sync.set_durable(in_sync_to);
        for (_, rdev, recovered) in &rebuilt {
            rdev.set_durably_recovered(*recovered);
        }
        // Dirty superblocks say that copies may differ anywhere: the bound would not be recorded.
        if superblocks.is_clean() || !rebuilt.is_empty() {
            self.record(&mut superblocks, Change::Members).await?;
        }
        Ok(())
    }
}

/// See the module text. While it waits, it does not keep the array alive.
async fn task(array: Weak<Array>) {
    loop {
        let changed = {
            let Some(array) = array.upgrade() else { return };
            let changed = array.sync.settings.changed.listen();
            array.sync_all().await;
            if array.is_stopped() {
                return;
            }
            changed
        };
        changed.await;
    }
}
