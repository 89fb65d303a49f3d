//! The copying of a target while its device is in use: a merge, the recovery of a mirror.

use std::sync::Arc;

use ashlar_block::Sector;
use ashlar_dm::Device as Mapped;

use super::VolumeGroups;

/// The copying that the target at a sector of a device does.
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

    /// Has it wait after what is just being copied, until [`Self::resume`] or the end of the daemon.
    ///
    /// # Errors
    /// It ends just now.
    pub async fn pause(&self) -> Result<(), String> {
        self.tell("pause").await.map(drop)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It ends just now.
    pub async fn resume(&self) -> Result<(), String> {
        self.tell("resume").await.map(drop)
    }

    /// Sends a message to the target.
    pub(super) async fn tell(&self, message: &str) -> Result<String, String> {
        self.mapped.message(self.at, &[message]).await.map_err(|error| error.to_string())
    }
}

impl VolumeGroups {
    /// Records no more that this copying has ended: that failed, and the user was told.
    pub(crate) fn was_told(&mut self, copying: &CopyControl) {
        for live in self.active.values_mut().flat_map(|active| &mut active.devices) {
            let is = |mapped: &Arc<Mapped>| Arc::ptr_eq(mapped, &copying.mapped);
            live.is_told |= live.mapped.as_ref().is_some_and(is);
        }
    }
}
