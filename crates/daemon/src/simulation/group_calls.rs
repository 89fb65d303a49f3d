//! The clients that change volume groups and use their volumes, and what must hold for these.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use ashlar_block::{Gateway, Sector, Sectors};
use ashlar_client::interface::{Activate, JobAction, JobControl, Lvm, LvmMembers};
use ashlar_dm::snapshot::{Status, StatusLine};
use ashlar_lvm::command::{
    Amount, Command, Create, Direction, Membership, Move, NewGroup, NewSize, PhysicalPart, Resize,
    Sign,
};
use ashlar_sim::{Mix, Oracle, Rng, Violation, Workload};
use ashlar_stack::assemble::Refused;
use ashlar_stack::devices::{Device, Kind};
use ashlar_stack::volume_groups::MovingState;
use serde_json::{Value, json};

use super::daemon::Daemon;
use super::disks::{LARGE, SimulatedDisk};
use super::groups::{Asked, Copying, EXTENT, LAYOUT, MadeVolume, Merge, Validity};
use super::record::Effect;
use super::world::{PARTS, USE, WRITES, World};
use crate::service::Service;

/// The names that clients give.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const SNAPSHOTS: [&str; 3] = ["s", "t", "u"];
/// The group that clients make of one disk.
const OTHER: &str = "other";
/// The most volumes, so that a run stays short.
const MOST: usize = 6;
/// Parts of refusals after which a daemon no longer changes the group.
const FROZEN: [&str; 4] = [
    "cannot be changed until it is served again",
    "whether the volume group is as it was",
    "stays suspended",
    "does not end",
];

impl World {
    /// A client asks for something that concerns groups.
    pub(super) async fn change_groups(&self, daemon: &Daemon, disk: &SimulatedDisk, rng: &mut Rng) {
        let volumes = self.group.volumes.borrow().clone();
        let Some(volume) = volumes.get(rng.index(volumes.len().max(1))) else {
            return self.create(daemon, rng).await;
        };
        let name = volume.name.borrow().clone();
        // Mostly one that the group has.
        let mut listed: Vec<_> = self.disks.iter().filter(|disk| self.is_listed(disk)).collect();
        if listed.is_empty() || rng.chance(1, 4) {
            listed = self.disks.iter().collect();
        }
        let physical = listed[rng.index(listed.len())];
        match rng.below(24) {
            0 | 1 if volumes.len() < MOST => self.create(daemon, rng).await,
            2..6 if volumes.len() < MOST => self.snapshot(daemon, volume, rng).await,
            6 if volumes.len() > 1 => {
                let asked = Asked::Remove(name.clone());
                self.lvm(daemon, Command::Remove { volumes: vec![name] }, asked).await;
            }
            0..9 => self.merge(daemon, rng).await,
            9 | 10 => self.resize(daemon, volume, rng).await,
            11 => {
                let names = if volume.origin.is_some() { &SNAPSHOTS[..] } else { &NAMES };
                let to = names[rng.index(names.len())].to_owned();
                let asked = Asked::Rename(name.clone());
                self.lvm(daemon, Command::Rename { from: name, to }, asked).await;
            }
            12 | 13 => {
                let from = PhysicalPart { path: physical.path.clone(), ranges: Vec::new() };
                let volume = Some(name).filter(|_| rng.chance(2, 3));
                let start = Move { from, volume, to: Vec::new(), policy: None };
                self.lvm(daemon, Command::Move(start), Asked::Other).await;
            }
            14 => self.control_copying(daemon, &name, rng).await,
            15 | 16 => {
                let one = Some(name.as_str()).filter(|_| rng.chance(3, 4));
                self.activate(daemon, one, rng.chance(1, 2)).await;
            }
            17 | 20 => {
                let free = self.free_physical(rng).filter(|_| rng.chance(3, 4));
                let any = if rng.chance(1, 2) { physical } else { disk };
                let member = free.unwrap_or(any);
                let physical = vec![member.path.clone()];
                self.members(daemon, "vg", Membership::Reduce { physical }, member).await;
            }
            18 => self.change_other(daemon, disk, rng).await,
            21 => self.merge(daemon, rng).await,
            22 => {
                // All extents of a disk, which can leave then.
                let from = PhysicalPart { path: physical.path.clone(), ranges: Vec::new() };
                let start = Move { from, volume: None, to: Vec::new(), policy: None };
                self.lvm(daemon, Command::Move(start), Asked::Other).await;
            }
            _ => {
                let disk = self.blank(rng).filter(|_| rng.chance(3, 4)).unwrap_or(disk);
                let (physical, layout) = (vec![disk.path.clone()], LAYOUT.into());
                self.members(daemon, "vg", Membership::Extend { physical, layout }, disk).await;
            }
        }
    }

