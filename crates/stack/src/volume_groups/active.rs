//! The devices of an active group: those of its plan, in the plan's order.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ashlar_block::BlockDevice;
use ashlar_block::disk::DeviceNumber;
use ashlar_dm::Device as Mapped;
use ashlar_dm::snapshot::Origins;
use ashlar_lvm::Uuid;
use ashlar_lvm::activate::{DeviceSource, PlannedDevice};

use super::Site;
use super::roles::COMPONENT;
use crate::devices::Role;
use crate::mapped::{Maker, Parts};

/// What all groups share: the numbers of mapped devices, and the devices that have snapshots.
#[derive(Default)]
pub(super) struct Numbers {
    next: u32,
    pub(super) origins: Arc<Origins>,
}

/// An active group.
#[derive(Default)]
pub(super) struct Active {
    /// Each after the devices that it is made of.
    pub(super) devices: Vec<LiveDevice>,
    pub(super) parts: Parts,
    /// The names of all devices of the plan, also of those that could not be made.
    pub(super) planned: Vec<String>,
    /// The origins of merges that are put off: the metadata has the merge already, and the origin's next activation begins it.
    pub(super) put_off: BTreeSet<Uuid>,
    /// Why the group must not be changed any more until it is read again.
    pub(super) unsure: Option<String>,
}

/// A device of a plan.
pub(super) struct LiveDevice {
    pub(super) planned: PlannedDevice,
    /// Its device; `None` for a pool of thin volumes, which has no device.
    pub(super) mapped: Option<Arc<Mapped>>,
    /// The name of its device; of a pool, the names of its parts' devices.
    pub(super) names: Vec<String>,
    /// Whether recording the end of its copying failed, which is reported once.
    pub(super) is_told: bool,
}

/// A device that was made.
pub(super) struct NewDevice {
    /// The name of the device.
    pub(super) device: String,
    /// Messages to the user.
    pub(super) notes: Vec<String>,
}

impl LiveDevice {
    /// Whether it may only be made, and its table only be loaded, while changes of its origin are held or pass the origin's
    /// own gate: what it does begins at that moment.
    pub(super) fn is_snapshot(planned: &PlannedDevice) -> bool {
        has_line(planned, "snapshot")
    }

    /// Whether a snapshot is being merged into it.
    pub(super) fn merges(&self) -> bool {
        has_line(&self.planned, "snapshot-merge")
    }

    /// Whether extents are being moved below it.
    pub(super) fn moves(&self) -> bool {
        Self::is_mirror(&self.planned)
    }

    /// Whether it copies data of lower devices: it may begin only when their users' writes go through it.
    pub(super) fn is_mirror(planned: &PlannedDevice) -> bool {
        has_line(planned, "mirror")
    }
}

/// Whether a device has a line of this kind in its table.
fn has_line(planned: &PlannedDevice, kind: &str) -> bool {
    matches!(&planned.made_of, DeviceSource::Table(lines) if lines.iter().any(|line| line.kind == kind))
}

/// The names of the devices behind each name of a plan.
pub(super) struct LowerNames<'a>(HashMap<&'a str, &'a [String]>);

impl LowerNames<'_> {
    /// The names of the devices that `planned` is made of.
    pub(super) fn of(&self, planned: &PlannedDevice) -> Vec<String> {
        let mut all = BTreeSet::new();
        for part in planned.made_of.parts() {
            match part.strip_prefix("/dev/") {
                Some(device) => all.extend([device.to_owned()]),
                None => all.extend(self.0.get(part).into_iter().copied().flatten().cloned()),
            }
        }
        all.into_iter().collect()
    }
}

impl Active {
    /// The device that the plan calls `name`.
    pub(super) fn find(&self, name: &str) -> Option<&LiveDevice> {
        self.devices.iter().find(|live| live.planned.name == name)
    }

    /// The names of devices by those in the plan.
    pub(super) fn lower(&self) -> LowerNames<'_> {
        let names = self.devices.iter().map(|live| (live.planned.name.as_str(), &*live.names));
        LowerNames(names.collect())
    }

    /// What makes devices of this group.
    pub(super) fn maker<'a>(&'a mut self, site: &Site<'a>, numbers: &'a Numbers) -> Maker<'a> {
        let Site { devices, runtime, .. } = *site;
        Maker { devices, origins: &numbers.origins, runtime, parts: &mut self.parts }
    }

    /// Makes a device of the group named `group`, after those that it is made of, and adds it to the site's; `None` for a pool.
    /// With `held` it begins when it is resumed.
    ///
    /// # Errors
    /// The reason.
    pub(super) async fn make(
        &mut self,
        planned: PlannedDevice,
        group: &str,
        held: bool,
        site: &Site<'_>,
        numbers: &mut Numbers,
    ) -> Result<Option<NewDevice>, String> {
        let (number, device) = (numbers.next, format!("dm-{}", numbers.next));
        let mut lower = BTreeSet::new();
        for part in planned.made_of.parts() {
            match part.strip_prefix("/dev/") {
                Some(device) => lower.extend([device.to_owned()]),
                // The names in a plan have a dash; the other words of a table do not.
                None if !part.contains('-') => {}
                None => {
                    lower.extend(self.find(part).into_iter().flat_map(|live| live.names.clone()))
                }
            }
        }
        let lower: Vec<String> = lower.into_iter().collect();
        let Some(made) = self.maker(site, numbers).make(&planned, &device, held).await? else {
            self.devices.push(LiveDevice { planned, mapped: None, names: lower, is_told: false });
            return Ok(None);
        };
        numbers.next += 1;
        let disk = made.mapped.disk();
        disk.set_number(DeviceNumber::dm(number));
        if planned.read_only || made.read_only {
            disk.set_read_only(true);
        }
        let role = if planned.volume.is_some() { Role::Volume } else { COMPONENT };
        let (links, uuid, mapped) = (links(&planned, group), planned.uuid, made.mapped);
        site.devices.add_logical(&device, links, role, lower, uuid, Arc::clone(&mapped));
        let names = vec![device.clone()];
        self.devices.push(LiveDevice { planned, mapped: Some(mapped), names, is_told: false });
        Ok(Some(NewDevice { device, notes: made.notes }))
    }
}

/// The names of a device below `dev`.
pub(super) fn links(planned: &PlannedDevice, group: &str) -> Vec<String> {
    let volume = planned.volume.as_ref().map(|volume| format!("{group}/{volume}"));
    std::iter::once(format!("mapper/{}", planned.name)).chain(volume).collect()
}
