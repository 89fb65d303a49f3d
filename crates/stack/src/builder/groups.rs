//! Volume groups whose turn it is.

use ashlar_lvm::activate;

use super::Builder;
use crate::volume_groups::{Site, VolumeGroups};

impl Builder {
    /// Activates a volume group whose physical volumes are all present, or any group if `any` is
    /// set. Returns whether there was one.
    pub(super) async fn activate(&mut self, any: bool) -> bool {
        let Some(group) = self.groups.next(any) else { return false };
        let (groups, site) = self.groups_and_site();
        let notes = match groups.admit(&group, &site) {
            Ok(notes) => notes,
            Err(refused) => {
                self.refusals.push(refused);
                return true;
            }
        };
        let done = groups.activate(&group, &site).await;
        for (device, text) in done.notes.into_iter().chain(notes) {
            self.note(&device, text);
        }
        self.refusals.extend(done.refused);
        for volume in done.volumes {
            self.add(volume, done.depth + 1);
        }
        true
    }

    /// The groups, and where and how their devices are made.
    pub(crate) fn groups_and_site(&mut self) -> (&mut VolumeGroups, Site<'_>) {
        let (read_only, partial) = (self.options.md.read_only, self.options.partial);
        let options = activate::Options { read_only, partial };
        let (devices, runtime) = (&*self.devices, &self.runtime);
        let site = Site { devices, runtime, options, others: &self.options.others };
        (&mut self.groups, site)
    }
}
