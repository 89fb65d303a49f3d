//! The work list: from devices to the devices on them, to any depth. The order and the rules are in
//! docs/internals/stack.md.

mod arrays;
mod doubt;
mod groups;
mod members;
mod pools;
mod remains;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use ashlar_block::{Gateway, Runtime, Status};
use ashlar_md::BackupFile;
use uuid::Uuid;

use crate::arrays::Arrays;
use crate::claim::{self, Claim};
use crate::devices::{Device, Devices, Role};
use crate::findings::{DeviceProbe, Failure, Note, Options};
use crate::names::Names;
use crate::outsiders::{DeviceClass, Outsider, RefusedOutsider};
use crate::owners;
use crate::partitions::{Partition, Table};
use crate::pool_members::Members as PoolMembers;
use crate::pools::Pools;
use crate::probe::{Contents, Md};
use crate::refusals::Refusal;
use crate::volume_groups::VolumeGroups;
use members::Members;

/// Devices nested deeper than this are not probed; the disks are level 0.
pub(crate) const MAX_DEPTH: usize = 16;

/// A device to be probed.
struct Work {
    name: String,
    depth: usize,
    /// Its contents, if already probed.
    contents: Option<Result<Contents, Status>>,
    /// Whether all devices are known whose contents say what they are.
    is_last: bool,
}

/// See the module text.
pub(crate) struct Builder {
    pub(crate) devices: Arc<Devices>,
    pub(crate) arrays: Arc<Arrays>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) options: Options,
    pub(crate) names: Names,
    queue: VecDeque<Work>,
    members: BTreeMap<Uuid, Members>,
    /// Backups of what reshapes move in place, of any arrays.
    backups: Vec<BackupFile>,
    pub(crate) groups: VolumeGroups,
    pub(crate) pools: Arc<Pools>,
    pool_members: PoolMembers,
    /// The devices that are not used, because something else than ashlar writes to them.
    pub(crate) refused_outsiders: Vec<RefusedOutsider>,
    /// The volume groups, pools and volumes that are not used.
    pub(crate) refusals: Vec<Refusal>,
    /// The devices of which too much cannot be read: whoever owns them may have written it there.
    pub(crate) unreadable: BTreeSet<String>,
    /// The devices that are looked at when no more can be made of the others.
    last: Vec<Work>,
    /// The arrays that did not start.
    pub(crate) failures: Vec<Failure>,
    /// Messages to the user.
    pub(crate) notes: Vec<Note>,
    /// The probed devices.
    pub(crate) probes: Vec<DeviceProbe>,
}

impl Builder {
    pub(crate) fn new(
        devices: Arc<Devices>,
        arrays: Arc<Arrays>,
        pools: Arc<Pools>,
        options: Options,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        Self {
            devices,
            arrays,
            pools,
            pool_members: PoolMembers::default(),
            refused_outsiders: Vec::new(),
            refusals: Vec::new(),
            runtime,
            options,
            names: Names::default(),
            queue: VecDeque::new(),
            members: BTreeMap::new(),
            backups: Vec::new(),
            groups: VolumeGroups::default(),
            unreadable: BTreeSet::new(),
            last: Vec::new(),
            failures: Vec::new(),
            notes: Vec::new(),
            probes: Vec::new(),
        }
    }

    /// Adds a disk to the list.
    pub(crate) fn add_disk(
        &mut self,
        path: &str,
        gateway: &Gateway,
        contents: &Result<Contents, Status>,
    ) {
        let name = self.devices.add_disk(path, gateway.clone(), Role::Volume);
        let contents = Some(contents.clone());
        self.queue.push_back(Work { name, depth: 0, contents, is_last: false });
    }

    /// Adds a device made of others to the list.
    pub(crate) fn add(&mut self, name: String, depth: usize) {
        self.queue.push_back(Work { name, depth, contents: None, is_last: false });
    }

    /// Adds an array that was started later to the list.
    pub(crate) fn add_above(&mut self, name: String) {
        let depth = self.depth(&name);
        self.add(name, depth);
    }

    /// The length of the longest chain of devices below a device.
    pub(crate) fn depth(&self, name: &str) -> usize {
        self.devices.read(|table| depth_in(table, name)).unwrap_or(0)
    }

    /// Works until no more devices can be made.
    pub(crate) async fn run(&mut self) {
        loop {
            while let Some(work) = self.queue.pop_front() {
                self.look(work).await;
            }
            if self.make(false).await || self.make(true).await {
                continue;
            }
            if let Some(work) = self.last.pop() {
                self.queue.push_back(work);
                continue;
            }
            for (device, text) in self.groups.leftovers() {
                self.note(&device, text);
            }
            return;
        }
    }

    /// Has the first holder that can make devices of what is complete, or with `any` of what may lack something. Returns whether one
    /// could.
    async fn make(&mut self, any: bool) -> bool {
        self.start_arrays(any).await || self.activate(any).await || self.import(any).await
    }

