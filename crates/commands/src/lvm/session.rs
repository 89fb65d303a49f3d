//! The disks of a command that works without a daemon, and the physical volumes and groups on them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ashlar_block::Gateway;
use ashlar_disks::sandbox::Sandbox;
use ashlar_disks::{self as disks, Access, Opener};
use ashlar_lvm::group::{self, Group, GroupSurvey, NameError, named};
use ashlar_lvm::metadata::SystemIds;
use ashlar_lvm::{PvOnDisk, VolumeGroup, read_pv};
use ashlar_stack::assemble::{Disk, Options, Others, ProbedDisk, Stack, assemble};
use ashlar_stack::devices::Role;
use ashlar_stack::outsiders::{DeviceClass, Outsider};
use ashlar_stack::owners;
use ashlar_stack::partitions;
use ashlar_stack::probe::{Contents, Md, probe};

use super::devices::Volumes;
use super::dialogue::Dialogue;
use super::system_id::local_system_ids;
use crate::error::{Error, Result};

/// A device that may be or become a physical volume.
pub(super) struct Place {
    /// Its path.
    pub(super) path: String,
    /// The device.
    pub(super) gateway: Gateway,
    /// Its contents.
    pub(super) contents: Contents,
    /// What it is.
    pub(super) class: DeviceClass,
}

/// A physical volume.
pub struct Pv {
    /// Its path.
    pub path: String,
    /// The device.
    pub(super) gateway: Gateway,
    /// Its label and metadata.
    pub on_disk: PvOnDisk,
}

/// What a command found on its disks. If the command writes to them, no other process uses them meanwhile.
pub struct Session {
    stack: Stack,
    /// The system IDs of this host.
    pub(super) local: SystemIds,
    pub(super) dialogue: Box<dyn Dialogue>,
    /// All devices that are not part of others.
    pub(super) places: Vec<Place>,
    /// The physical volumes on them.
    pub pvs: Vec<Pv>,
    /// Their groups; its indices refer to `pvs`.
    pub found: GroupSurvey,
}

/// Calls `work` with the physical volumes on `disks` in `sandbox`, and stops everything cleanly afterwards. Reports defects to
/// `dialogue`.
///
/// # Errors
/// Those of the work; the disks cannot be opened, or cannot be stopped cleanly.
pub fn with_session<T>(
    disks: &[PathBuf],
    access: Access,
    sandbox: Sandbox,
    dialogue: Box<dyn Dialogue>,
    work: impl AsyncFnOnce(&mut Session) -> Result<T>,
) -> Result<T> {
    if disks.is_empty() {
        let hint = "name them with --devices DISK,...";
        return Err(Error::usage("no disks to look for physical volumes on").hint(hint));
    }
    let opened = Opener::new(access).all(disks)?;
    let local = local_system_ids();
    let reactor = disks::reactor()?;
    sandbox.enter()?;
    reactor.block_on(async {
        let mut session = Session::new(opened, access != Access::Write, local, dialogue).await;
        let done = work(&mut session).await;
        let stopped = session.stack.stop().await;
        let done = done?;
        stopped.map_err(|failed| {
            let names: Vec<String> = failed.iter().map(ToString::to_string).collect();
            Error::plain("not stopped cleanly", names.join(", "))
        })?;
        Ok(done)
    })
}

/// `disks`, and those of `named` that exist and are not among them.
pub fn with_named(disks: &[PathBuf], named: &[String]) -> Vec<PathBuf> {
    let mut all = disks.to_vec();
    for path in named.iter().map(Path::new) {
        let same =
            |other: &PathBuf| other == path || disks::identity(other) == disks::identity(path);
        if disks::may_exist(path) && !all.iter().any(same) {
            all.push(path.to_owned());
        }
    }
    all
}

/// The group of that name or UUID.
///
/// # Errors
/// There is no such group, or several.
pub fn only_group<'a>(groups: &'a [Group], name: &str) -> Result<&'a Group> {
    named(groups, name).map_err(|error| match error {
        NameError::NotFound(_) => Error::failed(&error),
        NameError::Ambiguous { .. } => Error::failed(&error).hint("name the one by its UUID"),
    })
}

/// A disk, or its partitions if it has any. Unreadable disks are reported and left out, and so are members of an array
/// that has another owner, unless the disk is only read.
async fn leaves(
    disk: Disk,
    class: DeviceClass,
    read_only: bool,
    dialogue: &dyn Dialogue,
) -> Vec<Place> {
    let place = |Disk { path, gateway }: Disk, contents, class| {
        let path = path.display().to_string();
        Place { path, gateway, contents, class }
    };
    let path = disk.path.display().to_string();
    let contents = match probe(&disk.gateway).await {
        Ok(contents) => contents,
        Err(status) => {
            dialogue.warn(&format_args!("{path} cannot be read: {status}"));
            return Vec::new();
        }
    };
    let found = match &contents.md {
        Md::None => partitions::read(&disk.gateway, &contents.foreign).await,
        Md::Member(_) if !read_only => match owners::rivals(&disk.gateway, &contents).await {
            Ok(None) => return vec![place(disk, contents, class)],
            Ok(Some(rivals)) => {
                dialogue.warn(&format_args!("{path} {rivals}: it is not used"));
                return Vec::new();
            }
            Err(status) => Err(status),
        },
        Md::Member(_) | Md::Damaged(_) => return vec![place(disk, contents, class)],
    };
    let table = match found {
        Ok(partitions::TableState::Table(table)) if !table.is_empty => {
            let outsider = Outsider::of(&contents, class, false).filter(|_| !read_only);
            if let Some(outsider) = outsider {
                dialogue.warn(&format_args!("{path} {outsider}: its partitions are not used"));
                return vec![place(disk, contents, class)];
            }
            table
        }
        Ok(_) => return vec![place(disk, contents, class)],
        Err(status) => {
            dialogue.warn(&format_args!("{path} cannot be read: {status}"));
            return Vec::new();
        }
    };
    let mut leaves = Vec::new();
    for entry in table.entries {
        let (name, gateway) = entry.open(&path, &disk.gateway);
        match probe(&gateway).await {
            Ok(contents) => {
                let partition = Disk { path: name.into(), gateway };
                leaves.push(place(partition, contents, DeviceClass::Partition));
            }
            Err(status) => dialogue.warn(&format_args!("{name} cannot be read: {status}")),
        }
    }
    leaves
}

