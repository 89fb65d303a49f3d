//! The state of a snapshot's merge, which the snapshot, its origin and the target of the merge look at.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use ashlar_block::sync::until;

use crate::task::Task;

/// The state of a snapshot's merge.
#[derive(Default)]
pub(super) struct Merge {
    /// Whether a target has the right to merge.
    claimed: AtomicBool,
    merging: AtomicBool,
    /// [`Task::changed`] is notified when other chunks are closed, or a write to one of them ends, too.
    pub(super) task: Task,
    pub(super) failed: AtomicBool,
    /// The list on disk is unknown: the batch stays closed.
    pub(super) stuck: AtomicBool,
}

impl Merge {
    /// Whether the snapshot is being merged: then the origin makes no more exceptions in it.
    pub(super) fn is_merging(&self) -> bool {
        self.merging.load(SeqCst)
    }

    /// Whether the snapshot is being merged, or will be when a loaded table becomes live.
    pub(super) fn is_claimed(&self) -> bool {
        self.claimed.load(SeqCst) || self.is_merging()
    }

    /// Takes the right to merge, if it is free.
    pub(super) fn claim(&self) -> bool {
        !self.claimed.swap(true, SeqCst)
    }

    /// Returns the right to merge.
    pub(super) fn release(&self) {
        self.claimed.store(false, SeqCst);
    }

    /// Permanent: exceptions made later would have older data than the writes.
    pub(super) fn begin(&self) {
        self.merging.store(true, SeqCst);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(SeqCst)
    }

    /// Waits while the merge is paused; false if its task must end.
    pub(super) async fn goes_on(&self) -> bool {
        until(&self.task.changed, || !self.task.is_paused() || !self.task.goes_on()).await;
        self.task.goes_on()
    }
}
