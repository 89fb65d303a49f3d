//! The copying of a target while its device is in use: a merge, the recovery of a mirror.

use std::sync::Arc;

use ashlar_block::Sector;
use ashlar_dm::Device as Mapped;

use super::VolumeGroups;

/// Controls the copying by the target at a sector of a device.
#[derive(Clone)]
pub struct CopyControl {
    pub(super) mapped: Arc<Mapped>,
    pub(super) at: Sector,
}

impl CopyControl {
    /// Whether it waits for [`Self::resume`].
    pub async fn is_paused(&self) -> bool {
        self.tell("is_paused").await.is_ok_and(|reply| reply == "1")
    }

    /// Pauses it after the piece in progress, until [`Self::resume`] or the daemon's shutdown.
    ///
    /// # Errors
    /// It is just ending.
    pub async fn pause(&self) -> Result<(), String> {
        self.tell("pause").await.map(drop)
    }

    /// Continues it after [`Self::pause`].
    ///
    /// # Errors
    /// It is just ending.
    pub async fn resume(&self) -> Result<(), String> {
        self.tell("resume").await.map(drop)
    }

    /// Sends a message to the target.
    pub(super) async fn tell(&self, message: &str) -> Result<String, String> {
        self.mapped.message(self.at, &[message]).await.map_err(|error| error.to_string())
    }
}

impl VolumeGroups {
    /// Stops trying to record the end of this copying: that failed, and the failure was reported to the user.
    pub(crate) fn was_told(&mut self, copying: &CopyControl) {
        for live in self.active.values_mut().flat_map(|active| &mut active.devices) {
            let is = |mapped: &Arc<Mapped>| Arc::ptr_eq(mapped, &copying.mapped);
            live.is_told |= live.mapped.as_ref().is_some_and(is);
        }
    }
}
