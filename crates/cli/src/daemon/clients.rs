//! Devices that are taken away from clients, so that their volumes can end while the daemon goes on.

use std::sync::Arc;
use std::time::Duration;

use ashlar_engine::sleep;
use ashlar_export::nbd::export::Exports;
use ashlar_stack::arrays::Arrays;
use ashlar_stack::attributes::Attributes;
use ashlar_stack::devices::{Device, Devices, Role};

use super::export;

/// How often, and after how long each time, a file is looked for that is about to be closed.
const RELEASES: u32 = 20;
const RELEASE: Duration = Duration::from_millis(50);

/// A device that clients do not find, and behind it its partitions.
pub(super) struct Hidden(Vec<Device>);

/// All that clients can find devices by.
#[derive(Clone, Copy)]
pub(super) struct Clients<'a> {
    pub(super) devices: &'a Devices,
    pub(super) arrays: &'a Arrays,
    pub(super) attributes: &'a Attributes,
    pub(super) exports: &'a Exports,
}

impl Clients<'_> {
    /// Takes the device that is meant, which users know as `called`, away from clients, with its partitions, all of them
    /// or none: a client that has one open keeps it. Nothing may be made of them meanwhile.
    ///
    /// # Errors
    /// What uses one.
    pub(super) async fn hide(
        &self,
        is_meant: impl Fn(&Device) -> bool,
        called: &str,
    ) -> Result<Hidden, String> {
        let made_of = |name: &str| format!("{name} is made of '{called}'");
        let devices = self.devices.with_partitions(&is_meant).map_err(|above| made_of(&above))?;
        for array in self.arrays.waiting() {
            let is_member = |device: &Device| array.members.iter().any(|m| m.path == device.path);
            if devices.iter().any(is_member) {
                return Err(made_of(&array.name.path()));
            }
        }
        for device in &devices {
            self.devices.remove(&device.path);
            drop(self.exports.remove(device.export_name()));
        }
        let hidden = Hidden(devices);
        for device in &hidden.0 {
            if self.is_used(device).await {
                let open = if is_meant(device) { called } else { device.export_name() };
                let busy = format!("'{open}' is open");
                self.show(hidden);
                return Err(busy);
            }
        }
        Ok(hidden)
    }

    /// Gives a device back to clients, under the name that it has now.
    pub(super) fn show(&self, Hidden(devices): Hidden) {
        for device in devices {
            let name = device.name.clone();
            self.devices.put_back(device);
            let shown = self.devices.find(&name);
            if let Some(device) = shown.filter(|device| device.role == Role::Volume) {
                self.serve(&device);
            }
        }
    }

    /// Shows a device to NBD clients.
    pub(super) fn serve(&self, device: &Device) {
        if let Err(error) = export(device).and_then(|export| self.exports.add(export)) {
            tracing::error!(device = device.name, %error, "not served to NBD clients");
        }
    }

    /// Whether a client has a device open that new ones do not find any more.
    async fn is_used(&self, device: &Device) -> bool {
        // The tree of attributes that is kept has it no more.
        drop(self.attributes.lookup(""));
        for _ in 0..RELEASES {
            if Arc::strong_count(&device.bytes) == 1 {
                return false;
            }
            // That a file was closed the kernel tells when it has the time.
            sleep(RELEASE).await;
        }
        true
    }
}
