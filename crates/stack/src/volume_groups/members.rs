//! The physical volumes of groups in use: those that join, those that leave, and groups that begin and end.
//!
//! A physical volume is marked as used in its label before the text of a group names it, and becomes a free one after the text no longer
//! does. A crash in between leaves one that is marked, and in no group: it is not used for anything else by mistake
//! (`pvcreate -ff` frees it).

use std::sync::Arc;

use ashlar_block::{Gateway, Sectors};
use ashlar_lvm::command::{Question, resize_question, too_large};
use ashlar_lvm::format::{FormatError, release_pv, write_label};
use ashlar_lvm::group::named;
use ashlar_lvm::metadata::Header;
use ashlar_lvm::ondisk::PvLabel;
use ashlar_lvm::report::long;
use ashlar_lvm::{Metadata, PhysicalVolume, Uuid, VolumeGroup};

use super::active::Active;
use super::change::write;
use super::{Change, PHYSICAL, Site, VolumeGroups};
use crate::devices::{Device, Devices};

/// The entry of a group with this extent size for the physical volume of this label, which the user knows as `path`.
///
/// # Errors
/// It has no room for an extent: the reason.
pub fn new_member(
    path: &str,
    label: &PvLabel,
    extent_size: Sectors,
) -> Result<PhysicalVolume, String> {
    let member = PhysicalVolume::of_label(label, extent_size).filter(|it| it.pe_count > 0);
    let mut member = member.ok_or_else(|| {
        format!("{path} has no room for an extent of {}, or for too many", long(extent_size))
    })?;
    // A hint for LVM, which does not know image files.
    member.device = Some(path.to_owned()).filter(|path| path.starts_with("/dev/"));
    Ok(member)
}

/// The change of a physical volume's size.
pub struct PlannedResize {
    /// The change.
    pub change: Change,
    /// What the user must confirm.
    pub question: Option<Question>,
}

