//! Devices with superblocks, on disks and on what the disks are made into.

use ashlar_block::Gateway;
use ashlar_btrfs::volume;
use ashlar_disks as disks;
use ashlar_stack::assemble::{Disk, Options, Stack, assemble, probe_all};
use ashlar_stack::devices::Device;

use super::stop;
use crate::error::Result;

/// A device to look at.
pub struct LookedAt {
    /// Its path.
    pub path: String,
    /// The device.
    pub gateway: Gateway,
}

/// The devices to look at, and the stack that some of them are in.
pub struct LookedThrough {
    /// The devices: a disk with a superblock itself; otherwise the partitions, arrays and logical volumes on it that have one; otherwise
    /// the disk.
    pub devices: Vec<LookedAt>,
    stack: Option<Stack>,
}

/// Looks for superblocks on disks. Reads only.
pub async fn look_through(opened: Vec<Disk>) -> LookedThrough {
    let mut plain = Vec::new();
    for disk in &opened {
        plain.push(volume::identify(&disk.gateway).await.is_none());
    }
    let itself = |disk: &Disk| LookedAt {
        path: disk.path.display().to_string(),
        gateway: disk.gateway.clone(),
    };
    let given: Vec<(LookedAt, bool)> = opened.iter().map(itself).zip(plain).collect();
    if !given.iter().any(|(_, is_plain)| *is_plain) {
        let devices = given.into_iter().map(|(device, _)| device).collect();
        return LookedThrough { devices, stack: None };
    }
    let md = ashlar_md::Options { run: true, read_only: true, force: false };
    let options = Options { md, partial: true, ..Options::default() };
    let stack = assemble(&probe_all(opened).await, options, &disks::runtime()).await;
    let mut above = Vec::new();
    for device in stack.devices.volumes() {
        let is_given = given.iter().any(|(disk, _)| disk.path == device.path);
        if !is_given && volume::identify(device.gateway()).await.is_some() {
            above.push(device);
        }
    }
    let all = stack.devices.all();
    let mut devices: Vec<LookedAt> = Vec::new();
    for (disk, is_plain) in given {
        let on = |device: &&Device| is_plain && is_on(&all, device, &disk.path);
        let mut found = above.iter().filter(on).peekable();
        if found.peek().is_none() {
            devices.push(disk);
            continue;
        }
        for device in found {
            if devices.iter().all(|other| other.path != device.path) {
                let (path, gateway) = (device.path.clone(), device.gateway().clone());
                devices.push(LookedAt { path, gateway });
            }
        }
    }
    LookedThrough { devices, stack: Some(stack) }
}

/// Whether a device is made of the disk at `path`, directly or by way of others.
fn is_on(all: &[Device], device: &Device, path: &str) -> bool {
    let below = all.iter().filter(|other| device.below.contains(&other.name));
    below.into_iter().any(|other| other.path == path || is_on(all, other, path))
}

impl LookedThrough {
    /// Releases the devices.
    ///
    /// # Errors
    /// An array below could not be stopped cleanly.
    pub async fn close(self) -> Result<()> {
        drop(self.devices);
        match &self.stack {
            Some(stack) => stop(stack).await,
            None => Ok(()),
        }
    }
}
