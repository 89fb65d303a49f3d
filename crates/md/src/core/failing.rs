//! Members that fail, and members that cannot be flushed.
//!
//! A member fails permanently: `faulty` is set first, so that it gets no more I/O, then
//! the superblocks of the others record it, then the write that found the failure is acknowledged. The last copy
//! of any data never fails (md's rule): its errors go up to the caller instead. If it shares
//! other chunks with a member in sync, the two may differ from then on: the array is *unsynced*,
//! reads use only first copies, and the array is no longer called clean.
//!
//! A member that must stay although it did not answer a write in time may still execute it. Its copy may change at any moment
//! until then, and so the array stays unsynced until the member's driver has completed the write; then a resync begins.

use ashlar_block::{
    Bio, BioResult, Buffer, Flags, LocalFuture, Sector, Sectors, Status, rate_limited,
};
use futures_util::future::join_all;
use thiserror::Error;
use tracing::error;

use super::Core;
use crate::bitmap::Store;
use crate::canary::{Rule, broken};
use crate::membership::rdev::{FailureCause, Rdev};
use crate::membership::slots::{Index, Place};
use crate::personality::Personality;

/// Why an array cannot continue without a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Need {
    /// Other members cannot make up for it.
    #[error("without it the array would lack data")]
    LastCopy,
    /// They could if parity were right, which it may not be before the resync has ended.
    #[error("parity may be wrong until the resync has ended, and could not replace its data")]
    Resync,
}

impl Core {
    /// Flushes all members. A member that cannot be flushed may have lost acknowledged writes: it
    /// fails, which is not recorded yet.
    ///
    /// # Errors
    /// A member that must stay was not flushed.
    pub(super) async fn flush_all(&self) -> BioResult {
        let targets = self.members.placed().filter(|(_, rdev)| !rdev.is_faulty());
        let flushes = targets.map(|(index, rdev)| async move {
            (index, rdev, rdev.unless_failed(rdev.submit_flush()).await)
        });
        let mut result = Ok(());
        for (index, rdev, done) in join_all(flushes).await {
            let Err(status) = done else { continue };
            if !self.try_fail(rdev, FailureCause::Device(status)) {
                self.may_have_lost(index);
                result = Err(status);
            }
        }
        result
    }

    /// Whether the array can continue without `rdev`.
    pub(crate) fn may_fail(&self, rdev: &Rdev) -> bool {
        self.need_of(rdev).is_none()
    }

    /// Why the array cannot continue without `rdev`; `None` if it can.
    pub(crate) fn need_of(&self, rdev: &Rdev) -> Option<Need> {
        if !rdev.is_in_sync() || broken(Rule::LastCopyStays) {
            return None;
        }
        let other =
            |slot| self.members.both(slot).any(|(_, o)| o.is_in_sync() && !std::ptr::eq(o, rdev));
        if !self.is_redundant() || !self.personality().is_readable_with(other) {
            return Some(Need::LastCopy);
        }
        // Its data could not be recovered where parity may be wrong, unless its slot has another member.
        let Personality::Parity(geometry) = self.personality() else { return None };
        let mut slots = 0..self.members.slots();
        let own = slots.find(|slot| self.members.both(*slot).any(|(_, o)| std::ptr::eq(o, rdev)));
        let needs = |slot: usize| geometry.holds_data(slot) && !other(slot);
        let is_suspect = || self.is_suspect(&(Sector::ZERO..self.sync_end()));
        (own.is_some_and(needs) && is_suspect()).then_some(Need::Resync)
    }

    /// Fails a member if it may fail; true if it is failed then. What acknowledgements depend on is to be recorded.
    pub(super) fn try_fail(&self, rdev: &Rdev, why: FailureCause) -> bool {
        let failed = self.fail_if_it_may(rdev, || self.set_faulty(rdev, why));
        if !failed {
            rdev.accept_losses();
        }
        failed
    }

    /// As [`Self::try_fail`], for the thread that is writing the superblocks, and so records the failure.
    pub(super) fn try_fail_recording(&self, rdev: &Rdev, status: Status) -> bool {
        self.fail_if_it_may(rdev, || {
            rdev.set_faulty(FailureCause::Device(status));
        })
    }

