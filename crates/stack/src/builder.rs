//! The work list: from devices to the devices on them, to any depth. The order and the rules are in
//! docs/internals/stack.md.

mod doubt;
mod groups;
mod members;
mod remains;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use ashlar_block::disk::DeviceNumber;
use ashlar_block::{ByteVolume, Gateway, Runtime, Status};
use ashlar_md::{Array, AssembleError, BackupFile, Candidate, plan_with_backups};
use ashlar_zfs::ondisk::label::Label;
use uuid::Uuid;

use crate::arrays::{Arrays, Volume};
use crate::claim::{self, Claim};
use crate::devices::{Device, Devices, Role};
use crate::findings::{DeviceProbe, Failure, Note, Options, Refusal, Refused};
use crate::names::{ArrayName, Names, wanted_name};
use crate::outsiders::{DeviceClass, Outsider, RefusedOutsider};
use crate::owners;
use crate::partitions::{Partition, Table};
use crate::pool_members::Members as PoolMembers;
use crate::pools::Pools;
use crate::probe::{Contents, Md};
use crate::view::ArrayView;
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
            if self.start_complete().await
                || self.activate(false).await
                || self.import(false).await
                || self.start_incomplete().await
                || self.activate(true).await
                || self.import(true).await
            {
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

    /// Imports a pool whose members are all present, or any pool if `any` is set. Returns whether
    /// there was one.
    async fn import(&mut self, any: bool) -> bool {
        let Some(options) = self.options.pools.clone() else { return false };
        let Some(ready) = self.pool_members.next(any) else { return false };
        for problem in ready.problems() {
            self.note(ready.name(), problem);
        }
        let read_only = self.options.md.read_only;
        let served = match self.pools.import(&ready, read_only, &options).await {
            Ok(served) => served,
            Err(refused) => {
                self.refusals.push(refused);
                return true;
            }
        };
        for problem in ready.missing() {
            let name = ready.name();
            let text = "the pool was imported without this log device: data that is only in the log is missing";
            self.note(name, format!("{problem}; {text}"));
        }
        match served.pool.changes().await {
            Ok(changes) => {
                let followed = self.pools.open_new(&served, changes.new, &self.devices).await;
                for (dataset, error) in followed.failed {
                    let (why, below) = (error.to_string(), ready.below.clone());
                    let (what, name, hint) = (Refused::Volume, dataset, None);
                    self.refusals.push(Refusal { what, name, why, hint, below });
                }
                for opened in followed.opened.into_iter().filter(|opened| opened.may_hold_others) {
                    self.add(opened.device, ready.depth + 1);
                }
            }
            Err(error) => {
                let hint = error.hint().map(str::to_owned);
                let (name, why) = (served.pool.name().to_owned(), error.to_string());
                let (what, below) = (Refused::Pool, ready.below);
                self.refusals.push(Refusal { what, name, why, hint, below });
            }
        }
        true
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
                match contents.hidden_owner(self.options.whole) {
                    // Its array may have other members, which say more.
                    Some(_) if !matches!(contents.md, Md::None) => {
                        self.give_role(&device, contents, depth).await
                    }
                    None => self.give_role(&device, contents, depth).await,
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
                    Some(_) => self.give_role(&device, contents, depth).await,
                }
            }
            Err(status) => self.refuse_unread(&device, format!("cannot be read: {status}")),
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
            self.devices.set_role(&device.name, Role::Backup);
            let (gateway, path) = (device.gateway().clone(), device.path.clone());
            self.backups.push(BackupFile { gateway, path });
            return None;
        }
        let report = match claim::read(device.gateway(), contents, self.options.whole).await {
            Ok(report) => report,
            Err(status) => {
                return self.refuse_unread(device, format!("cannot be read: {status}"));
            }
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
                Err(status) => {
                    return self.refuse_unread(device, format!("cannot be read: {status}"));
                }
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
            Claim::PhysicalVolume => match self.groups.add(device, depth).await {
                Ok(()) => self.devices.set_role(&device.name, Role::PhysicalVolume),
                Err(why) => return self.refuse_contents(device, contents, why),
            },
            Claim::Refused(why) => return self.refuse_contents(device, contents, why),
            Claim::Member(sb) => {
                self.devices.set_role(&device.name, Role::Former);
                if contents.foreign.iter().any(|found| found.name == "LVM2_member") {
                    self.groups.look_inside(device, sb.set_uuid).await;
                }
                if let Some(volume) = self.arrays.of(sb.set_uuid) {
                    let array = volume.name.device();
                    self.note(
                        &device.name,
                        format!("is a member of {array}, which runs without it"),
                    );
                    return None;
                }
                let members = self.members.entry(sb.set_uuid).or_default();
                members.depth = members.depth.max(depth);
                let is_unsure = contents.hidden_owner(self.options.whole).is_some();
                if is_unsure && !self.options.md.read_only {
                    members.unsure.insert(device.path.clone());
                }
                let (gateway, path) = (device.gateway().clone(), device.path.clone());
                members.candidates.push(Candidate { gateway, path, sb });
            }
            Claim::Table(table) => {
                self.devices.set_role(&device.name, Role::Partitioned);
                let scheme = table.scheme.name();
                self.add_partitions(device, table, depth);
                return Some(scheme);
            }
        }
        None
    }

    /// Adds a member of a pool to that pool, if pools are imported.
    fn join_pool(&mut self, device: &Device, contents: &Contents, depth: usize) {
        if self.options.whole || self.options.pools.is_none() {
            return;
        }
        let Some(labels) = &contents.zfs else { return };
        let member = match labels.label() {
            Some(Label { member: Some(member), .. }) => member,
            Some(Label { member: None, state, .. }) => {
                return self.note(&device.name, format!("is a {state} of a ZFS pool"));
            }
            None if labels.is_any() => {
                return self.note(&device.name, "has labels of ZFS, all of them damaged");
            }
            None => return,
        };
        if member.txg == 0 {
            let pool = &member.pool_name;
            let why = format!("was removed from the ZFS pool {pool}, or never completely added");
            return self.note(&device.name, why);
        }
        let is_confined = self.options.pools.as_ref().is_some_and(|pools| pools.launcher.is_some());
        match self.pool_members.add(device, depth, labels, &self.devices, is_confined) {
            Ok(()) => self.devices.set_role(&device.name, Role::PoolMember),
            Err(why) => self.note(&device.name, why),
        }
    }

    fn add_partitions(&mut self, device: &Device, table: Table, depth: usize) {
        for entry in table.entries {
            let (start, len) = (entry.start, entry.len);
            let name = self.devices.add_partition(device, entry, |name| {
                let lower = device.gateway().clone();
                Gateway::new(Arc::new(Partition::new(name, lower, start, len)))
            });
            self.add(name, depth + 1);
        }
    }

    /// Names the arrays that have members, in the order of [`Self::uuids`]: the name of an array
    /// does not depend on which arrays start, or when.
    fn name_arrays(&mut self) {
        self.keep_names_from_arrays();
        for uuid in self.uuids() {
            let Some(first) = self.members.get(&uuid).and_then(|m| m.candidates.first()) else {
                continue;
            };
            if !self.names.has(uuid) {
                let renamed = self.options.rename.take();
                let wanted = renamed.unwrap_or_else(|| wanted_name(&first.sb));
                self.names.of(uuid, &wanted);
            }
        }
    }

    /// Starts all arrays whose members are all present. Returns whether there was one.
    async fn start_complete(&mut self) -> bool {
        self.name_arrays();
        let options = ashlar_md::Options { run: false, ..self.options.md };
        let mut found = false;
        for uuid in self.uuids() {
            // The error is asked for again when no more members can arrive.
            found |= self.try_start(uuid, &options).await;
        }
        found
    }

    /// Starts one array that lacks members but may start. Returns whether there was one; if not,
    /// the remaining arrays become failures.
    async fn start_incomplete(&mut self) -> bool {
        let options = self.options.md;
        let (mut able, mut failed) = (Vec::new(), Vec::new());
        for uuid in self.uuids() {
            let Some(members) = self.members.get(&uuid) else { continue };
            match plan_with_backups(members.usable(), &self.backups, &options).await {
                Ok(_) => able.push(uuid),
                Err(error) => failed.push((uuid, error)),
            }
        }
        let mut order = Vec::new();
        for uuid in &able {
            order.push((able.len() > 1 && !self.holds_a_member(*uuid).await, *uuid));
        }
        // Among equals, take the array whose members are nearest to the disks.
        if let Some((_, uuid)) = order.into_iter().min_by_key(|(last, _)| *last) {
            return self.try_start(uuid, &options).await;
        }
        for (uuid, error) in failed {
            let candidates = self.take_members(uuid);
            if !candidates.is_empty() {
                let failure = self.failure(uuid, error, candidates);
                self.failures.push(failure);
            }
        }
        false
    }

    /// Whether an array that may start is itself a member of an array that waits for it. To find
    /// out, the array is started read-only, for this one probe.
    async fn holds_a_member(&mut self, uuid: Uuid) -> bool {
        let Some(members) = self.members.get(&uuid) else { return false };
        let name = name_of(&mut self.names, uuid, &members.candidates);
        let options = ashlar_md::Options { run: true, read_only: true, force: true };
        let plan = plan_with_backups(members.usable(), &self.backups, &options).await;
        let Ok(plan) = plan else { return false };
        let array = Array::start(plan, &name.device(), Arc::clone(&self.runtime));
        let found = ashlar_md::probe(&Gateway::new(Arc::clone(&array) as _)).await;
        // Nothing was written, so nothing can fail.
        let (Ok(()) | Err(_)) = array.stop().await;
        matches!(found, Ok(Some(sb)) if self.members.contains_key(&sb.set_uuid))
    }

    /// The arrays that have members here, those nearest to the disks first.
    fn uuids(&self) -> Vec<Uuid> {
        let mut all: Vec<_> = self.members.iter().map(|(uuid, m)| (m.depth, *uuid)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, uuid)| uuid).collect()
    }

    /// Starts an array if that is possible. Returns whether it is done with: it runs, or is a failure, whatever else arrives.
    async fn try_start(&mut self, uuid: Uuid, options: &ashlar_md::Options) -> bool {
        let Some(members) = self.members.get(&uuid) else { return false };
        let name = name_of(&mut self.names, uuid, &members.candidates);
        let (candidates, depth) = (members.usable(), members.depth);
        let paths = candidates.iter().map(|member| member.path.clone()).collect::<Vec<_>>();
        let plan = match self.plan(candidates.clone(), options).await {
            Ok(plan) => plan,
            Err(error @ AssembleError::UsedElsewhere(_)) => {
                let candidates = self.take_members(uuid);
                let failure = self.failure(uuid, error, candidates);
                self.failures.push(failure);
                return true;
            }
            Err(_) => return false,
        };
        self.take_members(uuid);
        let device = name.device();
        self.start(uuid, plan, name, &paths).await;
        self.add(device, depth + 1);
        true
    }

    /// The plan of an array that is to start.
    pub(crate) async fn plan(
        &self,
        candidates: Vec<Candidate>,
        options: &ashlar_md::Options,
    ) -> Result<ashlar_md::Plan, AssembleError> {
        let plan = plan_with_backups(candidates.clone(), &self.backups, options).await?;
        if !options.read_only {
            ashlar_md::wait_for_others(&candidates, &self.runtime).await?;
        }
        Ok(plan)
    }

    /// Reserves the names of disks with an array's name. Not of volumes: their user must decide.
    fn keep_names_from_arrays(&mut self) {
        self.devices.read(|table| {
            for device in table {
                if device.kind.is_disk() && device.role != Role::Volume {
                    self.names.reserve(&device.name);
                }
            }
        });
    }

    /// Starts the array of `plan`; `members` are the paths of its members.
    pub(crate) async fn start(
        &mut self,
        uuid: Uuid,
        plan: ashlar_md::Plan,
        name: ArrayName,
        members: &[String],
    ) -> Volume {
        self.groups.array_runs(uuid);
        let array = Array::start(plan, &name.device(), Arc::clone(&self.runtime));
        let bytes = Arc::new(ByteVolume::new(Gateway::new(Arc::clone(&array) as _)));
        bytes.gateway().disk().set_number(DeviceNumber::md(name.number));
        self.devices.add_array(&name, &bytes, members);
        let view = ArrayView::new(array, Arc::clone(&self.devices)).await;
        let volume = Volume { name, view, bytes };
        self.arrays.start(uuid, volume.clone());
        volume
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

    fn failure(&mut self, uuid: Uuid, error: AssembleError, candidates: Vec<Candidate>) -> Failure {
        let set_name = candidates.first().map_or_else(String::new, |c| c.sb.name.clone());
        let devices = self.devices.all();
        let is_nested = candidates.iter().any(|candidate| {
            let device = devices.iter().find(|device| device.path == candidate.path);
            device.is_some_and(|device| !self.devices.is_users(&device.name))
        });
        let name = name_of(&mut self.names, uuid, &candidates);
        Failure { name, set_name, uuid, error, candidates, is_nested }
    }
}

/// [`Builder::depth`] in a table in which each device is after the devices it is made of.
fn depth_in(table: &[Device], name: &str) -> Option<usize> {
    let at = table.iter().rposition(|device| device.name == name)?;
    let deepest = table[at].below.iter().filter_map(|name| depth_in(&table[..at], name)).max();
    Some(deepest.map_or(0, |depth| depth + 1))
}

/// The name of the array of these members.
fn name_of(names: &mut Names, uuid: Uuid, members: &[Candidate]) -> ArrayName {
    names.of(uuid, &members.first().map_or_else(String::new, |member| wanted_name(&member.sb)))
}
