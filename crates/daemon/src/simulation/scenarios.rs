//! Sequences of calls that once failed, or that are obvious candidates: each in several interleavings.
//!
//! They check the daemon's answers and the contents of the disks. The tests of the program check the output of its clients, and
//! its process, sockets and files.

mod arrays;
mod at_once;
mod ending;
mod groups;
mod members_of_groups;
mod merges_and_moves;

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use ashlar_block::byte_volume::OpenVolume;
use ashlar_block::{Buffer, Flags, Runtime, Sector, Sectors};
use ashlar_client::interface::{Grow, Manage, ManageAction};
use ashlar_control::varlink::Reply;
use ashlar_sim::scheduler::start;
use ashlar_sim::{Mix, Oracle, Sim, SimRuntime, Workload};
use ashlar_stack::arrays::Volume;
use ashlar_stack::devices::Device;
use ashlar_view::detail::{Detail, DetailMember};
use serde_json::{Value, json};

use super::daemon::Daemon;
use super::disks::{LARGE, SimulatedDisk};
use super::world::{WRITES, World};

/// The interleavings of each course.
const SEEDS: u64 = 20;
/// How long a sync, a merge or a move may take.
const PATIENCE: Duration = Duration::from_secs(200);

/// The disks of md0 and of md1.
const MD0: [usize; 2] = [0, 1];
const MD1: [usize; 2] = [2, 3];
/// Blank disks.
const BLANK: [usize; 2] = [4, 5];
/// The disks of the group `vg`.
const VG: [usize; 2] = [6, 7];

/// Where the data of members is.
const DATA: Sector = Sector(256);

/// The attributes of md0.
const STATE: &str = "sys/block/md0/md";
/// What a client writes to and reads from a volume at once.
const PIECE: Sectors = Sectors(8);

/// A daemon that serves some of the disks of a world.
struct Scene {
    world: Rc<World>,
    daemon: Rc<Daemon>,
}

impl Scene {
    async fn start(world: &Rc<World>, disks: &[usize]) -> Self {
        Self::start_with(world, disks, ashlar_md::Options::default()).await
    }

    async fn start_with(world: &Rc<World>, disks: &[usize], md: ashlar_md::Options) -> Self {
        let paths: Vec<String> = disks.iter().map(|at| world.disks[*at].path.clone()).collect();
        let daemon = Rc::new(Daemon::start_with(&world.disks, &paths, md).await);
        Self { world: Rc::clone(world), daemon }
    }

    fn disk(&self, at: usize) -> &Rc<SimulatedDisk> {
        &self.world.disks[at]
    }

    fn path(&self, at: usize) -> String {
        self.disk(at).path.clone()
    }

    async fn call(&self, method: &str, parameters: Value) -> Reply {
        self.daemon.call(method, parameters).await
    }

    /// A call that must succeed.
    async fn done(&self, method: &str, parameters: Value) -> Value {
        let reply = self.call(method, parameters.clone()).await;
        assert!(reply.error.is_none(), "{method} {parameters}: {reply:?}");
        reply.parameters
    }

    /// A call that must be refused for this reason.
    async fn refused(&self, method: &str, parameters: Value, reason: &str) {
        let reply = self.call(method, parameters.clone()).await;
        let text = reply.parameters.to_string();
        let is_it = reply.error.is_some() && text.contains(reason);
        assert!(is_it, "{method} {parameters}: {reason}: {reply:?}");
    }

