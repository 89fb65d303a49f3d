//! The rate limits that volumes get when they appear.

use std::sync::Arc;

use ashlar_block::Runtime;
use ashlar_block::io_max::VolumeLimit;

use super::Device;

/// The rate limits that the user gave to volumes by their names.
pub(super) struct Limits {
    pub(super) limits: Vec<VolumeLimit>,
    pub(super) runtime: Arc<dyn Runtime>,
}

impl Limits {
    /// Sets those of a device.
    pub(super) fn set(&self, device: &Device) {
        for limit in &self.limits {
            if device.is_named(|name| limit.is_for(name)) {
                device.bytes.limiter().set(limit.change(), &self.runtime);
            }
        }
    }
}
