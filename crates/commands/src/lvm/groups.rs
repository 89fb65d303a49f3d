//! The physical volumes and groups that reports are about.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use ashlar_client::interface::GroupsReply;
use ashlar_disks as disks;
use ashlar_lvm::Metadata;
use ashlar_lvm::Uuid;
use ashlar_lvm::group::Group;
use ashlar_lvm::metadata::{HeldElsewhere, SystemIds};
use ashlar_lvm::moving::Move;
use ashlar_lvm::report::{Inventory, LvRow, LvState, PresentVolume, PvFacts, PvRow, VgRow};
use ashlar_stack::volume_groups::{ServedGroup, ServedVolume};
use rustix::fs::{major, minor};

use super::names::split_name;
use super::session::{Session, only_group};
use crate::error::{Error, Result};

/// Physical volumes and groups, of the daemon or on disks.
pub struct Groups {
    /// The physical volumes; the groups' indices refer to them.
    physical: Vec<PresentVolume>,
    groups: Vec<Group>,
    inventory: Inventory,
}

impl Groups {
    fn new(physical: Vec<PresentVolume>, groups: Vec<(Group, Vec<ServedVolume>)>) -> Self {
        let found = groups.iter().map(|(group, _)| group.clone()).collect();
        let groups = groups.into_iter().map(|(group, volumes)| {
            let state = |volume: ServedVolume| {
                let ServedVolume { name, is_open, status, .. } = volume;
                (name, LvState { is_open, status })
            };
            (group, volumes.into_iter().map(state).collect::<BTreeMap<_, _>>())
        });
        let inventory = Inventory::new(&physical, groups);
        Self { physical, groups: found, inventory }
    }

    /// Those that a command found on its disks.
    pub fn on_disks(session: &Session) -> Self {
        let physical = session
            .pvs
            .iter()
            .map(|pv| present(pv.path.clone(), pv.on_disk.label.uuid, PvFacts::of(&pv.on_disk)));
        let groups = session.found.groups.iter().map(|group| (group.clone(), Vec::new()));
        Self::new(physical.collect(), groups.collect())
    }

    /// The groups of a daemon.
    ///
    /// # Errors
    /// Its answer is not a list of groups.
    pub fn served(reply: GroupsReply) -> Result<Self> {
        let failed = |why: &dyn std::fmt::Display| {
            Error::plain("the daemon's answer was not understood", why)
        };
        let mut physical = Vec::new();
        for pv in reply.physical {
            let uuid = pv.uuid.parse().map_err(|error| failed(&error))?;
            physical.push(present(pv.path, uuid, pv.facts));
        }
        let mut groups = Vec::new();
        for ServedGroup { text, members, volumes } in reply.groups {
            let metadata = Metadata::parse(text.as_bytes()).map_err(|error| failed(&error))?;
            let metadata = Arc::new(metadata);
            let (outdated, has_given) = (Vec::new(), false);
            groups.push((Group { metadata, members, outdated, has_given }, volumes));
        }
        Ok(Self::new(physical, groups))
    }

    /// The names of those that are not the groups of the host with these system IDs, and who may be writing to them.
    pub fn held_elsewhere(&self, local: &SystemIds) -> Vec<(&str, HeldElsewhere)> {
        let groups = self.groups.iter().map(|group| &group.metadata.group);
        groups.filter_map(|group| Some((&*group.name, group.held_elsewhere(local)?))).collect()
    }

    /// The names of all groups.
    pub fn names(&self) -> Vec<String> {
        self.groups.iter().map(|group| group.metadata.group.name.clone()).collect()
    }

    /// The index of the physical volume that this path is of.
    fn index(&self, path: &str) -> Option<usize> {
        let wanted = disks::identity(Path::new(path));
        let same = |PresentVolume { path: other, .. }: &PresentVolume| {
            other == path || wanted.is_some() && wanted == disks::identity(Path::new(other))
        };
        self.physical.iter().position(same)
    }

    /// The path of the physical volume that this path is of.
    pub fn path(&self, path: &str) -> Option<&str> {
        self.index(path).map(|index| &*self.physical[index].path)
    }

