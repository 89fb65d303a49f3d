//! Changes of a group that place no extents: tags, flags, and which physical volumes it has and how large they are.
//!
//! As in [`change`](crate::change), each checks everything first; a refusal leaves the group unchanged.

use std::collections::BTreeSet;

use ashlar_block::Sectors;

use crate::change::{ChangeError, Result};
use crate::format::MIN_DEVICE;
use crate::metadata::{PvFlag, SegmentKind, VgFlag, VolumeGroup};
use crate::ondisk::PvLabel;

/// What has tags.
#[derive(Clone, Copy, Debug)]
pub enum Tagged<'a> {
    /// The group.
    Group,
    /// The logical volume of this name.
    Volume(&'a str),
    /// The physical volume with this index.
    Physical(usize),
}

/// A size that a physical volume can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PhysicalSize {
    /// The size.
    pub size: Sectors,
    /// The number of extents that have room.
    pub extents: u32,
}

impl VolumeGroup {
    /// Removes tags, and then adds others at the end.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn change_tags(
        &mut self,
        of: Tagged<'_>,
        removed: &[String],
        added: &[String],
    ) -> Result<()> {
        self.may_change()?;
        let tags = match of {
            Tagged::Group => Some(&mut self.tags),
            Tagged::Volume(name) => {
                self.find(name)?;
                self.lv_mut(name).map(|lv| &mut lv.tags)
            }
            Tagged::Physical(index) => self.pvs.get_mut(index).map(|pv| &mut pv.tags),
        };
        let Some(tags) = tags else { return Ok(()) };
        tags.retain(|tag| !removed.contains(tag));
        for tag in added {
            if !tags.contains(tag) {
                tags.push(tag.clone());
            }
        }
        Ok(())
    }

    /// Sets whether new extents may be placed on the physical volume with this index. Returns whether that is new.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn set_allocatable(&mut self, index: usize, allocatable: bool) -> Result<bool> {
        self.may_change()?;
        let Some(pv) = self.pvs.get_mut(index) else { return Ok(false) };
        let before = pv.flags.contains(&PvFlag::Allocatable);
        match allocatable {
            true => pv.flags.insert(PvFlag::Allocatable),
            false => pv.flags.remove(&PvFlag::Allocatable),
        }
        Ok(before != allocatable)
    }

    /// Marks the group as one that another host may import; no host uses it until then.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn export(&mut self) -> Result<()> {
        self.may_change()?;
        if let Some(moving) = self.moves().next() {
            return Err(ChangeError::Locked(moving.name().to_owned()));
        }
        self.flags.insert(VgFlag::Exported);
        self.pvs.iter_mut().for_each(|pv| pv.flags.insert(PvFlag::Exported));
        Ok(())
    }

    /// Makes an exported group this host's.
    ///
    /// # Errors
    /// It is not exported, or must not be changed for another reason: see [`ChangeError`].
    pub fn import(&mut self) -> Result<()> {
        if !self.flags.contains(&VgFlag::Exported) {
            let text = format!("Volume group \"{}\" is not exported", self.name);
            return Err(ChangeError::Refused(text));
        }
        let mut imported = self.clone();
        imported.flags.remove(&VgFlag::Exported);
        imported.pvs.iter_mut().for_each(|pv| pv.flags.remove(&PvFlag::Exported));
        imported.may_change()?;
        *self = imported;
        Ok(())
    }

    /// The extents that the physical volume with this index and label has room for if its size is `size`.
    ///
    /// # Errors
    /// It cannot have that size: see [`ChangeError`].
    pub fn physical_size(
        &self,
        index: usize,
        label: &PvLabel,
        size: Sectors,
    ) -> Result<PhysicalSize> {
        let refuse = |why: String| Err(ChangeError::Refused(why));
        let Some(pv) = self.pvs.get(index) else {
            return refuse(format!("volume group {} has no such physical volume", self.name));
        };
        if label.metadata_areas.len() > 1 {
            return refuse(
                "it has a metadata area at its end, which would have to move: remove it from the group with vgreduce, \
                 and recreate it with pvcreate"
                    .to_owned(),
            );
        }
        let room = size.0.saturating_sub(pv.pe_start.0).checked_div(self.extent_size.0);
        let extents = room.and_then(|room| u32::try_from(room).ok());
        let Some(extents) = extents.filter(|extents| *extents > 0 && size.bytes() >= MIN_DEVICE)
        else {
            return refuse("it would have no room for an extent, or for too many".to_owned());
        };
        let used = self.lvs.iter().flat_map(|lv| lv.pv_extents());
        let used = used.filter(|on| on.pv == index).map(|on| on.start.saturating_add(on.count));
        if used.max().is_some_and(|end| end > extents) {
            return refuse(format!(
                "cannot resize to {extents} extents as later ones are allocated: pvmove moves them"
            ));
        }
        if extents < pv.pe_count {
            self.refuse_unknown_segments()?;
        }
        Ok(PhysicalSize { size, extents })
    }

    /// Gives the physical volume with this index another size, which [`Self::physical_size`] returned.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn resize_physical(&mut self, index: usize, to: PhysicalSize) -> Result<()> {
        self.may_change()?;
        if let Some(pv) = self.pvs.get_mut(index) {
            pv.dev_size = Some(to.size);
            pv.pe_count = to.extents;
        }
        Ok(())
    }

    /// Has the physical volume with this index, which was missing, be in the group as before.
    pub fn restore_physical(&mut self, index: usize) {
        if let Some(pv) = self.pvs.get_mut(index) {
            pv.flags.remove(&PvFlag::Missing);
        }
    }

    /// Takes the physical volumes that are not `usable`, in the group's order, out of the group; with `force` also the logical volumes
    /// that have extents there. Returns the names of these.
    ///
    /// # Errors
    /// Without `force` a logical volume has extents there; or one of them cannot be removed: see [`ChangeError`].
    pub fn remove_missing(&mut self, usable: &[bool], force: bool) -> Result<Vec<String>> {
        let is_usable = |pv: usize| usable.get(pv).copied().unwrap_or(false);
        let mut after = self.clone();
        after.pvs.iter_mut().for_each(|pv| pv.flags.remove(&PvFlag::Missing));
        after.may_change()?;
        after.refuse_unknown_segments()?;
        let partial = after.partial(&is_usable);
        if !force && !partial.is_empty() {
            let names: Vec<String> =
                partial.iter().map(|name| format!("{}/{name}", self.name)).collect();
            return Err(ChangeError::Refused(format!(
                "logical volumes have extents on missing physical volumes: {}. vgreduce --force removes these, too",
                names.join(", ")
            )));
        }
        let mut removed = Vec::new();
        while let Some(name) = after.partial(&is_usable).into_iter().next() {
            removed.extend(after.remove(&name)?);
        }
        for index in (0..after.pvs.len()).rev().filter(|index| !is_usable(*index)) {
            after.remove_physical(index)?;
        }
        *self = after;
        Ok(removed)
    }

    /// The volumes that users see, or that have none above them, and that need a physical volume which is not usable; the snapshots
    /// of an origin only if they need one themselves.
    fn partial(&self, is_usable: &impl Fn(usize) -> bool) -> Vec<String> {
        let mut needs: BTreeSet<&str> = BTreeSet::new();
        loop {
            let before = needs.len();
            for lv in &self.lvs {
                let own = lv.pv_extents().any(|on| !is_usable(on.pv));
                let is_tie = lv.segments.iter().any(|segment| segment.kind.as_snapshot().is_some());
                if own || !is_tie && lv.parts().any(|part| needs.contains(part)) {
                    needs.insert(&lv.name);
                }
            }
            if needs.len() == before {
                break;
            }
        }
        let mut names = self.visible_names();
        names.retain(|name| needs.contains(name.as_str()));
        // A hidden volume that nothing seen needs, or a store that is being merged.
        if names.is_empty() {
            names.extend(needs.iter().map(|name| (*name).to_owned()));
        }
        names
    }

    /// Refuses a group with segments whose text may name physical volumes in ways that are not known.
    pub(crate) fn refuse_unknown_segments(&self) -> Result<()> {
        let mut segments = self.lvs.iter().flat_map(|lv| lv.segments.iter().map(move |s| (lv, s)));
        match segments.find(|(_, segment)| matches!(segment.kind, SegmentKind::Foreign(_))) {
            Some((lv, _)) => {
                let why = "it has segments that are not known, which may be there";
                Err(ChangeError::NotSo { name: lv.name.clone(), why })
            }
            None => Ok(()),
        }
    }
}
