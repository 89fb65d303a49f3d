//! The task that performs an array's syncs, one after the other.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ashlar_block::sync::lock;
use ashlar_block::{Sectors, rate_limited};
use futures_util::future::select;
use tracing::error;

use super::drive::SyncEnd;
use super::{Engine, Progress, SyncAction};

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
                let mut orders = lock(&self.orders);
                if self.stands(&orders) || self.core.lifecycle.is_stopped() {
                    return;
                }
                orders.busy = true;
                orders.turns += 1;
                orders.interrupted = false;
                orders.spares_seen = Some(self.core.news.count());
            }
            self.core.take_spares().await;
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
            lock(&self.orders).busy = false;
            self.ended.notify(usize::MAX);
            if action.is_none() {
                return;
            }
        }
    }

    /// Chooses the next action, and marks it as running.
    fn begin_sync(&self) -> Option<SyncAction> {
        let action = self.next_action()?;
        let mut orders = lock(&self.orders);
        // A request that arrived meanwhile is handled next.
        if self.stands(&orders) || orders.interrupted {
            return None;
        }
        orders.running = Some(action);
        orders.last = action;
        orders.gave_up = Some((action, self.core.news.count()));
        if matches!(action, SyncAction::Check | SyncAction::Repair) {
            orders.requested = None;
            orders.gave_up = None;
        }
        drop(orders);
        let mut progress = lock(&self.progress);
        let kept = if action == SyncAction::Recover { progress.mismatches } else { Sectors::ZERO };
        *progress = Progress { mismatches: kept, ..Progress::default() };
        progress.marks.note(self.core.runtime.now_ns(), Sectors::ZERO);
        Some(action)
    }

    fn end_sync(&self, action: SyncAction, ended: SyncEnd) {
        let done = lock(&self.progress).done;
        let mut orders = lock(&self.orders);
        orders.running = None;
        let asked_for = matches!(action, SyncAction::Check | SyncAction::Repair);
        let settings = &self.settings;
        match ended {
            SyncEnd::Complete => {
                // As in the kernel, bounds apply to one action.
                if asked_for {
                    settings.set_sync_min(Sectors::ZERO);
                } else if self.core.bitmap().is_some() {
                    // Marks kept for this action may now be cleared, even without writes.
                    self.core.tend();
                }
                settings.set_sync_max(Sectors::MAX);
                orders.gave_up = None;
            }
            SyncEnd::Failed => error!(array = self.core.name(), action = action.name(), "gave up"),
            SyncEnd::Interrupted | SyncEnd::Overtaken => {
                if asked_for {
                    settings.set_sync_min(done.min(settings.sync_max()));
                }
                orders.gave_up = None;
            }
        }
    }
}

/// How often the task checks whether the members have answered their late writes.
const LATE_INTERVAL: Duration = Duration::from_secs(1);

/// See the module text. While it waits, it does not keep the array alive.
async fn task(engine: Weak<Engine>) {
    loop {
        let (changed, later) = {
            let Some(engine) = engine.upgrade() else { return };
            let changed = engine.settings.changed.listen();
            engine.sync_all().await;
            if engine.core.lifecycle.is_stopped() {
                return;
            }
            let waits = engine.wants_resync() && engine.core.has_late_changes();
            (changed, waits.then(|| engine.core.runtime.sleep(LATE_INTERVAL)))
        };
        let Some(later) = later else {
            changed.await;
            continue;
        };
        select(changed, later).await;
        if let Some(engine) = engine.upgrade() {
            let array = engine.core.name();
            if engine.core.has_late_changes() {
                rate_limited!(warn, array, "a resync waits until a member has answered its writes");
            } else {
                engine.core.news.wake();
            }
        }
    }
}
