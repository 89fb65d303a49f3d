//! Failing and removing members (`mdadm --fail`, `--remove`).

use ashlar_block::{Gateway, Status};
use tracing::info;

use super::ManageError;
use crate::array::Array;
use crate::members::{Index, Place};
use crate::rdev::State;
use crate::superblocks::Change;

impl Array {
    /// Fails a member.
    ///
    /// # Errors
    /// [`ManageError::LastCopy`] if it holds the last copy of some data.
    pub async fn fail(&self, index: Index) -> Result<(), ManageError> {
        self.change(move |array| async move {
            let mut superblocks = array.superblocks_to_change().await?;
            let rdev = array.member(index)?;
            let failed = array.fail_with(&mut superblocks, rdev, Status::Offline).await;
            match failed.map_err(|status| array.not_recorded(status))? {
                true => array.wake_sync(),
                false => return Err(ManageError::LastCopy(rdev.path().to_owned())),
            }
            Ok(())
        })
        .await
    }

    /// Removes a failed member or a spare from the array. Its superblock stays unchanged.
    ///
    /// # Errors
    /// [`ManageError::InUse`] if the member is in a slot and has not failed.
    pub async fn remove(&self, index: Index) -> Result<(), ManageError> {
        self.change(move |array| async move {
            let mut superblocks = array.superblocks_to_change().await?;
            let rdev = array.member(index)?;
            if array.members.place(index) != Place::Spare {
                if !rdev.is_faulty() {
                    return Err(ManageError::InUse(rdev.path().to_owned()));
                }
                array.vacate(index);
            }
            info!(array = array.disk.name(), member = rdev.path(), "removed");
            // In this order: no superblock is written to a removed spare.
            rdev.set(State::FAULTY | State::REMOVED);
            let recorded = array.record(&mut superblocks, Change::Members).await;
            recorded.map_err(|status| array.not_recorded(status))?;
            drop(superblocks);
            array.wake_sync();
            Ok(())
        })
        .await
    }

    /// The device of a removed member, by its path: it stays open while the array runs, and can be
    /// added again.
    pub fn removed_device(&self, path: &str) -> Option<Gateway> {
        self.members.removed().find(|rdev| rdev.path() == path).map(|rdev| rdev.gateway().clone())
    }

    /// Takes a failed member out of its slot. If it has a replacement, the replacement becomes the
    /// slot's member, and its rebuild continues from the other copies.
    pub(super) fn vacate(&self, index: Index) {
        match self.members.place(index) {
            Place::Slot(slot) => match self.members.replacement(slot) {
                Some(replacement) => {
                    self.members.promote(slot);
                    replacement.clear(State::REPLACEMENT);
                }
                None => self.members.take_out(index),
            },
            Place::Replacement(_) | Place::Spare => self.members.take_out(index),
        }
        if let Some(rdev) = self.members.get(index) {
            rdev.clear(State::WANT_REPLACEMENT);
        }
    }
}
