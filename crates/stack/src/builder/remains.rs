//! What an array shows that is not its contents: a superblock that an older array has left in the place of its data.

use ashlar_block::Status;

use super::Builder;
use crate::devices::{Device, Kind};
use crate::probe::{Contents, Md, probe_readable};

impl Builder {
    /// What is on a device.
    pub(super) async fn probe(&mut self, device: &Device) -> Result<Contents, Status> {
        let mut contents = probe_readable(device.gateway()).await?;
        if matches!(device.kind, Kind::Array) && self.is_left_behind(device, &contents).await {
            if let Some(version) = contents.md.version() {
                self.note(
                    &device.name,
                    format!("the md superblock of version {version} in it is not used: an older array left it"),
                );
                contents.other_md.push(version);
            }
            contents.md = Md::None;
            contents.md_created = None;
        }
        Ok(contents)
    }

    /// Whether the md superblock in an array is that of an older array, left on the members by a reinstallation or a copy. Such a
    /// superblock was made before this array, and on the members themselves this array's superblock took precedence over it. Both
    /// must hold: the contents of an array that was recreated to rescue them are older than the array, too.
    async fn is_left_behind(&self, device: &Device, contents: &Contents) -> bool {
        let (Some(version), Some(created)) = (contents.md.version(), contents.md_created) else {
            return false;
        };
        let Some(array) = self.arrays.find(&device.name) else { return false };
        if created >= array.view.status().ctime.seconds {
            return false;
        }
        for member in device.below.iter().filter_map(|name| self.devices.find(name)) {
            if let Ok(Contents { other_md, .. }) = probe_readable(member.gateway()).await
                && other_md.contains(&version)
            {
                return true;
            }
        }
        false
    }
}
