//! Merges that end while their volume is exported.
//!
//! The device mapper merges a snapshot into its origin, and the group's metadata does not change
//! when the merge has ended: LVM's polldaemon waits for it, and then removes the snapshot from the
//! metadata. Here the daemon does this, by a change like any other: the merged data is durable in the origin (a
//! merge forgets an exception only then), the origin is suspended with a flush, and the metadata is
//! committed; a crash leaves the old or the new text. With the old text, the volume is activated as
//! before: the store is empty, so the merge ends at once.

use std::sync::Arc;

use ashlar_block::{Sector, Sectors};
use ashlar_dm::snapshot::{Status, StatusLine, Usage};
use ashlar_lvm::activate::dm_name;
use ashlar_lvm::group::{Group, GroupSurvey, MemberState};
use ashlar_lvm::{PvOnDisk, SegmentKind, Uuid, VolumeGroup};

use super::active::{Active, LiveDevice};
use super::copying::CopyControl;
use super::{Change, Site, VolumeGroups};

/// What identifies a merge whose snapshot is in the group's metadata.
#[derive(Clone, Debug)]
pub struct MergeIdentity {
    id: Uuid,
    /// The group.
    pub group: String,
    /// The origin.
    pub origin: String,
    /// The snapshot.
    pub snapshot: String,
}

/// Sectors left to merge, from a status line such as `0 8192 snapshot-merge 128/4096 16`; `None` if
/// the line reports a failed merge, or no merge.
pub fn left_to_merge(status: &str) -> Option<u64> {
    match status.parse().ok()? {
        StatusLine { is_merge: true, status: Status::Valid(Usage { allocated, metadata, .. }) } => {
            Some(allocated.0.saturating_sub(metadata.0))
        }
        StatusLine { .. } => None,
    }
}

/// A merge under way, or one that has ended or failed and is still in the metadata.
#[derive(Clone)]
pub struct ServedMerge {
    /// What is merged.
    pub merged: MergeIdentity,
    /// How much is left to merge; `None` if the merge failed.
    pub left: Option<Sectors>,
    is_told: bool,
    /// The merge on the merged device.
    pub copying: CopyControl,
}

impl ServedMerge {
    /// The origin, as `vg/lv`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.merged.group, self.merged.origin)
    }

    /// Whether it has ended and its end is to be recorded: not if that failed before.
    pub fn has_ended(&self) -> bool {
        self.left == Some(Sectors::ZERO) && !self.is_told
    }
}

impl Active {
    fn volume(&self, vg: &VolumeGroup, volume: &str) -> Option<&LiveDevice> {
        self.find(&dm_name(&vg.name, volume, None))
    }

    /// Whether the device of this volume says that a snapshot is invalid.
    fn shows_invalid(&self, vg: &VolumeGroup, volume: &str) -> bool {
        let mapped = self.volume(vg, volume).and_then(|live| live.mapped.as_ref());
        let status = mapped.and_then(|mapped| mapped.status().parse().ok());
        status.is_some_and(|line: StatusLine| line.status == Status::Invalid)
    }

    /// Refuses to merge into `origin` a snapshot that is invalid, as LVM does: the merge would have no end.
    ///
    /// # Errors
    /// LVM's reason.
    pub(super) fn check_mergeable(&self, vg: &VolumeGroup, origin: &str) -> Result<(), String> {
        let Some(found) = vg.snapshots_of(origin).find(|found| found.snapshot.merging) else {
            return Ok(());
        };
        let cow = &found.snapshot.cow;
        // One that could not be made beside its origin is invalid, or cannot be read. Of volumes that are not active nothing is known.
        let is_absent = self.volume(vg, cow).is_none() && self.volume(vg, origin).is_some();
        match is_absent || self.shows_invalid(vg, cow) {
            true => Err(format!("Unable to merge invalidated snapshot LV {}/{cow}.", vg.name)),
            false => Ok(()),
        }
    }

