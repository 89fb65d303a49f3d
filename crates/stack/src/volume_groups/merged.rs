//! Merges that end while their volume is exported.
//!
//! The device mapper merges a snapshot into its origin, and the group's metadata does not change
//! when the merge has ended: LVM's polldaemon waits for it, and then removes the snapshot from the
//! metadata. Here the daemon does this. The order: the merged data is durable in the origin (a
//! merge forgets an exception only then), the origin is flushed once more, and then the metadata is
//! committed; a crash leaves the old or the new text. With the old text, the volume is activated as
//! before: the store is empty, so the merge ends at once.
//!
//! Until the daemon exits, the origin's device keeps its table and holds the store, which is no
//! longer read or written.

use ashlar_block::Gateway;
use ashlar_lvm::commit::{Committed, Member, commit};
use ashlar_lvm::group::{Group, MemberState};
use ashlar_lvm::metadata::Header;
use ashlar_lvm::{Metadata, PvOnDisk, Uuid};

use super::VolumeGroups;
use crate::devices::{Devices, Kind};

/// A merge that has ended, but whose snapshot is still in the group's metadata.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The group's metadata, with the snapshot.
    pub before: Metadata,
    /// The origin.
    pub origin: String,
    /// The merged snapshot.
    pub snapshot: String,
    /// The name of the origin's device.
    device: String,
}

/// Sectors left to merge, from a status line such as `0 8192 snapshot-merge 128/4096 16`; `None` if
/// the line reports a failed merge, or no merge.
pub fn left_to_merge(status: &str) -> Option<u64> {
    let mut words = status.split_ascii_whitespace().skip(2);
    if words.next()? != "snapshot-merge" {
        return None;
    }
    let (used, metadata) = (words.next()?.split_once('/')?.0, words.next()?);
    let (used, metadata): (u64, u64) = (used.parse().ok()?, metadata.parse().ok()?);
    Some(used.saturating_sub(metadata))
}

impl VolumeGroups {
    /// The merges that have ended since the last call.
    pub(crate) fn merged(&mut self, devices: &Devices) -> Vec<Merged> {
        let has_ended = |device: &str| {
            let kind = devices.find(device).map(|device| device.kind);
            matches!(kind, Some(Kind::Logical(mapped)) if left_to_merge(&mapped.status()) == Some(0))
        };
        let all = std::mem::take(&mut self.merging);
        let (ended, going): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|merging| has_ended(&merging.device));
        self.merging = going;
        if ended.is_empty() {
            return Vec::new();
        }
        let groups = self.found().groups;
        let merged = ended.into_iter().filter_map(|merging| {
            let is_its = |group: &&Group| group.metadata.group.id == merging.group;
            let before = groups.iter().find(is_its)?.metadata.clone();
            let mut snapshots = before.group.snapshots_of(&merging.origin);
            let snapshot = snapshots.find(|found| found.snapshot.merging)?.snapshot.cow.clone();
            drop(snapshots);
            let (origin, device) = (merging.origin, merging.device);
            Some(Merged { before, origin, snapshot, device })
        });
        merged.collect()
    }

    /// Removes a merged snapshot from its group's metadata; returns the new metadata. `header` has
    /// the author and time of the change.
    ///
    /// # Errors
    /// The metadata is unchanged, unless the text says that this is not known.
    pub(crate) async fn end_merge(
        &mut self,
        merged: &Merged,
        header: Header,
        devices: &Devices,
    ) -> Result<(Metadata, Committed), String> {
        let members = self.writable_members(merged.before.group.id)?;
        let mut metadata = merged.before.clone();
        let group = &mut metadata.group;
        group.finish_merge(&merged.origin).map_err(|error| error.to_string())?;
        let seqno = group.seqno.checked_add(1);
        group.seqno = seqno.ok_or("the volume group changed 2^32 times")?;
        group.check().map_err(|error| error.to_string())?;
        metadata.set_header(header);
        let origin = devices.find(&merged.device).ok_or("its device is gone")?;
        let flushed = origin.bytes.flush().await;
        flushed.map_err(|status| format!("the origin cannot be flushed: {status}"))?;
        let mut gateways: Vec<Gateway> = Vec::new();
        for index in &members {
            let device = devices.find(&self.physical[*index].device);
            gateways.push(device.ok_or("a physical volume is gone")?.gateway().clone());
        }
        let pvs = self.physical.iter_mut().enumerate();
        let pvs = pvs.filter(|(index, _)| members.contains(index));
        let mut writing: Vec<Member<'_>> = gateways
            .iter()
            .zip(pvs)
            .map(|(gateway, (_, physical))| Member { gateway, pv: &mut physical.pv })
            .collect();
        let done = commit(&mut writing, &metadata).await;
        for index in members {
            let physical = &mut self.physical[index];
            physical.text = physical.pv.metadata();
        }
        Ok((metadata, done.map_err(|error| error.to_string())?))
    }

    /// The indices of a group's physical volumes, ascending, if its metadata can be written.
    fn writable_members(&self, id: Uuid) -> Result<Vec<usize>, String> {
        let found = self.found();
        let group = found.groups.iter().find(|group| group.metadata.group.id == id);
        let group = group.ok_or("its volume group is not found any more")?;
        let usable: Option<Vec<usize>> =
            group.members.iter().map(|member: &MemberState| member.usable()).collect();
        let mut members = usable.ok_or("physical volumes of the group are missing")?;
        if found.damaged.iter().any(|(index, _)| members.contains(index)) {
            return Err("the metadata on one of the physical volumes is damaged".to_owned());
        }
        let is_member = |pv: &PvOnDisk| group.metadata.group.pv_index(&pv.label.uuid).is_some();
        if found.duplicates.iter().any(|index| is_member(&self.physical[*index].pv)) {
            return Err("a physical volume of the group is there twice".to_owned());
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
