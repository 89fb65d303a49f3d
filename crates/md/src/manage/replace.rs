//! Use of spares: in empty slots, and as replacements of members
//! (`mdadm --replace --with`).

use ashlar_block::Sectors;
use tracing::{error, info};

use super::ManageError;
use crate::array::Array;
use crate::members::{Index, Place};
use crate::ondisk::Version;
use crate::rdev::{Rdev, State};
use crate::superblocks::Superblocks;

impl Array {
    /// Replaces a member by the spare `with`, or by any spare as soon as there is one. The member stays
    /// in use until the replacement has all its data.
    ///
    /// # Errors
    /// [`ManageError::NotActive`] if the member is in no slot or has failed;
    /// [`ManageError::FaultyReplacement`], [`ManageError::ActiveReplacement`], [`ManageError::TooSmall`] and
    /// [`ManageError::BeingReplaced`] if `with` cannot replace it.
    pub async fn replace(&self, index: Index, with: Option<Index>) -> Result<(), ManageError> {
        self.change(move |array| async move { array.replace_now(index, with).await }).await
    }

    async fn replace_now(&self, index: Index, with: Option<Index>) -> Result<(), ManageError> {
        self.check_manageable()?;
        // Recovery must not begin to rebuild a member that may become a spare again.
        let _held = self.hold_sync().await;
        let mut superblocks = self.superblocks_to_change().await?;
        self.check_recordable(&superblocks)?;
        let rdev = self.member(index)?;
        let path = rdev.path().to_owned();
        let Place::Slot(slot) = self.members.place(index) else {
            return Err(ManageError::NotActive(path));
        };
        if rdev.is_faulty() {
            return Err(ManageError::NotActive(path));
        }
        let Some(with) = with else {
            rdev.set(State::WANT_REPLACEMENT);
            return Ok(());
        };
        let spare = self.member(with)?;
        let spare_path = spare.path().to_owned();
        if spare.is_faulty() {
            return Err(ManageError::FaultyReplacement(spare_path));
        }
        if self.members.place(with) != Place::Spare {
            return Err(ManageError::ActiveReplacement(spare_path));
        }
        if !self.fits(spare) {
            return Err(ManageError::TooSmall(spare_path));
        }
        match self.members.both(slot).find(|(other, _)| *other != index) {
            Some((_, other)) if !other.is_faulty() => return Err(ManageError::BeingReplaced(path)),
            Some((failed, _)) => self.vacate(failed),
            None => {}
        }
        rdev.set(State::WANT_REPLACEMENT);
        self.put_spare(with, spare, Place::Replacement(slot));
        if let Err(status) = self.settle_in(&mut superblocks, None).await {
            self.take_back(with);
            return Err(self.not_recorded(status));
        }
        Ok(())
    }

    /// Whether [`Self::take_spares`] would change something.
    pub(crate) fn wants_spares(&self) -> bool {
        self.moves().next().is_some() || self.orphans().next().is_some()
    }

    /// Puts spares into slots without a working member, then beside members to be replaced. Returns
    /// true if places have changed; the superblocks then record that.
    ///
    /// A failed member leaves its slot, but stays in the array as a failed member. If it has a
    /// replacement, the replacement becomes the slot's member.
    pub(crate) async fn take_spares(&self) -> bool {
        if self.check_manageable().is_err() || !self.wants_spares() {
            return false;
        }
        let mut superblocks = self.superblocks.lock().await;
        let recordable = self.model(&superblocks).is_some_and(|sb| sb.version != Version::V0_90);
        if !recordable || self.is_stopped() {
            return false;
        }
        self.take_all(&mut superblocks).await
    }

    async fn take_all(&self, superblocks: &mut Superblocks) -> bool {
        let mut changed = false;
        while let Some(failed) = self.orphans().next() {
            self.vacate(failed);
            changed = true;
        }
        let mut taken = Vec::new();
        while let Some((index, spare, place)) = self.moves().next() {
            let (Place::Slot(slot) | Place::Replacement(slot)) = place else { break };
            let failed = self.members.both(slot).find(|(_, rdev)| rdev.is_faulty());
            if let Some((failed, _)) = failed {
                self.vacate(failed);
            }
            info!(array = self.disk.name(), member = spare.path(), ?place, "spare taken");
            self.put_spare(index, spare, place);
            taken.push(index);
        }
        if !changed && taken.is_empty() {
            return false;
        }
        match self.settle_in(superblocks, None).await {
            Ok(()) => true,
            Err(status) => {
                error!(array = self.disk.name(), %status, "spares cannot be put to use");
                taken.into_iter().for_each(|index| self.take_back(index));
                false
            }
        }
    }

    /// Failed members in slots that also have a working replacement.
    fn orphans(&self) -> impl Iterator<Item = Index> {
        (0..self.members.slots()).filter_map(|slot| {
            let replacement = self.members.replacement(slot)?;
            let member = self.members.both(slot).find(|(_, rdev)| rdev.is_faulty())?;
            (!replacement.is_faulty()).then_some(member.0)
        })
    }

    /// The first spare that fits, and its place: slots without a working member first.
    fn moves(&self) -> impl Iterator<Item = (Index, &Rdev, Place)> {
        let slots = || 0..self.members.slots();
        let empty = |slot: &usize| self.members.both(*slot).all(|(_, rdev)| rdev.is_faulty());
        let worn = |slot: &usize| {
            let wants = |rdev: &Rdev| rdev.state().contains(State::WANT_REPLACEMENT);
            let able =
                self.members.member(*slot).is_some_and(|rdev| !rdev.is_faulty() && wants(rdev));
            able && self.members.replacement(*slot).is_none_or(Rdev::is_faulty)
        };
        let places = slots().filter(empty).map(Place::Slot);
        let beside = slots().filter(worn).map(Place::Replacement);
        let spare = self.members.spares().find(|(_, rdev)| self.fits(rdev));
        places.chain(beside).zip(spare).map(|(place, (index, rdev))| (index, rdev, place))
    }

    fn fits(&self, rdev: &Rdev) -> bool {
        rdev.data_size() >= self.personality.used_dev_size()
    }

    /// Puts a spare into a place, to be rebuilt from the first sector on.
    fn put_spare(&self, index: Index, rdev: &Rdev, place: Place) {
        // Before I/O can see it there: it must not be read where it lacks data.
        rdev.clear(State::IN_SYNC | State::RETURNS | State::REPLACEMENT);
        if matches!(place, Place::Replacement(_)) {
            rdev.set(State::REPLACEMENT);
        }
        rdev.set_recovered(Sectors::ZERO);
        rdev.set_durably_recovered(Sectors::ZERO);
        self.members.put(index, place);
    }

    /// Makes a member a spare again because the superblocks could not record its slot. It was never
    /// read, because its rebuild has not begun.
    fn take_back(&self, index: Index) {
        self.members.take_out(index);
        if let Some(rdev) = self.members.get(index) {
            rdev.clear(State::REPLACEMENT);
        }
    }
}
