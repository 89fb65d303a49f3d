//! Merges that are put off until their origin is activated again, because a client has the origin or the snapshot open.
//!
//! As in LVM, the metadata says at once that the snapshot is merged, so the merge begins at the next activation wherever that is: here,
//! in a daemon that is started later, in the kernel. Until then the devices stay as they are, and continue as before:
//! [`Active::plan`] plans them from a description without that mark. Once no client has the snapshot open, clients do not find
//! it any more.

use std::collections::BTreeSet;

use ashlar_lvm::activate::{self, Options, Plan, dm_name};
use ashlar_lvm::command::merges_later;
use ashlar_lvm::{Metadata, SegmentKind, Uuid, VolumeGroup};

use super::active::Active;
use super::difference::{Difference, Renames};
use super::{COMPONENT, Change, PresentVolume, Site, VolumeGroups};

/// A description in which merges into these origins have not begun.
fn without(group: &VolumeGroup, put_off: &BTreeSet<Uuid>) -> VolumeGroup {
    let mut group = group.clone();
    let origins = group.lvs.iter().filter(|lv| put_off.contains(&lv.id));
    let origins: BTreeSet<String> = origins.map(|lv| lv.name.clone()).collect();
    for segment in group.lvs.iter_mut().flat_map(|lv| &mut lv.segments) {
        if let SegmentKind::Snapshot(snapshot) = &mut segment.kind {
            snapshot.merging &= !origins.contains(&snapshot.origin);
        }
    }
    group
}

/// The snapshot that is merged into the volume with this identity, after the name of that volume.
fn merged<'a>(group: &'a VolumeGroup, origin: &Uuid) -> Option<(&'a str, &'a str)> {
    let origin = group.lvs.iter().find(|lv| lv.id == *origin)?;
    let found = group.snapshots_of(&origin.name).find(|found| found.snapshot.merging)?;
    Some((&origin.name, &found.snapshot.cow))
}

/// LVM's message about a merge into this origin that begins later.
pub(super) fn later(group: &VolumeGroup, origin: &str) -> Option<String> {
    let (origin, snapshot) = merged(group, &group.lv(origin)?.id)?;
    Some(merges_later(&group.name, origin, snapshot))
}

impl Active {
    /// The devices that the group has with this description.
    pub(super) fn plan(
        &self,
        group: &VolumeGroup,
        options: Options,
        pv: &dyn Fn(usize) -> Option<String>,
    ) -> Plan {
        match self.put_off.is_empty() {
            true => activate::plan(group, options, pv),
            false => activate::plan(&without(group, &self.put_off), options, pv),
        }
    }

    /// Forgets merges that the metadata does not list any more.
    pub(super) fn keep_put_off(&mut self, group: &VolumeGroup) {
        self.put_off.retain(|origin| merged(group, origin).is_some());
    }
}

impl VolumeGroups {
    /// Changes a planned merge into one that is put off; `reason` comes before LVM's message about it.
    ///
    /// # Errors
    /// The change is not a merge, or is refused: the reason.
    pub(crate) fn put_off(
        &self,
        mut change: Change,
        reason: &str,
        site: &Site<'_>,
    ) -> Result<Change, String> {
        let (before, after) = (&change.before.group, &change.after.group);
        let active = self.changeable(before)?;
        let origin = change.effect.merges_into.as_deref();
        let said = origin.and_then(|origin| Some((after.lv(origin)?.id, later(after, origin)?)));
        let (origin, line) = said.ok_or("only a merge can be put off")?;
        let put_off = active.put_off.iter().copied().chain([origin]).collect();
        let path = |at: usize| {
            let id = after.pvs.get(at)?.id;
            let is = |physical: &&PresentVolume| physical.pv.label.uuid == id;
            Some(format!("/dev/{}", self.physical.iter().find(is)?.device))
        };
        let plan = activate::plan(&without(after, &put_off), site.options, &path);
        let difference = Difference::of(active, &Renames::between(before, after), &plan)?;
        let done = vec![format!("  {reason}"), line];
        (change.plan, change.difference, change.puts_off) = (plan, difference, Some(origin));
        change.shut.clear();
        change.effect.done = done;
        Ok(change)
    }

    /// Forgets that a merge was put off once neither of its volumes is active: the next activation begins it.
    pub(super) fn end_put_off(&mut self, metadata: &Metadata, site: &Site<'_>) {
        let vg = &metadata.group;
        let found = self.found();
        let Some(group) = found.groups.iter().find(|group| group.metadata.group.id == vg.id) else {
            return;
        };
        let place = self.place(group);
        let Some(active) = self.active.get_mut(&vg.id) else { return };
        let is_live = |volume: &str| active.find(&dm_name(&vg.name, volume, None)).is_some();
        let waits = |origin: &&Uuid| {
            merged(vg, origin).is_some_and(|(origin, store)| is_live(origin) || is_live(store))
        };
        let left: BTreeSet<Uuid> = active.put_off.iter().filter(waits).copied().collect();
        if left.len() == active.put_off.len() {
            return;
        }
        active.put_off = left;
        let plan = active.plan(vg, site.options, &|index| place.path(index));
        active.planned = plan.devices.into_iter().map(|planned| planned.name).collect();
    }

    /// Hides from clients each snapshot whose merge is put off and that no client has open.
    pub(crate) fn hide_put_off(&self, site: &Site<'_>) {
        if self.active.values().all(|active| active.put_off.is_empty()) {
            return;
        }
        for group in self.found().groups {
            let vg = &group.metadata.group;
            let Some(active) = self.active.get(&vg.id) else { continue };
            for (_, store) in active.put_off.iter().filter_map(|origin| merged(vg, origin)) {
                let live = active.find(&dm_name(&vg.name, store, None));
                for name in live.into_iter().flat_map(|live| &live.names) {
                    hide(name, site);
                }
            }
        }
    }
}

/// Takes a device and its partitions away from clients, if none has one of them open, and nothing is made of them.
fn hide(name: &str, site: &Site<'_>) {
    let Ok(all) = site.devices.with_partitions(|device| device.name == *name) else { return };
    if all.iter().all(|device| device.role == COMPONENT) {
        return;
    }
    let closed = all.iter().take_while(|device| device.bytes.withdraw()).count();
    if closed < all.len() {
        all.iter().take(closed).for_each(|device| device.bytes.offer());
        return;
    }
    all.iter().for_each(|device| site.devices.set_role(&device.name, COMPONENT));
}
