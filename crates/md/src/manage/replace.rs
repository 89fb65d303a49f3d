//! Replacing members (`mdadm --replace --with`).

use super::ManageError;
use crate::array::Array;
use crate::membership::rdev::State;
use crate::membership::slots::{Index, Place};

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
        let _held = self.sync.hold().await;
        let mut superblocks = self.superblocks_to_change().await?;
        self.check_recordable(&superblocks)?;
        let rdev = self.member(index)?;
        let path = rdev.path().to_owned();
        let Place::Slot(slot) = self.core.members.place(index) else {
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
        if self.core.members.place(with) != Place::Spare {
            return Err(ManageError::ActiveReplacement(spare_path));
        }
        if !self.core.fits(spare) {
            return Err(ManageError::TooSmall(spare_path));
        }
        match self.core.members.both(slot).find(|(other, _)| *other != index) {
            Some((_, other)) if !other.is_faulty() => return Err(ManageError::BeingReplaced(path)),
            Some((failed, _)) => self.core.vacate(failed),
            None => {}
        }
        rdev.set(State::WANT_REPLACEMENT);
        self.core.put_spare(with, spare, Place::Replacement(slot));
        if let Err(status) = self.core.settle_in(&mut superblocks, None).await {
            self.core.take_back(with);
            return Err(self.not_recorded(status));
        }
        Ok(())
    }
}
