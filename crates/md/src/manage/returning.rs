//! Re-adding members (`mdadm --re-add`): former ones, and failed ones that have not been removed.
//!
//! A failed member that returns gets a new membership, because I/O that saw the failure may still be under way. (One that ended before the last one may be used again.) The old one ends in the
//! same step, under the superblocks' lock, in which the new one begins: a device never has two, and whoever removes the failed member,
//! or re-adds it a second time, comes before that step or after it. So what was checked without the lock is checked again with it.

use ashlar_block::{Gateway, Sectors};
use tracing::info;

use super::joining::forget_losses;
use super::{AddOptions, ManageError};
use crate::array::Array;
use crate::membership::rdev::{Rdev, State};
use crate::membership::slots::{Index, Place};
use crate::membership::superblocks::Superblocks;
use crate::metadata::write_within;
use crate::ondisk::{Features, Role, Superblock};
use crate::probe::{Candidate, probe, read_around, read_bad_blocks};

/// The failed member that returns.
#[derive(Clone, Copy)]
pub(super) struct Replaced {
    index: Index,
    /// What it must be until then.
    is: State,
}

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
        self.change(move |array| async move { array.re_add_now(candidate, options, None).await })
            .await
    }

    /// Re-adds the failed member `index`, which has not been removed, through the gateway that it has; returns its new index.
    ///
    /// # Errors
    /// [`ManageError::Word`] if it has not failed; otherwise as [`Self::re_add_failed`].
    pub async fn re_add_in_place(&self, index: Index) -> Result<Index, ManageError> {
        self.change(
            move |array| async move { array.re_add_in_place_now(index, State::FAULTY).await },
        )
        .await
    }

    /// As [`Self::re_add_in_place`], if the member is lost: nobody who asked for that may get back a member that a user has failed since.
    ///
    /// # Errors
    /// [`ManageError::Word`] if it is not lost; otherwise as there.
    pub async fn re_add_lost(&self, index: Index) -> Result<Index, ManageError> {
        let is = State::FAULTY | State::LOST;
        self.change(move |array| async move { array.re_add_in_place_now(index, is).await }).await
    }

    async fn re_add_in_place_now(&self, index: Index, is: State) -> Result<Index, ManageError> {
        self.check_manageable()?;
        let rdev = self.member(index)?;
        if !rdev.state().contains(is) {
            return Err(ManageError::Word("re-add".to_owned()));
        }
        let (gateway, path) = (rdev.gateway().clone(), rdev.path().to_owned());
        let sb = self.superblock_on(&gateway, &path).await?;
        let candidate = Candidate { gateway, path, sb };
        let replaced = Some(Replaced { index, is });
        self.re_add_now(candidate, AddOptions::default(), replaced).await
    }

    /// Re-adds the failed member `index`, which has not been removed, as `candidate`: its device, perhaps opened anew. Returns its new
    /// index. If it cannot be re-added, it stays a failed member.
    ///
    /// # Errors
    /// [`ManageError::Removed`] or [`ManageError::IsMember`] if it was removed or re-added before; otherwise as [`Self::re_add`].
    pub async fn re_add_failed(
        &self,
        index: Index,
        candidate: Candidate,
        options: AddOptions,
    ) -> Result<Index, ManageError> {
        let replaced = Some(Replaced { index, is: State::FAULTY });
        self.change(
            move |array| async move { array.re_add_now(candidate, options, replaced).await },
        )
        .await
    }

    /// Re-adds a former member or, with `replaced`, that failed member.
    pub(super) async fn re_add_now(
        &self,
        candidate: Candidate,
        options: AddOptions,
        replaced: Option<Replaced>,
    ) -> Result<Index, ManageError> {
        self.check_manageable()?;
        // The bitmap marks it: a mark is cleared only after the member was flushed.
        forget_losses(&candidate.gateway).await;
        // A running recovery restarts, so that it includes this member.
        let _held = self.sync.hold().await;
        let former = self.drained(&candidate.gateway).await;
        let mut superblocks = self.superblocks_to_change().await?;
        self.check_returning(&superblocks, &candidate, replaced)?;
        // Its owner may have used it since `candidate` was read.
        let sb = self.superblock_on(&candidate.gateway, &candidate.path).await?;
        let candidate = Candidate { sb, ..candidate };
        let slot = self.check_returning(&superblocks, &candidate, replaced)?;
        let refused =
            |why| ManageError::ReAdd { path: candidate.path.clone(), array: self.name(), why };
        let failed = |status| ManageError::Device { path: candidate.path.clone(), status };
        let bad = read_bad_blocks(&candidate.gateway, &candidate.sb).await.map_err(failed)?;
        let bad = bad.map_err(|_| refused("its bad block log is invalid"))?;
        // A device that can be read and not written would get a membership at each try, and fail.
        let (device, at) = (&candidate.gateway, candidate.sb.super_offset);
        let bytes = read_around(device, at, Sectors(1)).await.map_err(failed)?;
        write_within(device, at, &bytes).await.map_err(failed)?;
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
        let replaced = replaced.map(|replaced| replaced.index);
        // Locked until the new one is recorded or the old one resumed: no other change sees what is between.
        self.end_membership(replaced);
        let joined = self.join(&mut superblocks, rdev, former, Place::Slot(slot), *sb);
        let index = joined.inspect_err(|_| self.resume_membership(replaced))?;
        // This member's superblock first: otherwise a crash could leave superblocks that list it as a
        // member while its superblock is too old for that.
        if let Err(status) = self.core.settle_in(&mut superblocks, Some(index)).await {
            self.drop_member(index);
            self.resume_membership(replaced);
            return Err(self.not_recorded(status));
        }
        Ok(index)
    }

    fn end_membership(&self, failed: Option<Index>) {
        let Some(index) = failed else { return };
        if self.core.members.place(index) != Place::Spare {
            self.core.vacate(index);
        }
        if let Some(rdev) = self.core.members.get(index) {
            rdev.set(State::REMOVED);
        }
    }

    /// A failed member could not return: it stays the failed member that it was, but has no slot.
    fn resume_membership(&self, failed: Option<Index>) {
        if let Some(rdev) = failed.and_then(|index| self.core.members.get(index)) {
            rdev.clear(State::REMOVED);
        }
    }

    /// The superblock that a device has.
    async fn superblock_on(
        &self,
        gateway: &Gateway,
        path: &str,
    ) -> Result<Box<Superblock>, ManageError> {
        let found = probe(gateway).await;
        let found = found.map_err(|error| ManageError::Probe { path: path.to_owned(), error })?;
        found.ok_or_else(|| ManageError::ReAdd {
            path: path.to_owned(),
            array: self.name(),
            why: "it has no superblock",
        })
    }

    /// Checks that a device can be re-added, besides or instead of the failed member `replaced`; returns its slot.
    fn check_returning(
        &self,
        superblocks: &Superblocks,
        candidate: &Candidate,
        replaced: Option<Replaced>,
    ) -> Result<usize, ManageError> {
        let Candidate { gateway, path, sb } = candidate;
        let refused = |why| ManageError::ReAdd { path: path.clone(), array: self.name(), why };
        let index = replaced.map(|replaced| replaced.index);
        self.check_device(gateway, path, index)?;
        self.check_new(superblocks, sb, path, index)?;
        if let Some(Replaced { index, is }) = replaced {
            let Ok(failed) = self.member(index) else {
                return Err(ManageError::Removed { path: path.clone(), array: self.name() });
            };
            if !failed.is_faulty() {
                return Err(ManageError::IsMember(path.clone()));
            }
            if !failed.state().contains(is) {
                return Err(refused("a user has failed it"));
            }
            if failed.device_uuid() != sb.device_uuid {
                return Err(refused("it is not the member that failed"));
            }
        }
        self.slot_for(superblocks, candidate, index).map_err(refused)
    }

    /// The slot that a device can be re-added to, or why no slot fits.
    pub(super) fn slot_for(
        &self,
        superblocks: &Superblocks,
        candidate: &Candidate,
        replaced: Option<Index>,
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
            return Err("it was not a member of this array");
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
        if self.others(replaced).any(|(_, rdev)| rdev.number() == sb.dev_number) {
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
