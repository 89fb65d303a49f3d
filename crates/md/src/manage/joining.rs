//! What every new member must be, and how it enters the table, whether it is new or returns.

use std::pin::pin;
use std::time::Duration;

use ashlar_block::{Bio, Features, Gateway};
use futures_util::future::{Either, select};
use tracing::warn;

use super::ManageError;
use crate::array::Array;
use crate::membership::rdev::{Rdev, State};
use crate::membership::slots::{Former, Index, Place};
use crate::membership::superblocks::Superblocks;
use crate::ondisk::Superblock;

/// How long a member that returns waits for the end of I/O in flight, while no other begins, so that the array needs no memory for it.
const DRAIN_PATIENCE: Duration = Duration::from_secs(1);

impl Array {
    /// Adds a member to the table, in place of a former membership of the device if [no I/O knows](Self::drained) that.
    ///
    /// # Errors
    /// [`ManageError::IsMember`]: the device is a member already. (The callers' checks have a better message for each case.)
    pub(super) fn join(
        &self,
        superblocks: &mut Superblocks,
        rdev: Rdev,
        former: Option<Former>,
        place: Place,
        sb: Superblock,
    ) -> Result<Index, ManageError> {
        self.stack_limits(&rdev);
        let path = rdev.path().to_owned();
        let index =
            self.core.members.add(rdev, former, place).ok_or(ManageError::IsMember(path))?;
        superblocks.put(index, sb);
        Ok(index)
    }

    /// A membership of this device that has ended, and that no I/O knows any more; `None` if I/O in flight does not end soon. The
    /// caller must not have the superblocks locked, for which I/O may wait.
    pub(super) async fn drained(&self, gateway: &Gateway) -> Option<Former> {
        let former = self.core.members.former(gateway)?;
        let (frozen, too_long) =
            (self.core.barrier.freeze(), self.core.runtime.sleep(DRAIN_PATIENCE));
        match select(pin!(frozen), too_long).await {
            Either::Left(_) => Some(former),
            Either::Right(_) => None,
        }
    }

    /// Narrows the array's limits to those of a new member, as the kernel's `mddev_stack_new_rdev`. I/O in flight needs none
    /// of them: the members' gateways split it.
    fn stack_limits(&self, rdev: &Rdev) {
        let mut limits = *self.core.disk.limits();
        let zeroes = limits.features & Features::DISCARD_ZEROES;
        limits.stack(rdev.limits(), rdev.data_offset().as_end());
        // A member without discards fails them, so none reads as anything but zeroes.
        limits.features |= zeroes;
        self.core.personality().narrow(&mut limits, self.core.members.slots());
        if let Err(error) = self.core.disk.set_limits(limits) {
            // `check_device` has refused such a member.
            warn!(array = self.core.name(), member = rdev.path(), %error, "the limits stay");
        }
    }

    /// Removes a member that was never used from the array.
    pub(super) fn drop_member(&self, index: Index) {
        self.core.members.take_out(index);
        if let Some(rdev) = self.core.members.get(index) {
            rdev.set(State::FAULTY | State::REMOVED);
        }
    }

    /// The members besides the failed one that a device replaces, if it does.
    pub(super) fn others(&self, replaced: Option<Index>) -> impl Iterator<Item = (Index, &Rdev)> {
        self.core.members.iter().filter(move |(index, _)| Some(*index) != replaced)
    }

    /// Checks that the device is not a member yet, except for the failed one that it replaces, and that the array's I/O fits it.
    pub(super) fn check_device(
        &self,
        gateway: &Gateway,
        path: &str,
        replaced: Option<Index>,
    ) -> Result<(), ManageError> {
        let same = |rdev: &Rdev| rdev.is_on(gateway.disk()) || rdev.path() == path;
        if self.others(replaced).any(|(_, rdev)| same(rdev)) {
            return Err(ManageError::IsMember(path.to_owned()));
        }
        if gateway.disk().is_read_only() {
            return Err(ManageError::ReadOnlyDevice(path.to_owned()));
        }
        let misfit = |why| Err(ManageError::Misfit { path: path.to_owned(), why });
        // It may still execute them, on top of what a rebuild writes.
        if gateway.holds_changes() {
            return misfit("it has not answered earlier writes yet");
        }
        let (limits, ours) = (gateway.disk().limits(), self.core.disk.limits());
        let largest =
            self.core.members.iter().map(|(_, rdev)| rdev.limits().logical_block_bytes).max();
        if limits.logical_block_bytes > largest.unwrap_or(0) {
            return misfit("its logical blocks are larger than those of the other members");
        }
        let lacks = |feature| ours.features.contains(feature) && !limits.features.contains(feature);
        if !limits.max_hw_discard.is_zero() && lacks(Features::DISCARD_ZEROES) {
            return misfit("its discarded ranges do not read as zeroes, as the array promises");
        }
        if limits.features.contains(Features::WRITE_CACHE)
            && !ours.features.contains(Features::WRITE_CACHE)
        {
            return misfit("it has a volatile write cache, but the array reports none");
        }
        Ok(())
    }

    /// Checks that the device is not a member under another path, besides the failed one that it replaces.
    pub(super) fn check_new(
        &self,
        superblocks: &Superblocks,
        sb: &Superblock,
        path: &str,
        replaced: Option<Index>,
    ) -> Result<(), ManageError> {
        let known = |index| {
            superblocks.of(index).is_some_and(|known| {
                known.set_uuid == sb.set_uuid
                    && known.device_uuid == sb.device_uuid
                    && !known.device_uuid.is_nil()
            })
        };
        match self.others(replaced).any(|(index, _)| known(index)) {
            true => Err(ManageError::IsMember(path.to_owned())),
            false => Ok(()),
        }
    }
}

/// Has a device that joins report what it lost before, which does not matter: it gets that again. A device that was away may
/// report it only to a flush. Waits for the device, so the caller holds no lock.
pub(super) async fn forget_losses(gateway: &Gateway) {
    let (Ok(()) | Err(_)) = gateway.submit(Bio::flush()).await;
    gateway.acknowledge_losses();
}