    /// A disk that can join the group: it has room, and no other use on it.
    fn blank(&self, rng: &mut Rng) -> Option<&SimulatedDisk> {
        let has_room = |disk: &SimulatedDisk| disk.media.capacity() >= LARGE;
        let is_unused = |disk: &SimulatedDisk| disk.superblock().is_none() && !self.is_listed(disk);
        let fits = |disk: &&Rc<SimulatedDisk>| has_room(disk) && is_unused(disk);
        let all: Vec<_> = self.disks.iter().filter(fits).collect();
        all.get(rng.index(all.len().max(1))).map(|disk| &***disk)
    }

    /// A disk of the group that has no extents of volumes.
    fn free_physical(&self, rng: &mut Rng) -> Option<&SimulatedDisk> {
        let found = self.descriptions();
        let vg = &found.get(&self.group.id)?.group;
        let used: BTreeSet<usize> =
            vg.lvs.iter().flat_map(|lv| lv.pv_extents()).map(|on| on.pv).collect();
        let is_free = |disk: &&Rc<SimulatedDisk>| {
            let at = disk.physical().and_then(|physical| vg.pv_index(&physical.uuid));
            at.is_some_and(|at| !used.contains(&at))
        };
        let all: Vec<_> = self.disks.iter().filter(is_free).collect();
        all.get(rng.index(all.len().max(1))).map(|disk| &***disk)
    }

    /// Calls, and compares what the answer says with the disks. Returns the answer, if the change was made.
    async fn group_call(
        &self,
        daemon: &Daemon,
        (method, parameters): (&str, Value),
        asked: Asked,
    ) -> Option<String> {
        let is_change = method == "Lvm";
        let before = self.seqno();
        let is_late = daemon.service.ending.draining().is_stopped();
        let asked = Rc::new(asked);
        self.group.pending.borrow_mut().push(Rc::clone(&asked));
        self.trace(format_args!("> {method} {parameters}"));
        self.look_at_snapshots(&daemon.service, false);
        let reply = daemon.call(method, &parameters).await;
        self.trace(format_args!("< {method} {parameters}: {:?} {}", reply.error, reply.parameters));
        self.check_sync(daemon);
        let text = reply.parameters.to_string();
        if reply.error.is_some() {
            let is_frozen = FROZEN.iter().any(|part| text.contains(part));
            if is_frozen && !self.group.is_frozen.replace(true) {
                assert!(self.had_trouble.get(), "{method} {parameters}: {text}");
            }
            let is_unsure = text.contains("restart the daemon") || is_frozen;
            if is_unsure || text.contains("still marked") {
                self.group.lose_track(&asked);
                return None;
            }
        }
        self.group.pending.borrow_mut().retain(|other| !Rc::ptr_eq(other, &asked));
        if reply.error.is_some() {
            self.look_at_snapshots(&daemon.service, false);
            return None;
        }
        assert!(!is_late, "{method} {parameters} was late, and was done");
        if !self.group.is_frozen.get() {
            let now = self.seqno();
            assert!(!is_change || now > before, "{method} {parameters}: nothing was written");
            self.follow_groups(&[asked]);
        }
        Some(text)
    }