    pub(crate) fn note(&mut self, device: &str, text: impl Into<String>) {
        let note = Note::new(&self.devices, device.to_owned(), text.into());
        // Don't repeat a note that still holds.
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Probes one device.
    async fn look(&mut self, Work { name, depth, contents, is_last }: Work) {
        let Some(device) = self.devices.find(&name) else { return };
        if depth > MAX_DEPTH {
            return self
                .note(&name, format!("what it holds is nested deeper than {MAX_DEPTH} levels"));
        }
        let contents = match contents {
            Some(known) => known,
            None => self.probe(&device).await,
        };
        let scheme = match &contents {
            Ok(contents) => {
                if let Some(unread) = &contents.unread {
                    self.note(&name, unread.to_string());
                }
                // The array of a member may have others, which say more.
                let is_member = !matches!(contents.md, Md::None);
                match contents.hidden_owner(self.options.whole).filter(|_| !is_member) {
                    Some(owner) if !self.options.md.read_only => {
                        self.refuse_unread(&device, format!("{owner} may be there"))
                    }
                    Some(_) if !is_last => {
                        let contents = Some(Ok(contents.clone()));
                        return self.last.push(Work { name, depth, contents, is_last: true });
                    }
                    Some(_) if self.lacks_members() => {
                        let why =
                            "may be a member of an array that lacks one: it is served as it is";
                        self.note(&name, why);
                        None
                    }
                    Some(_) | None => self.give_role(&device, contents, depth).await,
                }
            }
            Err(status) => self.refuse_unreadable(&device, *status),
        };
        self.probes.push(DeviceProbe { name, contents, scheme });
    }

    fn refuse(&mut self, device: &Device, why: String) -> Option<&'static str> {
        self.devices.set_role(&device.name, Role::Refused);
        self.note(&device.name, why);
        None
    }

    /// Gives a device its role; returns the kind of its partition table.
    async fn give_role(
        &mut self,
        device: &Device,
        contents: &Contents,
        depth: usize,
    ) -> Option<&'static str> {
        if contents.is_reshape_backup() {
            self.keep_backup(device);
            return None;
        }
        let report = match claim::read(device.gateway(), contents, self.options.whole).await {
            Ok(report) => report,
            Err(status) => return self.refuse_unreadable(device, status),
        };
        for note in report.notes {
            self.note(&device.name, note);
        }
        if !self.options.whole {
            match owners::of_claim(device.gateway(), contents, &report.claim).await {
                Ok(None) => {}
                Ok(Some(rivals)) if self.options.md.read_only => {
                    self.note(&device.name, rivals.to_string());
                }
                Ok(Some(rivals)) => return self.refuse(device, rivals.to_string()),
                Err(status) => return self.refuse_unreadable(device, status),
            }
        }
        let class = DeviceClass::from(&device.kind);
        if let Some(outsider) = Outsider::of(contents, class, self.options.whole) {
            match (self.options.md.read_only, self.options.others.force) {
                (true, _) => self.note(&device.name, outsider.to_string()),
                (false, true) => {
                    let text =
                        format!("{outsider}; it is writable because of ashlar serve --force");
                    self.note(&device.name, text);
                }
                (false, false) => {
                    self.devices.set_role(&device.name, Role::Refused);
                    self.refused_outsiders.push(RefusedOutsider::new(device, outsider));
                    return None;
                }
            }
        }
        match report.claim {
            Claim::Volume => self.join_pool(device, contents, depth),
            Claim::PhysicalVolume => {
                if let Err(why) = self.groups.adopt(device, depth, &self.devices).await {
                    return self.refuse_contents(device, contents, why);
                }
            }
            Claim::Refused(why) => return self.refuse_contents(device, contents, why),
            Claim::Member(sb) => self.join_array(device, contents, depth, sb).await,
            Claim::Table(table) => return Some(self.add_partitions(device, table, depth)),
        }
        None
    }

    /// Makes the devices of a partition table; returns its kind.
    fn add_partitions(&mut self, device: &Device, table: Table, depth: usize) -> &'static str {
        self.devices.set_role(&device.name, Role::Partitioned);
        for entry in table.entries {
            let (start, len) = (entry.start, entry.len);
            let name = self.devices.add_partition(device, entry, |name| {
                let lower = device.gateway().clone();
                Gateway::new(Arc::new(Partition::new(name, lower, start, len)))
            });
            self.add(name, depth + 1);
        }
        table.scheme.name()
    }

    /// Records in the registry which array has each disk.
    pub(crate) fn settle(&self) {
        let mut owners = HashMap::new();
        for volume in self.arrays.running() {
            let uuid = volume.view.status().uuid;
            let members = volume.view.members().iter();
            owners.extend(members.map(|(_, rdev)| (rdev.path().to_owned(), uuid)));
        }
        for array in self.arrays.waiting() {
            owners.extend(array.members.into_iter().map(|member| (member.path, array.uuid)));
        }
        self.devices.settle(&owners);
    }
}

/// [`Builder::depth`] in a table in which each device is after the devices it is made of.
fn depth_in(table: &[Device], name: &str) -> Option<usize> {
    let at = table.iter().rposition(|device| device.name == name)?;
    let deepest = table[at].below.iter().filter_map(|name| depth_in(&table[..at], name)).max();
    Some(deepest.map_or(0, |depth| depth + 1))
}
