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
//! new actions. An action that could not complete is retried when the state changes, or after a pause that grows: from 5 seconds
//! to a minute if a member did not answer or had no room, which may pass soon; otherwise from a minute to an hour.
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
//! - beyond `in_sync_to` reads return the first copy, block by block, by the rule of [`copies`](crate::level::mirrored::copies). A
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
//! `recovered`, but their values at the last flush ([`ResyncOffset::durable`](crate::core::Core),
//! [`Rdev::durably_recovered`](crate::membership::rdev::Rdev::durably_recovered)). A crash at any point therefore finds superblocks that claim less than
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
//! the barrier complete, others stop when they get it, progress is recorded, and chunks that the
//! bitmap has as syncing need a sync again. [`Engine::hold`] waits for all that. It must not be
//! called while holding the barrier or the superblocks.

mod check;
mod drive;
mod pace;
mod recovery;
mod resync;
mod run;
mod status;
mod window;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ashlar_block::Sectors;
use ashlar_block::sync::{lock, until};
use event_listener::Event;

use crate::core::Core;
use crate::level::Level;
use pace::Marks;

pub use status::{SyncAction, SyncError, SyncRequest, SyncSettings, SyncStatus};

/// State of the sync task, and the requests to it.
#[derive(Default)]
struct TaskState {
    /// The task is working, or deciding what to do.
    busy: bool,
    /// How often it has become busy.
    turns: u64,
    running: Option<SyncAction>,
    last: SyncAction,
    requested: Option<SyncAction>,
    frozen: bool,
    /// The action that a request to freeze ended.
    paused: Option<SyncAction>,
    /// Number of [`SyncHold`] guards.
    holds: usize,
    /// The running action must end.
    interrupted: bool,
    /// The count of wake-ups when spares were last put into slots.
    spares_seen: Option<u64>,
    gave_up: Option<GaveUp>,
    /// The pause before spares that could not be put to use are tried again.
    spares_pause: Option<Duration>,
}

/// An action that did not succeed, or that is running. It begins again when the array has changed, or after a pause.
#[derive(Clone, Copy)]
struct GaveUp {
    action: SyncAction,
    /// The count of wake-ups before it.
    wakeups: u64,
    /// The pause before it is tried again without a wake-up; zero for a first try.
    pause: Duration,
    /// When it is tried again without a wake-up; `None` while it runs.
    again_ns: Option<u64>,
}

impl GaveUp {
    fn lets_begin(&self, action: SyncAction, wakeups: u64, now_ns: u64) -> bool {
        self.action != action
            || self.wakeups != wakeups
            || self.again_ns.is_some_and(|at| at <= now_ns)
    }
}

/// Progress of the running action.
#[derive(Default)]
struct SyncProgress {
    done: Sectors,
    total: Sectors,
    /// Sectors read or written, not those skipped.
    moved: Sectors,
    marks: Marks,
    mismatches: Sectors,
}

/// Decides what an array syncs, and drives it.
pub(crate) struct Engine {
    core: Arc<Core>,
    level: Arc<dyn Level>,
    state: Mutex<TaskState>,
    progress: Mutex<SyncProgress>,
    settings: SyncSettings,
    /// Notified when an action, or a check for work, ends.
    ended: Event,
}

/// Nothing is synced while this exists.
#[must_use = "a sync may begin when it is dropped"]
pub(crate) struct SyncHold<'a>(&'a Engine);

impl Drop for SyncHold<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).holds -= 1;
        self.0.core.sync_wakeup.wake();
    }
}

impl Engine {
    /// For an array of this core and level.
    pub(crate) fn new(core: Arc<Core>, level: Arc<dyn Level>) -> Arc<Self> {
        let settings = SyncSettings::notifying(Arc::clone(&core.sync_wakeup.changed));
        Arc::new(Self {
            core,
            level,
            state: Mutex::default(),
            progress: Mutex::default(),
            settings,
            ended: Event::new(),
        })
    }

