//! Groups between which physical volumes were moving (`vgsplit`, `vgmerge`) when the power failed.
//!
//! Such a command writes the texts of two groups. A crash leaves physical volumes that the text of the group that gets them, the taker,
//! lists, and whose own text is still that of the other one, the giver. They belong to the taker as soon as its text is on one physical
//! volume: this is the moment of the change. What shows this, without a record of its own:
//!
//! - the taker is marked as receiving ([`VolumeGroup::receive`]), as `vgsplit` marks it, in LVM too; or the giver is exported, the taker
//!   is not, and has all physical volumes of the giver, as `vgmerge` leaves them;
//! - both texts have the same logical volumes, by their identities, on the same extents of them, so no data depends on the answer;
//! - the taker's text is not older than the giver's. An old text of a disk that was away, and was removed from its group meanwhile, takes
//!   nothing from anyone.

use std::collections::BTreeSet;

use crate::metadata::{Metadata, PhysicalVolume, PvFlag, SharedVolume, VgFlag, VolumeGroup};
use crate::uuid::Uuid;

/// Whether the physical volume `pv`, whose own text is `own`, has moved to the group `taker`, which lists it.
pub(crate) fn has_moved(pv: &Uuid, own: &Metadata, taker: &Metadata) -> bool {
    let same = || extents(&own.group, pv) == extents(&taker.group, pv);
    is_taking(&taker.group, &own.group) && is_newer(taker, own) && same()
}

/// What is left of `giver` if `taker` has all physical volumes that both list, as `owns` says of each, or the marks of both; it may be a
/// group without physical volumes. `None` if the one has not taken them from the other.
pub(crate) fn rest(
    giver: &Metadata,
    taker: &Metadata,
    owns: impl Fn(&Uuid) -> Option<bool>,
) -> Option<VolumeGroup> {
    let is_marked = is_taking(&taker.group, &giver.group);
    let is_late = is_newer(taker, giver);
    let (taker, giver) = (&taker.group, &giver.group);
    let goes: Vec<bool> = giver.pvs.iter().map(|pv| taker.pv_index(&pv.id).is_some()).collect();
    let mut moved = giver.pvs.iter().zip(&goes).filter(|(_, goes)| **goes).map(|(pv, _)| &pv.id);
    let has_moved =
        |pv: &Uuid| owns(pv).unwrap_or(is_marked) && extents(taker, pv) == extents(giver, pv);
    if !is_late || !moved.all(has_moved) {
        return None;
    }
    let (rest, part) = giver.parts(&goes).ok()?;
    let gone = if rest.pvs.is_empty() { &giver.lvs } else { &part.lvs };
    let is_there = |lv: &SharedVolume| taker.lvs.iter().any(|other| other.id == lv.id);
    gone.iter().all(is_there).then_some(rest)
}

fn is_newer(taker: &Metadata, giver: &Metadata) -> bool {
    taker.header().creation_time >= giver.header().creation_time
}

/// Whether the marks of two groups say that `taker` gets physical volumes from `giver`: see the module text.
fn is_taking(taker: &VolumeGroup, giver: &VolumeGroup) -> bool {
    let is_exported = |group: &VolumeGroup| group.flags.contains(&VgFlag::Exported);
    match is_exported(taker) {
        true => taker.is_receiving() && !is_exported(giver),
        false => is_exported(giver) && giver.pvs.iter().all(|pv| taker.pv_index(&pv.id).is_some()),
    }
}

/// The extents of a physical volume that logical volumes have: the volume, its segment, the place there, and the place on the physical volume.
fn extents(group: &VolumeGroup, pv: &Uuid) -> BTreeSet<(Uuid, u32, usize, u32, u32)> {
    let index = group.pv_index(pv);
    let mut extents = BTreeSet::new();
    for lv in &group.lvs {
        for segment in &lv.segments {
            let on = segment.pv_extents().enumerate().filter(|(_, on)| Some(on.pv) == index);
            extents.extend(on.map(|(at, on)| (lv.id, segment.start, at, on.start, on.count)));
        }
    }
    extents
}

impl VolumeGroup {
    /// Marks the group as exported while it gets physical volumes of another one. Unlike those of a group that was exported by its user,
    /// its physical volumes have no mark, as in LVM's `vgsplit`.
    pub fn receive(&mut self) {
        self.flags.insert(VgFlag::Exported);
    }

    fn is_receiving(&self) -> bool {
        let marked = |pv: &PhysicalVolume| pv.flags.contains(&PvFlag::Exported);
        self.flags.contains(&VgFlag::Exported) && !self.pvs.iter().any(marked)
    }
}
