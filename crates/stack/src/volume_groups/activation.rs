//! Deactivating and activating volumes while their group is served: `lvchange -a` and `vgchange -a`.
//!
//! The metadata does not say which volumes are active: all are when the group is served again. A volume that is not active keeps its
//! place in the plan, so changes of the group skip it, and take effect when it is activated.

use std::collections::BTreeSet;
use std::sync::Arc;

use ashlar_lvm::activate::{PlannedDevice, dm_name};
use ashlar_lvm::group::named;
use ashlar_lvm::{Metadata, VolumeGroup};

use super::active::Active;
use super::{Site, VolumeGroups};

/// A planned change of which volumes are active.
pub struct Activation {
    group: Arc<Metadata>,
    /// The devices of the plan that it is about, each after those that it is made of.
    devices: Vec<PlannedDevice>,
    /// The names of the devices that no client may have open meanwhile.
    pub shut: Vec<String>,
}

/// The result of making volumes active.
pub struct Activations {
    /// The names of new devices.
    pub volumes: Vec<String>,
    /// Messages about devices.
    pub notes: Vec<(String, String)>,
    /// Why a volume could not be made, or does not end.
    pub failed: Option<String>,
}

impl VolumeGroups {
    /// Plans that volumes of a group, or without names all, become active or inactive. A snapshot and its origin do so
    /// together.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub(crate) fn prepare_activation(
        &self,
        group: &str,
        volumes: &[String],
        wanted: bool,
        site: &Site<'_>,
    ) -> Result<Activation, String> {
        let found = self.found();
        let group = named(&found.groups, group).map_err(|error| error.to_string())?;
        let vg = &group.metadata.group;
        let active = self.changeable(vg)?;
        let families = families(vg, volumes)?;
        let place = self.place(group);
        let path = |index: usize| place.path(index);
        let plan = active.plan(vg, site.options, &path);
        // A device that a volume needs which is not meant stays as it is.
        let is_meant = |volume: &String| families.as_ref().is_none_or(|all| all.contains(volume));
        let needed = |meant: bool| {
            let mut names: BTreeSet<&str> = BTreeSet::new();
            for planned in plan.devices.iter().rev() {
                let is_volume = planned.volume.as_ref().is_some_and(|name| is_meant(name) == meant);
                if is_volume || names.contains(planned.name.as_str()) {
                    names.insert(&planned.name);
                    names.extend(planned.made_of.parts());
                }
            }
            names
        };
        let (meant, others) = (needed(true), needed(false));
        let is_live = |planned: &&PlannedDevice| active.find(&planned.name).is_some();
        // A move continues whether its volumes are active or not.
        let moves: BTreeSet<String> =
            vg.moves().map(|moving| dm_name(&vg.name, moving.name(), None)).collect();
        let devices = plan.devices.iter().filter(|planned| {
            let name = planned.name.as_str();
            let is_free = wanted || !others.contains(name) && !moves.contains(name);
            meant.contains(name) && is_free && is_live(planned) != wanted
        });
        let devices: Vec<PlannedDevice> = devices.cloned().collect();
        let seen = devices.iter().filter(|planned| !wanted && planned.volume.is_some());
        let shut = seen.filter_map(|planned| active.find(&planned.name));
        let shut = shut.flat_map(|live| live.names.clone()).collect();
        Ok(Activation { group: Arc::clone(&group.metadata), devices, shut })
    }

    /// Makes the devices of an activation.
    pub(crate) async fn activate_more(
        &mut self,
        change: Activation,
        site: &Site<'_>,
    ) -> Activations {
        let vg = &change.group.group;
        let Self { active, numbers, .. } = self;
        let mut done = Activations { volumes: Vec::new(), notes: Vec::new(), failed: None };
        let Some(active) = active.get_mut(&vg.id) else { return done };
        let made: BTreeSet<String> =
            active.devices.iter().map(|live| live.planned.name.clone()).collect();
        active.parts.thaw(&change.devices, |planned| !made.contains(&planned.name));
        for planned in change.devices {
            let (name, is_volume) = (planned.name.clone(), planned.volume.is_some());
            match active.make(planned, &vg.name, false, site, numbers).await {
                Ok(Some(new)) => {
                    done.notes.extend(new.notes.into_iter().map(|it| (new.device.clone(), it)));
                    if is_volume {
                        done.volumes.push(new.device);
                    }
                }
                Ok(None) => {}
                Err(why) => {
                    done.failed.get_or_insert(format!("{name} cannot be made: {why}"));
                }
            }
        }
        let order: Vec<&String> = active.planned.iter().collect();
        active.devices.sort_by_key(|live| order.iter().position(|it| **it == live.planned.name));
        done
    }

    /// Ends the devices of an activation, which no client has open.
    ///
    /// # Errors
    /// One does not end, and those below it are left: the reason.
    pub(crate) async fn deactivate(
        &mut self,
        change: Activation,
        site: &Site<'_>,
    ) -> Result<(), String> {
        let Some(active) = self.active.get_mut(&change.group.group.id) else { return Ok(()) };
        for planned in change.devices.iter().rev() {
            end(active, &planned.name, site).await?;
        }
        self.end_put_off(&change.group, site);
        Ok(())
    }

    /// How many of a group's volumes that users see are active.
    pub(crate) fn active_volumes(&self, group: &str) -> usize {
        let found = self.found();
        let group = named(&found.groups, group).ok();
        let active = group.and_then(|group| self.active.get(&group.metadata.group.id));
        let devices = active.into_iter().flat_map(|active| &active.devices);
        devices.filter(|live| live.planned.volume.is_some() && live.mapped.is_some()).count()
    }
}

/// Ends a device, and forgets it.
pub(super) async fn end(active: &mut Active, name: &str, site: &Site<'_>) -> Result<(), String> {
    if let Some(mapped) = active.find(name).and_then(|live| live.mapped.clone()) {
        let retired = mapped.retire().await;
        retired.map_err(|status| format!("{name} does not end: {status}"))?;
    }
    if let Some(at) = active.devices.iter().position(|live| live.planned.name == name) {
        let live = active.devices.remove(at);
        // A pool of thin volumes does not have a device of its own.
        for device in live.names.iter().filter(|_| live.mapped.is_some()) {
            site.devices.remove_name(device);
        }
    }
    active.parts.forget(name);
    Ok(())
}

/// The volumes called `names`, with their origins and snapshots; without names `None`: all.
fn families(vg: &VolumeGroup, names: &[String]) -> Result<Option<BTreeSet<String>>, String> {
    if names.is_empty() {
        return Ok(None);
    }
    let mut all = BTreeSet::new();
    for name in names {
        let origin = match vg.snapshot_in(name) {
            Some(found) => found.snapshot.origin.clone(),
            None => name.clone(),
        };
        if vg.lv(&origin).is_none() {
            return Err(format!("Failed to find logical volume \"{}/{name}\"", vg.name));
        }
        all.extend(vg.snapshots_of(&origin).map(|found| found.snapshot.cow.clone()));
        all.insert(origin);
    }
    Ok(Some(all))
}
