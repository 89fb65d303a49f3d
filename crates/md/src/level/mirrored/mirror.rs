//! The state of a mirrored level.

use std::sync::{Arc, Weak};

use ashlar_block::sync::uncancellable::Uncancellable;
use ashlar_block::{Bio, Status};

use super::backlog::Backlog;
use crate::core::Core;

/// A level with copies of every sector, in an array with this core.
pub(crate) struct Mirrored {
    me: Weak<Self>,
    pub(super) core: Arc<Core>,
    /// If the bitmap allows writes behind.
    pub(super) backlog: Option<Backlog>,
}

impl Mirrored {
    pub(super) fn new(core: Arc<Core>) -> Arc<Self> {
        let limit = core.bitmap().map_or(0, |bitmap| bitmap.superblock().write_behind.get());
        let backlog = (limit > 0).then(|| Backlog::new(limit));
        Arc::new_cyclic(|me| Self { me: me.clone(), core, backlog })
    }

    /// The level itself, for a task.
    pub(super) fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// Runs `work` to its end, even if the future is dropped. For what is rare: it changes a count that all threads share.
    pub(super) fn uncancellable<T, F>(
        &self,
        work: impl FnOnce(Arc<Self>) -> F + 'static,
    ) -> Uncancellable<'_, T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        Uncancellable::new(&self.core.runtime, &self.me, work)
    }

    /// Waits until no write behind overlaps a bio.
    pub(super) async fn behind_ended(&self, bio: &Bio) {
        if let Some(backlog) = &self.backlog {
            backlog.clear_of(bio.sector, bio.end()).await;
        }
    }

    /// The parts of a bio, each within one chunk.
    pub(super) fn chunks(&self, bio: &Bio) -> impl Iterator<Item = Bio> {
        self.core.personality().chunks(bio)
    }
}
