//! LVM volume groups: gathers physical volumes and makes logical volumes.
//!
//! `ashlar_lvm` determines the volumes of a group and their tables; this module loads the tables,
//! each device after the devices below it. A volume that cannot be made is refused by name; the
//! others are made anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ashlar_lvm::activate;
use ashlar_lvm::group::{self, Group, MemberState};
use ashlar_lvm::metadata::HeldElsewhere;
use ashlar_lvm::{PvOnDisk, Uuid, read_pv};

use crate::devices::Device;
use crate::refusals::{Refusal, Refused};

mod activation;
mod active;
mod change;
mod copying;
mod difference;
mod filling;
mod held;
mod members;
mod merges;
mod moves;
mod planned;
mod put_off;
mod report;
mod restored;
mod roles;
mod site;

pub use activation::{Activation, Activations};
use active::{Active, LiveDevice, Numbers};
pub use copying::CopyControl;
pub use filling::ServedSnapshot;
pub use members::{PlannedResize, new_member};
pub use merges::{MergeIdentity, ServedMerge, left_to_merge};
pub use moves::{MirrorProgress, MovingState, ServedMove, mirror_progress};
pub use planned::{Change, ChangeResult, Request};
pub use report::{ServedGroup, ServedPhysical, ServedVolume};
pub use roles::{COMPONENT, PHYSICAL};
pub(crate) use site::Site;

/// A present physical volume.
struct PresentVolume {
    /// The name of its device.
    device: String,
    depth: usize,
    pv: PvOnDisk,
    /// Its metadata, parsed once: groups are searched repeatedly.
    text: group::Text,
}

/// What is said of a physical volume that a group can be made of.
pub(crate) const FREE: &str = "is in no volume group";

/// The result of an activation.
pub(crate) struct ActivationResult {
    /// The names of the new volumes that users see.
    pub(crate) volumes: Vec<String>,
    /// The depth of the group's devices.
    pub(crate) depth: usize,
    /// The refused volumes.
    pub(crate) refused: Vec<Refusal>,
    /// The physical volumes that are not up to date, with the reason.
    pub(crate) notes: Vec<(String, String)>,
}

/// Where a group's physical volumes are.
struct Place {
    /// The names of their devices, in the group's order; `None` for one that cannot be used.
    devices: Vec<Option<String>>,
    /// The depth of the deepest.
    depth: usize,
}

impl Place {
    /// The name of a physical volume in tables.
    fn path(&self, index: usize) -> Option<String> {
        Some(format!("/dev/{}", self.devices.get(index)?.as_ref()?))
    }
}

/// See the module text.
#[derive(Default)]
pub(crate) struct VolumeGroups {
    physical: Vec<PresentVolume>,
    /// Physical volumes seen inside members of arrays: their UUIDs, and those of the arrays.
    inside: Vec<(Uuid, uuid::Uuid)>,
    active: BTreeMap<Uuid, Active>,
    /// The groups that are not used, because other hosts may write to them.
    refused: BTreeMap<Uuid, HeldElsewhere>,
    numbers: Numbers,
}