    async fn lvm(&self, daemon: &Daemon, command: Command, asked: Asked) -> Option<String> {
        let (group, line) = ("vg".to_owned(), "sim".to_owned());
        let at = Lvm { group, command, confirmed: Some(true), archive: None, line };
        self.group_call(daemon, ("Lvm", json!(at)), asked).await
    }

    /// Changes which disks a group has.
    async fn members(
        &self,
        daemon: &Daemon,
        group: &str,
        command: Membership,
        disk: &SimulatedDisk,
    ) {
        let asked = match command {
            Membership::Create(_) => Asked::NewGroup,
            Membership::Remove { .. } => Asked::RemoveGroup,
            Membership::Extend { .. } | Membership::Reduce { .. } | Membership::Resize { .. } => {
                Asked::Other
            }
        };
        let (group, line, directory) = (group.to_owned(), "sim".to_owned(), PathBuf::from("/"));
        let at =
            LvmMembers { group, command, directory, confirmed: Some(true), archive: None, line };
        let begun = self.record.borrow_mut().begin(&disk.path, Effect::None);
        let before = disk.superblock().is_some_and(|sb| self.array(sb.set_uuid).is_some());
        let done = self.group_call(daemon, ("LvmMembers", json!(at)), asked).await;
        let was_alone =
            self.record.borrow_mut().end(&disk.path, Effect::None, done.is_some(), begun);
        let is_overwritten = before && disk.superblock().is_none();
        assert!(!was_alone || !is_overwritten, "{} was a member of an array", disk.path);
        self.check_owners(daemon);
    }

    async fn change_other(&self, daemon: &Daemon, disk: &SimulatedDisk, rng: &mut Rng) {
        let is_there = self.descriptions().values().any(|text| text.group.name == OTHER);
        let command = match is_there && rng.chance(3, 4) {
            true => Membership::Remove { force: true },
            false => Membership::Create(NewGroup {
                extent_sectors: EXTENT,
                max_lv: 0,
                max_pv: 0,
                tags: vec!["sim".to_owned()],
                physical: vec![disk.path.clone()],
                layout: LAYOUT.into(),
            }),
        };
        self.members(daemon, OTHER, command, disk).await;
    }

    fn new_volume(name: &str, extents: u32, stripes: u32) -> Create {
        Create {
            name: Some(name.to_owned()),
            origin: None,
            amount: Amount::Extents(extents),
            chunk_sectors: 8,
            stripes,
            stripe_sectors: Some(8).filter(|_| stripes > 1),
            policy: None,
            writable: true,
            tags: Vec::new(),
            zero: true,
            physical: Vec::new(),
        }
    }

    async fn create(&self, daemon: &Daemon, rng: &mut Rng) {
        let name = NAMES[rng.index(NAMES.len())];
        let stripes = 1 + rng.below(2) as u32;
        let new = Self::new_volume(name, stripes * (1 + rng.below(3) as u32), stripes);
        let asked = Asked::Create { name: name.to_owned() };
        if self.lvm(daemon, Command::Create(new), asked).await.is_some() {
            let is_there = self.group.called(name).is_some();
            assert!(is_there || self.group.is_frozen.get(), "{name} was made, and is not there");
        }
    }

    async fn snapshot(&self, daemon: &Daemon, origin: &Rc<MadeVolume>, rng: &mut Rng) {
        let name = SNAPSHOTS[rng.index(SNAPSHOTS.len())];
        let new = Self::new_volume(name, 1 + rng.below(4) as u32, 1);
        let new = Create { origin: Some(origin.name.borrow().clone()), ..new };
        let asked = Asked::Snapshot { name: name.to_owned(), of: Copying::of(origin) };
        if self.lvm(daemon, Command::Create(new), asked).await.is_some() {
            let is_there = self.group.called(name).is_some();
            assert!(is_there || self.group.is_frozen.get(), "{name} was made, and is not there");
        }
    }

