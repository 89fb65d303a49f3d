//! `vgcfgrestore`: a group becomes what a copy of its description says.

use std::sync::Arc;

use ashlar_block::{Sector, Sectors};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{CommandError, Effect};
use crate::group::GroupSurvey;
use crate::metadata::{Metadata, MetadataError, PvExtents, VolumeGroup};
use crate::ondisk::{PvLabel, Range};
use crate::uuid::Uuid;

/// The bytes of a sector.
const SECTOR: u64 = 512;

/// A copy of a group's description.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// Its text.
    pub text: String,
    /// Whether a group with thin pools is restored.
    pub force: bool,
}

/// Why a copy is not restored.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RestoreError {
    /// It is not valid metadata.
    #[error("The copy cannot be used: {0}")]
    Unreadable(#[from] MetadataError),
    /// It is of a group with another name.
    #[error("The copy is of the group \"{0}\"")]
    OtherName(String),
    /// It has thin pools, and it is not forced.
    #[error("\"{0}\" has thin pools, whose own metadata may not match an older description")]
    ThinPools(String),
    /// The group of that name is another one.
    #[error("The volume group \"{name}\" on these disks is another one, {id}")]
    OtherGroup {
        /// The name.
        name: String,
        /// The identity of the group that is there.
        id: Uuid,
    },
    /// A physical volume of the copy is missing.
    #[error("Couldn't find device with uuid {0}")]
    NoPhysical(Uuid),
    /// A physical volume of the copy is present more than once.
    #[error("{0} is present twice")]
    Twice(String),
    /// A physical volume of the copy belongs to another group now.
    #[error("Physical volume \"{path}\" is in the volume group \"{group}\" now")]
    InOtherGroup {
        /// Its path.
        path: String,
        /// That group.
        group: String,
    },
    /// Extents would be where metadata is.
    #[error("The copy has extents where {0} has its metadata")]
    Overlap(String),
}

impl RestoreError {
    /// What helps.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoPhysical(_) => {
                Some("restore its label with pvcreate --uuid on the disk that it was on")
            }
            Self::ThinPools(_) => Some("use vgcfgrestore --force to restore it nevertheless"),
            Self::Unreadable(_)
            | Self::OtherName(_)
            | Self::OtherGroup { .. }
            | Self::Twice(_)
            | Self::InOtherGroup { .. }
            | Self::Overlap(_) => None,
        }
    }
}

/// A physical volume that is there.
pub struct KnownPhysical<'a> {
    /// Its label.
    pub label: &'a PvLabel,
    /// Where it is, for the user.
    pub path: &'a str,
}

/// A group as a copy has it, and what becomes of the physical volumes that are there.
pub struct RestoredGroup {
    /// The group, with the highest number of the copy and of what is there.
    pub group: VolumeGroup,
    /// What is there of it now.
    pub before: Option<Arc<Metadata>>,
    /// The indices of its physical volumes, in the copy's order.
    pub members: Vec<usize>,
    /// The indices of those that it has now, and the copy has not.
    pub left: Vec<usize>,
}