impl VolumeGroups {
    /// Adds a physical volume.
    ///
    /// # Errors
    /// The physical volume is unusable: the reason.
    pub(crate) async fn add(&mut self, device: &Device, depth: usize) -> Result<(), String> {
        match read_pv(device.gateway()).await {
            Ok(Some(pv)) => {
                let text = pv.metadata().map(|text| text.map(Arc::new));
                let device = device.name.clone();
                self.physical.push(PresentVolume { device, depth, pv, text });
                Ok(())
            }
            Ok(None) => Err("the LVM label cannot be read".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The physical volume on the device of this name: its UUID, and the name of its group if that can be read.
    pub(crate) fn physical_on(&self, device: &str) -> Option<(Uuid, Option<&str>)> {
        let found = self.physical.iter().find(|physical| physical.device == device)?;
        let text = found.text.as_ref().ok().and_then(Option::as_ref);
        Some((found.pv.label.uuid, text.map(|text| text.group.name.as_str())))
    }

    /// Looks for a physical volume at the start of an array's member: it belongs to the array's
    /// contents if the array's data begins there, too.
    pub(crate) async fn look_inside(&mut self, member: &Device, array: uuid::Uuid) {
        if let Ok(Some(pv)) = read_pv(member.gateway()).await {
            self.inside.push((pv.label.uuid, array));
        }
    }

    /// Forgets the physical volumes seen inside the members of a running array.
    pub(crate) fn array_runs(&mut self, array: uuid::Uuid) {
        self.inside.retain(|(_, of)| *of != array);
    }

    /// The next inactive group: a complete one, or any if `any` is set. Skips groups with a
    /// physical volume that exists twice, or may exist twice when an array starts: one of the two
    /// is outdated, and nothing says which.
    pub(crate) fn next(&self, any: bool) -> Option<Group> {
        let found = self.found();
        let twice = found.duplicates.iter().map(|index| self.physical[*index].pv.label.uuid);
        let unsure: BTreeSet<Uuid> =
            twice.chain(self.inside.iter().map(|(uuid, _)| *uuid)).collect();
        let mut groups = found.groups;
        groups.retain(|group| {
            let vg = &group.metadata.group;
            let is_done = self.active.contains_key(&vg.id) || self.refused.contains_key(&vg.id);
            !is_done && vg.pvs.iter().all(|pv| !unsure.contains(&pv.id))
        });
        groups.into_iter().find(|group| any || group.is_complete())
    }

    /// Whether a group is in use.
    pub(crate) fn is_any_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Messages about the physical volumes once no more can arrive: device and text.
    pub(crate) fn leftovers(&self) -> Vec<(String, String)> {
        let found = self.found();
        let free = found.free.into_iter().map(|i| (i, FREE.to_owned()));
        let orphans = found.orphans.into_iter().map(|i| {
            (i, "is in a volume group that only other physical volumes know of".to_owned())
        });
        let copies = found.duplicates.into_iter().map(|i| {
            let uuid = self.physical[i].pv.label.uuid;
            let first = self.physical.iter().find(|physical| physical.pv.label.uuid == uuid);
            let first = first.map_or("another", |physical| &physical.device);
            let why = format!(
                "is the same physical volume as {first}, one of them a copy: their volume group is \
                 not used while both are there"
            );
            (i, why)
        });
        let hidden = self.physical.iter().enumerate().filter_map(|(i, physical)| {
            let inside = self.inside.iter().any(|(uuid, _)| *uuid == physical.pv.label.uuid);
            let why = "is also inside a member of an array that does not run: its volume group is not \
                       used";
            inside.then(|| (i, why.to_owned()))
        });
        let defects = self.physical.iter().enumerate();
        let defects =
            defects.flat_map(|(i, physical)| physical.pv.defects().map(move |why| (i, why)));
        let damaged = found.damaged.into_iter().map(|(i, error)| (i, error.to_string()));
        let all = free.chain(orphans).chain(copies).chain(hidden).chain(defects).chain(damaged);
        all.filter_map(|(index, text)| Some((self.physical.get(index)?.device.clone(), text)))
            .collect()
    }

    fn found(&self) -> group::GroupSurvey {
        let read = self.physical.iter().map(|physical| (&physical.pv, &physical.text));
        group::assemble_read(&read.collect::<Vec<_>>())
    }

    /// Makes the devices of a group, and adds them to the site's.
    pub(crate) async fn activate(&mut self, group: &Group, site: &Site<'_>) -> ActivationResult {
        let vg = &group.metadata.group;
        let place = self.place(group);
        let path = |index: usize| place.path(index);
        let plan = activate::plan(vg, site.options, &path);
        let below: Vec<String> = place.devices.iter().flatten().cloned().collect();
        let mut notes = self.stale(group);
        let refuse = |name: &str, why: String| {
            let name = format!("{}/{name}", vg.name);
            Refusal { what: Refused::Volume, name, why, hint: None, below: below.clone() }
        };
        let mut refused: Vec<Refusal> =
            plan.refused.iter().map(|(name, why)| refuse(name, why.to_string())).collect();
        let planned = plan.devices.iter().map(|planned| planned.name.clone()).collect();
        let mut active = Active { planned, ..Active::default() };
        let mut volumes = Vec::new();
        for planned in plan.devices {
            let known = planned.volume.clone();
            match active.make(planned, &vg.name, false, site, &mut self.numbers).await {
                Ok(Some(made)) => {
                    let own =
                        plan.notes.iter().filter(|(volume, _)| Some(volume) == known.as_ref());
                    let texts = own.map(|(_, text)| text.clone()).chain(made.notes);
                    notes.extend(texts.map(|text| (made.device.clone(), text)));
                    if known.is_some() {
                        volumes.push(made.device);
                    }
                }
                Ok(None) => {}
                Err(why) => refused.extend(known.map(|name| refuse(&name, why))),
            }
        }
        self.active.insert(vg.id, active);
        ActivationResult { volumes, depth: place.depth, refused, notes }
    }

    /// Where a group's physical volumes are.
    fn place(&self, group: &Group) -> Place {
        let member = |state: &MemberState| self.physical.get(state.usable()?);
        let members: Vec<Option<&PresentVolume>> = group.members.iter().map(member).collect();
        let depth = members.iter().flatten().map(|member| member.depth).max().unwrap_or(0);
        let devices = members.into_iter().map(|m| m.map(|m| m.device.clone())).collect();
        Place { devices, depth }
    }

    /// The physical volumes of a group whose data may be outdated.
    fn stale(&self, group: &Group) -> Vec<(String, String)> {
        let returned = group.members.iter().filter_map(|member| match member {
            MemberState::Returned(index) => Some((
                *index,
                "was missing while its group changed: add it back with vgextend --restoremissing",
            )),
            MemberState::Present(_) | MemberState::Stale(_) | MemberState::Missing => None,
        });
        let outdated =
            group.outdated.iter().map(|index| (*index, "was removed from its volume group"));
        let all = returned.chain(outdated);
        all.filter_map(|(index, text)| {
            Some((self.physical.get(index)?.device.clone(), text.to_owned()))
        })
        .collect()
    }
}
