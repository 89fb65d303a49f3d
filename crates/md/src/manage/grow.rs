//! Changes of size (`mdadm --grow --size`) or, for RAID1, of the number of members (`--raid-devices`).

use ashlar_block::Sectors;
use tracing::info;

use super::ManageError;
use crate::array::Array;
use crate::bitmap::Contents;
use crate::membership::superblocks::Superblocks;
use crate::ondisk::fields::MAX_ROLES;
use crate::personality::Personality;
use crate::raid10::geometry::Geometry;

/// How to change the size of an array.
#[derive(Clone, Copy, Default, Debug)]
pub struct GrowOptions {
    /// The user asserts that the new part is the same on all members: it is not synced.
    pub assume_clean: bool,
    /// The array may shrink: data beyond the new end are lost.
    pub force: bool,
}

impl Array {
    /// Changes the number of slots of a RAID1. New slots are empty; spares are put into them and
    /// rebuilt. Removed slots, the highest ones, must be empty or have failed members, which stay in
    /// the array without a slot. No data moves: after a crash the number in the freshest superblock
    /// applies, and all members in sync have all data.
    ///
    /// # Errors
    /// [`ManageError::Reshape`] for other levels, [`ManageError::Devices`],
    /// [`ManageError::SlotInUse`].
    pub async fn grow_devices(&self, wanted: usize) -> Result<(), ManageError> {
        self.change(move |array| async move { array.grow_devices_now(wanted).await }).await
    }

    async fn grow_devices_now(&self, wanted: usize) -> Result<(), ManageError> {
        self.check_manageable()?;
        let held = self.sync.hold().await;
        let frozen = self.core.barrier.freeze().await;
        let mut superblocks = self.superblocks_to_change().await?;
        self.check_recordable(&superblocks)?;
        let Personality::Raid1 { disks, size } = *self.core.personality() else {
            let level = self.core.personality().level();
            return Err(ManageError::Reshape { array: self.name(), level });
        };
        if !(1..=MAX_ROLES).contains(&wanted) {
            return Err(ManageError::Devices(wanted));
        }
        let going = wanted..disks;
        let works = |slot: usize| self.core.members.both(slot).find(|(_, rdev)| !rdev.is_faulty());
        if let Some((slot, (_, rdev))) = going.clone().find_map(|slot| Some((slot, works(slot)?))) {
            let path = rdev.path().to_owned();
            return Err(ManageError::SlotInUse { path, slot, wanted });
        }
        for slot in going {
            while let Some((failed, _)) = self.core.members.both(slot).next() {
                self.core.vacate(failed);
            }
        }
        self.core.set_personality(Personality::Raid1 { disks: wanted, size });
        self.core.members.set_slots(wanted);
        superblocks.change(|sb| sb.raid_disks = wanted as u32);
        self.core.lifecycle.must_record();
        self.record(&mut superblocks).await?;
        info!(array = self.core.name(), from = disks, to = wanted, "number of devices changed");
        drop((superblocks, frozen, held));
        self.core.sync_wakeup.wake();
        Ok(())
    }

    /// Changes how much of each member the array uses; `None` for as much as the smallest member has.
    /// Returns the array's new size. New space is synced, unless `options.assume_clean`.
    ///
    /// # Errors
    /// [`ManageError::NoRoom`] if a member, or a spare, has less; [`ManageError::Shrinks`] if the array
    /// would shrink without `options.force`; [`ManageError::FarLayout`].
    pub async fn grow_size(
        &self,
        used_of_each: Option<Sectors>,
        options: GrowOptions,
    ) -> Result<Sectors, ManageError> {
        self.change(move |array| async move { array.grow_now(used_of_each, options).await }).await
    }

    async fn grow_now(
        &self,
        used_of_each: Option<Sectors>,
        options: GrowOptions,
    ) -> Result<Sectors, ManageError> {
        self.check_manageable()?;
        let _held = self.sync.hold().await;
        let _frozen = self.core.barrier.freeze().await;
        let mut superblocks = self.superblocks_to_change().await?;
        self.check_recordable(&superblocks)?;
        let new = self.with_size(&superblocks, used_of_each)?;
        let (from, to) = (self.core.personality().size(), new.size());
        if to < from && !options.force {
            return Err(ManageError::Shrinks { array: self.name(), from, to });
        }
        let changes = new.used_dev_size() != self.core.personality().used_dev_size();
        if to < from {
            self.core.disk.set_capacity(self.whole_blocks(to));
            self.resize_bitmap(&superblocks, to, Contents::InSync).await?;
            self.record_size(&mut superblocks, new, true).await?;
        } else {
            // If the size is recorded already, this repeats steps that failed after that.
            if changes {
                self.check_bitmap(to).await?;
                self.record_size(&mut superblocks, new, options.assume_clean).await?;
            }
            let assumed = options.assume_clean;
            let contents = if assumed { Contents::InSync } else { Contents::NeverWritten };
            self.resize_bitmap(&superblocks, to, contents).await?;
            self.core.disk.set_capacity(self.whole_blocks(to));
        }
        info!(array = self.core.name(), %from, %to, "size changed");
        Ok(self.core.disk.capacity())
    }

