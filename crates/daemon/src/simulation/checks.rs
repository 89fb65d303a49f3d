//! What must hold: at any time, after a start, and once everything has come to rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Arguments, Write};

use ashlar_block::{Runtime, Sector, Sectors};
use ashlar_md::ondisk;
use ashlar_md::{ArrayState, MemberStatus, SyncAction};
use ashlar_sim::{SimRuntime, Workload};
use ashlar_stack::arrays::Volume;
use ashlar_stack::devices::{Device, Role};
use ashlar_stack::volume_groups::PHYSICAL;
use uuid::Uuid;

use super::daemon::Daemon;
use super::record::Effect;
use super::world::World;

/// The members of a volume that have not been removed.
fn members(volume: &Volume) -> Vec<MemberStatus> {
    volume.view.status().members.into_iter().filter(|member| member.path.is_some()).collect()
}

fn path(member: &MemberStatus) -> &str {
    member.path.as_deref().unwrap_or_default()
}

impl World {
    /// Prints what happens, in a run of one seed.
    pub(super) fn trace(&self, what: Arguments<'_>) {
        if self.is_traced {
            let now_ns = SimRuntime.now_ns();
            eprintln!("{:>12.3} ms {what}", now_ns as f64 / 1e6);
        }
    }

    /// Prints the arrays and their members, in a run of one seed.
    pub(super) fn trace_state(&self, when: &str, daemon: &Daemon) {
        if self.is_traced {
            self.trace(format_args!("  {when}{}", self.state(daemon)));
        }
    }

    /// The arrays and their members, for messages.
    pub(super) fn state(&self, daemon: &Daemon) -> String {
        let mut text = String::new();
        let arrays = &daemon.service.stack.arrays;
        for volume in arrays.running() {
            let (name, status) = (volume.name.device(), volume.view.status());
            let action = volume.view.sync_status().action;
            let unsynced = if status.unsynced { " unsynced" } else { "" };
            write!(text, "{name} {} {action:?}{unsynced}:", status.state.name()).expect("a text");
            for member in members(&volume) {
                let MemberStatus { slot, in_sync, faulty, lost, dev_number, .. } = member;
                let path = path(&member);
                let words = [(in_sync, " in sync"), (faulty, " faulty"), (lost, " lost")];
                let words: String =
                    words.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
                write!(text, " [{dev_number}] {path} slot {slot:?}{words},").expect("a text");
            }
            text.push_str("; ");
        }
        for array in arrays.waiting() {
            let members: Vec<&str> = array.members.iter().map(|m| m.path.as_str()).collect();
            write!(text, "{} waits with {members:?}; ", array.name.device()).expect("a text");
        }
        text
    }

    /// Each disk has one owner, and what was removed is not back.
    pub(super) fn check_owners(&self, daemon: &Daemon) {
        let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let arrays = &daemon.service.stack.arrays;
        for volume in arrays.running() {
            for member in members(&volume) {
                let owner = volume.name.device();
                owners.entry(path(&member).to_owned()).or_default().push(owner);
            }
        }
        for array in arrays.waiting() {
            for member in &array.members {
                owners.entry(member.path.clone()).or_default().push(array.name.device());
            }
        }
        for device in daemon.service.stack.devices.all() {
            if device.kind.is_disk() && device.role == PHYSICAL {
                owners.entry(device.path).or_default().push("LVM".to_owned());
            }
        }
        let record = self.record.borrow();
        for (path, owners) in &owners {
            let one = owners.len() == 1;
            assert!(one, "{path} has owners {owners:?}: {}", self.state(daemon));
            let is_removed = record.gone(path) == Some(Effect::Removes);
            let is_of_md = owners != &["LVM"];
            assert!(
                !is_removed || !is_of_md,
                "{path} was removed and is back: {}",
                self.state(daemon)
            );
        }
        for member in arrays.running().iter().flat_map(members).filter(|member| !member.faulty) {
            let path = path(&member);
            let has_failed = record.gone(path) == Some(Effect::Fails);
            assert!(!has_failed, "{path} has failed and is used again: {}", self.state(daemon));
        }
    }

