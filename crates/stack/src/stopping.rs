//! Stops a stack: the last device made is stopped first.
//!
//! A device that does not stop within the caller's limit is abandoned and stays as it is: an array
//! is not marked clean, and its bitmap keeps its marks, so that the next start resyncs. The devices
//! below it are not stopped either: it still writes to them, and a stopped device would fail the
//! writes.

use std::collections::BTreeSet;
use std::pin::pin;

use ashlar_block::device::LocalFuture;
use ashlar_block::{BioResult, Status};
use futures_util::future::{Either, join_all, select};
use thiserror::Error;

use crate::assemble::Stack;
use crate::devices::{Device, Kind, Role};

/// A device or pool that did not stop cleanly.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{name}: {why}")]
pub struct StopError {
    /// The name of the device or pool.
    pub name: String,
    /// The reason.
    pub why: String,
    /// Whether it is a pool.
    pub is_pool: bool,
}

/// Called with the name of a device when its stop begins: the future ends when the stop must have ended.
pub type Limit<'a> = &'a dyn Fn(&str) -> LocalFuture<'static, ()>;

impl Stack {
    /// Stops everything, the last device made first. Arrays: I/O in flight ends, members are
    /// flushed, superblocks are marked clean. Logical volumes are suspended, other volumes flushed,
    /// pools exported. A failure does not keep the others from being stopped. Devices that involve
    /// pools come last: a pool whose disks have failed may block this until its worker is abandoned.
    ///
    /// # Errors
    /// The devices that could not be marked clean, flushed or exported.
    pub async fn stop(&self) -> Result<(), Vec<StopError>> {
        self.stop_within(&|_| Box::pin(std::future::pending())).await
    }

    /// As [`Self::stop`], except that a device that reaches its limit is abandoned, with the devices
    /// below it. The stop of a pool ends only when its worker ends.
    ///
    /// # Errors
    /// As [`Self::stop`], and the devices that were abandoned.
    pub async fn stop_within(&self, limit: Limit<'_>) -> Result<(), Vec<StopError>> {
        let mut failed = Vec::new();
        let mut in_use = BTreeSet::new();
        let devices = self.devices.all();
        let with_pools = with_pools(&devices);
        let (last, first): (Vec<_>, Vec<_>) =
            devices.into_iter().rev().partition(|device| with_pools.contains(&device.name));
        for device in &first {
            failed.extend(self.stop_device(device, limit, &mut in_use).await);
        }
        for served in self.pools.all() {
            // A running change of the pool ends first; it may be an export.
            drop(served.turn.lock().await);
        }
        for device in &last {
            failed.extend(self.stop_device(device, limit, &mut in_use).await);
        }
        // Everything above the pools' volumes has been stopped.
        let pools = self.pools.all();
        let exports = pools.iter().map(|served| async {
            let error = self.pools.export(served, &self.devices).await.err()?;
            let (name, why) = (served.pool.name().to_owned(), error.to_string());
            Some(StopError { name, why, is_pool: true })
        });
        failed.extend(join_all(exports).await.into_iter().flatten());
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }

    /// Stops one device, unless it is `in_use` by one that did not stop. Returns the device if it did not stop.
    async fn stop_device(
        &self,
        device: &Device,
        limit: Limit<'_>,
        in_use: &mut BTreeSet<String>,
    ) -> Option<StopError> {
        let why = if in_use.contains(&device.name) {
            in_use.extend(device.below.iter().cloned());
            if !device.has_state() {
                return None;
            }
            "what is made of it has not stopped".to_owned()
        } else {
            let stopped = pin!(self.end(device));
            match select(stopped, limit(&device.name)).await {
                Either::Left((stopped, _)) => {
                    let (name, why) = (device.name.clone(), stopped.err()?.to_string());
                    return Some(StopError { name, why, is_pool: false });
                }
                Either::Right(_) => "it did not stop in time".to_owned(),
            }
        };
        in_use.extend(device.below.iter().cloned());
        Some(StopError { name: device.name.clone(), why, is_pool: false })
    }

    /// Ends a device's I/O.
    async fn end(&self, device: &Device) -> Result<(), Status> {
        match &device.kind {
            Kind::Array => match self.arrays.find(&device.name) {
                Some(volume) => volume.view.end().await,
                None => Ok(()),
            },
            // A suspended device has nothing in flight, and its targets have written their state.
            Kind::Logical(mapped) => mapped.suspend(!device.gateway().disk().is_read_only()).await,
            // The export of its pool writes it out.
            Kind::Zvol(_) => Ok(()),
            Kind::Disk | Kind::Partition(_) => {
                if device.role == Role::Volume {
                    flush(device).await
                } else {
                    Ok(())
                }
            }
        }
    }
}

impl Device {
    /// Whether it can end cleanly or not.
    fn has_state(&self) -> bool {
        self.kind.is_array() || self.kind.is_logical() || self.role == Role::Volume
    }
}

/// The names of zvols, of the devices above them, and of the devices below those. All other devices
/// stop without a pool.
fn with_pools(devices: &[Device]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    // Each device comes after the devices it is made of.
    for device in devices {
        if device.kind.is_zvol() || device.below.iter().any(|below| names.contains(below)) {
            names.insert(device.name.clone());
        }
    }
    for device in devices.iter().rev() {
        if !device.kind.is_zvol() && names.contains(&device.name) {
            names.extend(device.below.iter().cloned());
        }
    }
    names
}

/// Makes the data written to a device durable.
async fn flush(device: &Device) -> BioResult {
    if device.gateway().disk().is_read_only() { Ok(()) } else { device.bytes.flush().await }
}
