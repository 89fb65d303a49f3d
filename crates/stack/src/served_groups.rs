//! Volume groups that are served: what is asked of them in a turn.

use std::sync::Arc;

use ashlar_block::Sectors;
use ashlar_lvm::change::Author;
use ashlar_lvm::command::Command;
use ashlar_lvm::metadata::Header;
use ashlar_lvm::snapshots::{AutoExtend, NoFreeExtents};
use ashlar_lvm::{Metadata, VolumeGroup};
use event_listener::EventListener;

use crate::incremental::Collector;
use crate::volume_groups::{
    Activation, Change, ChangeResult, CopyControl, MergeIdentity, PlannedResize, Request,
    ServedGroup, ServedMerge, ServedMove, ServedPhysical, ServedSnapshot,
};

impl Collector {
    /// The physical volumes and volume groups.
    pub fn groups(&self) -> (Vec<ServedPhysical>, Vec<ServedGroup>) {
        self.builder.groups.report(&self.builder.devices)
    }

    /// Plans a change of a volume group.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub fn prepare(
        &mut self,
        request: &Request<'_>,
        author: &mut Author<'_>,
    ) -> Result<Change, String> {
        let (groups, site) = self.builder.groups_and_site();
        groups.prepare(request, author, &site)
    }

    /// Changes a planned merge into one that begins when the origin is activated again; `reason` comes before LVM's message
    /// about it.
    ///
    /// # Errors
    /// The change is not a merge, or is refused: the reason.
    pub fn put_off(&mut self, change: Change, reason: &str) -> Result<Change, String> {
        let (groups, site) = self.builder.groups_and_site();
        groups.put_off(change, reason, &site)
    }

    /// Hides from clients each snapshot whose merge is put off and that no client has open.
    pub fn hide_put_off(&mut self) {
        let (groups, site) = self.builder.groups_and_site();
        groups.hide_put_off(&site);
    }

    /// Applies a planned change, and looks into new volumes. Since [`Self::prepare`] nothing else has changed. `header` has
    /// the author and time of the change. No client has the devices in [`Change::shut`] open, nor can open them, until this
    /// ends.
    ///
    /// # Errors
    /// The reason. The group is as it was, unless the text says that this is not known.
    pub async fn apply(&mut self, change: Change, header: Header) -> Result<ChangeResult, String> {
        let (groups, site) = self.builder.groups_and_site();
        let applied = groups.apply(change, header, &site).await?;
        for volume in &applied.volumes {
            self.look_into(volume.clone()).await;
        }
        Ok(applied)
    }

    /// Whether there is a free physical volume on the device named `device`, which the user knows as `path`.
    ///
    /// # Errors
    /// It is not free: the reason.
    pub fn has_free_physical(&self, device: &str, path: &str) -> Result<bool, String> {
        self.builder.groups.has_free(device, path)
    }

    /// Makes a free physical volume known that was made on the device named `device`. The device has no other use, and no
    /// client can open it.
    ///
    /// # Errors
    /// There is no such device, or it cannot be read.
    pub async fn adopt_physical(&mut self, device: &str) -> Result<(), String> {
        let depth = self.builder.depth(device);
        let found = self.builder.devices.find(device).ok_or("the device was removed")?;
        self.builder.groups.adopt(&found, depth, &self.builder.devices).await
    }

    /// Plans that volumes of a group, or without names all, become active or inactive.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub fn prepare_activation(
        &mut self,
        group: &str,
        volumes: &[String],
        wanted: bool,
    ) -> Result<Activation, String> {
        let (groups, site) = self.builder.groups_and_site();
        groups.prepare_activation(group, volumes, wanted, &site)
    }

    /// Makes volumes active, and looks into them.
    ///
    /// # Errors
    /// Not all of them could be made: the reason.
    pub async fn activate(&mut self, change: Activation) -> Result<(), String> {
        let (groups, site) = self.builder.groups_and_site();
        let done = groups.activate_more(change, &site).await;
        for (device, text) in done.notes {
            self.builder.note(&device, text);
        }
        for volume in done.volumes {
            self.look_into(volume).await;
        }
        done.failed.map_or(Ok(()), Err)
    }

    /// Ends active volumes. No client has the devices in [`Activation::shut`] open, nor can open them, until this ends.
    ///
    /// # Errors
    /// Not all of them ended: the reason.
    pub async fn deactivate(&mut self, change: Activation) -> Result<(), String> {
        let (groups, site) = self.builder.groups_and_site();
        groups.deactivate(change, &site).await
    }

    /// How many of a group's volumes that users see are active.
    pub fn active_volumes(&self, group: &str) -> usize {
        self.builder.groups.active_volumes(group)
    }

    /// Whether there is a group of that name.
    pub fn has_group(&self, name: &str) -> bool {
        self.builder.groups.has_group(name)
    }

    /// Plans that free physical volumes join a group: the names of their devices, with the user's paths.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub fn prepare_extend(
        &mut self,
        group: &str,
        joining: &[(String, String)],
    ) -> Result<Change, String> {
        let (groups, site) = self.builder.groups_and_site();
        groups.prepare_extend(group, joining, &site)
    }

    /// Plans that physical volumes leave a group: the names of their devices, with the user's paths; without any, all that no
    /// logical volume uses, but for one. Returns the devices of those that leave, too.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub fn prepare_reduce(
        &mut self,
        group: &str,
        leaving: &[(String, String)],
    ) -> Result<(Change, Vec<String>), String> {
        let (groups, site) = self.builder.groups_and_site();
        groups.prepare_reduce(group, leaving, &site)
    }

    /// Plans that a physical volume of a group, given by the name of its device and the user's path, gets the size of its device or
    /// `size`.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub fn prepare_resize(
        &mut self,
        group: &str,
        physical: (&str, &str),
        size: Option<Sectors>,
    ) -> Result<PlannedResize, String> {
        let (groups, site) = self.builder.groups_and_site();
        groups.prepare_resize(group, physical, size, &site)
    }

    /// Makes a group of free physical volumes: the names of their devices, with the user's paths.
    ///
    /// # Errors
    /// There is no such group, unless the text says that this is not known.
    pub async fn create_group(
        &mut self,
        group: VolumeGroup,
        joining: &[(String, String)],
        header: Header,
    ) -> Result<Arc<Metadata>, String> {
        let (groups, site) = self.builder.groups_and_site();
        groups.create(group, joining, header, &site).await
    }

    /// Removes a group that has no logical volumes any more; its physical volumes are free then. Returns its metadata.
    ///
    /// # Errors
    /// It is refused, or a physical volume could not be released: the reason.
    pub async fn remove_group(&mut self, group: &str) -> Result<Arc<Metadata>, String> {
        let (groups, site) = self.builder.groups_and_site();
        groups.remove(group, &site).await
    }

    /// The merges of snapshots into their origins.
    pub fn merging(&self) -> Vec<ServedMerge> {
        self.builder.groups.merging()
    }

    /// The snapshots that can fill.
    pub fn snapshots(&self) -> Vec<ServedSnapshot> {
        self.builder.groups.snapshots()
    }

    /// Ends when a snapshot uses another percent of its space, or can take no more writes.
    pub fn snapshot_fills(&self) -> EventListener {
        self.builder.groups.snapshot_fills()
    }

    /// The change that the policy wants for a snapshot now, if any.
    ///
    /// # Errors
    /// Its group has no room.
    pub fn autoextension(
        &self,
        snapshot: &ServedSnapshot,
        policy: AutoExtend,
    ) -> Result<Option<Command>, NoFreeExtents> {
        self.builder.groups.autoextension(snapshot, policy)
    }

    /// Plans the removal of a merged snapshot from its group.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub fn prepare_end(&mut self, merged: &MergeIdentity) -> Result<Change, String> {
        let (groups, site) = self.builder.groups_and_site();
        groups.prepare_end(merged, &site)
    }

    /// Stops trying to record the end of this merge, or this piece of a move: that failed, and the user was told.
    pub fn was_told(&mut self, copying: &CopyControl) {
        self.builder.groups.was_told(copying);
    }

    /// The moves of extents.
    pub fn moving(&self) -> Vec<ServedMove> {
        self.builder.groups.moving()
    }

    /// Plans that the piece of a move which was copied counts at its new place.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub fn prepare_advance(&mut self, moving: &ServedMove) -> Result<Change, String> {
        let (groups, site) = self.builder.groups_and_site();
        groups.prepare_advance(moving, &site)
    }
}