    /// After a start all arrays run, with all data.
    pub(super) async fn check_started(&self, daemon: &Daemon) {
        self.trace_state("started: ", daemon);
        if !daemon.service.stack.arrays.waiting().is_empty() {
            // The last member in sync did not take that the others failed: its user has to say that it may start alone.
            daemon.call("StartWaiting", serde_json::json!({})).await;
            self.trace_state("start forced: ", daemon);
        }
        for made in &self.arrays {
            let Some(volume) = daemon.service.stack.arrays.of(made.uuid) else {
                let (failures, state) = (&daemon.failures, self.state(daemon));
                panic!("{} has not started: {failures:?}: {state}", made.name);
            };
            self.check_data(daemon, &volume).await;
            self.check_copies(daemon, &volume);
        }
        self.check_owners(daemon);
    }

    /// After a crash the copies of what was not flushed may differ, until a resync: the first copy is read. A member that fails before
    /// takes what was read with it, as with Linux.
    pub(super) fn check_sync(&self, daemon: &Daemon) {
        for volume in daemon.service.stack.arrays.running() {
            self.check_sync_of(&volume);
        }
    }

    /// The same for one array, which may be about to end.
    pub(super) fn check_sync_of(&self, volume: &Volume) {
        if let Some(made) = self.array(volume.view.status().uuid) {
            let status = volume.view.status();
            let in_sync = status.members.iter().filter(|member| member.in_sync && !member.faulty);
            let in_sync: BTreeSet<String> = in_sync.map(|member| path(member).to_owned()).collect();
            let mut differing = made.differing.borrow_mut();
            if differing.as_ref().is_some_and(|before| !before.is_subset(&in_sync)) {
                self.trace(format_args!("{} lost a copy before the resync", made.name));
                made.is_known.set(false);
            }
            *differing = status.unsynced.then_some(in_sync);
        }
    }

    async fn check_data(&self, daemon: &Daemon, volume: &Volume) {
        self.check_sync(daemon);
        let uuid = volume.view.status().uuid;
        let Some(made) = self.array(uuid).filter(|made| made.is_known.get()) else { return };
        let all = Workload::over(0..made.size);
        if let Err(violation) = all.verify(volume.bytes.gateway(), &made.oracle).await {
            panic!("{}: {violation}: {}", made.name, self.state(daemon));
        }
    }

    /// An array that a client has just started may have older data than a disk that was not handed in: its user wanted that.
    pub(super) fn check_freshness(&self, daemon: &Daemon, uuid: Uuid) {
        let Some(volume) = daemon.service.stack.arrays.of(uuid) else { return };
        let events = volume.view.status().events;
        for disk in &self.disks {
            if let Some(sb) = disk.superblock()
                && sb.set_uuid == uuid
                && sb.events > events + 1
                && let Some(made) = self.array(uuid)
            {
                self.trace(format_args!("{} was started with old data", made.name));
                made.is_known.set(false);
            }
        }
    }

    /// Whether nothing is under way: no sync, no member to rebuild, every array clean.
    pub(super) fn is_calm(&self, daemon: &Daemon) -> bool {
        daemon.service.stack.arrays.running().iter().all(|volume| {
            let is_idle = volume.view.sync_status().action == SyncAction::Idle;
            let status = volume.view.status();
            let rebuilds =
                |m: &MemberStatus| m.slot.is_some() && m.path.is_some() && !m.in_sync && !m.faulty;
            let is_clean = status.state != ArrayState::Active;
            is_idle && is_clean && !status.members.iter().any(rebuilds)
        })
    }

    /// The daemon has ended: no array runs, and what was stopped cleanly says so.
    pub(super) fn check_stopped(&self, daemon: &Daemon, is_clean: bool) {
        for volume in daemon.service.stack.arrays.running() {
            let (name, state) = (volume.name.device(), volume.view.state());
            assert_eq!(state, ArrayState::Inactive, "{name} runs after the end");
            let is_clean = is_clean && !volume.view.status().unsynced;
            for member in members(&volume).iter().filter(|member| is_clean && member.in_sync) {
                let disk = self.disks.iter().find(|disk| disk.path == path(member));
                let sb = disk.expect("a disk of the machine").superblock();
                let says_clean = sb.is_some_and(|sb| sb.is_clean());
                assert!(says_clean, "{} does not say clean: {}", path(member), self.state(daemon));
            }
        }
    }

