//! Spares: in empty slots, and beside members that are to be replaced.

use ashlar_block::{BioResult, Sectors};
use tracing::{error, info};

use super::Core;
use crate::membership::rdev::{Rdev, State};
use crate::membership::slots::{Index, Place};
use crate::membership::superblocks::{Change, Superblocks};
use crate::ondisk::{Superblock, Version};

impl Core {
    /// Whether members and superblocks can be changed now.
    pub(crate) fn is_changeable(&self) -> bool {
        self.is_redundant()
            && !self.lifecycle.is_stopped()
            && self.is_writable()
            && !self.disk.is_read_only()
    }

    /// The template for new superblocks: the superblock of a member in sync.
    pub(crate) fn model<'a>(&self, superblocks: &'a Superblocks) -> Option<&'a Superblock> {
        let mut in_sync = self.members.placed().filter(|(_, rdev)| rdev.is_in_sync());
        superblocks.of(in_sync.next()?.0)
    }

    /// Whether [`Self::take_spares`] would change something.
    pub(crate) fn wants_spares(&self) -> bool {
        self.moves().next().is_some() || self.orphans().next().is_some()
    }

    /// Puts spares into slots without a working member, then beside members to be replaced, and records that in the
    /// superblocks.
    ///
    /// A failed member leaves its slot, but stays in the array as a failed member. If it has a
    /// replacement, the replacement becomes the slot's member.
    ///
    /// # Errors
    /// The superblocks cannot record it: the spares stay spares.
    pub(crate) async fn take_spares(&self) -> BioResult {
        if !self.is_changeable() || !self.wants_spares() {
            return Ok(());
        }
        let mut superblocks = self.superblocks().await;
        let recordable = self.model(&superblocks).is_some_and(|sb| sb.version != Version::V0_90);
        // Asked again: it may have been made read-only meanwhile.
        if !recordable || !self.is_changeable() {
            return Ok(());
        }
        self.take_all(&mut superblocks).await
    }

    async fn take_all(&self, superblocks: &mut Superblocks) -> BioResult {
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
            info!(array = self.name(), member = spare.path(), ?place, "spare taken");
            self.put_spare(index, spare, place);
            taken.push(index);
        }
        if !changed && taken.is_empty() {
            return Ok(());
        }
        let settled = self.settle_in(superblocks, None).await;
        if let Err(status) = settled {
            error!(array = self.name(), %status, "cannot use the spares");
            taken.into_iter().for_each(|index| self.take_back(index));
        }
        settled
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

    pub(crate) fn fits(&self, rdev: &Rdev) -> bool {
        rdev.data_size() >= self.personality().used_dev_size()
    }

    /// Puts a spare into a place, to be rebuilt from the first sector on.
    pub(crate) fn put_spare(&self, index: Index, rdev: &Rdev, place: Place) {
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
    pub(crate) fn take_back(&self, index: Index) {
        self.members.take_out(index);
        if let Some(rdev) = self.members.get(index) {
            rdev.clear(State::REPLACEMENT);
        }
    }

    /// Takes a failed member out of its slot. If it has a replacement, the replacement becomes the
    /// slot's member, and its rebuild continues from the other copies.
    pub(crate) fn vacate(&self, index: Index) {
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

    /// Writes the bitmap to members that just got a slot, then records their slots in all superblocks,
    /// first in that of `first`.
    pub(crate) async fn settle_in(
        &self,
        superblocks: &mut Superblocks,
        first: Option<Index>,
    ) -> BioResult {
        if let Some(bitmap) = self.bitmap() {
            bitmap.write_all(self).await?;
        }
        if let Some(first) = first {
            superblocks.introduce(first, self.facts()).await?;
        }
        self.record(superblocks, Change::Members).await
    }
}