    async fn merge(&self, daemon: &Daemon, rng: &mut Rng) {
        let volumes = self.group.volumes.borrow().clone();
        let mut all = volumes.clone();
        all.retain(|made| made.origin.is_some());
        let Some(volume) = all.get(rng.index(all.len().max(1))) else {
            return self.ask(daemon, "Groups", json!({})).await;
        };
        let snapshot = volume.name.borrow().clone();
        let (asked, name) = (Asked::Merge(snapshot.clone()), snapshot.clone());
        // Sometimes it has one of the two open meanwhile: then the merge is put off.
        let origin = volumes.iter().find(|made| Some(made.id) == volume.origin);
        let used = if rng.chance(1, 2) { origin.unwrap_or(volume) } else { volume };
        let device = Self::device_of(daemon, used).filter(|_| rng.chance(1, 2));
        let open = device.and_then(|device| device.bytes.open());
        let done = self.lvm(daemon, Command::Merge { snapshot }, asked).await;
        // Another volume may have that name by now.
        if let (Some(done), Some(volume)) = (done, self.group.called(&name))
            && volume.merge.get() == Merge::No
        {
            let is_later = done.contains("will occur on next activation");
            match is_later && !done.contains("Conversion starts after activation") {
                true => volume.merge.set(Merge::PutOff),
                false => self.group.begin_merge(&volume),
            }
        }
        drop(open);
    }

    async fn resize(&self, daemon: &Daemon, volume: &MadeVolume, rng: &mut Rng) {
        let grows = rng.chance(2, 3);
        let (sign, direction) = match grows {
            true => (Sign::Plus, Direction::Extend),
            false => (Sign::Minus, Direction::Reduce),
        };
        let amount = Amount::Extents(1 + rng.below(2) as u32);
        let (size, force, physical) = (NewSize { sign, amount }, true, Vec::new());
        let volume_name = volume.name.borrow().clone();
        let asked = Asked::Resize(volume_name.clone());
        let resize = Resize { volume: volume_name, size, direction, force, physical };
        self.lvm(daemon, Command::Resize(resize), asked).await;
    }

    /// Pauses, resumes or aborts a copy.
    async fn control_copying(&self, daemon: &Daemon, volume: &str, rng: &mut Rng) {
        if rng.chance(1, 4) {
            self.lvm(daemon, Command::AbortMove { from: None }, Asked::Other).await;
            return;
        }
        let name = if rng.chance(1, 2) { "vg/pvmove0".to_owned() } else { format!("vg/{volume}") };
        let action = match rng.below(3) {
            0 => JobAction::Pause,
            1 => JobAction::Resume,
            _ => JobAction::Cancel,
        };
        self.ask(daemon, "ControlJob", json!(JobControl { name, action })).await;
    }

    async fn activate(&self, daemon: &Daemon, volume: Option<&str>, active: bool) {
        let volumes = volume.iter().map(|&name| name.to_owned()).collect();
        let at = Activate { group: "vg".to_owned(), volumes, active };
        let done = self.group_call(daemon, ("Activate", json!(at)), Asked::Other).await;
        if done.is_some() && !active {
            self.group.begin_put_off(volume);
        }
    }

    /// The devices of the group's volumes that clients find.
    fn logical(daemon: &Daemon) -> Vec<Device> {
        let mut all = daemon.service.stack.devices.volumes();
        all.retain(|device| device.kind.is_logical());
        all
    }

    /// The device of a volume, if clients find it.
    fn device_of(daemon: &Daemon, volume: &MadeVolume) -> Option<Device> {
        let name = format!("vg/{}", volume.name.borrow());
        Self::logical(daemon).into_iter().find(|device| device.export_name() == name)
    }

