//! What served groups are, for reports.

use std::collections::{HashMap, HashSet};

use ashlar_block::{BlockDevice, Sectors};
use ashlar_lvm::Metadata;
use ashlar_lvm::activate::dm_name;
use ashlar_lvm::group::{Group, MemberState};
use ashlar_lvm::metadata::MetadataError;
use ashlar_lvm::report::PvFacts;
use ashlar_lvm::text::Form;
use serde::{Deserialize, Serialize};

use super::VolumeGroups;
use super::active::LiveDevice;
use crate::devices::Devices;

/// A physical volume of a daemon.
#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ServedPhysical {
    /// Its path.
    pub path: String,
    /// Its identity.
    pub uuid: String,
    /// What its label says.
    pub facts: PvFacts,
}

/// A group of a daemon.
#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ServedGroup {
    /// Its metadata.
    pub text: String,
    /// Its members; indices are those of the daemon's physical volumes.
    pub members: Vec<MemberState>,
    /// Its volumes, and components of volumes, that have a device.
    pub volumes: Vec<ServedVolume>,
}

/// A logical volume with a device.
#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ServedVolume {
    /// Its name.
    pub name: String,
    /// The name of its device; empty for an invalid snapshot, which has none.
    pub device: String,
    /// Whether a client, or a device that is made of it, has it open.
    pub is_open: bool,
    /// Its status, as `dmsetup status` prints it.
    pub status: String,
}

impl ServedGroup {
    /// Its metadata.
    ///
    /// # Errors
    /// The text is not the metadata of a group.
    pub fn metadata(&self) -> Result<Metadata, MetadataError> {
        Metadata::parse(self.text.as_bytes())
    }
}

impl VolumeGroups {
    /// The physical volumes, and the groups on them.
    pub(crate) fn report(&self, devices: &Devices) -> (Vec<ServedPhysical>, Vec<ServedGroup>) {
        let physical = self.physical.iter().map(|physical| {
            let path = devices.find(&physical.device).map(|device| device.path);
            ServedPhysical {
                path: path.unwrap_or_else(|| "[unknown]".to_owned()),
                uuid: physical.pv.label.uuid.to_string(),
                facts: PvFacts::of(&physical.pv),
            }
        });
        let groups = self.found().groups;
        let groups = groups.iter().map(|group| self.report_group(group, devices));
        (physical.collect(), groups.collect())
    }

    fn report_group(&self, group: &Group, devices: &Devices) -> ServedGroup {
        let all = devices.all();
        let open = all.iter().filter(|device| device.bytes.is_open()).map(|device| &device.name);
        let open: HashSet<&String> =
            open.chain(all.iter().flat_map(|device| &device.below)).collect();
        let vg = &group.metadata.group;
        let active = self.active.get(&vg.id);
        // Volumes that move extents are hidden, and active nevertheless.
        let moves = vg.moves().map(|it| (dm_name(&vg.name, it.name(), None), it.name().to_owned()));
        let moves: HashMap<String, String> = moves.collect();
        let volumes = active.into_iter().flat_map(|active| &active.devices).filter_map(|live| {
            let seen = live.planned.volume.as_ref();
            let name = seen.or_else(|| moves.get(&live.planned.name))?;
            let mapped = live.mapped.as_ref()?;
            let device = mapped.disk().name().to_owned();
            Some(ServedVolume {
                name: name.clone(),
                is_open: open.contains(&device),
                device,
                status: mapped.status().trim().to_owned(),
            })
        });
        // Under LVM they have a device, of which all I/O fails.
        let invalid = active.into_iter().flat_map(|active| active.parts.invalid());
        let invalid = invalid.filter(|name| {
            let has_device = |live: &LiveDevice| live.planned.volume.as_ref() == Some(*name);
            let live = active.is_some_and(|active| active.devices.iter().any(has_device));
            !live && vg.snapshot_in(name).is_some()
        });
        let invalid = invalid.map(|name| ServedVolume {
            name: name.clone(),
            device: String::new(),
            is_open: false,
            status: format!(
                "0 {} snapshot Invalid",
                vg.lv(name).map_or(Sectors::ZERO, |lv| vg.size(lv))
            ),
        });
        ServedGroup {
            text: String::from_utf8_lossy(&group.metadata.print(Form::Disk)).into_owned(),
            members: group.members.clone(),
            volumes: volumes.chain(invalid).collect(),
        }
    }
}
