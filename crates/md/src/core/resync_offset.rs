//! How far an array's copies are the same.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use ashlar_block::{Sector, Sectors};

/// Copies are the same below this array sector, except for writes under way; beyond it only the first copy of each chunk is
/// read. [`Sectors::MAX`] for everywhere.
///
/// A write that fails on a copy that must stay resets it at any time; a resync moves it only from the value that it has
/// seen, so it notices. What superblocks may say is the value at the last flush of all members.
pub(crate) struct ResyncOffset {
    in_sync_to: AtomicU64,
    durable: AtomicU64,
}

impl ResyncOffset {
    /// For copies that are durably the same up to a sector.
    pub(crate) fn new(in_sync_to: Sectors) -> Self {
        Self { in_sync_to: in_sync_to.0.into(), durable: in_sync_to.0.into() }
    }

    /// The offset.
    #[inline]
    pub(crate) fn get(&self) -> Sectors {
        Sectors(self.in_sync_to.load(SeqCst))
    }

    /// Whether copies may differ somewhere.
    #[inline]
    pub(crate) fn is_unsynced(&self) -> bool {
        self.get() != Sectors::MAX
    }

    /// Whether copies may differ before `end`.
    #[inline]
    pub(crate) fn is_beyond(&self, end: Sector) -> bool {
        end > self.get().as_end()
    }

    /// What the superblocks may say.
    pub(crate) fn recordable(&self) -> Sectors {
        self.get().min(self.durable())
    }

    /// The offset at the last flush.
    pub(crate) fn durable(&self) -> Sectors {
        Sectors(self.durable.load(SeqCst))
    }

    /// All members have been flushed since the offset had this value. The caller must have held the
    /// superblocks' lock since then.
    pub(crate) fn set_durable(&self, in_sync_to: Sectors) {
        self.durable.store(in_sync_to.0, SeqCst);
    }

    /// Superblocks written from now on say at most this.
    pub(crate) fn limit_durable(&self, to: Sectors) {
        self.durable.fetch_min(to.0, SeqCst);
    }

    /// Sets the offset and what is durable of it. The array is frozen.
    pub(crate) fn set(&self, to: Sectors, durable: Sectors) {
        self.in_sync_to.store(to.0, SeqCst);
        self.set_durable(durable);
    }

    /// Moves the offset, unless it has changed since it was `from`.
    #[must_use = "the offset may have changed"]
    pub(crate) fn advance(&self, from: Sectors, to: Sectors) -> bool {
        self.in_sync_to.compare_exchange(from.0, to.0, SeqCst, SeqCst).is_ok()
    }

    /// Copies may differ anywhere; returns the offset before.
    pub(crate) fn reset(&self) -> Sectors {
        Sectors(self.in_sync_to.swap(0, SeqCst))
    }
}
