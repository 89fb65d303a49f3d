//! Hiding devices from clients, so that their volumes can stop while the daemon runs.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::Runtime;
use ashlar_block::byte_volume::ClaimedVolume;
use ashlar_stack::arrays::Arrays;
use ashlar_stack::canary::{Rule, broken};
use ashlar_stack::devices::{Device, Devices};
use ashlar_view::attributes::Attributes;

use crate::front_ends::FrontEnds;

/// How often the daemon tries to withdraw a volume, and how long it waits in between.
const RELEASES: u32 = 20;
const RELEASE: Duration = Duration::from_millis(50);

/// A device that is hidden from clients, followed by its partitions.
pub(crate) struct HiddenDevices(Vec<Device>);

/// A device that no client can open, followed by its partitions.
pub(crate) struct ClosedDevices(Vec<Device>);

impl ClosedDevices {
    /// Lets clients open it again.
    pub(crate) fn reopen(self) {
        for device in self.0 {
            device.bytes.offer();
        }
    }
}

/// The places where clients find devices.
pub(crate) struct Clients {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) devices: Arc<Devices>,
    pub(crate) arrays: Arc<Arrays>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) front_ends: FrontEnds,
}

impl Clients {
    /// The device for which `is_meant` holds, which users know as `called`, and its partitions.
    ///
    /// # Errors
    /// The device that is made of one of them.
    fn free(
        &self,
        is_meant: impl Fn(&Device) -> bool,
        called: &str,
    ) -> Result<Vec<Device>, String> {
        let made_of = |name: &str| format!("{name} is made of '{called}'");
        let devices = self.devices.with_partitions(is_meant).map_err(|above| made_of(&above))?;
        for array in self.arrays.waiting() {
            let is_member = |device: &Device| array.members.iter().any(|m| m.path == device.path);
            if devices.iter().any(is_member) {
                return Err(made_of(&array.name.path()));
            }
        }
        Ok(devices)
    }

    /// Prevents clients from opening the device named `name`, which users know as `called`, and its partitions, from now on.
    /// They stay listed. The caller makes sure that no device is built on them meanwhile.
    ///
    /// # Errors
    /// The client or device that uses one of them: all can be opened.
    pub(crate) async fn shut(&self, name: &str, called: &str) -> Result<ClosedDevices, String> {
        let mut shut = ClosedDevices(Vec::new());
        for device in self.free(|device| device.name == name, called)? {
            if !withdraw(&self.runtime, &device).await {
                let open = if device.name == name { called } else { device.export_name() };
                shut.reopen();
                return Err(format!("'{open}' is open"));
            }
            shut.0.push(device);
        }
        Ok(shut)
    }

    /// Prevents clients from opening any volume from now on.
    ///
    /// # Errors
    /// The volume that a client uses: all can be opened.
    pub(crate) async fn shut_all(&self) -> Result<(), String> {
        let mut shut = ClosedDevices(Vec::new());
        for device in self.devices.volumes() {
            if !withdraw(&self.runtime, &device).await {
                shut.reopen();
                return Err(format!("'{}' is open", device.export_name()));
            }
            shut.0.push(device);
        }
        Ok(())
    }

    /// Hides the device for which `is_meant` holds, which users know as `called`, and its partitions from clients: all of
    /// them, or none if a client has one open. The caller makes sure that no device is made of them meanwhile.
    ///
    /// # Errors
    /// The client or device that uses one of them.
    pub(crate) async fn hide(
        &self,
        is_meant: impl Fn(&Device) -> bool,
        called: &str,
    ) -> Result<HiddenDevices, String> {
        let devices = self.free(&is_meant, called)?;
        for device in &devices {
            self.devices.remove(&device.path);
        }
        self.front_ends.follow();
        // The tree of attributes no longer holds them.
        self.attributes.release_old();
        let hidden = HiddenDevices(devices);
        for device in &hidden.0 {
            if !withdraw(&self.runtime, device).await {
                let open = if is_meant(device) { called } else { device.export_name() };
                let busy = format!("'{open}' is open");
                self.show(hidden);
                return Err(busy);
            }
        }
        Ok(hidden)
    }

    /// Shows a device to clients again, under its present name.
    pub(crate) fn show(&self, HiddenDevices(devices): HiddenDevices) {
        for device in devices {
            device.bytes.offer();
            self.devices.put_back(device);
        }
        self.front_ends.follow();
    }
}

/// Prevents clients from opening a device from now on; false if a client keeps it open.
async fn withdraw(runtime: &Arc<dyn Runtime>, device: &Device) -> bool {
    let is_withdrawn = || device.bytes.withdraw() || broken(Rule::UsedArraysRun);
    once_closed(runtime, || is_withdrawn().then_some(())).await.is_some()
}

/// Opens a device so that no client can open it; `None` if a client keeps it open.
pub(crate) async fn claim(runtime: &Arc<dyn Runtime>, device: &Device) -> Option<ClaimedVolume> {
    once_closed(runtime, || device.bytes.claim()).await
}

/// Tries again for a while: the kernel reports closing a file with a delay.
async fn once_closed<T>(runtime: &Arc<dyn Runtime>, attempt: impl Fn() -> Option<T>) -> Option<T> {
    for _ in 0..RELEASES {
        let result = attempt();
        if result.is_some() {
            return result;
        }
        runtime.sleep(RELEASE).await;
    }
    None
}
