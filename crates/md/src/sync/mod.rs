//! Resync, recovery, check and repair: the array's own I/O.
//!
//! # What is done when
//!
//! One task for each array, on the reactor that started it. It looks what there is to do when the array
//! starts and whenever it is woken, and does the first of these that applies:
//!
//! | there is | action |
//! |---|---|
//! | the array is stopped, held or frozen | nothing |
//! | a member in a slot that is not in sync, or a replacement; spares are put into empty slots before | recover |
//! | a part of the array where copies may differ (`in_sync_to`, or by the bitmap) | resync |
//! | a request of the user | check, repair |
//!
//! *idle* ends what runs, and what is necessary begins again, as in the kernel; *frozen* lets nothing
//! begin. An action that could not be done to its end is not tried again until something changes.
//!
//! A sync is cut into windows of 1 MiB or more, of which several are under way. Each raises the
//! barrier for its own part of the array alone, looks at the slots, reads, writes, and lowers it.
//!
//! # No write is lost
//!
//! A window reads from a good copy and writes to others. No regular write is in its part of the array
//! meanwhile: the barrier. So what it writes is what the good copy holds when the barrier is lowered.
//! Regular writes go to all members that have not failed, rebuilt or not: what was copied before stays
//! as new as its source, and what will be copied later does not matter. A write that began before a
//! member came to its slot does not go to that member; but the window that copies its part to it waits
//! for the write, because it looks at the slots under the barrier.
//!
//! # Reads are right at every moment
//!
//! The two bounds that reads go by only move over windows that have ended, in order:
//!
//! - beyond `in_sync_to` reads return the first copy, block by block, by the rule of [`source`]. A
//!   resync takes the same copy by the same rule and changes the others. So a block reads the same
//!   before, during and after; below the bound any copy will do.
//! - a member that is being rebuilt is read below `recovered` only. What is copied to it is what was
//!   read before. So if it is then the first copy of something, in a part of the array that is yet to be
//!   resynced, that reads as before.
//! - a replacement counts as the member does whose place it takes, read last or not, and if something is yet
//!   to be resynced when it takes it, it is read last from then on if the member was: else another
//!   copy would be the first.
//!
//! # What is durable before what
//!
//! | first | then |
//! |---|---|
//! | windows ended, all members flushed | superblocks say "in sync up to here" (`resync_offset`, only if nobody writes: otherwise zero) |
//! | windows ended, all members flushed | superblock of a member says "rebuilt up to here" (`recovery_offset`) |
//! | all members flushed | a member counts as in sync, and its superblock says so |
//! | superblocks say that a replacement has all | it takes the slot, and they say that the old member failed |
//! | marks needed by a member that returns | they stay: none are taken away while a slot is without a member in sync |
//!
//! Superblocks are written for other reasons too while a sync runs. So they never tell `in_sync_to` and
//! `recovered`, but what those were at the last flush ([`Control::durable`],
//! [`Rdev::durably_recovered`]). A crash at any point therefore finds superblocks that claim less than
//! the disks hold; the sync goes on from there, and does some of it again. What a crashed window left
//! half written is beyond both bounds.
//!
//! A regular write that fails on a copy that has to stay sets `in_sync_to` back to zero at any time. A
//! resync moves the bound by compare-and-exchange only, so it finds out and begins anew.
//!
//! # What cannot be read or written
//!
//! A block that its copy cannot give is taken from the next copy that can, and written over the former
//! (as regular reads do). A block that nobody can give is listed as bad on those that have a log; else
//! a resync leaves it (nothing can be read there, so nothing can differ) unless it may come back, and
//! a member that is being rebuilt has failed. A member that cannot be written has failed; if it holds
//! the last copy of something it stays, and the resync is incomplete there.
//!
//! # Cancellation
//!
//! Whoever wants a sync to end (stop, idle, frozen, a change of the array) says so; windows that hold
//! the barrier come to their end, others give up when they get it, progress is recorded, and what the
//! bitmap has as being synced is needed again. [`Array::hold_sync`] waits for all that. It must not be
//! called by who holds the barrier or the superblocks.

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