impl RestoredGroup {
    /// The group that a copy describes, on the physical volumes `physical`, on which `found` was found.
    ///
    /// # Errors
    /// See [`RestoreError`].
    pub fn new(
        mut group: VolumeGroup,
        found: &GroupSurvey,
        physical: &[KnownPhysical<'_>],
    ) -> Result<Self, RestoreError> {
        let is_other = |id: Uuid| id != group.id;
        let mut all = found.groups.iter().map(|found| &found.metadata);
        if let Some(other) =
            all.clone().find(|other| other.group.name == group.name && is_other(other.group.id))
        {
            return Err(RestoreError::OtherGroup { name: group.name, id: other.group.id });
        }
        // It may have had another name when the copy was made.
        let before = all.find(|present| present.group.id == group.id).cloned();
        let group_of = |index: usize| {
            let of = found.groups.iter().find(|found| found.has_member(index));
            of.map(|of| &of.metadata.group)
        };
        let mut members = Vec::new();
        for pv in &group.pvs {
            let index = physical.iter().position(|known| known.label.uuid == pv.id);
            let index = index.ok_or(RestoreError::NoPhysical(pv.id))?;
            let path = physical[index].path.to_owned();
            let is_copy =
                |copy: &usize| physical.get(*copy).is_some_and(|it| it.label.uuid == pv.id);
            if found.duplicates.iter().any(is_copy) {
                return Err(RestoreError::Twice(path));
            }
            if let Some(of) = group_of(index).filter(|of| is_other(of.id)) {
                return Err(RestoreError::InOtherGroup { path, group: of.name.clone() });
            }
            // It may have been recreated, with another layout.
            let start = pv.pe_start.0.saturating_mul(SECTOR);
            let end = start.saturating_add(group.sectors(pv.pe_count).0.saturating_mul(SECTOR));
            let areas = &physical[index].label.metadata_areas;
            let meets =
                |area: &Range| area.offset < end && start < area.offset.saturating_add(area.size);
            if areas.iter().any(meets) {
                return Err(RestoreError::Overlap(path));
            }
            members.push(index);
        }
        let is_left = |index: &usize| {
            group_of(*index).is_some_and(|of| !is_other(of.id)) && !members.contains(index)
        };
        let left = (0..physical.len()).filter(is_left).collect();
        group.seqno = group.seqno.max(before.as_ref().map_or(0, |before| before.group.seqno));
        Ok(Self { group, before, members, left })
    }
}

impl Restore {
    /// The description, of the group that the user calls `name`.
    ///
    /// # Errors
    /// The text is not a description, or must not be restored.
    pub fn read(&self, name: &str) -> Result<Metadata, RestoreError> {
        let metadata = Metadata::parse(self.text.as_bytes())?;
        check(&metadata, name, self.force)?;
        Ok(metadata)
    }

    pub(super) fn apply(&self, group: &mut VolumeGroup) -> Result<Effect, CommandError> {
        let mut wanted = self.read(&group.name).map_err(CommandError::Restore)?.group;
        if wanted.id != group.id {
            let error = RestoreError::OtherGroup { name: wanted.name, id: group.id };
            return Err(CommandError::Restore(error));
        }
        wanted.seqno = wanted.seqno.max(group.seqno);
        *group = wanted;
        let line = format!("  Restored volume group {}.", group.name);
        Ok(Effect { done: vec![line], ..Effect::default() })
    }
}

/// Refuses a copy of another group, and one with thin pools unless `force` is set.
///
/// # Errors
/// It is one.
pub fn check(copy: &Metadata, name: &str, force: bool) -> Result<(), RestoreError> {
    if copy.group.name != name {
        return Err(RestoreError::OtherName(copy.group.name.clone()));
    }
    if copy.group.has_thin_pools() && !force {
        return Err(RestoreError::ThinPools(name.to_owned()));
    }
    Ok(())
}

/// A range of a physical volume that a logical volume has.
struct Place {
    pv: Uuid,
    start: Sector,
    len: Sectors,
}

/// The places of a logical volume, without those of the volumes that it is made of.
fn places(group: &VolumeGroup, volume: &str) -> Vec<Place> {
    let extents = group.lv(volume).into_iter().flat_map(|lv| lv.pv_extents());
    let place = |on: PvExtents| {
        let pv = group.pvs.get(on.pv)?.id;
        Some(Place { pv, start: group.extent_start(on)?, len: group.sectors(on.count) })
    };
    extents.filter_map(place).collect()
}

/// The volume of `now` that has space which `volume` of `other` has.
pub fn user_of_space<'a>(
    now: &'a VolumeGroup,
    other: &VolumeGroup,
    volume: &str,
) -> Option<&'a str> {
    let wanted = places(other, volume);
    let meets = |a: &Place, b: &Place| {
        let end = |place: &Place| place.start.0.saturating_add(place.len.0);
        a.pv == b.pv && a.start.0 < end(b) && b.start.0 < end(a)
    };
    let uses = |name: &str| {
        places(now, name).iter().any(|used| wanted.iter().any(|place| meets(used, place)))
    };
    now.lvs.iter().map(|lv| lv.name.as_str()).find(|name| uses(name))
}
