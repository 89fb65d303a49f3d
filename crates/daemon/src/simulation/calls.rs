//! The clients that call the daemon: mostly calls that fit the state that they see, now and then arbitrary ones. That state may
//! be old by the time their call arrives, as with any command.

use ashlar_block::Runtime;
use ashlar_client::interface::{Grow, Manage, ManageAction};
use ashlar_md::MemberStatus;
use ashlar_sim::{Rng, SimRuntime};
use serde_json::{Value, json};
use uuid::Uuid;

use super::daemon::Daemon;
use super::disks::{IN_USE, SimulatedDisk};
use super::record::Effect;
use super::world::{World, pause};

/// What a client sees of a disk.
enum Standing {
    /// No array has it.
    Free,
    /// It is a member of this array.
    Member(String, Box<MemberStatus>),
    /// It waits for the other members of this array.
    Waiting(String),
}

impl World {
    /// One client makes calls; `focus` are the disk and the array that all clients like best.
    pub(super) async fn client(
        &self,
        daemon: &Daemon,
        focus: (usize, usize),
        calls: u64,
        mut rng: Rng,
    ) {
        for _ in 0..calls {
            SimRuntime.sleep(pause(&mut rng)).await;
            let disk = if rng.chance(2, 3) { focus.0 } else { rng.index(self.disks.len()) };
            let array = if rng.chance(1, 2) { focus.1 } else { rng.index(self.arrays.len()) };
            let (disk, array) = (&self.disks[disk], &self.arrays[array].name);
            self.check_owners(daemon);
            if rng.chance(1, 3) {
                self.change_groups(daemon, disk, &mut rng).await;
                continue;
            }
            if rng.chance(1, 5) {
                self.ask_for_anything(daemon, disk, array, &mut rng).await;
                continue;
            }
            match standing(daemon, &disk.path) {
                Standing::Free => self.hand_in(daemon, disk, array, &mut rng).await,
                Standing::Member(array, member) => {
                    self.change_member(daemon, disk, (&array, &member), &mut rng).await;
                }
                Standing::Waiting(_) if rng.chance(1, 4) => self.detach(daemon, disk).await,
                Standing::Waiting(array) => self.complete(daemon, &array, &mut rng).await,
            }
            self.check_owners(daemon);
        }
    }

    /// Calls, and records what the answer means. Returns the reply, if the change was made, and whether no other call about the
    /// disk was under way.
    ///
    /// A refused call has changed nothing, and none changes anything once the daemon is about to end.
    async fn call(
        &self,
        daemon: &Daemon,
        method: &str,
        parameters: Value,
        (disk, effect): (&SimulatedDisk, Effect),
    ) -> (Option<String>, bool) {
        let (was_known, was_free) = (is_known(daemon, disk), is_free(daemon, disk));
        let is_late = daemon.service.ending.draining().is_stopped();
        let begun = self.record.borrow_mut().begin(&disk.path, effect);
        self.trace(format_args!("> {method} {parameters}"));
        let reply = daemon.call(method, &parameters).await;
        self.trace(format_args!("< {method} {parameters}: {:?} {}", reply.error, reply.parameters));
        self.check_sync(daemon);
        self.trace_state("", daemon);
        let is_done = reply.error.is_none();
        let was_alone = self.record.borrow_mut().end(&disk.path, effect, is_done, begun);
        assert!(!is_done || !is_late || effect == Effect::None, "{method} was late, and was done");
        if !is_done && was_alone && effect == Effect::Gives {
            let (state, is_known) = (|| self.state(daemon), is_known(daemon, disk));
            assert!(
                was_known || !is_known,
                "{} was refused and is registered: {}",
                disk.path,
                state()
            );
            assert!(is_known || !was_free, "{} was refused and is gone: {}", disk.path, state());
            let reason = reply.parameters["reason"].as_str().unwrap_or_default();
            let is_lost = reason.starts_with("cannot open") && reason.ends_with(IN_USE);
            let knows = was_known && is_known;
            assert!(!is_lost || !knows, "{} is open, and the daemon does not find it", disk.path);
        }
        (is_done.then(|| reply.parameters.to_string()), was_alone)
    }

    /// Asks for something that concerns no disk.
    pub(super) async fn ask(&self, daemon: &Daemon, method: &str, parameters: Value) {
        self.trace(format_args!("> {method} {parameters}"));
        let reply = daemon.call(method, &parameters).await;
        self.trace(format_args!("< {method} {parameters}: {:?} {}", reply.error, reply.parameters));
    }

