//! Changes of groups on disks, and how they are written.
//!
//! A change is made to a [`Draft`], a copy of the group. [`Session::commit`] writes it, in this order:
//!
//! 1. it is checked, and the old state is archived;
//! 2. what must read as zeroes is zeroed, durably: in extents that were unused;
//! 3. new members are marked as used in their labels, durably;
//! 4. the metadata areas are written ([`ashlar_lvm::commit`]);
//! 5. the new state is written to the backup.
//!
//! Until step 4 ends, the old group is valid. Refusals come before step 2.

use ashlar_block::Sectors;
use ashlar_disks::{self as disks, written_elsewhere};
use ashlar_dm::Devices as _;
use ashlar_lvm::activate::dm_name;
use ashlar_lvm::change::Author;
use ashlar_lvm::command::{Command, Effect, Zeroes};
use ashlar_lvm::commit::{CommitError, Member, commit};
use ashlar_lvm::format::{FormatError, release_pv, write_label};
use ashlar_lvm::group::Group;
use ashlar_lvm::{Metadata, VolumeGroup};
use ashlar_stack::assemble::Disk;
use ashlar_stack::outsiders::Outsider;

use super::archive::{self, Archives};
use super::session::{Place, Pv, Session};
use super::{new_uuid, refuse_to_cut};
use crate::error::{Error, Result};

/// A group that is about to change.
pub struct Draft {
    /// The old metadata; `None` if the group is new.
    before: Option<Metadata>,
    /// The new state of the group.
    pub group: VolumeGroup,
    /// The indices of its physical volumes in the session.
    pub members: Vec<usize>,
}

impl Session {
    /// Changes a group as a command says, after the user has confirmed what it asks.
    ///
    /// # Errors
    /// The group is as it was, unless the message says that this is not known.
    pub async fn change(
        &mut self,
        group: &str,
        command: &Command,
        archives: &Archives,
    ) -> Result<()> {
        let mut draft = self.draft(group).await?;
        let effect = draft.apply(self, command)?;
        if let Some((name, size)) = &effect.reduces {
            self.check_room(&draft, name, *size, command).await?;
        }
        self.dialogue.tell(&effect.notes)?;
        self.dialogue.confirm_all(&effect.questions)?;
        self.commit(draft, &effect.zeroes, archives).await?;
        self.dialogue.tell(&effect.done)
    }

    /// A copy of a group, to be changed.
    ///
    /// # Errors
    /// The group does not exist, may be another host's, or must not be changed in its present state.
    pub async fn draft(&self, name: &str) -> Result<Draft> {
        let found = self.group(name)?;
        let group = &found.metadata.group;
        self.refuse_held(group)?;
        let members = self.all_members(found)?;
        if let Some(why) = group.write_refusal() {
            return Err(cannot_change(group, why));
        }
        self.draft_with(found, members).await
    }

    /// Refuses a group that may be another host's.
    pub(super) fn refuse_held(&self, group: &VolumeGroup) -> Result<()> {
        match group.held_elsewhere(&self.local) {
            Some(held) => Err(Error::failed(&held).hint(held.way_out())),
            None => Ok(()),
        }
    }

    /// The indices of all physical volumes of a group.
    ///
    /// # Errors
    /// Some are missing.
    pub(super) fn all_members(&self, found: &Group) -> Result<Vec<usize>> {
        let members: Option<Vec<usize>> = found.members.iter().map(|m| m.usable()).collect();
        members.ok_or_else(|| {
            let missing: Vec<String> = found.missing().map(|id| id.to_string()).collect();
            let why = format!("physical volumes are missing: {}", missing.join(", "));
            cannot_change(&found.metadata.group, why)
        })
    }

    /// A copy of a group whose description may be changed, with these physical volumes.
    ///
    /// # Errors
    /// They must not be written to.
    pub(super) async fn draft_with(&self, found: &Group, members: Vec<usize>) -> Result<Draft> {
        let metadata = &found.metadata;
        let group = &metadata.group;
        let refuse = |why: String| Err(cannot_change(group, why));
        let path = |index: usize| self.pvs.get(index).map_or("", |pv| pv.path.as_str());
        for copy in &self.found.duplicates {
            let id = self.pvs.get(*copy).map(|pv| pv.on_disk.label.uuid);
            if id.is_some_and(|id| group.pv_index(&id).is_some()) {
                return refuse(format!("{} is a copy of one of its physical volumes", path(*copy)));
            }
        }
        if let Some((index, error)) = self.found.damaged.iter().find(|(i, _)| members.contains(i)) {
            return refuse(format!("the metadata on {} is damaged: {error}", path(*index)));
        }
        self.refuse_rivals(&members).await?;
        Ok(Draft { before: Some(Metadata::clone(metadata)), group: group.clone(), members })
    }

    /// Refuses physical volumes that have another owner, or belong to something else than ashlar.
    async fn refuse_rivals(&self, members: &[usize]) -> Result<()> {
        for pv in members.iter().filter_map(|index| self.pvs.get(*index)) {
            let place = self.places.iter().find(|place| place.gateway.is_same(&pv.gateway));
            let Some(Place { path, gateway, contents, class }) = place else { continue };
            let disk = Disk { path: path.into(), gateway: gateway.clone() };
            disks::refuse_rivals(&disk, Ok(contents)).await?;
            if let Some(outsider) = Outsider::of(contents, *class, false) {
                return Err(written_elsewhere(path, &outsider).hint(outsider.removal()));
            }
        }
        Ok(())
    }

