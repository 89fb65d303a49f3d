//! Changes of which physical volumes the groups on disks have: `vgcreate`, `vgextend`, `vgreduce`, `vgremove`; and of their sizes.

use std::collections::BTreeSet;

use ashlar_block::Sectors;
use ashlar_lvm::command::{Command, Membership, NewGroup};
use ashlar_lvm::format::{Layout, plan};
use ashlar_lvm::ondisk::PvLabel;
use ashlar_lvm::{PhysicalVolume, VolumeGroup};
use ashlar_stack::volume_groups::new_member;

use super::archive::Archives;
use super::draft::Draft;
use super::new_uuid;
use super::session::{Pv, Session};
use crate::error::{Error, Result};

impl Session {
    /// Changes which physical volumes the group called `name` has. Returns the lines to print once the session has ended cleanly.
    ///
    /// # Errors
    /// The group is as it was, unless the message says that this is not known.
    pub async fn change_members(
        &mut self,
        name: &str,
        command: &Membership,
        archives: &Archives,
    ) -> Result<Vec<String>> {
        let done = match command {
            Membership::Create(new) => {
                self.create_group(name, new, archives).await?;
                "created"
            }
            Membership::Extend { physical, layout } => {
                self.extend_group(name, physical, &(*layout).into(), archives).await?;
                "extended"
            }
            Membership::Reduce { physical } => {
                self.reduce_group(name, physical, archives).await?;
                return Ok(Vec::new());
            }
            Membership::Resize { physical, sectors } => {
                self.resize_physical(physical, sectors.map(Sectors), archives).await?;
                return Ok(Vec::new());
            }
            Membership::Remove { force } => {
                self.remove_group(name, *force, archives).await?;
                "removed"
            }
        };
        Ok(vec![format!("  Volume group \"{name}\" successfully {done}")])
    }

    async fn create_group(
        &mut self,
        name: &str,
        new: &NewGroup,
        archives: &Archives,
    ) -> Result<()> {
        let layout = new.layout.into();
        let mut group = VolumeGroup::new(name, new_uuid(), Sectors(new.extent_sectors));
        (group.max_lv, group.max_pv, group.tags) = (new.max_lv, new.max_pv, new.tags.clone());
        group.check().map_err(|error| Error::new("Cannot make VG", name, error))?;
        let refuse = |text: String| Err(Error::failed(text));
        if self.found.groups.iter().any(|group| group.metadata.group.name == name) {
            return refuse(format!("A volume group called {name} already exists."));
        }
        let (most, count) = (new.max_pv as usize, new.physical.len());
        if most != 0 && count > most {
            return refuse(format!("{count} physical volumes are more than {most}"));
        }
        if self.check_new(&new.physical, &layout, group.extent_size)? == 0 {
            return refuse("None of the physical volumes has a metadata area".to_owned());
        }
        // Nothing is written if copies cannot be archived.
        archives.before(None)?;
        self.label_plain(&new.physical, &layout).await?;
        let mut draft = Draft::of(None, group, Vec::new());
        self.add(&mut draft, &new.physical)?;
        self.commit(draft, &[], archives).await
    }

    async fn extend_group(
        &mut self,
        name: &str,
        physical: &[String],
        layout: &Layout,
        archives: &Archives,
    ) -> Result<()> {
        let draft = self.draft(name).await?;
        self.check_new(physical, layout, draft.group.extent_size)?;
        let most = draft.group.max_pv as usize;
        if most != 0 && draft.group.pvs.len() + physical.len() > most {
            let text = format!("Volume group \"{name}\" may have {most} physical volumes");
            return Err(Error::failed(text));
        }
        self.label_plain(physical, layout).await?;
        // The places of the physical volumes may have changed.
        let mut draft = self.draft(name).await?;
        self.add(&mut draft, physical)?;
        self.commit(draft, &[], archives).await
    }

    async fn reduce_group(
        &mut self,
        name: &str,
        physical: &[String],
        archives: &Archives,
    ) -> Result<()> {
        let mut draft = self.draft(name).await?;
        let (removed, lines) = self.take_out(&mut draft, physical)?;
        if removed.is_empty() {
            return self.dialogue.tell(&["  No physical volumes are unused".to_owned()]);
        }
        self.commit(draft, &[], archives).await?;
        // A crash leaves them with the text of a group that no longer lists them.
        self.release(&removed).await?;
        self.dialogue.tell(&lines)
    }

    async fn remove_group(&mut self, name: &str, force: bool, archives: &Archives) -> Result<()> {
        let mut draft = self.draft(name).await?;
        let volumes = draft.group.visible().into_iter().filter(|seen| *seen).count();
        if volumes > 0 {
            let question = format!(
                "Do you really want to remove volume group \"{name}\" containing {volumes} logical volumes?"
            );
            if !force && !self.dialogue.confirm(&question)? {
                return Err(Error::failed(format_args!("Volume group \"{name}\" not removed")));
            }
            let members = draft.members.clone();
            draft.apply(self, &Command::Remove { volumes: Vec::new() })?;
            self.commit(draft, &[], archives).await?;
            return self.release(&members).await;
        }
        archives.before(self.group(name).ok().map(|group| &*group.metadata))?;
        self.release(&draft.members).await
    }

