//! Re-adding members (`mdadm --re-add`).

use tracing::info;

use super::joining::forget_losses;
use super::{AddOptions, ManageError};
use crate::array::Array;
use crate::membership::rdev::{Rdev, State};
use crate::membership::slots::{Index, Place};
use crate::membership::superblocks::Superblocks;
use crate::ondisk::{Features, Role};
use crate::probe::Candidate;
use crate::probe::read_bad_blocks;

impl Array {
    /// Re-adds a former member to its slot, if the bitmap marks all that it lacks.
    ///
    /// # Errors
    /// [`ManageError::ReAdd`] if it does not, or the device was no member, or its slot is taken.
    pub async fn re_add(
        &self,
        candidate: Candidate,
        options: AddOptions,
    ) -> Result<Index, ManageError> {
        self.change(move |array| async move { array.re_add_now(candidate, options).await }).await
    }

    pub(super) async fn re_add_now(
        &self,
        candidate: Candidate,
        options: AddOptions,
    ) -> Result<Index, ManageError> {
        self.check_manageable()?;
        // The bitmap marks it: a mark is cleared only after the member was flushed.
        forget_losses(&candidate.gateway).await;
        // A running recovery restarts, so that it includes this member.
        let _held = self.sync.hold().await;
        let mut superblocks = self.superblocks_to_change().await?;
        self.check_device(&candidate.gateway, &candidate.path)?;
        self.check_new(&superblocks, &candidate.sb, &candidate.path)?;
        let refused =
            |why| ManageError::ReAdd { path: candidate.path.clone(), array: self.name(), why };
        let slot = self.slot_for(&superblocks, &candidate).map_err(refused)?;
        let failed = |status| ManageError::Device { path: candidate.path.clone(), status };
        let bad = read_bad_blocks(&candidate.gateway, &candidate.sb).await.map_err(failed)?;
        let bad = bad.map_err(|_| refused("its bad block log cannot be understood"))?;
        let Candidate { gateway, path, mut sb } = candidate;
        if let Some(model) = self.core.model(&superblocks) {
            sb.size = model.size;
            sb.bitmap_offset = model.bitmap_offset;
        }
        sb.flags = options.flags(sb.flags);
        sb.recovery_offset = None;
        info!(array = self.core.name(), member = path, slot, "re-added");
        let rdev = Rdev::new(gateway, path, &sb, State::RETURNS, bad);
        if let Some((failed, _)) = self.core.members.both(slot).next() {
            self.core.vacate(failed);
        }
        let index = self.join(&mut superblocks, rdev, Place::Slot(slot), *sb);
        // This member's superblock first: otherwise a crash could leave superblocks that list it as a
        // member while its superblock is too old for that.
        if let Err(status) = self.core.settle_in(&mut superblocks, Some(index)).await {
            self.drop_member(index);
            return Err(self.not_recorded(status));
        }
        Ok(index)
    }

    /// The slot that a device can be re-added to, or why there is none.
    pub(super) fn slot_for(
        &self,
        superblocks: &Superblocks,
        candidate: &Candidate,
    ) -> Result<usize, &'static str> {
        let sb = &candidate.sb;
        let model = self.core.model(superblocks).ok_or("the array has no member in sync")?;
        let same = (sb.set_uuid, sb.version, sb.level, sb.layout, sb.chunk, sb.raid_disks);
        let ours = (
            model.set_uuid,
            model.version,
            model.level,
            model.layout,
            model.chunk,
            model.raid_disks,
        );
        if same != ours {
            return Err("it was no member of this array");
        }
        if sb.block_1().is_none() {
            return Err("version 0.90 superblocks cannot record it");
        }
        let Role::Active(slot) = sb.role() else { return Err("it was not an active member") };
        let slot = usize::from(slot);
        if sb.features.contains(Features::REPLACEMENT) {
            return Err("it was to replace another member");
        }
        // A member whose re-add was interrupted still lacks only what is marked.
        let was_returning = sb.features.contains(Features::RECOVERY_BITMAP);
        if sb.recovery_offset.is_some() && !was_returning {
            return Err("it was being rebuilt");
        }
        let Some(bitmap) = self.bitmap() else { return Err("the array has no bitmap") };
        if !bitmap.covers(sb.events) {
            return Err("it is too far behind for the bitmap");
        }
        let failed_for_it = |(_, rdev): (Index, &Rdev)| {
            rdev.is_in_sync() && sb.role_of(rdev.number()) == Role::Faulty
        };
        if sb.events > superblocks.events() || self.core.members.placed().any(failed_for_it) {
            return Err("it was used without the others");
        }
        let data_size = sb.data_size;
        if data_size < self.core.personality().used_dev_size() || data_size < model.size {
            return Err("it is too small");
        }
        if !sb.data_offset.is_aligned(candidate.gateway.disk().limits().logical_block()) {
            return Err("its data begins within a block");
        }
        if self.core.members.iter().any(|(_, rdev)| rdev.number() == sb.dev_number) {
            return Err("another member has its number");
        }
        if !superblocks.have_room_for(sb.dev_number) || sb.room() < superblocks.roles_in_use() {
            return Err("the superblocks have no room for the numbers of all members");
        }
        let taken = slot >= self.core.members.slots()
            || self.core.members.both(slot).any(|(_, rdev)| !rdev.is_faulty());
        if taken { Err("its slot is taken") } else { Ok(slot) }
    }
}
