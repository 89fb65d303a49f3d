//! All volumes of a report.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::{LvRow, LvState, PvFacts, PvRow, VgRow};
use crate::group::Group;
use crate::metadata::VolumeGroup;
use crate::uuid::Uuid;

/// A group with what is known beyond its metadata.
pub struct GroupFacts {
    /// The group.
    pub group: Group,
    /// Its physical volumes, in the order of its metadata; `None`: missing.
    pub physical: Vec<Option<PresentVolume>>,
    /// The states of its active logical volumes, by name.
    pub states: BTreeMap<String, LvState>,
    /// Which logical volumes users see, in the order of its metadata.
    pub(super) visible: Vec<bool>,
}

/// A physical volume that is present.
#[derive(Clone, Debug)]
pub struct PresentVolume {
    /// Its device.
    pub path: String,
    /// Its identity.
    pub uuid: Uuid,
    /// The major and the minor number of its device; 0 if it is a file.
    pub numbers: (u32, u32),
    /// What its label says.
    pub facts: PvFacts,
}

impl GroupFacts {
    pub(super) fn metadata(&self) -> &VolumeGroup {
        &self.group.metadata.group
    }

    /// Its physical volumes.
    pub(super) fn pvs(self: &Rc<Self>) -> impl Iterator<Item = PvRow> {
        (0..self.group.members.len()).map(|index| PvRow::Member { facts: Rc::clone(self), index })
    }

    /// Its logical volumes that users see; with `all` also the components of others. Volumes that only tie a snapshot to its
    /// origin are never shown.
    pub(super) fn lvs(self: &Rc<Self>, all: bool) -> impl Iterator<Item = LvRow> {
        let group = self.metadata();
        let ties: Vec<&str> = group.snapshots().map(|found| &*found.lv.name).collect();
        let volumes = group.lvs.iter().zip(&self.visible).enumerate();
        volumes
            .filter(move |(_, (lv, seen))| (**seen || all) && !ties.contains(&&*lv.name))
            .map(|(index, _)| LvRow { facts: Rc::clone(self), index })
    }

    /// The device of a physical volume by its index in the group.
    pub(super) fn device(&self, index: usize) -> &str {
        let found = self.physical.get(index).and_then(Option::as_ref);
        found.map_or("[unknown]", |physical| &physical.path)
    }
}

/// Physical volumes, their groups, and the logical volumes of these.
pub struct Inventory {
    /// The groups, in LVM's order.
    groups: Vec<Rc<GroupFacts>>,
    /// The physical volumes of no group.
    free: Vec<PresentVolume>,
}

impl Inventory {
    /// Of physical volumes in the order of their devices, the groups on them, whose members are indices into `physical`, and
    /// the states of each group's active volumes.
    pub fn new(
        physical: &[PresentVolume],
        groups: impl IntoIterator<Item = (Group, BTreeMap<String, LvState>)>,
    ) -> Self {
        let mut placed = Vec::new();
        let (mut listed, mut known) = (Vec::new(), Vec::new());
        for (group, states) in groups {
            let indices: Vec<_> = group.members.iter().map(|member| member.index()).collect();
            listed.extend(indices.iter().flatten().copied());
            let of = |index: &Option<usize>| physical.get((*index)?).cloned();
            let physical: Vec<_> = indices.iter().map(of).collect();
            known.extend(physical.iter().flatten().map(|physical| physical.uuid));
            let first = indices.iter().flatten().min().copied();
            let visible = group.metadata.group.visible();
            placed.push((first, Rc::new(GroupFacts { group, physical, states, visible })));
        }
        // LVM shows the group of the last device first.
        placed.sort_by_key(|(first, _)| std::cmp::Reverse(*first));
        let mut free = Vec::new();
        for (index, physical) in physical.iter().enumerate() {
            // The copy of another one is not shown.
            if !listed.contains(&index) && !known.contains(&physical.uuid) {
                known.push(physical.uuid);
                free.push(physical.clone());
            }
        }
        Self { groups: placed.into_iter().map(|(_, facts)| facts).collect(), free }
    }

    /// All physical volumes, including those missing from their groups.
    pub fn pvs(&self) -> Vec<PvRow> {
        let members = self.groups.iter().flat_map(GroupFacts::pvs);
        members.chain(self.free.iter().cloned().map(PvRow::Free)).collect()
    }

    /// All groups.
    pub fn vgs(&self) -> Vec<VgRow> {
        self.groups.iter().map(|facts| VgRow(Rc::clone(facts))).collect()
    }

    /// The logical volumes that users see; with `all` also the components of others. Volumes that only tie a snapshot to its
    /// origin are never shown.
    pub fn lvs(&self, all: bool) -> Vec<LvRow> {
        self.groups.iter().flat_map(|facts| facts.lvs(all)).collect()
    }
}