    async fn manage(
        &self,
        daemon: &Daemon,
        action: ManageAction,
        (array, disk): (&str, &SimulatedDisk),
    ) {
        let effect = match action {
            ManageAction::Add | ManageAction::ReAdd => Effect::Gives,
            ManageAction::Remove => Effect::Removes,
            ManageAction::Fail => Effect::Fails,
            ManageAction::Replace => Effect::None,
        };
        let before = disk.superblock();
        let at = Manage::new(array, action, &disk.path);
        let (done, was_alone) = self.call(daemon, "Manage", json!(at), (disk, effect)).await;
        let owner = before.and_then(|sb| self.array(sb.set_uuid)).map(|owner| owner.name.as_str());
        let is_kept = action != ManageAction::Add || owner.is_none_or(|owner| owner == array);
        assert!(is_kept || done.is_none() || !was_alone, "{} of {owner:?} was added", disk.path);
    }

    async fn set(&self, daemon: &Daemon, path: String, value: &str) {
        self.ask(daemon, "Set", json!({ "path": path, "value": value })).await;
    }

    async fn set_state(&self, daemon: &Daemon, (array, disk): (&str, &SimulatedDisk), word: &str) {
        let effect = match word {
            "remove" => Effect::Removes,
            "re-add" => Effect::Gives,
            "faulty" => Effect::Fails,
            _ => Effect::None,
        };
        let path = format!("sys/block/{array}/md/dev-{}/state", disk.name());
        let at = json!({ "path": path, "value": word });
        self.call(daemon, "Set", at, (disk, effect)).await;
    }

    async fn detach(&self, daemon: &Daemon, disk: &SimulatedDisk) {
        let at = json!({ "disk": disk.path });
        let (done, was_alone) = self.call(daemon, "Detach", at, (disk, Effect::Removes)).await;
        // From a running array it is removed, and stays known.
        if was_alone && done.is_some_and(|done| done.contains("[\"removed ")) {
            assert!(!is_known(daemon, disk), "{} was detached and is kept", disk.path);
        }
    }

    /// Hands in a disk. A disk of an array that does not run must not start it with data older than another's, so that is
    /// handed in instead.
    async fn attach(&self, daemon: &Daemon, disk: &SimulatedDisk) {
        let Some(sb) = disk.superblock() else { return };
        let runs = daemon.service.stack.arrays.of(sb.set_uuid).is_some();
        let disk = match runs {
            true => disk,
            false => self.freshest(daemon, sb.set_uuid).unwrap_or(disk),
        };
        let at = json!({ "disk": disk.path });
        self.call(daemon, "Attach", at, (disk, Effect::Gives)).await;
        if !runs {
            self.check_freshness(daemon, sb.set_uuid);
        }
    }

    /// The disk with the freshest superblock of an array that does not run, among those that do not wait.
    fn freshest(&self, daemon: &Daemon, uuid: Uuid) -> Option<&SimulatedDisk> {
        let mut freshest: Option<(u64, &SimulatedDisk)> = None;
        for disk in &self.disks {
            let Some(sb) = disk.superblock() else { continue };
            let waits = matches!(standing(daemon, &disk.path), Standing::Waiting(_));
            if sb.set_uuid == uuid && !waits && freshest.is_none_or(|(best, _)| best < sb.events) {
                freshest = Some((sb.events, disk));
            }
        }
        freshest.map(|(_, disk)| disk)
    }

    /// Whether no array that waits lacks its freshest disk.
    fn all_are_fresh(&self, daemon: &Daemon) -> bool {
        let waiting = daemon.service.stack.arrays.waiting();
        waiting.iter().all(|array| self.freshest(daemon, array.uuid).is_none())
    }

    /// Hands in what an array that waits lacks.
    async fn complete(&self, daemon: &Daemon, array: &str, rng: &mut Rng) {
        let waiting = daemon.service.stack.arrays.find_waiting(array);
        let Some(uuid) = waiting.map(|waiting| waiting.uuid) else { return };
        match self.freshest(daemon, uuid) {
            Some(disk) => self.attach(daemon, disk).await,
            // It starts all that wait: an array that lacks its freshest disk would continue with older data.
            None if rng.chance(1, 2) && self.all_are_fresh(daemon) => {
                self.ask(daemon, "StartWaiting", json!({})).await;
                self.check_freshness(daemon, uuid);
            }
            None => {}
        }
    }

    /// Does something with a disk that no array has.
    async fn hand_in(&self, daemon: &Daemon, disk: &SimulatedDisk, array: &str, rng: &mut Rng) {
        let owner = disk.superblock().and_then(|sb| self.array(sb.set_uuid));
        let Some(owner) = owner else {
            return self.manage(daemon, ManageAction::Add, (array, disk)).await;
        };
        // A disk that no array needs may be overwritten.
        if rng.chance(1, 3) && !self.is_needed(disk) {
            let at = Manage::new(array, ManageAction::Add, &disk.path);
            let at = Manage { force: Some(true), ..at };
            self.call(daemon, "Manage", json!(at), (disk, Effect::Gives)).await;
            return;
        }
        match rng.below(8) {
            0..3 => self.attach(daemon, disk).await,
            3..5 => self.manage(daemon, ManageAction::ReAdd, (&owner.name, disk)).await,
            5..7 => self.manage(daemon, ManageAction::Add, (&owner.name, disk)).await,
            _ => self.manage(daemon, ManageAction::Add, (array, disk)).await,
        }
    }

