//! Superblocks of a running array: what they say, and what waits for them.

use ashlar_block::{BioResult, Sectors, Status};

use super::Core;
use crate::bitmap::Store;
use crate::canary::{Rule, broken};
use crate::membership::rdev::{FailureCause, Rdev};
use crate::membership::slots::Index;
use crate::membership::superblocks::{Change, Facts, Superblocks};

impl Core {
    /// What superblocks say about the array.
    pub(super) fn facts(&self) -> Facts<'_> {
        Facts {
            members: &self.members,
            in_sync_to: self.recordable_bound(),
            now: self.runtime.wall_clock(),
            bitmap: self.bitmap().map(|bitmap| (bitmap, self as &dyn Store)),
        }
    }

    /// The sector up to which superblocks may say that copies are the same.
    fn recordable_bound(&self) -> Sectors {
        let bound = self.resync_offset.recordable();
        if self.resync_offset.is_unsynced() && broken(Rule::BoundIsReached) {
            const WINDOW: u64 = 2048;
            return Sectors(bound.0.saturating_add(WINDOW));
        }
        bound
    }

    /// Writes a change to the superblocks. Until it succeeds, no write is acknowledged (see
    /// [`Self::recorded`]).
    pub(crate) async fn record(&self, superblocks: &mut Superblocks, change: Change) -> BioResult {
        self.lifecycle.must_record();
        self.prepare_logs(superblocks, change).await?;
        // Later changes may or may not be in the superblocks that are now written.
        let changes = self.lifecycle.records.changes();
        superblocks
            .update(self.facts(), change, |rdev, why| self.try_fail_recording(rdev, why))
            .await?;
        self.lifecycle.records.set_recorded(changes);
        Ok(())
    }

    /// Waits until every failure of a member is in the superblocks. A write that left out a failed
    /// member may be acknowledged only then: after a crash the failed member must not count as
    /// up to date.
    pub(crate) async fn recorded(&self) -> BioResult {
        if self.lifecycle.is_recorded() {
            return Ok(());
        }
        self.record_what_is_left(&mut *self.superblocks().await).await
    }

    /// Retries what could not be recorded.
    pub(crate) async fn record_what_is_left(&self, superblocks: &mut Superblocks) -> BioResult {
        if !self.lifecycle.is_recorded() {
            self.record(superblocks, Change::Members).await?;
        }
        Ok(())
    }

    /// Records that blocks of members are good again. While no superblock is written, their logs still list them, and a member that
    /// is alone later would refuse to read them.
    pub(crate) async fn record_good_blocks(&self, superblocks: &mut Superblocks) -> BioResult {
        let changed = |rdev: &Rdev| {
            !rdev.is_faulty() && rdev.bad_blocks().has_log() && rdev.bad_blocks().changed()
        };
        if self.members.iter().any(|(_, rdev)| changed(rdev)) {
            self.record(superblocks, Change::Members).await?;
        }
        Ok(())
    }

    /// Flushes all members, and records those that fail.
    ///
    /// # Errors
    /// A member that must stay was not flushed, or a failure could not be recorded.
    pub(crate) async fn flush_members(&self, superblocks: &mut Superblocks) -> BioResult {
        let result = self.flush_all().await;
        if result.is_err() {
            self.end_logs().await;
        }
        self.record_what_is_left(superblocks).await?;
        result
    }

    /// Fails a member and records that in the superblocks; false if it holds the last copy of some
    /// data and must stay.
    ///
    /// # Errors
    /// The superblocks could not be written: then the caller's write must not be acknowledged.
    pub(crate) async fn fail_member(&self, rdev: &Rdev, why: Status) -> Result<bool, Status> {
        // Before the lock: an update of the superblocks that is under way must not wait for it.
        if !self.try_fail(rdev, FailureCause::Device(why)) {
            return Ok(false);
        }
        self.recorded().await?;
        Ok(true)
    }

    /// As [`Self::fail_member`], for a caller that holds the superblocks' lock.
    pub(crate) async fn fail_with(
        &self,
        superblocks: &mut Superblocks,
        rdev: &Rdev,
        why: FailureCause,
    ) -> Result<bool, Status> {
        if !self.try_fail(rdev, why) {
            return Ok(false);
        }
        self.record_what_is_left(superblocks).await?;
        Ok(true)
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
        if !self.may_correct() {
            return Ok(());
        }
        if !self.may_fail(rdev) {
            rdev.accept_losses();
            return Ok(());
        }
        // Superblock writes must not be abandoned halfway.
        let failed = self.uncancellable(move |core| async move {
            match core.members.get(index) {
                Some(rdev) => core.fail_member(rdev, Status::Offline).await,
                None => Ok(true),
            }
        });
        if failed.await? { Err(Status::Offline) } else { Ok(()) }
    }

    /// Flushes the members and records how far copies are the same, and how far members are rebuilt.
    pub(crate) async fn checkpoint(&self) -> BioResult {
        let mut superblocks = self.superblocks().await;
        let in_sync_to = self.resync_offset.get();
        let rebuilt = self.members.placed().filter(|(_, rdev)| !rdev.is_in_sync());
        let rebuilt: Vec<(&Rdev, Sectors)> =
            rebuilt.map(|(_, rdev)| (rdev, rdev.recovered())).collect();
        if !broken(Rule::RebuiltIsFlushed) {
            self.flush_members(&mut superblocks).await?;
        }
        self.resync_offset.set_durable(in_sync_to);
        for (rdev, recovered) in &rebuilt {
            rdev.set_durably_recovered(*recovered);
        }
        // Dirty superblocks say that copies may differ anywhere: the bound would not be recorded.
        if superblocks.is_clean() || !rebuilt.is_empty() {
            self.record(&mut superblocks, Change::Members).await?;
        }
        Ok(())
    }
}
