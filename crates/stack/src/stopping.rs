//! The end of a stack: what was made last is stopped first.
//!
//! A device that does not stop is given up when the caller's limit says so, and stays as it is: an array is not marked
//! clean, its bitmap keeps its marks, so that the next start makes its copies the same. What it is made of is not
//! stopped either: it is still written to, and would fail the writes as a broken device does.

use std::collections::BTreeSet;
use std::pin::pin;

use ashlar_block::device::LocalFuture;
use ashlar_block::{BioResult, Status};
use futures_util::future::{Either, join_all, select};
use thiserror::Error;

use crate::assemble::Stack;
use crate::devices::{Device, Kind, Role};

/// What could not be stopped in good order.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{name}: {why}")]
pub struct NotStopped {
    /// The name of the device or pool.
    pub name: String,
    /// Why.
    pub why: String,
    /// It is a pool.
    pub is_pool: bool,
}

/// Called with the name of a device whose stop begins: ends when that must have ended.
pub type Limit<'a> = &'a dyn Fn(&str) -> LocalFuture<'static, ()>;

impl Stack {
    /// Stops everything, what was made last first: of an array I/O under way ends, members are flushed,
    /// superblocks say clean; logical volumes are suspended, other volumes flushed; pools are exported. All are
    /// stopped whatever becomes of the others. What has to do with pools comes last: one whose disks have failed may keep
    /// this waiting until its worker is given up.
    ///
    /// # Errors
    /// Those that could not be marked clean, flushed or exported.
    pub async fn stop(&self) -> Result<(), Vec<NotStopped>> {
        self.stop_within(&|_| Box::pin(std::future::pending())).await
    }

    /// As [`Self::stop`], except that a device that reaches its limit is given up, with what it is made of. Only the end of
    /// a pool's worker ends the stop of that pool.
    ///
    /// # Errors
    /// As there, and those that were given up.
    pub async fn stop_within(&self, limit: Limit<'_>) -> Result<(), Vec<NotStopped>> {
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
            // What it was told to do is done first, and that may be to export it.
            drop(served.turn.lock().await);
        }
        for device in &last {
            failed.extend(self.stop_device(device, limit, &mut in_use).await);
        }
        // All that is above their volumes has been stopped.
        let pools = self.pools.all();
        let exports = pools.iter().map(|served| async {
            let error = self.pools.export(served, &self.devices).await.err()?;
            let (name, why) = (served.pool.name().to_owned(), error.to_string());
            Some(NotStopped { name, why, is_pool: true })
        });
        failed.extend(join_all(exports).await.into_iter().flatten());
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }

    /// Stops one device that is not `in_use` by one that did not stop; that which could not be.
    async fn stop_device(
        &self,
        device: &Device,
        limit: Limit<'_>,
        in_use: &mut BTreeSet<String>,
    ) -> Option<NotStopped> {
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
                    return Some(NotStopped { name, why, is_pool: false });
                }
                Either::Right(_) => "it did not stop in time".to_owned(),
            }
        };
        in_use.extend(device.below.iter().cloned());
        Some(NotStopped { name: device.name.clone(), why, is_pool: false })
    }

    /// Has a device end what it does.
    async fn end(&self, device: &Device) -> Result<(), Status> {
        match (&device.kind, &device.mapped) {
            (Kind::Array, _) => match self.arrays.find(&device.name) {
                Some(volume) => volume.view.array().stop().await,
                None => Ok(()),
            },
            // What is suspended has nothing in flight, and its targets have written all they know.
            (_, Some(mapped)) => mapped.suspend(!device.gateway().disk().is_read_only()).await,
            // It is written out when its pool is exported.
            (Kind::Zvol, None) => Ok(()),
            (Kind::Disk | Kind::Partition(_) | Kind::Logical, None) => {
                if device.role == Role::Volume { flush(device).await } else { Ok(()) }
            }
        }
    }
}

impl Device {
    /// Whether it has an end that could be in good order or not.
    fn has_state(&self) -> bool {
        self.kind == Kind::Array || self.mapped.is_some() || self.role == Role::Volume
    }
}

/// The names of volumes of pools, of all that is above them, and of what is below that. Nothing else needs a pool to be stopped.
fn with_pools(devices: &[Device]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    // Each device is behind those that it is made of.
    for device in devices {
        if device.kind == Kind::Zvol || device.below.iter().any(|below| names.contains(below)) {
            names.insert(device.name.clone());
        }
    }
    for device in devices.iter().rev() {
        if device.kind != Kind::Zvol && names.contains(&device.name) {
            names.extend(device.below.iter().cloned());
        }
    }
    names
}

/// Makes what was written to a device durable.
async fn flush(device: &Device) -> BioResult {
    if device.gateway().disk().is_read_only() { Ok(()) } else { device.bytes.flush().await }
}