    async fn change_member(
        &self,
        daemon: &Daemon,
        disk: &SimulatedDisk,
        (array, member): (&str, &MemberStatus),
        rng: &mut Rng,
    ) {
        let at = (array, disk);
        if !member.faulty {
            return match rng.below(10) {
                0..4 => self.manage(daemon, ManageAction::Fail, at).await,
                4..6 => self.set_state(daemon, at, "faulty").await,
                6 => self.detach(daemon, disk).await,
                7 => self.manage(daemon, ManageAction::Replace, at).await,
                8 => self.manage(daemon, ManageAction::Remove, at).await,
                _ => self.set_state(daemon, at, "-want_replacement").await,
            };
        }
        match rng.below(10) {
            0..3 => self.manage(daemon, ManageAction::Remove, at).await,
            3 => self.set_state(daemon, at, "remove").await,
            4..7 => self.set_state(daemon, at, "re-add").await,
            7 => self.set_state(daemon, at, "faulty").await,
            8 => self.detach(daemon, disk).await,
            _ => self.manage(daemon, ManageAction::ReAdd, at).await,
        }
    }

    /// Calls that need not fit anything.
    async fn ask_for_anything(
        &self,
        daemon: &Daemon,
        disk: &SimulatedDisk,
        array: &str,
        rng: &mut Rng,
    ) {
        let md = format!("sys/block/{array}/md");
        match rng.below(14) {
            0 => {
                let word = if rng.chance(1, 2) { "clear" } else { "inactive" };
                // A daemon re-adds disks on a network that an array was started without.
                self.set(daemon, format!("{md}/array_state"), word).await;
                for disk in self.disks.iter().filter(|disk| disk.is_far()) {
                    self.record.borrow_mut().forget(&disk.path);
                }
            }
            1 => self.set(daemon, format!("{md}/sync_action"), "check").await,
            2 => self.set(daemon, format!("{md}/sync_action"), "idle").await,
            3 => {
                let bitmap = if rng.chance(1, 2) { "none" } else { "internal" };
                let bitmap = Some(bitmap.to_owned());
                let bitmap_chunk = Some(4096).filter(|_| bitmap.as_deref() == Some("internal"));
                let name = array.to_owned();
                let at = Grow { name, bitmap, bitmap_chunk, ..Grow::default() };
                self.ask(daemon, "Grow", json!(at)).await;
            }
            4 => {
                let raid_devices = Some(2 + rng.index(2));
                let at = Grow { name: array.to_owned(), raid_devices, ..Grow::default() };
                self.ask(daemon, "Grow", json!(at)).await;
            }
            5 => self.attach(daemon, disk).await,
            6 => self.detach(daemon, disk).await,
            7 => self.manage(daemon, ManageAction::Add, (array, disk)).await,
            8 => self.manage(daemon, ManageAction::Remove, (array, disk)).await,
            9 => {
                self.ask(daemon, "Detail", json!({ "name": array })).await;
            }
            10 => {
                self.ask(daemon, "Status", json!({})).await;
            }
            11 => {
                self.ask(daemon, "Jobs", json!({})).await;
            }
            12 => {
                self.ask(daemon, "List", json!({ "path": md })).await;
            }
            _ => {
                let path = format!("{md}/dev-{}/state", disk.name());
                self.ask(daemon, "Get", json!({ "path": path })).await;
            }
        }
    }
}

/// Whether the daemon has a disk that no array has.
fn is_free(daemon: &Daemon, disk: &SimulatedDisk) -> bool {
    let all = daemon.service.stack.devices.all();
    all.iter().any(|device| device.path == disk.path && device.role.is_free())
}

/// Whether the registry has the disk.
fn is_known(daemon: &Daemon, disk: &SimulatedDisk) -> bool {
    daemon.service.stack.devices.name(&disk.path).is_some()
}

fn standing(daemon: &Daemon, path: &str) -> Standing {
    let arrays = &daemon.service.stack.arrays;
    for volume in arrays.running() {
        let members = volume.view.status().members;
        let found = members.into_iter().find(|member| member.path.as_deref() == Some(path));
        if let Some(member) = found {
            return Standing::Member(volume.name.device(), Box::new(member));
        }
    }
    for waiting in arrays.waiting() {
        if waiting.members.iter().any(|member| member.path == path) {
            return Standing::Waiting(waiting.name.device());
        }
    }
    Standing::Free
}