    /// Checks physical volumes that are to join a group; returns how many metadata areas they have.
    fn check_new(&self, names: &[String], layout: &Layout, extent_size: Sectors) -> Result<usize> {
        let refuse = |text: String| Err(Error::failed(text));
        let mut areas = 0;
        for (at, name) in names.iter().enumerate() {
            let place = self.find(name)?;
            let same = |other: &String| {
                self.place(other).is_some_and(|other| other.gateway.is_same(&place.gateway))
            };
            if names[..at].iter().any(same) {
                return refuse(format!("{name} is named twice"));
            }
            let Some(index) = self.pv(name) else {
                self.refuse_foreign(place)?;
                let size = place.gateway.capacity().bytes();
                let label = plan(new_uuid(), size, layout).map_err(|error| {
                    Error::new("Cannot make a physical volume", &place.path, error)
                })?;
                member(name, &label, extent_size)?;
                areas += label.metadata_areas.len();
                continue;
            };
            if let Some(group) = self.group_of(index) {
                let group = &group.metadata.group.name;
                return refuse(format!(
                    "Physical volume '{name}' is already in volume group '{group}'"
                ));
            }
            if !self.found.free.contains(&index) {
                return refuse(format!(
                    "Physical volume '{name}' is a copy, or marked as used by a group that is not here"
                ));
            }
            if let Some(Pv { on_disk, .. }) = self.pvs.get(index) {
                member(name, &on_disk.label, extent_size)?;
                areas += on_disk.areas.iter().filter(|area| area.state.is_ok()).count();
            }
        }
        Ok(areas)
    }

    /// Makes physical volumes of the disks that are not physical volumes yet, and reads all again.
    async fn label_plain(&mut self, names: &[String], layout: &Layout) -> Result<()> {
        let plain: Vec<String> =
            names.iter().filter(|name| self.pv(name).is_none()).cloned().collect();
        self.label(&plain, layout, None).await?;
        if !plain.is_empty() {
            self.look().await;
        }
        Ok(())
    }

    /// Adds physical volumes to a group.
    fn add(&self, draft: &mut Draft, names: &[String]) -> Result<()> {
        for name in names {
            let index = self.pv(name);
            let Some((index, pv)) = index.and_then(|i| Some((i, self.pvs.get(i)?))) else {
                return Err(Error::failed(format_args!("{name} cannot be read back")));
            };
            let mut member = member(name, &pv.on_disk.label, draft.group.extent_size)?;
            // A hint for LVM, which does not know image files.
            member.device = Some(pv.path.clone()).filter(|path| path.starts_with("/dev/"));
            let group = draft.group.name.clone();
            let failed = |error| Error::new("Cannot extend the volume group", group, error);
            draft.group.add_physical(member).map_err(failed)?;
            draft.members.push(index);
        }
        Ok(())
    }

    /// Removes physical volumes from the description, or without names all but one of the unused ones; returns their
    /// indices in the session, and the lines to print.
    fn take_out(&self, draft: &mut Draft, names: &[String]) -> Result<(Vec<usize>, Vec<String>)> {
        let name = draft.group.name.clone();
        let mut wanted = Vec::new();
        for path in names {
            let index = self.pv(path).filter(|index| draft.members.contains(index));
            wanted.push(index.ok_or_else(|| {
                let text =
                    format!("Physical volume \"{path}\" not found in volume group \"{name}\"");
                Error::failed(text)
            })?);
        }
        if names.is_empty() {
            let used: BTreeSet<usize> =
                draft.group.lvs.iter().flat_map(|lv| lv.pv_extents()).map(|on| on.pv).collect();
            let unused = draft.members.iter().enumerate().filter(|(at, _)| !used.contains(at));
            wanted.extend(unused.map(|(_, index)| *index));
            if wanted.len() == draft.members.len() {
                // As in LVM: one stays.
                wanted.remove(0);
            }
        }
        let mut lines = Vec::new();
        for index in &wanted {
            let path = self.pvs.get(*index).map_or("", |pv| pv.path.as_str());
            let Some(at) = draft.members.iter().position(|member| member == index) else {
                return Err(Error::failed(format_args!("{path} is named twice")));
            };
            let failed = |error| Error::new("Cannot remove the physical volume", path, error);
            draft.group.remove_physical(at).map_err(failed)?;
            draft.members.remove(at);
            lines.push(format!("  Removed \"{path}\" from volume group \"{name}\""));
        }
        Ok((wanted, lines))
    }
}

/// The group's entry for the physical volume of that name and label.
fn member(name: &str, label: &PvLabel, extent_size: Sectors) -> Result<PhysicalVolume> {
    let member = new_member(name, label, extent_size);
    member.map_err(|text| Error::failed(text).hint("choose another -s"))
}