    /// The group of the physical volume that this path is of.
    ///
    /// # Errors
    /// There is no such physical volume, or it is in no group.
    pub fn group_at(&self, path: &str) -> Result<&Group> {
        let index = self.index(path).ok_or_else(|| not_found(path))?;
        self.groups.iter().find(|group| group.has_member(index)).ok_or_else(|| {
            Error::failed(format_args!("Physical volume \"{path}\" is in no volume group"))
        })
    }

    /// The moves of extents in all groups, or those from the physical volume at a path: the group, the move, and the path of
    /// the physical volume that is left.
    pub fn moves(&self, from: Option<&str>) -> Vec<(&Group, Move<'_>, &str)> {
        let from = from.map(|path| self.index(path));
        let mut found = Vec::new();
        for group in &self.groups {
            for moving in group.metadata.group.moves() {
                let member = moving.source().and_then(|source| group.members.get(source));
                let index = member.and_then(|member| member.usable());
                if from.is_none_or(|from| from.is_some() && from == index) {
                    let physical = index.and_then(|index| self.physical.get(index));
                    found.push((group, moving, physical.map_or("[unknown]", |pv| &*pv.path)));
                }
            }
        }
        found
    }

    /// The group of that name or UUID.
    ///
    /// # Errors
    /// There is no such group, or several.
    pub fn group(&self, name: &str) -> Result<&Group> {
        only_group(&self.groups, name)
    }

    /// The physical volumes at these paths, or all if `names` is empty.
    ///
    /// # Errors
    /// One does not exist.
    pub fn pvs(&self, names: &[String]) -> Result<Vec<PvRow>> {
        let mut wanted = Vec::new();
        for name in names {
            let path = self.path(name).ok_or_else(|| {
                Error::failed(format_args!("Failed to find physical volume \"{name}\""))
            })?;
            wanted.push(path);
        }
        let mut rows = self.inventory.pvs();
        rows.retain(|row| names.is_empty() || wanted.contains(&row.device()));
        Ok(rows)
    }

    /// The groups of these names in their order, or all if `names` is empty.
    ///
    /// # Errors
    /// One does not exist.
    pub fn vgs(&self, names: &[String]) -> Result<Vec<VgRow>> {
        let mut wanted = Vec::new();
        for name in names {
            wanted.push(self.group(name)?.metadata.group.id);
        }
        let mut rows = self.inventory.vgs();
        rows.retain(|row| names.is_empty() || wanted.contains(&row.id()));
        rows.sort_by_key(|row| wanted.iter().position(|id| *id == row.id()));
        Ok(rows)
    }

    /// The volumes of these names, those of groups of these names, or all if `names` is empty; with `all` also the components
    /// of others. Groups are in the order of the names.
    ///
    /// # Errors
    /// One does not exist.
    pub fn lvs(&self, names: &[String], all: bool) -> Result<Vec<LvRow>> {
        let mut wanted = Vec::new();
        for name in names {
            let (group, volume) = split_name(name)?;
            let found = &self.group(group)?.metadata.group;
            if let Some(volume) = volume.filter(|volume| found.lv(volume).is_none()) {
                let text = format!("Failed to find logical volume \"{}/{volume}\"", found.name);
                return Err(Error::failed(text));
            }
            wanted.push((found.id, volume));
        }
        let mut rows = self.inventory.lvs(all);
        rows.retain(|row| {
            let mut wanted = wanted.iter();
            let (id, name) = row.id();
            names.is_empty()
                || wanted.any(|(of, volume)| *of == id && volume.is_none_or(|lv| lv == name))
        });
        rows.sort_by_key(|row| wanted.iter().position(|(id, _)| *id == row.id().0));
        Ok(rows)
    }
}

/// A physical volume, with the numbers of its device.
fn present(path: String, uuid: Uuid, facts: PvFacts) -> PresentVolume {
    let device = fs::metadata(&path).ok().filter(|file| file.file_type().is_block_device());
    let numbers = device.map(|device| device.rdev());
    let numbers = numbers.map(|number| (major(number), minor(number)));
    PresentVolume { path, uuid, numbers: numbers.unwrap_or_default(), facts }
}

/// There is no physical volume at a path.
pub(super) fn not_found(path: &str) -> Error {
    Error::failed(format_args!("Failed to find physical volume \"{path}\"."))
}
