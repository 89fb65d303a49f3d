//! The one use of a device: claims of those that want it, and what the arrays say of their members.

use std::collections::HashMap;
use std::sync::Arc;

use ashlar_block::Gateway;
use uuid::Uuid;

use super::{Device, Devices, Role, disk};
use crate::canary::{self, broken};
use crate::turn::{Settles, Turn};

impl Devices {
    /// Claims the device called `name` for a use; no change claims it again before the claim ends.
    ///
    /// # Errors
    /// Its present use, or nothing if there is no such device.
    pub fn claim(
        self: &Arc<Self>,
        _: &Turn<impl Settles>,
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
        _: &Turn<impl Settles>,
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

    /// Notes which arrays have which disks: `owners` has the identities of the arrays by the paths of their members. A disk that
    /// was removed from its array is forgotten and closed, as after `mdadm --remove`; a device made of others stays.
    pub(crate) fn settle(&self, owners: &HashMap<String, Uuid>) {
        let now = |device: &Device| match owners.get(&device.path) {
            Some(array) => Role::Member(*array),
            None => Role::Former,
        };
        let is_old = |device: &Device| device.role.is_of_md() && device.role != now(device);
        if !self.read(|table| table.iter().any(is_old)) {
            return;
        }
        let is_free = |device: &mut Device| device.kind.is_disk() && now(device) == Role::Former;
        let gone = self.change(|table, changed| {
            for device in table.iter_mut().filter(|device| is_old(device)) {
                changed.push(device.name.clone());
                // Until it has none, it says who had it.
                if !is_free(device) || broken(canary::Rule::DetachedDisksAreClosed) {
                    device.role = now(device);
                }
            }
            table.extract_if(.., |device| is_old(device) && is_free(device)).collect::<Vec<_>>()
        });
        for disk in gone {
            disk.gateway().release();
        }
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

    /// Whether the device has the use that it was claimed for.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Leaves the device with the use that it was claimed for. What was open by its path before is closed.
    pub fn keep(&mut self) {
        self.is_kept = true;
        let is_another = |before: &mut Device| !Arc::ptr_eq(&before.bytes, &self.device.bytes);
        if let Some(before) = self.before.take_if(is_another) {
            before.gateway().release();
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_kept || broken(canary::Rule::ClaimsAreTakenBack) {
            return;
        }
        let (claimed, before) = (&self.device, self.before.take());
        let same = |device: &Device| Arc::ptr_eq(&device.bytes, &claimed.bytes);
        let is_new = !before.as_ref().is_some_and(same);
        self.devices.change(|table, changed| {
            let Some(at) = table.iter().position(same) else { return };
            changed.push(claimed.name.clone());
            match before {
                Some(before) if !is_new => table[at].role = before.role,
                before => {
                    table.remove(at);
                    changed.extend(before.iter().map(|device| device.name.clone()));
                    table.extend(before);
                }
            }
        });
        // What refused it may still refer to it.
        if is_new {
            claimed.gateway().release();
        }
    }
}