    /// Refuses to reduce a volume below the size of its file system.
    async fn check_room(
        &self,
        draft: &Draft,
        volume: &str,
        size: Sectors,
        command: &Command,
    ) -> Result<()> {
        let Some(before) = &draft.before else { return Ok(()) };
        let group = &before.group;
        let device = dm_name(&group.name, volume, None);
        let mut volumes = self.volumes(group, &draft.members);
        volumes.make(std::slice::from_ref(&device)).await?;
        let gateway = volumes.find(&device);
        let checked = match &gateway {
            Some(gateway) => {
                refuse_to_cut(gateway, &format!("{}/{volume}", group.name), size, command).await
            }
            None => Ok(()),
        };
        volumes.end().await?;
        checked
    }

    /// Writes a changed group: see the module text. The session's groups are then assembled again.
    ///
    /// # Errors
    /// The old group is still valid, unless the message says that this is not known.
    pub async fn commit(
        &mut self,
        draft: Draft,
        zeroes: &[Zeroes],
        archives: &Archives,
    ) -> Result<()> {
        let Draft { before, mut group, members } = draft;
        let name = group.name.clone();
        let failed = |error: &dyn std::fmt::Display| Error::new("Cannot change VG", &name, error);
        group.seqno = group.seqno.checked_add(1).ok_or_else(|| failed(&"it changed 2^32 times"))?;
        group.check().map_err(|error| failed(&error))?;
        if before.is_none() {
            self.refuse_rivals(&members).await?;
        }
        archives.before(before.as_ref())?;
        if !zeroes.is_empty() {
            let mut volumes = self.volumes(&group, &members);
            for Zeroes { device, bytes } in zeroes {
                volumes.zero(device, *bytes).await?;
            }
            volumes.end().await?;
        }
        let used = |index: &usize| self.pvs[*index].on_disk.label.is_used();
        let unmarked: Vec<usize> = members.iter().copied().filter(|index| !used(index)).collect();
        self.mark(&unmarked, true).await.map_err(|error| failed(&error))?;
        let header = archive::header(format!("Write from {}.", archive::command()));
        let metadata = match before {
            None => Metadata::new(group, header),
            Some(mut metadata) => {
                metadata.group = group;
                metadata.set_header(header);
                metadata
            }
        };
        let pvs = self.pvs.iter_mut().enumerate().filter(|(index, _)| members.contains(index));
        let mut writing: Vec<Member<'_>> =
            pvs.map(|(_, Pv { gateway, on_disk, .. })| Member { gateway, pv: on_disk }).collect();
        let done = match commit(&mut writing, &metadata).await {
            Ok(done) => done,
            Err(error) => {
                if !matches!(error, CommitError::Uncertain { .. })
                    && let Err(error) = self.mark(&unmarked, false).await
                {
                    self.dialogue
                        .warn(&format_args!("physical volumes stay marked as used: {error}"));
                }
                return Err(failed(&error));
            }
        };
        for (id, status) in done.stale {
            self.dialogue.warn(&format_args!("PV {id} still has the old metadata: {status}"));
        }
        self.gather();
        // The change is done: a missing backup does not make it a failure.
        if let Err(error) = archives.after(&metadata) {
            self.dialogue.warn(&error.into_parts().0);
        }
        Ok(())
    }

    /// Takes physical volumes that no group lists any more, or will list, out of their group.
    ///
    /// # Errors
    /// One cannot be written.
    pub async fn release(&mut self, indices: &[usize]) -> Result<()> {
        for index in indices {
            let Some(pv) = self.pvs.get_mut(*index) else { continue };
            let released = release_pv(&pv.gateway, &mut pv.on_disk).await;
            released
                .map_err(|error| Error::new("Cannot free the physical volume", &pv.path, error))?;
        }
        self.gather();
        Ok(())
    }

    /// Marks in the labels of physical volumes whether they belong to a group.
    async fn mark(
        &mut self,
        indices: &[usize],
        used: bool,
    ) -> std::result::Result<(), FormatError> {
        for index in indices {
            let Some(pv) = self.pvs.get_mut(*index) else { continue };
            pv.on_disk.label.set_used(used);
            write_label(&pv.gateway, &pv.on_disk).await?;
        }
        Ok(())
    }
}

fn cannot_change(group: &VolumeGroup, why: String) -> Error {
    Error::new("Cannot change VG", &group.name, why)
}

impl Draft {
    /// A group that is not made by a change of what is on the disks: a new one, or one as a copy has it; `before` is what is on
    /// the disks.
    pub fn of(before: Option<Metadata>, group: VolumeGroup, members: Vec<usize>) -> Self {
        Self { before, group, members }
    }

    /// Applies a command to the description.
    ///
    /// # Errors
    /// It is refused.
    pub(super) fn apply(&mut self, session: &Session, command: &Command) -> Result<Effect> {
        if let Command::RenameGroup { to } = command
            && session.found.groups.iter().any(|other| other.metadata.group.name == *to)
        {
            return Err(Error::failed(format_args!("New volume group \"{to}\" already exists")));
        }
        let mut author = Author { creation: archive::creation(), new_uuid: &mut new_uuid };
        let members = &self.members;
        let physical = |path: &str| {
            let pv = session.pv(path)?;
            members.iter().position(|member| *member == pv)
        };
        let applied = command.apply(&mut self.group, &physical, &mut author);
        applied.map_err(|error| match error.is_usage() {
            true => Error::usage(&error),
            false => Error::failed(&error),
        })
    }
}
