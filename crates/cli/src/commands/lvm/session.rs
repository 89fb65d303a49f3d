//! The disks of a command, the physical volumes and groups on them, and how a change is written.
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

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ashlar_block::{Gateway, Sectors};
use ashlar_dm::Devices as _;
use ashlar_host::client::Client;
use ashlar_host::disks::{self, Access};
use ashlar_host::error::{Error, Result};
use ashlar_host::interface::{Lvm, LvmMembers, LvmReply};
use ashlar_host::lvm::archive::{self, Archives};
use ashlar_host::lvm::{new_uuid, refuse_to_cut};
use ashlar_lvm::activate::dm_name;
use ashlar_lvm::change::Author;
use ashlar_lvm::command::{Command, Effect, Membership, Question, Zeroes};
use ashlar_lvm::commit::{CommitError, Member, commit};
use ashlar_lvm::format::{FormatError, release_pv, write_label};
use ashlar_lvm::group::{self, Found, Group, NameError, named};
use ashlar_lvm::{Metadata, PvOnDisk, VolumeGroup, read_pv};
use ashlar_stack::assemble::{Disk, Options, Probed, Stack, assemble};
use ashlar_stack::devices::Role;
use ashlar_stack::owners;
use ashlar_stack::partitions;
use ashlar_stack::probe::{Contents, Md, probe};
use ashlar_stack::volume_groups::ServedGroup;

use super::volumes::Volumes;
use super::{Changing, Devices, confirm, warn};
use crate::output;

/// A device that may be or become a physical volume.
pub(super) struct Place {
    /// Its path.
    pub(super) path: String,
    /// The device.
    pub(super) gateway: Gateway,
    /// Its contents.
    pub(super) contents: Contents,
}

/// A physical volume.
pub(super) struct Pv {
    /// Its path.
    pub(super) path: String,
    /// The device.
    pub(super) gateway: Gateway,
    /// Its label and metadata.
    pub(super) on_disk: PvOnDisk,
}

/// See the module text.
pub(super) struct Session {
    stack: Stack,
    /// All devices that are not part of others.
    pub(super) places: Vec<Place>,
    /// The physical volumes on them.
    pub(super) pvs: Vec<Pv>,
    /// Their groups; its indices refer to `pvs`.
    pub(super) found: Found,
}

/// A group that is about to change.
pub(super) struct Draft {
    /// The old metadata; `None` if the group is new.
    before: Option<Metadata>,
    /// The new state of the group.
    pub(super) group: VolumeGroup,
    /// The indices of its physical volumes in the session.
    pub(super) members: Vec<usize>,
}

