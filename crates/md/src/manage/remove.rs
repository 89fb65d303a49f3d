//! Failing and removing members (`mdadm --fail`, `--remove`).

use tracing::info;

use super::ManageError;
use crate::array::Array;
use crate::core::failing::Need;
use crate::membership::rdev::{FailureCause, State};
use crate::membership::slots::{Index, Place};

impl Array {
    /// Fails a member. It does not count as lost, even if its device was offline before.
    ///
    /// # Errors
    /// [`ManageError::Needed`] if the array cannot continue without it.
    pub async fn fail(&self, index: Index) -> Result<(), ManageError> {
        self.change(move |array| async move {
            let mut superblocks = array.superblocks_to_change().await?;
            let rdev = array.member(index)?;
            let failed = array.core.fail_with(&mut superblocks, rdev, FailureCause::User).await;
            match failed.map_err(|status| array.not_recorded(status))? {
                true => {
                    rdev.clear(State::LOST);
                    array.core.sync_wakeup.wake();
                }
                false => {
                    // What needed it may have ended meanwhile.
                    let why = array.core.need_of(rdev).unwrap_or(Need::Resync);
                    return Err(ManageError::Needed { path: rdev.path().to_owned(), why });
                }
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
            if array.core.members.place(index) != Place::Spare {
                if !rdev.is_faulty() {
                    return Err(ManageError::InUse(rdev.path().to_owned()));
                }
                array.core.vacate(index);
            }
            info!(array = array.core.name(), member = rdev.path(), "removed");
            // In this order: no superblock is written to a removed spare.
            rdev.set(State::FAULTY | State::REMOVED);
            array.record(&mut superblocks).await?;
            drop(superblocks);
            array.core.sync_wakeup.wake();
            Ok(())
        })
        .await
    }
}
