//! Who is a member: slots, superblocks, and the decision that a member has failed.

pub(crate) mod rdev;
pub(crate) mod read_errors;
pub(crate) mod slots;
pub(crate) mod superblocks;

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{self, PoisonError};

use futures_util::lock::{Mutex, MutexGuard};

use rdev::Rdev;
use slots::Members;
use superblocks::Superblocks;

/// The members of a running array, in their slots.
pub(crate) struct Membership {
    members: Members,
    /// Locked by whatever changes slots, or what superblocks say.
    superblocks: Mutex<Superblocks>,
    /// Held while a thread checks whether a member may fail, and fails it: of two members that
    /// hold the same data only one may fail.
    failing: sync::Mutex<()>,
    /// Counts the data that members lack although they stay in the array.
    lacking: AtomicU64,
    max_read_errors: AtomicU32,
}

impl Membership {
    /// Members with their superblocks.
    pub(crate) fn new(members: Members, superblocks: Superblocks) -> Self {
        Self {
            members,
            superblocks: Mutex::new(superblocks),
            failing: sync::Mutex::default(),
            lacking: AtomicU64::new(0),
            max_read_errors: read_errors::DEFAULT_MAX.into(),
        }
    }

    /// Locks the superblocks.
    pub(crate) async fn superblocks(&self) -> MutexGuard<'_, Superblocks> {
        self.superblocks.lock().await
    }

    /// Fails a member with `fail` if it `may` fail; true if it is failed then.
    pub(crate) fn try_fail(
        &self,
        rdev: &Rdev,
        may: impl FnOnce() -> bool,
        fail: impl FnOnce(),
    ) -> bool {
        let _one_at_a_time = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have failed it first.
        if rdev.is_faulty() {
            return true;
        }
        let may = may();
        if may {
            fail();
        }
        may
    }

    /// Counts data that a member lacks although it stays. Called before the write ends.
    pub(crate) fn count_lacking(&self) {
        self.lacking.fetch_add(1, SeqCst);
    }

    /// How often a member that must stay missed data that others may have.
    pub(crate) fn lacking(&self) -> u64 {
        self.lacking.load(SeqCst)
    }

    /// Read errors that a member may have within about an hour.
    pub(crate) fn max_read_errors(&self) -> u32 {
        self.max_read_errors.load(SeqCst)
    }

    /// Sets how many read errors a member may have.
    pub(crate) fn set_max_read_errors(&self, max: u32) {
        self.max_read_errors.store(max, SeqCst);
    }
}

impl Deref for Membership {
    type Target = Members;

    #[inline]
    fn deref(&self) -> &Members {
        &self.members
    }
}