/// Changes a group: one that the daemon serves, or one on disks.
///
/// # Errors
/// The group is as it was, unless the message says that this is not known.
pub(super) fn change(
    disks: &Devices,
    changing: &Changing,
    group: &str,
    command: &Command,
) -> Result<ExitCode> {
    if disks.devices.is_empty() {
        served(&mut disks.connect()?, changing, group, command)?;
    } else {
        let archives = changing.archives()?;
        with(&disks.devices, Access::Write, async |session| {
            let mut draft = session.draft(group).await?;
            let effect = draft.apply(session, command)?;
            if let Some((name, size)) = &effect.reduces {
                session.check_room(&draft, name, *size, command).await?;
            }
            tell(&effect.notes)?;
            confirm_all(&effect.questions, changing.yes)?;
            session.commit(draft, &effect.zeroes, &archives).await?;
            tell(&effect.done)
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The description of a group of the daemon.
///
/// # Errors
/// The daemon's text is none.
pub(super) fn described(group: &ServedGroup) -> Result<Metadata> {
    let parsed = group.metadata();
    parsed.map_err(|error| Error::plain("the daemon's answer was not understood", error))
}

/// Has the daemon change a group.
///
/// # Errors
/// As for [`change`].
pub(super) fn served(
    client: &mut Client,
    changing: &Changing,
    group: &str,
    command: &Command,
) -> Result<()> {
    let call = |confirmed| {
        client.lvm(&Lvm {
            group: group.to_owned(),
            command: command.clone(),
            confirmed: Some(confirmed),
            archive: Some(changing.autobackup),
            line: archive::command(),
        })
    };
    ask(call, changing.yes)
}

/// Has the daemon change which physical volumes a group has.
///
/// # Errors
/// As for [`change`].
pub(super) fn served_members(
    disks: &Devices,
    changing: &Changing,
    group: &str,
    command: &Membership,
) -> Result<ExitCode> {
    let mut client = disks.connect()?;
    let directory = std::env::current_dir();
    let directory = directory.map_err(|error| Error::plain("cannot find the directory", error))?;
    let call = |confirmed| {
        client.lvm_members(&LvmMembers {
            group: group.to_owned(),
            command: command.clone(),
            directory: directory.clone(),
            confirmed: Some(confirmed),
            archive: Some(changing.autobackup),
            line: archive::command(),
        })
    };
    ask(call, changing.yes)?;
    Ok(ExitCode::SUCCESS)
}

/// Calls the daemon, and if it has questions, once more with the answers.
fn ask(mut call: impl FnMut(bool) -> Result<LvmReply>, yes: bool) -> Result<()> {
    let mut reply = call(yes)?;
    if !reply.questions.is_empty() {
        confirm_all(&reply.questions, false)?;
        reply = call(true)?;
    }
    tell(&reply.notes)?;
    tell(&reply.done)
}

fn confirm_all(questions: &[Question], yes: bool) -> Result<()> {
    for Question { text, refusal } in questions {
        if !confirm(text, yes)? {
            return Err(Error::failed(refusal));
        }
    }
    Ok(())
}

fn tell(lines: &[String]) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    output::tell(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}

/// Calls `work` with the physical volumes on `disks`, and stops everything cleanly afterwards.
///
/// # Errors
/// Those of the work; the disks cannot be opened, or cannot be stopped cleanly.
pub(super) fn with<T>(
    disks: &[PathBuf],
    access: Access,
    work: impl AsyncFnOnce(&mut Session) -> Result<T>,
) -> Result<T> {
    if disks.is_empty() {
        let hint = "name them with --devices DISK,...";
        return Err(Error::usage("no disks to look for physical volumes on").hint(hint));
    }
    let opened = disks::open_all(disks, access)?;
    disks::reactor()?.block_on(async {
        let mut session = Session::new(opened, access != Access::Write).await;
        let done = work(&mut session).await;
        let stopped = session.stack.stop().await;
        let done = done?;
        stopped.map_err(|failed| {
            let names: Vec<String> = failed.iter().map(ToString::to_string).collect();
            Error::plain("not ended in good order", names.join(", "))
        })?;
        Ok(done)
    })
}

/// `disks`, and those of `named` that exist and are not among them.
pub(super) fn with_named(disks: &[PathBuf], named: &[String]) -> Vec<PathBuf> {
    let mut all = disks.to_vec();
    for path in named.iter().map(Path::new) {
        let same =
            |other: &PathBuf| other == path || disks::identity(other) == disks::identity(path);
        if path.exists() && !all.iter().any(same) {
            all.push(path.to_owned());
        }
    }
    all
}

/// The group of that name or UUID.
///
/// # Errors
/// There is none, or several.
pub(super) fn only_group<'a>(groups: &'a [Group], name: &str) -> Result<&'a Group> {
    named(groups, name).map_err(|error| match error {
        NameError::NotFound(_) => Error::failed(&error),
        NameError::Ambiguous { .. } => Error::failed(&error).hint("name the one by its UUID"),
    })
}

/// A disk, or its partitions if it has any. Unreadable disks are reported and left out, and so are members of an array
/// that has another owner, unless the disk is only read.
async fn leaves(disk: Disk, read_only: bool) -> Vec<(Disk, Contents)> {
    let path = disk.path.display().to_string();
    let contents = match probe(&disk.gateway).await {
        Ok(contents) => contents,
        Err(status) => {
            warn(format_args!("{path} cannot be read: {status}"));
            return Vec::new();
        }
    };
    let found = match &contents.md {
        Md::None => partitions::read(&disk.gateway, &contents.foreign).await,
        Md::Member(_) if !read_only => match owners::rivals(&disk.gateway, &contents).await {
            Ok(None) => return vec![(disk, contents)],
            Ok(Some(rivals)) => {
                warn(format_args!("{path} {rivals}: it is left alone"));
                return Vec::new();
            }
            Err(status) => Err(status),
        },
        Md::Member(_) | Md::Damaged(_) => return vec![(disk, contents)],
    };
    let table = match found {
        Ok(partitions::Found::Table(table)) if !table.is_empty => table,
        Ok(_) => return vec![(disk, contents)],
        Err(status) => {
            warn(format_args!("{path} cannot be read: {status}"));
            return Vec::new();
        }
    };
    let mut leaves = Vec::new();
    for entry in table.entries {
        let (name, gateway) = entry.open(&path, &disk.gateway);
        match probe(&gateway).await {
            Ok(contents) => leaves.push((Disk { path: name.into(), gateway }, contents)),
            Err(status) => warn(format_args!("{name} cannot be read: {status}")),
        }
    }
    leaves
}

impl Session {
    async fn new(disks: Vec<Disk>, read_only: bool) -> Self {
        let mut probed = Vec::new();
        for disk in disks {
            let leaves = leaves(disk, read_only).await.into_iter();
            probed.extend(leaves.map(|(disk, contents)| Probed { disk, contents: Ok(contents) }));
        }
        let md = ashlar_md::Options { run: false, read_only };
        // Only arrays: a group that is active cannot be changed here.
        let options = Options { md, whole: true, ..Options::default() };
        let stack = assemble(&probed, options, &disks::runtime()).await;
        for failure in &stack.failures {
            warn(format_args!("{failure} cannot be started: {}", failure.error));
        }
        let mut places = Vec::new();
        for device in stack.devices.all() {
            if device.role == Role::Volume {
                let (path, gateway) = (device.path.clone().into(), device.gateway().clone());
                let leaves = leaves(Disk { path, gateway }, read_only).await.into_iter();
                places.extend(leaves.map(|(disk, contents)| Place {
                    path: disk.path.display().to_string(),
                    gateway: disk.gateway,
                    contents,
                }));
            }
        }
        let mut session = Self { stack, places, pvs: Vec::new(), found: Found::default() };
        session.look().await;
        session
    }

    /// Reads the physical volumes, and reports defects.
    pub(super) async fn look(&mut self) {
        self.pvs.clear();
        for Place { path, gateway, .. } in &self.places {
            match read_pv(gateway).await {
                Ok(Some(on_disk)) => {
                    for defect in on_disk.defects() {
                        warn(format_args!("{path}: {defect}"));
                    }
                    let (path, gateway) = (path.clone(), gateway.clone());
                    self.pvs.push(Pv { path, gateway, on_disk });
                }
                Ok(None) => {}
                Err(error) => warn(format_args!("{path}: {error}")),
            }
        }
        self.gather();
        let path = |index: &usize| self.pvs.get(*index).map_or("", |pv| pv.path.as_str());
        for (index, error) in &self.found.damaged {
            warn(format_args!("{}: the metadata cannot be used: {error}", path(index)));
        }
        for index in &self.found.duplicates {
            let text = "has the identity of another physical volume, and is not used";
            warn(format_args!("{} {text}", path(index)));
        }
        for group in &self.found.groups {
            let name = &group.metadata.group.name;
            for id in group.missing() {
                warn(format_args!("VG {name} is missing PV {id}"));
            }
            for index in &group.outdated {
                let text = "it was taken out of the group";
                warn(format_args!("{} has old metadata of VG {name}: {text}", path(index)));
            }
        }
    }

    fn gather(&mut self) {
        let pvs: Vec<&PvOnDisk> = self.pvs.iter().map(|pv| &pv.on_disk).collect();
        self.found = group::assemble(&pvs);
    }

    /// The group of that name or UUID.
    ///
    /// # Errors
    /// There is none, or several.
    pub(super) fn group(&self, name: &str) -> Result<&Group> {
        only_group(&self.found.groups, name)
    }

    /// The place with that path: a disk, its partition, or `/dev/md0`.
    pub(super) fn place(&self, path: &str) -> Option<&Place> {
        let same = |place: &&Place| {
            let identity = disks::identity(Path::new(path));
            place.path == path
                || identity.is_some() && identity == disks::identity(Path::new(&place.path))
        };
        self.places
            .iter()
            .find(|place| place.path == path)
            .or_else(|| self.places.iter().find(same))
    }

    /// The index of the physical volume at a path.
    pub(super) fn pv(&self, path: &str) -> Option<usize> {
        let place = self.place(path)?;
        self.pvs.iter().position(|pv| pv.gateway.is_same(&place.gateway))
    }

    /// The group of the physical volume with this index.
    pub(super) fn group_of(&self, pv: usize) -> Option<&Group> {
        self.found.groups.iter().find(|group| group.has_member(pv))
    }

    /// A copy of a group, to be changed.
    ///
    /// # Errors
    /// The group does not exist, or must not be changed in its present state.
    pub(super) async fn draft(&self, name: &str) -> Result<Draft> {
        let found = self.group(name)?;
        let metadata = &found.metadata;
        let group = &metadata.group;
        let refuse = |why: String| Err(Error::new("Cannot change VG", &group.name, why));
        let members: Option<Vec<usize>> = found.members.iter().map(|m| m.usable()).collect();
        let Some(members) = members else {
            let missing: Vec<String> = found.missing().map(|id| id.to_string()).collect();
            return refuse(format!("physical volumes are missing: {}", missing.join(", ")));
        };
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
        if let Some(why) = group.write_refusal() {
            return refuse(why);
        }
        self.refuse_rivals(&members).await?;
        Ok(Draft { before: Some(Metadata::clone(metadata)), group: group.clone(), members })
    }

    /// Refuses physical volumes that have another owner.
    async fn refuse_rivals(&self, members: &[usize]) -> Result<()> {
        for pv in members.iter().filter_map(|index| self.pvs.get(*index)) {
            let place = self.places.iter().find(|place| place.gateway.is_same(&pv.gateway));
            let Some(Place { path, gateway, contents }) = place else { continue };
            let disk = Disk { path: path.into(), gateway: gateway.clone() };
            disks::refuse_rivals(&disk, Ok(contents)).await?;
        }
        Ok(())
    }

    /// The devices of a group.
    pub(super) fn volumes(&self, group: &VolumeGroup, members: &[usize]) -> Volumes {
        let gateways = members.iter().filter_map(|index| self.pvs.get(*index));
        Volumes::new(group, gateways.map(|pv| pv.gateway.clone()).collect())
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
    pub(super) async fn commit(
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
                    warn(format_args!("physical volumes stay marked as used: {error}"));
                }
                return Err(failed(&error));
            }
        };
        for (id, status) in done.stale {
            warn(format_args!("PV {id} still has the old metadata: {status}"));
        }
        self.gather();
        // The change is done: a missing backup does not make it a failure.
        if let Err(error) = archives.after(&metadata) {
            warn(error.into_parts().0);
        }
        Ok(())
    }
}

impl Session {
    /// Takes physical volumes that no group lists any more, or will list, out of their group.
    ///
    /// # Errors
    /// One cannot be written.
    pub(super) async fn release(&mut self, indices: &[usize]) -> Result<()> {
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

impl Draft {
    /// A group that is not made by a change of what is on the disks: a new one, or one as a copy has it; `before` is what is on
    /// the disks.
    pub(super) fn of(before: Option<Metadata>, group: VolumeGroup, members: Vec<usize>) -> Self {
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
