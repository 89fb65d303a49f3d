//! Changes after which the array's own I/O may have something to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use event_listener::Event;

/// Counts the changes, and wakes the sync task, which looks for work.
#[derive(Default)]
pub(crate) struct SyncWakeup {
    count: AtomicU64,
    /// Also notified when a setting of syncs changes.
    pub(crate) changed: Arc<Event>,
}

impl SyncWakeup {
    /// There is a change. Call it after the change.
    pub(crate) fn wake(&self) {
        self.count.fetch_add(1, SeqCst);
        self.changed.notify(usize::MAX);
    }

    /// How many changes there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(SeqCst)
    }
}

impl Drop for SyncWakeup {
    fn drop(&mut self) {
        // The sync task sleeps without a reference to the array: wake it, so that it ends.
        self.changed.notify(usize::MAX);
    }
}