    /// Everything agrees once all has come to rest.
    pub(super) async fn check_at_rest(&self, daemon: &Daemon) {
        self.trace_state("at rest: ", daemon);
        self.check_owners(daemon);
        self.check_registry(daemon);
        for volume in daemon.service.stack.arrays.running() {
            self.check_data(daemon, &volume).await;
            self.check_superblocks(daemon, &volume);
            self.check_copies(daemon, &volume);
        }
    }

    /// The registry has each disk once, as what it is; other disks are closed.
    fn check_registry(&self, daemon: &Daemon) {
        let stack = &daemon.service.stack;
        let all = stack.devices.all();
        for disk in &self.disks {
            let entries: Vec<_> = all.iter().filter(|device| device.path == disk.path).collect();
            let state = || self.state(daemon);
            assert!(entries.len() < 2, "{} is registered twice: {}", disk.path, state());
            let is_known = !entries.is_empty();
            assert!(is_known || !disk.is_open(), "{} is open for nobody: {}", disk.path, state());
        }
        let mut owned = Vec::new();
        for volume in stack.arrays.running() {
            let uuid = volume.view.status().uuid;
            owned.extend(members(&volume).iter().map(|member| (path(member).to_owned(), uuid)));
        }
        for array in stack.arrays.waiting() {
            owned.extend(array.members.iter().map(|member| (member.path.clone(), array.uuid)));
        }
        let by_path = |path: &str| owned.iter().find(|(owned, _)| owned == path);
        for device in all.iter().filter(|device| device.kind.is_disk()) {
            let owner = by_path(&device.path).map(|(_, uuid)| Role::Member(*uuid));
            let disk = self.disks.iter().find(|disk| disk.path == device.path);
            let is_physical = disk.is_some_and(|disk| disk.physical().is_some());
            let otherwise = if is_physical { PHYSICAL } else { Role::Former };
            let role = owner.unwrap_or(otherwise);
            let Device { path, role: registered, .. } = device;
            assert_eq!(*registered, role, "{path}: {}", self.state(daemon));
        }
        for (path, _) in &owned {
            let is_known = all.iter().any(|device| device.path == *path);
            assert!(is_known, "{path} is not registered: {}", self.state(daemon));
        }
    }

    /// The superblocks on all members in sync name these members.
    pub(super) fn check_superblocks(&self, daemon: &Daemon, volume: &Volume) {
        let (name, status) = (volume.name.device(), volume.view.status());
        let in_sync: Vec<&MemberStatus> =
            status.members.iter().filter(|member| member.in_sync && !member.faulty).collect();
        for member in &in_sync {
            let disk = self.disks.iter().find(|disk| disk.path == path(member));
            let sb = disk.expect("a disk of the machine").superblock();
            let sb = sb.unwrap_or_else(|| panic!("{} has no superblock", path(member)));
            assert_eq!(sb.set_uuid, status.uuid, "{} is of another array", path(member));
            assert_eq!(sb.device_uuid, member.device_uuid, "{} is another member", path(member));
            for other in &in_sync {
                let role = sb.role_of(other.dev_number);
                assert!(
                    other.slot.is_some_and(|slot| role == ondisk::Role::Active(slot)),
                    "{name}: the superblock of {} says {role:?} of {}: {}",
                    path(member),
                    path(other),
                    self.state(daemon)
                );
            }
        }
    }

    /// Each member in sync has all data alone.
    pub(super) fn check_copies(&self, daemon: &Daemon, volume: &Volume) {
        let status = volume.view.status();
        let Some(made) = self.array(status.uuid).filter(|made| made.is_known.get()) else { return };
        if status.unsynced {
            return;
        }
        for member in status.members.iter().filter(|member| member.in_sync && !member.faulty) {
            let disk = self.disks.iter().find(|disk| disk.path == path(member));
            let media = &disk.expect("a disk of the machine").media;
            let data = media.peek_range(Sector(member.data_offset.0), Sectors(made.size));
            if let Err(violation) = made.oracle.check_contents(0..made.size, &data) {
                let (name, path) = (&made.name, path(member));
                panic!("{name}, the copy on {path}: {violation}: {}", self.state(daemon));
            }
        }
    }
}