    fn whole_blocks(&self, size: Sectors) -> Sectors {
        size.round_down(self.core.disk.limits().logical_block())
    }

    /// The personality with another size.
    fn with_size(
        &self,
        superblocks: &Superblocks,
        used_of_each: Option<Sectors>,
    ) -> Result<Personality, ManageError> {
        let members = || self.core.members.iter().filter(|(_, rdev)| !rdev.is_faulty());
        let room = members().map(|(_, rdev)| rdev.data_size()).min().unwrap_or_default();
        let unit = self.core.disk.limits().logical_block().max(self.core.personality().chunk());
        let wanted = used_of_each.unwrap_or(room).round_down(unit);
        if let Some((_, small)) = members().find(|(_, rdev)| rdev.data_size() < wanted) {
            let (path, room) = (small.path().to_owned(), small.data_size());
            return Err(ManageError::NoRoom { path, room, wanted });
        }
        match self.core.personality() {
            Personality::Raid1 { disks, .. } if !wanted.is_zero() => {
                Ok(Personality::Raid1 { disks: *disks, size: wanted })
            }
            Personality::Raid10(geometry) if !wanted.is_zero() => {
                let layout = geometry.layout();
                if layout.far > 1 && !layout.offset {
                    return Err(ManageError::FarLayout);
                }
                let layout = self.core.model(superblocks).map_or(0, |sb| sb.layout);
                let (disks, chunk) = (geometry.disks(), geometry.chunk());
                Ok(Personality::Raid10(Geometry::new(layout, disks, chunk, wanted)?))
            }
            Personality::Linear { .. }
            | Personality::Raid0(_)
            | Personality::Raid1 { .. }
            | Personality::Raid10(_)
            | Personality::Parity(_) => Err(ManageError::Size(wanted)),
        }
    }

    /// Sets and records the new size. Copies of the new part are the same only if `alike`.
    async fn record_size(
        &self,
        superblocks: &mut Superblocks,
        new: Personality,
        alike: bool,
    ) -> Result<(), ManageError> {
        let used = new.used_dev_size();
        let (old, to) = (self.core.personality().size(), new.size());
        let still = |at: Sectors| match to > old {
            true if alike => at,
            true => at.min(old),
            false if at >= to => Sectors::MAX,
            false => at,
        };
        self.core
            .resync_offset
            .set(still(self.in_sync_to()), still(self.core.resync_offset.durable()));
        self.core.set_personality(new);
        superblocks.change(|sb| sb.size = used);
        self.core.lifecycle.must_record();
        self.record(superblocks).await
    }

    /// Checks that the bitmap, if there is one, can cover this size in its area.
    async fn check_bitmap(&self, size: Sectors) -> Result<(), ManageError> {
        let Some(bitmap) = self.bitmap() else { return Ok(()) };
        let _pause = bitmap.pause().await;
        bitmap.resized(size, Contents::NeedsSync)?;
        Ok(())
    }

    /// Makes the bitmap, if there is one, cover this size.
    async fn resize_bitmap(
        &self,
        superblocks: &Superblocks,
        size: Sectors,
        contents: Contents,
    ) -> Result<(), ManageError> {
        let Some(bitmap) = self.bitmap().filter(|bitmap| bitmap.size() != size) else {
            return Ok(());
        };
        let pause = bitmap.pause().await;
        let new = bitmap.resized(size, contents)?;
        pause.retire();
        // Even if the write fails, the members no longer have the old bitmap.
        self.core.set_bitmap(Some(new));
        let Some(new) = self.bitmap() else { return Ok(()) };
        let written = new.write_super(superblocks.events(), &*self.core).await;
        written.map_err(|status| {
            self.core.lifecycle.must_record();
            self.not_recorded(status)
        })
    }
}