    /// A client of a volume writes and reads in its part.
    pub(super) async fn use_volume(&self, daemon: &Daemon, part: u64, rng: &mut Rng) {
        let volumes = self.group.volumes.borrow().clone();
        let Some(volume) = volumes.get(rng.index(volumes.len().max(1))) else { return };
        let Some(device) = Self::device_of(daemon, volume) else { return };
        let Some(open) = device.bytes.open() else { return };
        self.work_on(daemon, volume, (open.gateway(), part, USE), rng).await;
    }

    async fn work_on(
        &self,
        daemon: &Daemon,
        volume: &MadeVolume,
        (gateway, part, mix): (&Gateway, u64, Mix),
        rng: &mut Rng,
    ) {
        let name = volume.name.borrow().clone();
        let size = volume.size.get().min(gateway.capacity().0);
        let workload = Workload {
            tasks: 1,
            ios: 6,
            max_len: 16,
            mix: Mix { discard: mix.flush / 2, ..mix },
            tolerate_errors: true,
            ..Workload::over(size * part / PARTS..size * (part + 1) / PARTS)
        };
        self.trace(format_args!("I/O on {name}"));
        let oracle = volume.oracle.borrow().clone();
        let done = workload.run(gateway, &oracle, rng).await;
        self.trace(format_args!("I/O on {name} has ended: {done:?}"));
        if let Err(violation) = done {
            self.judge(daemon, volume, &violation);
        }
    }

    /// A read of a volume returned what it must not, except of a snapshot that is back after its disk did not take that it is invalid.
    fn judge(&self, daemon: &Daemon, volume: &MadeVolume, violation: &Violation) {
        self.look_at_snapshots(&daemon.service, false);
        let is_back = volume.validity.get() == Validity::Back && !volume.is_recorded.get();
        let is_excused = !volume.is_known.get() || is_back;
        assert!(is_excused, "{}: {violation}", volume.name.borrow());
    }

    /// The status of a snapshot, or of its merge, by the name of the volume.
    fn snapshots(service: &Service) -> Vec<(String, StatusLine)> {
        let status = |device: Device| {
            let Kind::Logical(mapped) = &device.kind else { return None };
            let name = device.export_name().strip_prefix("vg/")?.to_owned();
            Some((name, mapped.status().parse().ok()?))
        };
        service.stack.devices.all().into_iter().filter_map(status).collect()
    }

    /// Notes which snapshots are invalid, and which are so no more; at the end of a life also of those that are being merged.
    pub(super) fn look_at_snapshots(&self, service: &Service, is_end: bool) {
        let all = Self::snapshots(service);
        for (name, line) in all.iter().filter(|(_, line)| !line.is_merge) {
            let Some(volume) = self.group.called(name) else { continue };
            let is_invalid = line.status == Status::Invalid;
            // Once a merge has begun, the snapshot's own device says that, too, until it ends.
            let is_it = |asked: &Rc<Asked>| matches!(&**asked, Asked::Merge(it) if it == name);
            if !is_end && is_invalid && self.group.pending.borrow().iter().any(is_it) {
                continue;
            }
            match volume.validity.get() {
                Validity::Valid if is_invalid => volume.validity.set(Validity::Invalid),
                Validity::Invalid if !is_invalid => volume.validity.set(Validity::Back),
                Validity::Valid | Validity::Invalid | Validity::Back => {}
            }
            if is_invalid && self.group.had_trouble.get() {
                volume.is_recorded.set(false);
            }
        }
    }

    /// After a start the group is as it was answered, and its volumes have their data.
    pub(super) async fn check_groups_started(&self, daemon: &Daemon) {
        let asked = self.group.pending.take();
        self.follow_groups(&asked);
        self.group.begin_put_off(None);
        let found = self.descriptions();
        let merging = found[&self.group.id].group.snapshots();
        for found in merging.filter(|found| found.snapshot.merging) {
            let made = self.group.called(&found.snapshot.cow);
            if let Some(made) = made.filter(|made| made.merge.get() == Merge::No) {
                self.group.begin_merge(&made);
            }
        }
        // A merge that was put off begins with the start, and may have filled other snapshots of its origin.
        self.look_at_snapshots(&daemon.service, false);
        for refused in daemon.service.stack.refusals(Refused::Volume) {
            let is_invalid = self.is_or_was_invalid(&refused.name);
            assert!(is_invalid, "{} is refused: {}", refused.name, refused.why);
        }
        self.check_volumes(daemon).await;
    }