    /// Both calls at once.
    async fn both(&self, calls: [(&'static str, Value); 2]) -> [Reply; 2] {
        let [first, second] = calls.map(|(method, parameters)| {
            let daemon = Rc::clone(&self.daemon);
            start(async move { daemon.call(method, parameters).await })
        });
        [first.await, second.await]
    }

    /// An attribute, without the end of its line.
    async fn get(&self, path: &str) -> String {
        let reply = self.done("Get", json!({ "path": path })).await;
        reply["value"].as_str().expect("a text").trim_end().to_owned()
    }

    async fn set(&self, path: &str, value: &str) {
        self.done("Set", json!({ "path": path, "value": value })).await;
    }

    async fn set_refused(&self, path: &str, value: &str, reason: &str) {
        self.refused("Set", json!({ "path": path, "value": value }), reason).await;
    }

    fn manage(&self, array: &str, action: ManageAction, at: usize, force: bool) -> Value {
        let manage = Manage::new(array, action, &self.disk(at).path);
        json!(Manage { force: Some(force), ..manage })
    }

    /// Changes the members of md0; returns what was said to be done.
    async fn managed(&self, action: ManageAction, at: usize) -> Vec<String> {
        let reply = self.done("Manage", self.manage("md0", action, at, false)).await;
        let done = reply["done"].as_array().expect("lines").iter();
        done.map(|line| line.as_str().expect("a line").to_owned()).collect()
    }

    /// The second member of md0 is no longer a member.
    async fn take_out(&self, arrays: &[&str]) {
        for array in arrays {
            for action in [ManageAction::Fail, ManageAction::Remove] {
                self.call("Manage", self.manage(array, action, MD0[1], false)).await;
            }
        }
    }

    /// md0 has a bitmap, by which members are re-added.
    async fn give_bitmap(&self) {
        let (name, bitmap) = ("md0".to_owned(), Some("internal".to_owned()));
        // It may have one.
        self.call("Grow", json!(Grow { name, bitmap, ..Grow::default() })).await;
    }

    /// Waits until no sync is running.
    async fn rest(&self) {
        self.until("rest", async || self.world.is_calm(&self.daemon)).await;
        self.world.check_owners(&self.daemon);
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let begun_ns = SimRuntime.now_ns();
        while !holds().await {
            let lasts = SimRuntime.now_ns() - begun_ns > PATIENCE.as_nanos() as u64;
            assert!(!lasts, "no {what}: {}", self.world.state(&self.daemon));
            SimRuntime.sleep(Duration::from_millis(100)).await;
        }
    }

    /// How many running arrays have a disk as a member.
    fn owners(&self, at: usize) -> usize {
        let path = Some(self.disk(at).path.as_str());
        let running = self.daemon.service.stack.arrays.running();
        let members = running.iter().flat_map(|volume| volume.view.status().members);
        members.filter(|member| member.path.as_deref() == path).count()
    }

    fn md0(&self) -> Volume {
        let made = self.world.arrays[0].uuid;
        self.daemon.service.stack.arrays.of(made).expect("md0 runs")
    }

    /// The members of md0, as its details show them: number, slot, state and disk.
    async fn members(&self) -> Vec<String> {
        let reply = self.done("Detail", json!({ "name": "md0" })).await;
        let detail: Detail = serde_json::from_value(reply["detail"].clone()).expect("details");
        let number = |number: Option<u64>| number.map_or("-".to_owned(), |it| it.to_string());
        let row = |member: &DetailMember| {
            let path = member.path.as_deref();
            let disk = self.world.disks.iter().position(|disk| Some(disk.path.as_str()) == path);
            let disk = disk.map_or(String::new(), |at| format!(" disk {at}"));
            let DetailMember { number: own, slot, state, .. } = member;
            format!(
                "{} {} {state}{disk}",
                number(own.map(Into::into)),
                number(slot.map(Into::into))
            )
        };
        detail.members.iter().map(row).collect()
    }

    /// Clients write to md0, and flush that.
    async fn write(&self) {
        self.write_in(0..self.world.arrays[0].size).await;
    }

    /// The same in some of its sectors.
    async fn write_in(&self, sectors: Range<u64>) {
        let (made, volume) = (&self.world.arrays[0], self.md0());
        let mut rng = self.world.draw(ashlar_sim::Rng::fork);
        for mix in [WRITES, Mix { write: 0, flush: 1, ..WRITES }] {
            let workload =
                Workload { tasks: 1, ios: 8, max_len: 16, mix, ..Workload::over(sectors.clone()) };
            let done = workload.run(volume.bytes.gateway(), &made.oracle, &mut rng).await;
            done.unwrap_or_else(|violation| panic!("{violation}"));
        }
    }

    /// md0 has all that was written, and each member in sync has it alone; superblocks name these.
    async fn check_md0(&self) {
        let (made, volume) = (&self.world.arrays[0], self.md0());
        let all = Workload::over(0..made.size);
        let read = all.verify(volume.bytes.gateway(), &made.oracle).await;
        read.unwrap_or_else(|violation| panic!("{violation}"));
        self.world.check_copies(&self.daemon, &volume);
        self.world.check_superblocks(&self.daemon, &volume);
    }

    /// A disk of md0, which has ended, has all that was written, and says that it is clean.
    fn check_clean(&self, at: usize) {
        let (disk, made) = (self.disk(at), &self.world.arrays[0]);
        let sb = disk.superblock().expect("a superblock");
        assert!(sb.is_clean(), "{} does not say clean", disk.path);
        let data = disk.media.peek_range(DATA, Sectors(made.size));
        let right = made.oracle.check_contents(0..made.size, &data);
        right.unwrap_or_else(|violation| panic!("{}: {violation}", disk.path));
    }

    /// The names by which clients find volumes, sorted.
    fn found(&self) -> Vec<String> {
        let offered = self.daemon.offered();
        let all = self.daemon.service.stack.devices.volumes();
        let all = all.into_iter().filter(|device| offered.contains(&device.name));
        let mut names: Vec<String> = all.map(|device| device.export_name().to_owned()).collect();
        names.sort();
        names
    }

    /// The volume that clients find by a name.
    fn volume(&self, name: &str) -> Device {
        let all = self.daemon.service.stack.devices.volumes();
        let found = all.into_iter().find(|device| device.export_name() == name);
        found.unwrap_or_else(|| panic!("there is no {name}, but {:?}", self.found()))
    }

    /// A client opens a volume.
    fn open(&self, name: &str) -> OpenVolume {
        self.volume(name).bytes.open().unwrap_or_else(|| panic!("{name} cannot be opened"))
    }
}

/// A client writes a piece of a volume, and flushes that.
async fn put(volume: &OpenVolume, at: u64, byte: u8) {
    let mut buffer = Buffer::from_slice(&vec![byte; PIECE.bytes() as usize]);
    volume.gateway().write(Sector(at), &mut buffer, Flags::empty()).await.expect("a write");
    volume.gateway().flush().await.expect("a flush");
}

/// Whether a piece of a volume has this byte throughout.
async fn has(volume: &OpenVolume, at: u64, byte: u8) -> bool {
    let read = volume.gateway().read(Sector(at), PIECE).await.expect("a read");
    read.as_slice().iter().all(|it| *it == byte)
}

fn is_done(reply: &Reply) -> bool {
    reply.error.is_none()
}

/// The power fails once a daemon has ended, before another one starts.
fn cut_power(sim: Sim, world: &World) {
    sim.power_cut();
    world.arrays.iter().map(|made| &made.oracle).for_each(Oracle::power_cut);
    world.disks.iter().for_each(|disk| disk.rest());
}

/// Runs a course of calls in several interleavings, on a daemon that is started with these disks.
fn each(disks: &[usize], course: impl AsyncFn(&Scene)) {
    each_with_room((SEEDS, LARGE), disks, course);
}

/// The same in this many interleavings, where disks that are no members of md0 and md1 have this size.
fn each_with_room((seeds, size): (u64, Sectors), disks: &[usize], course: impl AsyncFn(&Scene)) {
    for seed in 0..seeds {
        let world = Rc::new(World::with_room(seed, size));
        Sim::new(seed).block_on(async { course(&Scene::start(&world, disks).await).await });
    }
}

/// The same with another course after the daemon has ended by a request, the power has failed, and a daemon was started with other disks;
/// disks that are no members of md0 and md1 have this size.
fn each_twice(
    size: Sectors,
    (first, course): (&[usize], impl AsyncFn(&Scene)),
    (second, then): (&[usize], impl AsyncFn(&Scene)),
) {
    for seed in 0..SEEDS {
        let world = Rc::new(World::with_room(seed, size));
        let sim = Sim::new(seed);
        sim.block_on(async {
            let scene = Scene::start(&world, first).await;
            course(&scene).await;
            assert!(scene.daemon.end().await, "a clean end");
        });
        cut_power(sim, &world);
        Sim::new(seed).block_on(async { then(&Scene::start(&world, second).await).await });
    }
}
