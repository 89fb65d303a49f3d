//! The one use of a device: claims of those that want it, and what the arrays say of their members.

use std::collections::HashMap;
use std::sync::Arc;

use ashlar_block::Gateway;
use uuid::Uuid;

use super::{Device, Devices, Role, disk};
use crate::turn::Turn;

impl Devices {
    /// Claims the device called `name` for a use; no change claims it again before the claim ends.
    ///
    /// # Errors
    /// Its present use, or nothing if there is no such device.
    pub fn claim(
        self: &Arc<Self>,
        _: &Turn,
        name: &str,
        role: Role,
    ) -> Result<Claim, Option<Role>> {
        let before = self.change(|table, changed| {
            let device = table.iter_mut().rfind(|device| device.name == name).ok_or(None)?;
            if !device.role.may_become(role) {
                return Err(Some(device.role));
            }
            let before = device.clone();
            device.role = role;
            changed.push(name.to_owned());
            Ok(before)
        })?;
        let (device, devices) = (before.clone(), Arc::clone(self));
        Ok(Claim { devices, device, before: Some(before), is_kept: false })
    }

    /// Adds a disk that was just opened, and claims it. One that was known by that path, and that nothing has, is forgotten: the
    /// path leads to another file now.
    ///
    /// # Errors
    /// The present use of the device with that path.
    pub fn claim_new(
        self: &Arc<Self>,
        _: &Turn,
        path: &str,
        gateway: Gateway,
        role: Role,
    ) -> Result<Claim, Role> {
        let (device, before) = self.change(|table, changed| {
            let known = table.iter().position(|device| device.path == path);
            if let Some(used) = known.map(|at| table[at].role).filter(|used| !used.may_become(role))
            {
                return Err(used);
            }
            let before = known.map(|at| table.remove(at));
            changed.extend(before.iter().map(|device| device.name.clone()));
            let device = disk(table, path, gateway, role);
            self.watch(&device);
            changed.push(device.name.clone());
            table.push(device.clone());
            Ok((device, before))
        })?;
        Ok(Claim { devices: Arc::clone(self), device, before, is_kept: false })
    }

    /// Notes which arrays have which disks: `owners` has the identities of the arrays by the paths of their members.
    pub(crate) fn settle(&self, owners: &HashMap<String, Uuid>) {
        let now = |device: &Device| match owners.get(&device.path) {
            Some(array) => Role::Member(*array),
            None => Role::Former,
        };
        let is_old = |device: &Device| device.role.is_of_md() && device.role != now(device);
        if !self.read(|table| table.iter().any(is_old)) {
            return;
        }
        self.change(|table, changed| {
            for device in table.iter_mut().filter(|device| is_old(device)) {
                device.role = now(device);
                changed.push(device.name.clone());
            }
        });
    }
}

/// A device that a change takes for an array or a group. When it is dropped before it was kept, the device is as it was, and one
/// that was just opened is forgotten, and so closed.
pub struct Claim {
    devices: Arc<Devices>,
    device: Device,
    /// The device with this path before.
    before: Option<Device>,
    is_kept: bool,
}

impl Claim {
    /// The device.
    pub fn gateway(&self) -> &Gateway {
        self.device.gateway()
    }

    /// The path that the user gave, or its path in `/dev`.
    pub fn path(&self) -> &str {
        &self.device.path
    }

    /// Its name under `sys/block`.
    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// Leaves the device with the use that it was claimed for.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let (name, before) = (&self.device.name, self.before.take());
        self.devices.change(|table, changed| {
            let known = table.iter().rposition(|device| device.name == *name);
            match (known, before) {
                (Some(at), Some(before)) if before.name == *name => table[at].role = before.role,
                (Some(at), before) => {
                    table.remove(at);
                    changed.extend(before.iter().map(|device| device.name.clone()));
                    table.extend(before);
                }
                (None, _) => return,
            }
            changed.push(name.clone());
        });
    }
}