    /// Whether this volume, with its group's name, is a snapshot that was seen to be invalid, or that says so on its disk: it may have
    /// become invalid while its group ceased to be active.
    fn is_or_was_invalid(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix("vg/") else { return false };
        let Some(snapshot) = self.group.called(name).filter(|made| made.origin.is_some()) else {
            return false;
        };
        let was_seen = snapshot.validity.get() != Validity::Valid;
        was_seen || self.says_invalid(name).unwrap_or(true)
    }

    /// Whether the header of a snapshot's store says that the snapshot is invalid; `None` for one whose extents are moved.
    fn says_invalid(&self, name: &str) -> Option<bool> {
        const VALID: Range<usize> = 4..8;
        let found = self.descriptions();
        let vg = &found.get(&self.group.id)?.group;
        let on = vg.lv(name)?.pv_extents().next()?;
        let uuid = vg.pvs[on.pv].id;
        let is_it = |disk: &&Rc<SimulatedDisk>| disk.physical().is_some_and(|it| it.uuid == uuid);
        let header = self.disks.iter().find(is_it)?.media.peek(vg.extent_start(on)?);
        Some(header[VALID] == [0; 4])
    }

    /// Clients find the volumes of the description, which have their data.
    async fn check_volumes(&self, daemon: &Daemon) {
        let found = self.descriptions();
        let vg = &found[&self.group.id].group;
        let visible = vg.lvs.iter().zip(vg.visible()).filter(|(_, is_visible)| *is_visible);
        let visible: BTreeSet<String> = visible.map(|(lv, _)| format!("vg/{}", lv.name)).collect();
        let served = Self::logical(daemon);
        let served: BTreeSet<String> =
            served.iter().map(|device| device.export_name().to_owned()).collect();
        // A snapshot that is invalid is not made again.
        let lacking: Vec<&String> =
            visible.difference(&served).filter(|name| !self.is_or_was_invalid(name)).collect();
        let fits = served.is_subset(&visible) && lacking.is_empty();
        assert!(fits, "clients find {served:?}, not {visible:?}");
        let snapshots = Self::snapshots(&daemon.service);
        let volumes = self.group.volumes.borrow().clone();
        for volume in &volumes {
            let Some(device) = Self::device_of(daemon, volume) else { continue };
            let name = volume.name.borrow().clone();
            let size = device.gateway().capacity().0;
            assert_eq!(size, volume.size.get(), "the size of {name}");
            let oracle = volume.oracle.borrow().clone();
            let is_invalid = |(of, line): &(String, StatusLine)| {
                *of == name && !line.is_merge && line.status == Status::Invalid
            };
            let may_fail = snapshots.iter().any(is_invalid);
            let done = verify(&name, device.gateway(), size, &oracle, may_fail).await;
            if let Err(violation) = done {
                self.judge(daemon, volume, &violation);
            }
        }
    }

    /// Activates everything and resumes all copies.
    pub(super) async fn reactivate(&self, daemon: &Daemon) {
        for name in ["vg/pvmove0", "vg/a", "vg/b", "vg/c", "vg/d"] {
            let at = JobControl { name: name.to_owned(), action: JobAction::Resume };
            self.ask(daemon, "ControlJob", json!(at)).await;
        }
        // Merges that were put off begin.
        self.activate(daemon, None, false).await;
        self.activate(daemon, None, true).await;
        let mut rng = self.draw(Rng::fork);
        let volumes = self.group.volumes.borrow().clone();
        for volume in &volumes {
            if let Some(device) = Self::device_of(daemon, volume) {
                self.work_on(daemon, volume, (device.gateway(), 0, WRITES), &mut rng).await;
            }
        }
    }