impl VolumeGroups {
    /// Registers the free physical volume on a device.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) async fn adopt(
        &mut self,
        device: &Device,
        depth: usize,
        devices: &Devices,
    ) -> Result<(), String> {
        self.add(device, depth).await?;
        devices.set_role(&device.name, PHYSICAL);
        Ok(())
    }

    /// The index of the free physical volume on a device; `None` if the device has no physical volume.
    ///
    /// # Errors
    /// It is not free: the reason.
    fn free_on(&self, device: &str, path: &str) -> Result<Option<usize>, String> {
        let on = |index: &usize| self.physical[*index].device == device;
        let Some(index) = (0..self.physical.len()).find(on) else { return Ok(None) };
        let found = self.found();
        if let Some(group) = found.groups.iter().find(|group| group.has_member(index)) {
            let group = &group.metadata.group.name;
            return Err(format!("Physical volume '{path}' is already in volume group '{group}'"));
        }
        if !found.free.contains(&index) {
            return Err(format!(
                "Physical volume '{path}' is a copy, or marked as used by a group that is not here"
            ));
        }
        Ok(Some(index))
    }

    /// Whether there is a free physical volume on a device.
    ///
    /// # Errors
    /// It is not free: the reason.
    pub(crate) fn has_free(&self, device: &str, path: &str) -> Result<bool, String> {
        Ok(self.free_on(device, path)?.is_some())
    }

    /// Whether there is a group of that name.
    pub(crate) fn has_group(&self, name: &str) -> bool {
        self.found().groups.iter().any(|group| group.metadata.group.name == name)
    }

    /// Plans that the free physical volumes on devices, given with the users' paths, join a group.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub(crate) fn prepare_extend(
        &self,
        group: &str,
        joining: &[(String, String)],
        site: &Site<'_>,
    ) -> Result<Change, String> {
        self.prepare_named(group, site, |group| {
            for (device, path) in joining {
                let index = self.free_on(device, path)?.ok_or("it is not a physical volume")?;
                let member = new_member(path, &self.physical[index].pv.label, group.extent_size)?;
                let failed = |error| format!("Cannot extend the volume group: {error}");
                group.add_physical(member).map_err(failed)?;
            }
            Ok(())
        })
    }

    /// Plans that the physical volumes on devices, given with the users' paths, leave a group; without any, all that no logical
    /// volume uses, but for one. Returns the devices of those that leave, too.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub(crate) fn prepare_reduce(
        &self,
        group: &str,
        leaving: &[(String, String)],
        site: &Site<'_>,
    ) -> Result<(Change, Vec<String>), String> {
        let mut devices = Vec::new();
        let change = self.prepare_named(group, site, |group| {
            let device_of = |id: &Uuid| {
                let is = |physical: &&super::PresentVolume| physical.pv.label.uuid == *id;
                self.physical.iter().find(is).map(|physical| physical.device.clone())
            };
            let mut wanted = leaving.to_vec();
            if wanted.is_empty() {
                let uses = |at: usize| {
                    group.lvs.iter().flat_map(|lv| lv.pv_extents()).any(|on| on.pv == at)
                };
                let unused = group.pvs.iter().enumerate().filter(|(at, _)| !uses(*at));
                let unused = unused.filter_map(|(_, pv)| device_of(&pv.id));
                wanted = unused.map(|device| (device.clone(), device)).collect();
                if wanted.len() == group.pvs.len() {
                    // As in LVM: one stays.
                    wanted.remove(0);
                }
            }
            for (device, path) in wanted {
                let is = |pv: &PhysicalVolume| device_of(&pv.id).as_ref() == Some(&device);
                let name = &group.name;
                let at = group.pvs.iter().position(is).ok_or_else(|| {
                    format!("Physical volume \"{path}\" not found in volume group \"{name}\"")
                })?;
                let failed = |error| format!("Cannot remove the physical volume: {path}: {error}");
                group.remove_physical(at).map_err(failed)?;
                devices.push(device);
            }
            Ok(())
        })?;
        Ok((change, devices))
    }

    /// Plans that the physical volume on a device, given with the user's path, gets the size of its device or `size`.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub(crate) fn prepare_resize(
        &self,
        group: &str,
        (device, path): (&str, &str),
        size: Option<Sectors>,
        site: &Site<'_>,
    ) -> Result<PlannedResize, String> {
        let failed = |why: &dyn std::fmt::Display| {
            format!("Cannot resize the physical volume: {path}: {why}")
        };
        let physical = self.physical.iter().find(|physical| physical.device == device);
        let physical = physical.ok_or_else(|| failed(&"it is not a physical volume"))?;
        let label = &physical.pv.label;
        let gateway = gateway(site, device).ok_or_else(|| failed(&"it is offline"))?;
        let capacity = gateway.capacity();
        let size = size.unwrap_or(capacity);
        if size > capacity {
            return Err(failed(&too_large(size, capacity)));
        }
        let change = self.prepare_named(group, site, |group| {
            let at = group.pv_index(&label.uuid).ok_or_else(|| {
                let name = &group.name;
                format!("Physical volume \"{path}\" not found in volume group \"{name}\"")
            })?;
            let to = group.physical_size(at, label, size).map_err(|error| failed(&error))?;
            group.resize_physical(at, to).map_err(|error| failed(&error))
        })?;
        Ok(PlannedResize { change, question: resize_question(path, size, capacity) })
    }

    /// Plans the change of the group called `name` that `change` makes to its description.
    fn prepare_named(
        &self,
        name: &str,
        site: &Site<'_>,
        change: impl FnOnce(&mut VolumeGroup) -> Result<(), String>,
    ) -> Result<Change, String> {
        let found = self.found();
        let group = named(&found.groups, name).map_err(|error| error.to_string())?;
        self.prepare_with(&found, group.metadata.group.id, site, change)
    }

    /// Marks in the labels of physical volumes whether they belong to a group.
    pub(super) async fn mark(
        &mut self,
        indices: &[usize],
        used: bool,
        site: &Site<'_>,
    ) -> Result<(), String> {
        for index in indices {
            let physical = &mut self.physical[*index];
            if physical.pv.label.is_used() == used {
                continue;
            }
            let failed = |why: &dyn std::fmt::Display| {
                format!("the label of {} cannot be written: {why}", physical.device)
            };
            let gateway =
                gateway(site, &physical.device).ok_or_else(|| failed(&"it is offline"))?;
            physical.pv.label.set_used(used);
            let written = write_label(&gateway, &physical.pv).await;
            written.map_err(|error: FormatError| failed(&error))?;
        }
        Ok(())
    }

    /// Releases the physical volumes that no group lists any more. Returns what failed.
    pub(super) async fn release(&mut self, indices: &[usize], site: &Site<'_>) -> Vec<String> {
        let mut failed = Vec::new();
        for index in indices {
            let physical = &mut self.physical[*index];
            let Some(gateway) = gateway(site, &physical.device) else { continue };
            if let Err(error) = release_pv(&gateway, &mut physical.pv).await {
                failed.push(format!("{} is still marked as used: {error}", physical.device));
            }
            physical.text = physical.pv.metadata().map(|text| text.map(Arc::new));
        }
        failed
    }

    /// Makes a group of free physical volumes on devices, given with the users' paths. It has no logical volumes yet.
    ///
    /// # Errors
    /// There is no such group, unless the text says that this is not known.
    pub(crate) async fn create(
        &mut self,
        mut group: VolumeGroup,
        joining: &[(String, String)],
        header: Header,
        site: &Site<'_>,
    ) -> Result<Arc<Metadata>, String> {
        if site.options.read_only {
            return Err("the disks are served read-only".to_owned());
        }
        let mut members = Vec::new();
        for (device, path) in joining {
            let index = self.free_on(device, path)?.ok_or("it is not a physical volume")?;
            let member = new_member(path, &self.physical[index].pv.label, group.extent_size)?;
            group.add_physical(member).map_err(|error| error.to_string())?;
            members.push(index);
        }
        members.sort_unstable();
        group.seqno = 1;
        group.check().map_err(|error| error.to_string())?;
        let (id, metadata) = (group.id, Arc::new(Metadata::new(group, header)));
        self.mark(&members, true, site).await?;
        let written = write(&mut self.physical, &members, &metadata, site).await;
        // A group that may be there is served, so that its physical volumes get no other use.
        let unsure = written.as_ref().err().map(ToString::to_string);
        if let Some(why) = unsure.filter(|_| !super::change::is_uncertain(&written)) {
            if let Err(error) = self.mark(&members, false, site).await {
                tracing::error!("{error}");
            }
            return Err(why);
        }
        let unsure = written.err().map(|error| error.to_string());
        self.active.insert(id, Active { unsure: unsure.clone(), ..Active::default() });
        unsure.map_or(Ok(metadata), Err)
    }

    /// Removes a group that has no logical volumes any more. Returns its metadata.
    ///
    /// # Errors
    /// It is refused, or a physical volume could not be released: the reason.
    pub(crate) async fn remove(
        &mut self,
        group: &str,
        site: &Site<'_>,
    ) -> Result<Arc<Metadata>, String> {
        let change = self.prepare_named(group, site, |_| Ok(()))?;
        if !change.before.group.lvs.is_empty() {
            return Err(format!("Volume group \"{group}\" still contains logical volumes"));
        }
        let failed = self.release(&change.members, site).await;
        self.active.remove(&change.before.group.id);
        match failed.into_iter().next() {
            Some(why) => Err(why),
            None => Ok(change.before),
        }
    }
}

fn gateway(site: &Site<'_>, device: &str) -> Option<Gateway> {
    site.devices.find(device).map(|device| device.gateway().clone())
}
