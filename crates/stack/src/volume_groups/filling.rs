//! Snapshots whose space fills while they are served, and its extension by policy.

use ashlar_block::Sectors;
use ashlar_dm::snapshot::{Status, StatusLine};
use ashlar_lvm::Uuid;
use ashlar_lvm::command::Command;
use ashlar_lvm::group::Group;
use ashlar_lvm::snapshots::{AutoExtend, NoFreeExtents};
use event_listener::EventListener;

use super::active::LiveDevice;
use super::{Active, VolumeGroups};

/// A snapshot that is served; its merge may be put off.
#[derive(Clone, Debug)]
pub struct ServedSnapshot {
    /// The identity of its group.
    pub group_id: Uuid,
    /// The name of its group.
    pub group: String,
    /// Its identity.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// Its status.
    pub status: Status,
    /// The size of its space.
    pub size: Sectors,
    /// Whether its space can hold all of its origin, so that it cannot overflow.
    pub covers_origin: bool,
}

impl ServedSnapshot {
    /// Its name with that of its group: `vg/snap`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.group, self.name)
    }
}

impl VolumeGroups {
    /// Ends when a snapshot uses another percent of its space, or can take no more writes.
    pub(crate) fn snapshot_fills(&self) -> EventListener {
        self.numbers.origins.listen()
    }

    /// The snapshots of active groups.
    pub(crate) fn snapshots(&self) -> Vec<ServedSnapshot> {
        let is_snapshot = |live: &LiveDevice| LiveDevice::is_snapshot(&live.planned);
        // Parsed texts are searched only if a device says that there is one.
        if !self.active.values().any(|active| active.devices.iter().any(is_snapshot)) {
            return Vec::new();
        }
        let groups = self.found().groups;
        groups.iter().flat_map(|group| self.snapshots_in(group)).collect()
    }

    fn snapshots_in<'a>(&'a self, group: &'a Group) -> impl Iterator<Item = ServedSnapshot> + 'a {
        let vg = &group.metadata.group;
        let devices = self.active.get(&vg.id).map_or(&[][..], |active: &Active| &active.devices);
        let snapshots = devices.iter().filter(|live| LiveDevice::is_snapshot(&live.planned));
        snapshots.filter_map(move |live| {
            let lv = vg.lv(live.planned.volume.as_ref()?)?;
            let StatusLine { status, .. } = live.mapped.as_ref()?.status().parse().ok()?;
            Some(ServedSnapshot {
                group_id: vg.id,
                group: vg.name.clone(),
                id: lv.id,
                name: lv.name.clone(),
                status,
                size: vg.size(lv),
                covers_origin: vg.covers_origin(&lv.name),
            })
        })
    }

    /// The change that the policy wants for a snapshot now, if any.
    ///
    /// # Errors
    /// Its group has no room.
    pub(crate) fn autoextension(
        &self,
        snapshot: &ServedSnapshot,
        policy: AutoExtend,
    ) -> Result<Option<Command>, NoFreeExtents> {
        let groups = self.found().groups;
        let group = groups.iter().find(|group| group.metadata.group.id == snapshot.group_id);
        let Some(group) = group else { return Ok(None) };
        let now = self.snapshots_in(group).find(|now| now.id == snapshot.id);
        let Some(ServedSnapshot { status: Status::Valid(usage), name, .. }) = now else {
            return Ok(None);
        };
        let resize = group.metadata.group.autoextension(&name, usage, policy)?;
        Ok(resize.map(Command::Resize))
    }
}
