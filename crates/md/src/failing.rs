//! Members that fail, and members that cannot be flushed.
//!
//! `faulty` is set first, then the superblocks of the others record it, then the write that found the
//! failure is acknowledged; see the crash model. The last copy of any data never fails.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

use ashlar_block::{BioResult, Sector, Sectors, Status};
use futures_util::future::join_all;
use tracing::error;

use crate::array::Array;
use crate::canary::{Rule, broken};
use crate::members::{Index, Place};
use crate::rdev::Rdev;
use crate::superblocks::Superblocks;

impl Array {
    pub(crate) async fn flush_members(&self, superblocks: &mut Superblocks) -> BioResult {
        let result = self.flush_all().await;
        self.record_what_is_left(superblocks).await?;
        result
    }

    /// Flushes all members. A member that cannot be flushed may have lost acknowledged writes: it
    /// fails, which is not recorded yet.
    ///
    /// # Errors
    /// A member that must stay was not flushed.
    pub(crate) async fn flush_all(&self) -> BioResult {
        let targets = self.members.placed().filter(|(_, rdev)| !rdev.is_faulty());
        let flushes =
            targets.map(|(index, rdev)| async move { (index, rdev, rdev.submit_flush().await) });
        let mut result = Ok(());
        for (index, rdev, done) in join_all(flushes).await {
            let Err(status) = done else { continue };
            if !self.try_fail(rdev, |rdev| self.set_faulty(rdev, status)) {
                self.may_have_lost(index);
                result = Err(status);
            }
        }
        result
    }

    /// Checks that data just read from a member is current. A disk that has lost writes returns older data; the member fails
    /// now, and not only at its next flush, unless it must stay.
    ///
    /// # Errors
    /// The member has failed, or that could not be recorded.
    #[inline]
    pub(crate) async fn is_current(&self, index: Index, rdev: &Rdev) -> BioResult {
        if rdev.has_lost_writes() { Box::pin(self.fail_loser(index, rdev)).await } else { Ok(()) }
    }

    #[cold]
    async fn fail_loser(&self, index: Index, rdev: &Rdev) -> BioResult {
        if !self.may_correct() || !self.may_fail(rdev) {
            return Ok(());
        }
        // Superblock writes must not be abandoned halfway.
        let failed = self.finish(move |array| async move {
            match array.members.get(index) {
                Some(rdev) => array.fail_member(rdev, Status::Offline).await,
                None => Ok(true),
            }
        });
        if failed.await? { Err(Status::Offline) } else { Ok(()) }
    }

    /// Whether the array can continue without `rdev`.
    pub(crate) fn may_fail(&self, rdev: &Rdev) -> bool {
        if !rdev.is_in_sync() || broken(Rule::LastCopyStays) {
            return true;
        }
        let other =
            |slot| self.members.both(slot).any(|(_, o)| o.is_in_sync() && !std::ptr::eq(o, rdev));
        self.is_redundant() && self.personality.is_readable_with(other)
    }

    /// Fails a member and records that in the superblocks; false if it holds the last copy of some
    /// data and must stay.
    ///
    /// # Errors
    /// The superblocks could not be written: then the caller's write must not be acknowledged.
    pub(crate) async fn fail_member(&self, rdev: &Rdev, why: Status) -> Result<bool, Status> {
        let mut superblocks = self.superblocks.lock().await;
        self.fail_with(&mut superblocks, rdev, why).await
    }

    /// As [`Self::fail_member`], for a caller that holds the superblocks' lock.
    pub(crate) async fn fail_with(
        &self,
        superblocks: &mut Superblocks,
        rdev: &Rdev,
        why: Status,
    ) -> Result<bool, Status> {
        if !self.try_fail(rdev, |rdev| self.set_faulty(rdev, why)) {
            return Ok(false);
        }
        self.record_what_is_left(superblocks).await?;
        Ok(true)
    }

    /// Fails a member with `fail` if it may fail; true if it is failed then.
    pub(crate) fn try_fail(&self, rdev: &Rdev, fail: impl FnOnce(&Rdev)) -> bool {
        let _one_at_a_time = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have failed it first.
        if rdev.is_faulty() {
            return true;
        }
        let may = self.may_fail(rdev);
        if may {
            fail(rdev);
        }
        may
    }

    /// Call only through [`Self::try_fail`].
    pub(crate) fn set_faulty(&self, rdev: &Rdev, why: Status) {
        error!(array = self.disk.name(), member = rdev.path(), status = %why, "member failed");
        let recorded = self.is_writable() && !broken(Rule::FailuresAreRecorded);
        // Before the member is left out, so that no write that skips it is acknowledged early; and
        // after, so that superblocks already on their way do not count.
        if recorded {
            self.must_record();
        }
        rdev.set_faulty();
        if recorded {
            self.must_record();
        }
        self.wake_sync();
    }

    /// Records that a member that must stay may have lost acknowledged writes with its cache, as no client has seen: the
    /// clients' next flushes fail.
    pub(crate) fn may_have_lost(&self, index: Index) {
        self.disk.note_loss();
        self.lacks_a_write(index);
    }

    /// Records that a member that must stay lacks a write.
    pub(crate) fn lacks_a_write(&self, index: Index) {
        self.lacking.fetch_add(1, SeqCst);
        // The write that it lacks is marked.
        if let Some(bitmap) = self.bitmap() {
            bitmap.need_marked(Sector::ZERO);
        }
        let (Place::Slot(slot) | Place::Replacement(slot)) = self.members.place(index) else {
            return;
        };
        // Members under rebuild were written too, and their rebuilt part is read.
        let written = |slot| {
            let mut others = self.members.both(slot).filter(|(other, _)| *other != index);
            others.any(|(_, rdev)| !rdev.is_faulty())
        };
        let shared = written(slot) || self.personality.shares_data(slot, written);
        // A running sync notices this itself. Don't wake a sync that failed on this flush: it would
        // restart forever.
        if shared && self.in_sync_to.swap(0, SeqCst) == Sectors::MAX.0 {
            error!(array = self.disk.name(), slot, "copies may differ now: a resync is needed");
            self.wake_sync();
        }
    }

    /// How often a member that must stay missed data that others may have. Counted before the write
    /// ends.
    pub(crate) fn lacking(&self) -> u64 {
        self.lacking.load(SeqCst)
    }
}