    /// Whether no merge and no move is running; merges of invalid snapshots have no end.
    pub(super) async fn is_group_calm(&self, daemon: &Daemon) -> bool {
        let look = daemon.service.turns.look().await;
        let merges = look.merging().iter().any(|it| it.left.is_some_and(|left| !left.is_zero()));
        let ends = look.merging().iter().any(|merging| merging.has_ended());
        let moving = look.moving();
        drop(look);
        // A merge that failed is resumed by the next activation.
        let has_failed = |(_, line): &(String, StatusLine)| line.status == Status::MergeFailed;
        if Self::snapshots(&daemon.service).iter().any(has_failed) {
            self.activate(daemon, None, false).await;
            self.activate(daemon, None, true).await;
            return false;
        }
        let goes_on = |state| matches!(state, MovingState::Copying | MovingState::Copied);
        let mut has_failed = false;
        for it in &moving {
            has_failed |= !goes_on(it.state) || it.has_failed().await;
        }
        if has_failed && !self.group.is_frozen.get() {
            self.lvm(daemon, Command::AbortMove { from: None }, Asked::Other).await;
            return false;
        }
        self.group.is_frozen.get() || !merges && !ends && moving.is_empty()
    }

    /// All physical volumes of the group have the same description after one more change, and the daemon has it too.
    pub(super) async fn check_group_at_rest(&self, daemon: &Daemon) {
        let (name, new) = ("last".to_owned(), Self::new_volume("last", 1, 1));
        // A disk that was away tells each of its users once that its cache is lost.
        for _ in 0..2 {
            let (new, asked) = (new.clone(), Asked::Create { name: name.clone() });
            let done = self.lvm(daemon, Command::Create(new), asked).await;
            if done.is_some() || !self.had_trouble.get() {
                break;
            }
        }
        if self.group.is_frozen.get() {
            return;
        }
        let asked = Asked::Remove(name.clone());
        let done = self.lvm(daemon, Command::Remove { volumes: vec![name] }, asked).await;
        assert!(done.is_some(), "the last volume is not removed");
        let found = self.descriptions();
        let newest = &found[&self.group.id];
        for disk in &self.disks {
            let Some(physical) = disk.physical() else { continue };
            if newest.group.pv_index(&physical.uuid).is_none() {
                continue;
            }
            assert!(physical.is_used, "the label of {} says that no group has it", disk.path);
            let text = physical.text.and_then(|text| ashlar_lvm::Metadata::parse(&text).ok());
            let seqno = text.map(|text| text.group.seqno);
            assert_eq!(seqno, Some(newest.group.seqno), "the description on {}", disk.path);
        }
        let (_, groups) = daemon.service.turns.look().await.groups();
        let served = groups.iter().filter_map(|group| group.metadata().ok());
        let served = served.map(|text| text.group).find(|group| group.id == self.group.id);
        assert!(served.as_ref() == Some(&newest.group), "{served:?} is not {:?}", newest.group);
        self.check_volumes(daemon).await;
    }
}

/// Reads a whole volume; its reads may fail if `may_fail`.
async fn verify(
    name: &str,
    gateway: &Gateway,
    size: u64,
    oracle: &Oracle,
    may_fail: bool,
) -> Result<(), Violation> {
    let mut at = 0;
    while at < size {
        let range = at..size.min(at + 256);
        at = range.end;
        let ticket = oracle.begin_read(range.clone());
        let len = Sectors(range.end - range.start);
        match gateway.read(Sector(range.start), len).await {
            Ok(data) => oracle.check_read(ticket, data.as_slice())?,
            Err(status) => {
                assert!(may_fail, "{name} cannot be read: {status}");
                oracle.end(ticket, Err(status));
            }
        }
    }
    Ok(())
}