impl Session {
    pub(super) async fn new(
        disks: Vec<Disk>,
        read_only: bool,
        local: SystemIds,
        dialogue: Box<dyn Dialogue>,
    ) -> Self {
        let mut probed = Vec::new();
        let mut known = BTreeMap::new();
        for disk in disks {
            for place in leaves(disk, DeviceClass::Disk, read_only, &*dialogue).await {
                let (path, gateway) = (place.path.clone().into(), place.gateway.clone());
                let contents = Ok(place.contents.clone());
                probed.push(ProbedDisk { disk: Disk { path, gateway }, contents });
                known.insert(place.path.clone(), place);
            }
        }
        let md = ashlar_md::Options { run: false, read_only, force: false };
        // Only arrays: a group that is active cannot be changed here. What others may be writing to is known here for what it is.
        let others = Others { force: true, ..Others::default() };
        let options = Options { md, others, whole: true, ..Options::default() };
        let stack = assemble(&probed, options, &disks::runtime()).await;
        for failure in &stack.failures {
            dialogue.warn(&format_args!("{failure} cannot be started: {}", failure.error));
        }
        let mut places = Vec::new();
        for device in stack.devices.all() {
            if device.role != Role::Volume {
                continue;
            }
            let class = match known.remove(&device.path) {
                // It was looked into.
                Some(place) if place.class == DeviceClass::Disk => {
                    places.push(place);
                    continue;
                }
                Some(place) => place.class,
                None => DeviceClass::Made,
            };
            let (path, gateway) = (device.path.clone().into(), device.gateway().clone());
            places.extend(leaves(Disk { path, gateway }, class, read_only, &*dialogue).await);
        }
        let mut session =
            Self { stack, local, dialogue, places, pvs: Vec::new(), found: GroupSurvey::default() };
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
                        self.dialogue.warn(&format_args!("{path}: {defect}"));
                    }
                    let (path, gateway) = (path.clone(), gateway.clone());
                    self.pvs.push(Pv { path, gateway, on_disk });
                }
                Ok(None) => {}
                Err(error) => self.dialogue.warn(&format_args!("{path}: {error}")),
            }
        }
        self.gather();
        let path = |index: &usize| self.pvs.get(*index).map_or("", |pv| pv.path.as_str());
        for (index, error) in &self.found.damaged {
            self.dialogue
                .warn(&format_args!("{}: the metadata cannot be used: {error}", path(index)));
        }
        for index in &self.found.duplicates {
            let text = "has the identity of another physical volume, and is not used";
            self.dialogue.warn(&format_args!("{} {text}", path(index)));
        }
        for group in &self.found.groups {
            let name = &group.metadata.group.name;
            for id in group.missing() {
                self.dialogue.warn(&format_args!("VG {name} is missing PV {id}"));
            }
            if group.has_given {
                let text = "still lists physical volumes that went to another group";
                self.dialogue.warn(&format_args!(
                    "VG {name} {text}: vgck --updatemetadata completes the move"
                ));
            }
            for index in &group.outdated {
                let text = "it was removed from the group";
                self.dialogue
                    .warn(&format_args!("{} has old metadata of VG {name}: {text}", path(index)));
            }
        }
    }

    pub(super) fn gather(&mut self) {
        let pvs: Vec<&PvOnDisk> = self.pvs.iter().map(|pv| &pv.on_disk).collect();
        self.found = group::assemble(&pvs);
    }

    /// The group of that name or UUID.
    ///
    /// # Errors
    /// There is no such group, or several.
    pub fn group(&self, name: &str) -> Result<&Group> {
        only_group(&self.found.groups, name)
    }

    /// The place with that path: a disk, its partition, or an array as `/dev/md127` or `/dev/md/NAME`.
    pub(super) fn place(&self, path: &str) -> Option<&Place> {
        let linked = path.strip_prefix("/dev/").and_then(|link| self.stack.devices.linked(link));
        let path = linked.as_ref().map_or(path, |device| &device.path);
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
    pub fn pv(&self, path: &str) -> Option<usize> {
        let place = self.place(path)?;
        self.pvs.iter().position(|pv| pv.gateway.is_same(&place.gateway))
    }

    /// The group of the physical volume with this index.
    pub fn group_of(&self, pv: usize) -> Option<&Group> {
        self.found.groups.iter().find(|group| group.has_member(pv))
    }

    /// The devices of a group; `members` are the indices of its physical volumes, in the group's order.
    pub fn volumes(&self, group: &VolumeGroup, members: &[usize]) -> Volumes {
        let gateways = members.iter().filter_map(|index| self.pvs.get(*index));
        Volumes::new(group, gateways.map(|pv| pv.gateway.clone()).collect())
    }
}