    /// Marks snapshots among `volumes`, and those of origins among them, no more as being merged if they are invalid: as in LVM, they
    /// can be removed then. Without `volumes` all are meant. The origin has what was merged before.
    pub(super) fn end_invalid_merges(&self, vg: &mut VolumeGroup, volumes: &[String]) {
        let is_named =
            |name: &str| volumes.is_empty() || volumes.iter().any(|volume| volume == name);
        let merging = vg.snapshots().filter(|found| found.snapshot.merging);
        let invalid = merging.filter(|found| {
            let (cow, origin) = (&found.snapshot.cow, &found.snapshot.origin);
            let is_meant = is_named(cow) || is_named(origin);
            is_meant && (self.shows_invalid(vg, cow) || self.shows_invalid(vg, origin))
        });
        let ties: Vec<Uuid> = invalid.map(|found| found.lv.id).collect();
        for lv in vg.lvs.iter_mut().filter(|lv| ties.contains(&lv.id)) {
            for segment in &mut lv.segments {
                if let SegmentKind::Snapshot(snapshot) = &mut segment.kind {
                    snapshot.merging = false;
                }
            }
        }
    }
}

impl VolumeGroups {
    /// All merges.
    pub(crate) fn merging(&self) -> Vec<ServedMerge> {
        let all = self.active.iter();
        let all = all.flat_map(|(id, active)| active.devices.iter().map(move |live| (*id, live)));
        let all: Vec<(Uuid, &LiveDevice)> = all.filter(|(_, live)| live.merges()).collect();
        if all.is_empty() {
            return Vec::new();
        }
        let groups = self.found().groups;
        let merging = all.into_iter().filter_map(|(id, live)| {
            let group = groups.iter().find(|group| group.metadata.group.id == id)?;
            let (vg, mapped) = (&group.metadata.group, live.mapped.as_ref()?);
            let origin = live.planned.volume.clone()?;
            let snapshot = vg.snapshots_of(&origin).find(|found| found.snapshot.merging)?;
            let snapshot = snapshot.snapshot.cow.clone();
            let merged = MergeIdentity { id, group: vg.name.clone(), origin, snapshot };
            let left = left_to_merge(&mapped.status()).map(Sectors);
            let copying = CopyControl { mapped: Arc::clone(mapped), at: Sector::ZERO };
            Some(ServedMerge { merged, left, is_told: live.is_told, copying })
        });
        merging.collect()
    }

    /// Plans the removal of a merged snapshot.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub(crate) fn prepare_end(
        &self,
        merged: &MergeIdentity,
        site: &Site<'_>,
    ) -> Result<Change, String> {
        self.prepare_with(&self.found(), merged.id, site, |group| {
            let end = group.finish_merge(&merged.origin);
            end.map(drop).map_err(|error| format!("cannot end the merge: {error}"))
        })
    }

    /// The indices of a group's physical volumes, ascending, if its metadata can be written.
    pub(super) fn writable_members(
        &self,
        found: &GroupSurvey,
        group: &Group,
        site: &Site<'_>,
    ) -> Result<Vec<usize>, String> {
        Self::refuse_held(&group.metadata.group, site)?;
        let usable: Option<Vec<usize>> =
            group.members.iter().map(|member: &MemberState| member.usable()).collect();
        let mut members = usable.ok_or("physical volumes of the group are missing")?;
        if found.damaged.iter().any(|(index, _)| members.contains(index)) {
            return Err("the metadata on one of the physical volumes is damaged".to_owned());
        }
        let is_member = |pv: &PvOnDisk| group.metadata.group.pv_index(&pv.label.uuid).is_some();
        if found.duplicates.iter().any(|index| is_member(&self.physical[*index].pv)) {
            return Err("a physical volume of the group exists twice".to_owned());
        }
        if let Some(why) = group.metadata.group.write_refusal() {
            return Err(why.to_string());
        }
        members.sort_unstable();
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::left_to_merge;

    #[test]
    fn what_is_left_is_what_is_no_metadata() {
        assert_eq!(left_to_merge("0 8192 snapshot-merge 128/4096 16"), Some(112));
        assert_eq!(left_to_merge("0 8192 snapshot-merge 16/4096 16"), Some(0));
        assert_eq!(left_to_merge("0 8192 snapshot-merge Invalid"), None);
        assert_eq!(left_to_merge("0 8192 snapshot-merge Merge failed"), None);
        assert_eq!(left_to_merge("0 8192 snapshot 16/4096 16"), None);
    }
}