    /// The running sync, and its progress.
    pub(crate) fn status(&self) -> SyncStatus {
        let state = lock(&self.state);
        let frozen = if state.frozen { SyncAction::Frozen } else { SyncAction::Idle };
        let (running, last) = (state.running, state.last);
        let paused = state.paused.filter(|_| running.is_none());
        drop(state);
        let progress = lock(&self.progress);
        let idle = SyncStatus {
            action: frozen,
            last,
            mismatches: progress.mismatches,
            ..SyncStatus::default()
        };
        if paused.is_some() {
            let SyncProgress { done, total, .. } = *progress;
            return SyncStatus { paused, done, total, ..idle };
        }
        let Some(action) = running else { return idle };
        let speed_kib = progress.marks.speed_kib(self.core.runtime.now_ns(), progress.moved);
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
    pub(crate) fn settings(&self) -> &SyncSettings {
        &self.settings
    }

    /// See [`Array::set_sync_bounds`](crate::Array::set_sync_bounds).
    ///
    /// # Errors
    /// As there.
    pub(crate) fn set_bounds(&self, min: Sectors, max: Sectors) -> Result<(), SyncError> {
        let settings = &self.settings;
        let chunk = self.core.personality().chunk().0.max(8);
        let whole = |at: Sectors| at == Sectors::MAX || at.0.is_multiple_of(chunk);
        if min > max || !whole(min) || !whole(max) {
            return Err(SyncError::Range);
        }
        if max < settings.sync_max() && lock(&self.state).running.is_some() {
            return Err(SyncError::Busy);
        }
        settings.set_sync_min(min);
        settings.set_sync_max(max);
        Ok(())
    }

    /// See [`Array::request_sync`](crate::Array::request_sync).
    ///
    /// # Errors
    /// As there.
    pub(crate) fn request(&self, request: SyncRequest) -> Result<(), SyncError> {
        if !self.core.is_redundant() {
            return Err(SyncError::NotRedundant);
        }
        if !self.core.is_writable() || self.core.disk.is_read_only() {
            return Err(SyncError::ReadOnly);
        }
        if self.core.lifecycle.is_stopped() {
            return Err(SyncError::Stopped);
        }
        let mut state = lock(&self.state);
        let wanted = match request {
            SyncRequest::Idle | SyncRequest::Frozen => {
                state.frozen = request == SyncRequest::Frozen;
                state.paused = if state.frozen { state.running.or(state.paused) } else { None };
                state.interrupted |= state.running.is_some();
                state.requested = None;
                None
            }
            SyncRequest::Resync | SyncRequest::Recover => None,
            SyncRequest::Check => Some(SyncAction::Check),
            SyncRequest::Repair => Some(SyncAction::Repair),
        };
        if !matches!(request, SyncRequest::Idle | SyncRequest::Frozen) {
            if state.running.is_some() || state.requested.is_some() {
                return Err(SyncError::Busy);
            }
            (state.frozen, state.paused) = (false, None);
            state.requested = wanted;
        }
        drop(state);
        // As in the kernel.
        self.core.end_auto_read_only();
        self.core.sync_wakeup.wake();
        Ok(())
    }

    /// Waits until nothing is being synced and no further action can begin.
    pub(crate) async fn ended(&self) {
        loop {
            let listener = self.ended.listen();
            let (busy, stands, spares_seen, turns) = {
                let state = lock(&self.state);
                let stands = self.stands(&state);
                let busy = state.busy || (state.requested.is_some() && !stands);
                let spares_seen = state.spares_seen == Some(self.core.sync_wakeup.count());
                (busy, stands, spares_seen, state.turns)
            };
            let idle = stands || self.core.lifecycle.is_stopped() || !self.core.is_writable();
            let work = || !spares_seen && self.core.wants_spares() || self.next_action().is_some();
            if busy || (!idle && work()) {
                listener.await;
            } else if lock(&self.state).turns == turns {
                return;
            }
            // Otherwise the task, on its thread, began something meanwhile: it may have been that work.
        }
    }

    /// Ends the running sync, waits for its end, and lets none begin until the guard is dropped.
    pub(crate) async fn hold(&self) -> SyncHold<'_> {
        lock(&self.state).holds += 1;
        let held = SyncHold(self);
        self.core.sync_wakeup.wake();
        until(&self.ended, || !lock(&self.state).busy).await;
        held
    }

    /// Whether no action may begin: the user froze it, the array is being changed, or it is read-only.
    fn stands(&self, state: &TaskState) -> bool {
        state.frozen || state.holds > 0 || self.core.is_only_read()
    }

    /// Whether the running action must end.
    fn is_interrupted(&self) -> bool {
        let state = lock(&self.state);
        state.interrupted || self.stands(&state) || self.core.lifecycle.is_stopped()
    }

    /// What the state of the array needs.
    fn necessary(&self) -> Option<SyncAction> {
        if self.core.members.to_rebuild().next().is_some() {
            Some(SyncAction::Recover)
        } else if self.wants_resync() && !self.core.has_late_changes() {
            Some(SyncAction::Resync)
        } else {
            None
        }
    }

    /// The next action; `None` if nothing is due, or it failed, and nothing has changed and no pause has ended since.
    fn next_action(&self) -> Option<SyncAction> {
        let necessary = self.necessary();
        let state = lock(&self.state);
        let (wakeups, now_ns) = (self.core.sync_wakeup.count(), self.core.runtime.now_ns());
        let able = |action: &SyncAction| {
            state.gave_up.is_none_or(|gave_up| gave_up.lets_begin(*action, wakeups, now_ns))
        };
        necessary.filter(able).or(state.requested)
    }

    fn wants_resync(&self) -> bool {
        // While a slot is empty, chunks stay needed for its next member: a resync would not change that.
        let marked = || self.core.bitmap().is_some_and(|bitmap| bitmap.needed_chunks() > 0);
        let is_complete = self.core.is_complete();
        let unsynced = self.core.resync_offset.is_unsynced();
        let able = is_complete || self.core.personality().is_resynced_degraded();
        unsynced && able || is_complete && marked()
    }
}
