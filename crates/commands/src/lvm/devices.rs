//! Devices of a volume group that a command needs temporarily: to write zeroes, to merge, to move extents.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ashlar_block::{ByteVolume, Flags, Gateway, Status};
use ashlar_disks as disks;
use ashlar_dm::snapshot::Origins;
use ashlar_dm::{Context, Device, Devices, Table};
use ashlar_lvm::VolumeGroup;
use ashlar_lvm::activate::{self, DeviceSource, Plan};

use crate::error::{Error, Result};

/// The devices that the group would have if it were active, created on demand.
pub struct Volumes {
    plan: Plan,
    physical: Vec<Gateway>,
    made: HashMap<String, Arc<Device>>,
    /// In order of creation.
    order: Vec<String>,
    origins: Arc<Origins>,
}

/// The name of this index's physical volume in tables. It cannot be a device of the group: their names contain a dash.
fn physical_name(index: usize) -> String {
    format!("pv{index}")
}

impl Devices for Volumes {
    fn find(&self, name: &str) -> Option<Gateway> {
        if let Some(device) = self.made.get(name) {
            return Some(Gateway::new(Arc::clone(device) as _));
        }
        self.physical.get(name.strip_prefix("pv")?.parse::<usize>().ok()?).cloned()
    }
}

impl Volumes {
    /// For a group whose physical volumes are `physical`, in the group's order.
    pub(super) fn new(group: &VolumeGroup, physical: Vec<Gateway>) -> Self {
        let pv = |index| (index < physical.len()).then(|| physical_name(index));
        let plan = activate::plan(group, activate::Options::default(), &pv);
        let (made, order, origins) = (HashMap::new(), Vec::new(), Arc::default());
        Self { plan, physical, made, order, origins }
    }

    /// Creates the devices of these names and those below them; a merge begins when its device is created.
    ///
    /// # Errors
    /// One of them cannot be created.
    pub async fn make(&mut self, names: &[String]) -> Result<()> {
        let mut needed: BTreeSet<String> = names.iter().cloned().collect();
        for planned in self.plan.devices.iter().rev() {
            if needed.contains(&planned.name) {
                needed.extend(planned.made_of.parts().into_iter().map(str::to_owned));
            }
        }
        let wanted = self.plan.devices.iter().filter(|planned| needed.contains(&planned.name));
        let wanted: Vec<_> = wanted.cloned().collect();
        if let Some(name) = names.iter().find(|name| !wanted.iter().any(|w| w.name == **name)) {
            return Err(Error::failed(format_args!("{name} cannot be made of its parts")));
        }
        for planned in wanted {
            let name = planned.name;
            if self.made.contains_key(&name) {
                continue;
            }
            let failed = |why: String| Error::new("cannot make the device", &name, why);
            let DeviceSource::Table(lines) = &planned.made_of else {
                return Err(failed("it is neither linear nor striped nor a snapshot".to_owned()));
            };
            let origins = Arc::clone(&self.origins);
            let context = Context { devices: self, runtime: disks::runtime(), origins };
            let table = Table::load(lines, &context).await.map_err(|e| failed(e.to_string()))?;
            let device = Device::start(&name, table, disks::runtime()).await;
            let device = device.map_err(|status| failed(status.to_string()))?;
            self.order.push(name.clone());
            self.made.insert(name, device);
        }
        Ok(())
    }

    /// A created device.
    pub fn device(&self, name: &str) -> Option<&Arc<Device>> {
        self.made.get(name)
    }

    /// Zeroes the first `bytes` of a device, durably.
    ///
    /// # Errors
    /// It cannot be created, or written to.
    pub async fn zero(&mut self, name: &str, bytes: u64) -> Result<()> {
        self.make(&[name.to_owned()]).await?;
        let Some(gateway) = self.find(name) else { return Ok(()) };
        let volume = ByteVolume::new(gateway);
        let len = bytes.min(volume.size_bytes());
        let zeroed = async {
            volume.write_zeroes(0, len, Flags::empty()).await?;
            volume.flush().await
        };
        let failed = |status: Status| Error::new("cannot write zeroes to", name, status);
        zeroed.await.map_err(failed)
    }

    /// Ends all I/O, in reverse order of creation; written data is durable then. All devices are ended even if one
    /// fails.
    ///
    /// # Errors
    /// One of them could not be flushed.
    pub async fn end(self) -> Result<()> {
        let mut done = Ok(());
        for name in self.order.iter().rev() {
            let Some(device) = self.made.get(name) else { continue };
            if let Err(status) = device.suspend(true).await {
                done = done.and(Err(Error::new("cannot end the device", name, status)));
            }
        }
        done
    }
}