/// Whom the sync obeys.
#[derive(Default)]
struct Orders {
    /// The task is at work, or decides what to do.
    busy: bool,
    running: Option<Action>,
    last: Action,
    requested: Option<Action>,
    frozen: bool,
    /// Who wants nothing to run.
    holds: usize,
    /// What runs is to end.
    interrupted: bool,
    /// Counts everything that may make it worth while to look again.
    news: u64,
    /// The news when spares were last put to use, as far as they could be.
    spares_seen: Option<u64>,
    /// An action that did not succeed, and the news before it.
    gave_up: Option<(Action, u64)>,
}

/// How far it is.
#[derive(Default)]
struct Progress {
    done: Sectors,
    total: Sectors,
    /// Read or written, without what was skipped.
    moved: Sectors,
    marks: Marks,
    mismatches: Sectors,
}

/// What the array's own I/O is doing and may do.
pub(crate) struct Control {
    orders: Mutex<Orders>,
    progress: Mutex<Progress>,
    settings: SyncSettings,
    /// Something ended.
    ended: Event,
    /// `in_sync_to` as of the last flush: what the superblocks may say.
    durable: AtomicU64,
}

impl Control {
    /// Of an array whose copies are the same, durably, up to a sector.
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
        // Nothing panics between two changes that belong together.
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

    /// Up to where copies are the same for good.
    pub(crate) fn durable(&self) -> Sectors {
        Sectors(self.durable.load(SeqCst))
    }

    /// All members have been flushed since `in_sync_to` was that. To be called with the superblocks
    /// held since then.
    pub(crate) fn set_durable(&self, in_sync_to: Sectors) {
        self.durable.store(in_sync_to.0, SeqCst);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The task sleeps without the array.
        self.settings.changed.notify(usize::MAX);
    }
}

/// Nothing is synced as long as this is there.
#[must_use = "a sync may begin when it is dropped"]
pub(crate) struct SyncHeld<'a>(&'a Array);

impl Drop for SyncHeld<'_> {
    fn drop(&mut self) {
        self.0.sync.orders().holds -= 1;
        self.0.wake_sync();
    }
}

impl Array {
    /// What is being synced, and how far it is.
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

    /// What a sync may do.
    pub fn sync_settings(&self) -> &SyncSettings {
        &self.sync.settings
    }

    /// Sets where a check or repair begins, and where any sync waits ([`Sectors::MAX`]: nowhere).
    ///
    /// # Errors
    /// [`SyncError::Bound`] if they are not in ascending order, or no multiples of the chunk;
    /// [`SyncError::Busy`] if the upper bound would be lowered while something runs (as in the kernel).
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

    /// Does what a user asks for. Returns at once: [`Self::sync_ended`] waits.
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
        self.wake_sync();
        Ok(())
    }

    /// Has the sync look whether there is something to do.
    pub fn wake_sync(&self) {
        self.sync.orders().news += 1;
        self.sync.settings.changed.notify(usize::MAX);
    }

    /// Waits until nothing is being synced, and nothing that could begin is left to be.
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

    /// Ends what is being synced, waits for that, and lets nothing begin until the guard is dropped.
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

    /// Whether nothing is to begin: a user wants it so, a change of the array is made, or it is read-only now.
    fn stands(&self, orders: &Orders) -> bool {
        orders.frozen || orders.holds > 0 || self.disk.is_read_only()
    }

    /// Whether what runs is to end.
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

    /// Does all that there is to do.
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

    /// What there is to do; `None` if it is nothing, or cannot be done.
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
        // With a slot empty chunks stay needed for whoever comes to it: a resync would change nothing.
        let marked = || self.bitmap().is_some_and(|bitmap| bitmap.needed_chunks() > 0);
        self.is_unsynced() || (self.members.degraded() == 0 && marked())
    }

    /// Chooses what to do, and says so.
    fn begin_sync(&self) -> Option<Action> {
        let action = self.next_action()?;
        let mut orders = self.sync.orders();
        // What was asked for while we chose is done next.
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
                // As in the kernel: bounds are for one time.
                if asked_for {
                    settings.set_sync_min(Sectors::ZERO);
                } else if self.bitmap().is_some() {
                    // Marks that were kept for it may go, though nobody writes.
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

    /// Has everything flushed and recorded how far the sync is.
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
        // While there are writes the superblocks say that copies may differ anywhere.
        if superblocks.is_clean() || !rebuilt.is_empty() {
            self.record(&mut superblocks, Change::Members).await?;
        }
        Ok(())
    }
}

/// See the module text. Between two looks it does not keep the array.
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
