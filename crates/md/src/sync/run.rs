//! The task that performs an array's syncs, one after the other.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ashlar_block::sync::lock;
use ashlar_block::{Sectors, Status, rate_limited};
use futures_util::future::select;
use tracing::{error, warn};

use super::drive::SyncEnd;
use super::{Engine, GaveUp, SyncAction, SyncProgress};

impl Engine {
    /// Starts the task, on the current reactor.
    pub(crate) fn start(self: &Arc<Self>) {
        if self.core.is_redundant() && self.core.is_writable() {
            self.core.runtime.spawn(Box::pin(task(Arc::downgrade(self))));
        }
    }

    /// Performs all pending actions.
    async fn sync_all(&self) {
        loop {
            {
                let mut state = lock(&self.state);
                if self.stands(&state) || self.core.lifecycle.is_stopped() {
                    return;
                }
                state.busy = true;
                state.turns += 1;
                state.interrupted = false;
                state.spares_seen = Some(self.core.sync_wakeup.count());
            }
            let taken = self.core.take_spares().await;
            {
                let pause = &mut lock(&self.state).spares_pause;
                *pause = taken.err().map(|status| longer(pause.unwrap_or_default(), status));
            }
            let action = self.begin_sync();
            if let Some(action) = action {
                let ended = match action {
                    SyncAction::Recover => self.recover().await,
                    SyncAction::Resync => self.resync().await,
                    SyncAction::Check | SyncAction::Repair => {
                        self.check(action == SyncAction::Repair).await
                    }
                    SyncAction::Idle | SyncAction::Frozen => SyncEnd::Complete,
                };
                self.end_sync(action, ended);
            }
            lock(&self.state).busy = false;
            self.ended.notify(usize::MAX);
            if action.is_none() {
                return;
            }
        }
    }

    /// Chooses the next action, and marks it as running.
    fn begin_sync(&self) -> Option<SyncAction> {
        let action = self.next_action()?;
        let mut state = lock(&self.state);
        // A request that arrived meanwhile is handled next.
        if self.stands(&state) || state.interrupted {
            return None;
        }
        state.running = Some(action);
        state.last = action;
        let wakeups = self.core.sync_wakeup.count();
        let before =
            state.gave_up.filter(|before| before.action == action && before.wakeups == wakeups);
        state.gave_up = Some(GaveUp {
            action,
            wakeups,
            pause: before.map_or(Duration::ZERO, |gave_up| gave_up.pause),
            again_ns: None,
        });
        if matches!(action, SyncAction::Check | SyncAction::Repair) {
            state.requested = None;
            state.gave_up = None;
        }
        drop(state);
        let mut progress = lock(&self.progress);
        let kept = if action == SyncAction::Recover { progress.mismatches } else { Sectors::ZERO };
        *progress = SyncProgress { mismatches: kept, ..SyncProgress::default() };
        progress.marks.note(self.core.runtime.now_ns(), Sectors::ZERO);
        Some(action)
    }

    fn end_sync(&self, action: SyncAction, ended: SyncEnd) {
        let done = lock(&self.progress).done;
        let mut state = lock(&self.state);
        state.running = None;
        let asked_for = matches!(action, SyncAction::Check | SyncAction::Repair);
        let settings = &self.settings;
        match ended {
            SyncEnd::Complete => {
                // As in the kernel, bounds apply to one action.
                if asked_for {
                    settings.set_sync_min(Sectors::ZERO);
                } else if self.core.bitmap().is_some() {
                    // Marks kept for this action may now be cleared, even without writes.
                    self.core.start_bitmap_daemon();
                }
                settings.set_sync_max(Sectors::MAX);
                state.gave_up = None;
            }
            SyncEnd::Failed(status) => {
                let (array, action) = (self.core.name(), action.name());
                let now_ns = self.core.runtime.now_ns();
                match state.gave_up.as_mut() {
                    Some(gave_up) => {
                        let pause = longer(gave_up.pause, status);
                        gave_up.pause = pause;
                        gave_up.again_ns = Some(now_ns + pause.as_nanos() as u64);
                        warn!(array, action, %status, ?pause, "the sync ends, and is tried again after a pause");
                    }
                    None => error!(array, action, %status, "the sync ends"),
                }
            }
            SyncEnd::Interrupted | SyncEnd::Overtaken => {
                if asked_for {
                    settings.set_sync_min(done.min(settings.sync_max()));
                }
                state.gave_up = None;
            }
        }
    }

    /// The time until what failed is tried again; `None` if only a wake-up starts it.
    fn retry_in(&self) -> Option<Duration> {
        let necessary = self.necessary();
        let state = lock(&self.state);
        if self.stands(&state) {
            return None;
        }
        let gave_up = state.gave_up.filter(|gave_up| Some(gave_up.action) == necessary);
        let at = gave_up.and_then(|gave_up| gave_up.again_ns);
        let left = at.map(|at| at.saturating_sub(self.core.runtime.now_ns()));
        left.map(Duration::from_nanos).into_iter().chain(state.spares_pause).min()
    }
}

/// The pause before what failed with `status` is tried again; `before` is the pause before that try. A member that did not answer, or had
/// no room, may work again soon; another error may have had no cause that lasts, but a whole array is not read again for it all day.
fn longer(before: Duration, status: Status) -> Duration {
    let (first, longest) = if status.may_pass() { (5, 60) } else { (60, 3600) };
    (before * 2).clamp(Duration::from_secs(first), Duration::from_secs(longest))
}

/// How often the task checks whether the members have answered their late writes.
const LATE_INTERVAL: Duration = Duration::from_secs(1);

/// See the module text. While it waits, it does not keep the array alive.
async fn task(engine: Weak<Engine>) {
    loop {
        let (changed, late, later) = {
            let Some(engine) = engine.upgrade() else { return };
            let changed = engine.settings.changed.listen();
            engine.sync_all().await;
            if engine.core.lifecycle.is_stopped() {
                return;
            }
            let late = engine.wants_resync() && engine.core.has_late_changes();
            let pause = if late { Some(LATE_INTERVAL) } else { engine.retry_in() };
            (changed, late, pause.map(|pause| engine.core.runtime.sleep(pause)))
        };
        let Some(later) = later else {
            changed.await;
            continue;
        };
        select(changed, later).await;
        if late && let Some(engine) = engine.upgrade() {
            let array = engine.core.name();
            if engine.core.has_late_changes() {
                rate_limited!(warn, array, "a resync waits until a member has answered its writes");
            } else {
                engine.core.sync_wakeup.wake();
            }
        }
    }
}
