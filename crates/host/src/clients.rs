//! Hiding devices from clients, so that their volumes can end while the daemon goes on.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ashlar_engine::sleep;
use ashlar_export::nbd::export::Exports;
use ashlar_stack::arrays::Arrays;
use ashlar_stack::attributes::Attributes;
use ashlar_stack::devices::{Device, Devices, Role};

use crate::daemon::export;

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
    pub(crate) devices: Arc<Devices>,
    pub(crate) arrays: Arc<Arrays>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) exports: Arc<Exports>,
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

    /// Lets no client open the device named `name`, which users know as `called`, and its partitions, from now on. They
    /// stay listed. The caller makes sure that no device is made of them meanwhile.
    ///
    /// # Errors
    /// The client or device that uses one of them: all can be opened.
    pub(crate) async fn shut(&self, name: &str, called: &str) -> Result<ClosedDevices, String> {
        let mut shut = ClosedDevices(Vec::new());
        for device in self.free(|device| device.name == name, called)? {
            if !withdraw(&device).await {
                let open = if device.name == name { called } else { device.export_name() };
                shut.reopen();
                return Err(format!("'{open}' is open"));
            }
            shut.0.push(device);
        }
        Ok(shut)
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
            drop(self.exports.remove(device.export_name()));
        }
        // The tree of attributes no longer holds them.
        drop(self.attributes.lookup(""));
        let hidden = HiddenDevices(devices);
        for device in &hidden.0 {
            if !withdraw(device).await {
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
            let name = device.name.clone();
            device.bytes.offer();
            self.devices.put_back(device);
            let shown = self.devices.find(&name);
            if let Some(device) = shown.filter(|device| device.role == Role::Volume) {
                self.serve(&device);
            }
        }
    }

    /// Exports the volumes for which `is_meant` holds to NBD clients, if they are not exported yet. The mount shows them
    /// by itself.
    pub(crate) fn serve_new(&self, is_meant: impl Fn(&Device) -> bool) {
        let known = self.exports.list();
        let known: HashSet<&str> = known.iter().map(|export| export.name()).collect();
        for device in self.devices.volumes() {
            if is_meant(&device) && !known.contains(device.export_name()) {
                self.serve(&device);
            }
        }
    }

    /// Exports all volumes to NBD clients under their present names, and nothing else.
    pub(crate) fn follow(&self) {
        let volumes = self.devices.volumes();
        let names: HashMap<&str, &Device> =
            volumes.iter().map(|device| (device.export_name(), device)).collect();
        for export in self.exports.list() {
            let device = names.get(export.name());
            if !device.is_some_and(|device| std::ptr::eq(export.volume(), &*device.bytes)) {
                drop(self.exports.remove(export.name()));
            }
        }
        self.serve_new(|_| true);
    }

    /// Exports a device to NBD clients.
    fn serve(&self, device: &Device) {
        if let Err(error) = export(device).and_then(|export| self.exports.add(export)) {
            tracing::error!(device = device.name, %error, "not served to NBD clients");
        }
    }
}

/// Lets no client open a device from now on; false if a client keeps it open.
async fn withdraw(device: &Device) -> bool {
    for _ in 0..RELEASES {
        if device.bytes.withdraw() {
            return true;
        }
        // The kernel reports closing a file with a delay.
        sleep(RELEASE).await;
    }
    false
}