    /// Fails a member with `fail` if it may fail; true if it is failed then.
    fn fail_if_it_may(&self, rdev: &Rdev, fail: impl FnOnce()) -> bool {
        self.lifecycle.records.one_at_a_time(|| {
            // Another thread may have failed it first.
            if rdev.is_faulty() {
                return true;
            }
            let may = self.may_fail(rdev);
            if may {
                fail();
            }
            may
        })
    }

    fn set_faulty(&self, rdev: &Rdev, why: FailureCause) {
        error!(array = self.name(), member = rdev.path(), status = %why, "member failed");
        // Before the member is left out, so that no write that skips it is acknowledged early. Superblocks already on their way do not
        // count: see `records`.
        if self.is_writable() && !broken(Rule::FailuresAreRecorded) {
            self.lifecycle.must_record();
        }
        rdev.set_faulty(why);
        self.sync_wakeup.wake();
    }

    /// Records that a member that must stay may have lost acknowledged writes with its cache, as no client has seen: the
    /// clients' next flushes fail.
    fn may_have_lost(&self, index: Index) {
        self.disk.note_loss();
        self.lacks_a_write(index);
    }

    /// Whether a member that has not failed may still execute a change that it did not answer in time.
    pub(crate) fn has_late_changes(&self) -> bool {
        let mut members = self.members.placed().filter(|(_, rdev)| !rdev.is_faulty());
        members.any(|(_, rdev)| rdev.gateway().holds_changes())
    }

    /// A member did not take a change that others may have: it fails. One that must stay lacks the change.
    ///
    /// # Errors
    /// The member must stay, or its failure could not be recorded.
    pub(crate) async fn misses_a_change(
        &self,
        index: Index,
        rdev: &Rdev,
        why: Status,
    ) -> BioResult {
        if !self.fail_member(rdev, why).await? {
            self.lacks_a_write(index);
            if self.resync_offset.is_unsynced() {
                self.end_logs().await;
            }
            return Err(why);
        }
        Ok(())
    }

    /// Records that a member that must stay lacks a write.
    pub(crate) fn lacks_a_write(&self, index: Index) {
        self.members.count_lacking();
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
        let shared = written(slot) || self.personality().shares_data(slot, written);
        // A running sync notices this itself. Don't wake a sync that failed on this flush: it would
        // restart forever.
        if shared && self.resync_offset.reset() == Sectors::MAX {
            error!(array = self.name(), slot, "copies may differ now: a resync is needed");
            self.sync_wakeup.wake();
        }
    }
}

impl Store for Core {
    fn write<'a>(&'a self, offset: u64, bytes: &'a [u8]) -> LocalFuture<'a, BioResult> {
        let mut buffer = Buffer::from_slice(bytes);
        let bytes = buffer.whole();
        // Never abandoned halfway: a late write must not follow a newer one.
        Box::pin(self.uncancellable(move |core| async move {
            let at = |start: Sector| start + Sectors::from_bytes_floor(offset);
            let durable = !broken(Rule::MarksAreDurable);
            let flags = if durable { Flags::FUA } else { Flags::empty() };
            let flags = flags | Flags::META | Flags::SYNC;
            let writes = core.members.placed().filter(|(_, rdev)| !rdev.is_faulty());
            let writes = writes.filter_map(|(_, rdev)| {
                let bio = Bio::write(at(rdev.bitmap_start()?), [bytes.clone()]).with_flags(flags);
                Some(async move { (rdev, rdev.gateway().submit(bio).await) })
            });
            let mut result = Ok(());
            for (rdev, done) in join_all(writes).await {
                let Err(status) = done else { continue };
                rate_limited!(error, member = rdev.path(), %status, "bitmap write failed");
                // The array's write waits until this is recorded before it is acknowledged.
                if !core.try_fail(rdev, FailureCause::Device(status)) {
                    result = Err(status);
                }
            }
            result
        }))
    }

    fn flush_data(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(async move {
            // Members under rebuild and replacements were written, too.
            self.flush_all().await?;
            // Checked after the flush: a member that failed meanwhile may have been left out.
            if !self.is_complete() {
                return Err(Status::Offline);
            }
            Ok(())
        })
    }
}
