//! Courses of calls that were once found to go wrong, or are easily thought of: each in several interleavings.
//!
//! They look at what the daemon answers, and at what is on the disks then. What its clients print, and what becomes of its process, sockets
//! and files, is looked at by the tests of the program.

use std::rc::Rc;
use std::time::Duration;

use ashlar_block::Runtime;
use ashlar_sim::scheduler::start;
use ashlar_sim::{Mix, Sim, SimRuntime, Workload};
use serde_json::{Value, json};

use super::daemon::Daemon;
use super::disks::SimulatedDisk;
use super::world::{WRITES, World};
use crate::interface::{Grow, Manage, ManageAction};
use crate::varlink::Reply;

/// The interleavings of each course.
const SEEDS: u64 = 20;
/// How long a sync may take.
const PATIENCE: Duration = Duration::from_secs(200);

/// The disks of md0 and of md1.
const MD0: [usize; 2] = [0, 1];
const MD1: [usize; 2] = [2, 3];

/// A daemon that serves some of the disks of a world.
struct Scene {
    world: Rc<World>,
    daemon: Rc<Daemon>,
}

impl Scene {
    async fn start(world: &Rc<World>, disks: &[usize]) -> Self {
        let paths: Vec<String> = disks.iter().map(|at| world.disks[*at].path.clone()).collect();
        let daemon = Rc::new(Daemon::start(&world.disks, &paths).await);
        Self { world: Rc::clone(world), daemon }
    }

    fn disk(&self, at: usize) -> &Rc<SimulatedDisk> {
        &self.world.disks[at]
    }

    async fn call(&self, method: &str, parameters: Value) -> Reply {
        self.daemon.call(method, parameters).await
    }

    /// Calls that must succeed.
    async fn done(&self, method: &str, parameters: Value) {
        let reply = self.call(method, parameters.clone()).await;
        assert!(reply.error.is_none(), "{method} {parameters}: {reply:?}");
    }

    /// Both calls at once.
    async fn both(&self, calls: [(&'static str, Value); 2]) -> [Reply; 2] {
        let [first, second] = calls.map(|(method, parameters)| {
            let daemon = Rc::clone(&self.daemon);
            start(async move { daemon.call(method, parameters).await })
        });
        [first.await, second.await]
    }

    fn manage(&self, array: &str, action: ManageAction, at: usize, force: bool) -> Value {
        let manage = Manage::new(array, action, &self.disk(at).path);
        json!(Manage { force: Some(force), ..manage })
    }

    /// The second member of md0 is no member any more.
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
        let begun_ns = SimRuntime.now_ns();
        while !self.world.is_calm(&self.daemon) {
            let lasts = SimRuntime.now_ns() - begun_ns > PATIENCE.as_nanos() as u64;
            assert!(!lasts, "no rest: {}", self.world.state(&self.daemon));
            SimRuntime.sleep(Duration::from_millis(100)).await;
        }
        self.world.check_owners(&self.daemon);
    }

    /// How many running arrays have a disk as a member.
    fn owners(&self, at: usize) -> usize {
        let path = Some(self.disk(at).path.as_str());
        let running = self.daemon.service.stack.arrays.running();
        let members = running.iter().flat_map(|volume| volume.view.status().members);
        members.filter(|member| member.path.as_deref() == path).count()
    }

    /// Clients write to md0, and flush that.
    async fn write(&self) {
        let made = &self.world.arrays[0];
        let volume = self.daemon.service.stack.arrays.of(made.uuid).expect("md0 runs");
        let mut rng = self.world.draw(ashlar_sim::Rng::fork);
        for mix in [WRITES, Mix { write: 0, flush: 1, ..WRITES }] {
            let workload =
                Workload { tasks: 1, ios: 8, max_len: 16, mix, ..Workload::over(0..made.size) };
            let done = workload.run(volume.bytes.gateway(), &made.oracle, &mut rng).await;
            done.unwrap_or_else(|violation| panic!("{violation}"));
        }
    }
}

fn is_done(reply: &Reply) -> bool {
    reply.error.is_none()
}

/// Runs a course of calls in several interleavings, over these disks of two mirrors.
fn each(disks: &[usize], course: impl AsyncFn(&Scene)) {
    for seed in 0..SEEDS {
        let world = Rc::new(World::new(seed));
        let sim = Sim::new(seed);
        sim.block_on(async {
            let scene = Scene::start(&world, disks).await;
            course(&scene).await;
        });
    }
}

const STATE: &str = "sys/block/md0/md";

fn re_add(scene: &Scene) -> Value {
    let path = format!("{STATE}/dev-{}/state", scene.disk(MD0[1]).name());
    json!({ "path": path, "value": "re-add" })
}

#[test]
fn a_disk_that_two_arrays_want_at_once_joins_one() {
    each(&[0, 1, 2, 3], async |scene| {
        scene.give_bitmap().await;
        let attach = json!({ "disk": scene.disk(MD0[1]).path });
        for (method, parameters) in [
            ("Manage", scene.manage("md0", ManageAction::Add, MD0[1], false)),
            ("Manage", scene.manage("md0", ManageAction::ReAdd, MD0[1], false)),
            ("Attach", attach),
        ] {
            scene.take_out(&["md0", "md1"]).await;
            let other = scene.manage("md1", ManageAction::Add, MD0[1], true);
            let first = (method, parameters.clone());
            let replies = scene.both([first, ("Manage", other)]).await;
            let done = replies.iter().filter(|reply| is_done(reply)).count();
            assert_eq!((done, scene.owners(MD0[1])), (1, 1), "{parameters}: {replies:?}");
            scene.rest().await;
            scene.take_out(&["md0", "md1"]).await;
            // It was a member of the first one last.
            let back = scene.manage("md0", ManageAction::Add, MD0[1], true);
            scene.done("Manage", back).await;
            scene.rest().await;
        }
    });
}

#[test]
fn a_member_that_is_re_added_twice_at_once_is_one_member() {
    for seed in 0..SEEDS {
        let world = Rc::new(World::new(seed));
        let sim = Sim::new(seed);
        sim.block_on(async {
            let scene = Scene::start(&world, &MD0).await;
            scene.give_bitmap().await;
            scene.write().await;
            let fail = scene.manage("md0", ManageAction::Fail, MD0[1], false);
            scene.done("Manage", fail).await;
            scene.write().await;
            let call = ("Set", re_add(&scene));
            let replies = scene.both([call.clone(), call]).await;
            assert_eq!(replies.iter().filter(|reply| is_done(reply)).count(), 1, "{replies:?}");
            scene.rest().await;
            let volume = scene.daemon.service.stack.arrays.of(world.arrays[0].uuid).expect("md0");
            assert_eq!(volume.view.degraded(), 0);
            world.check_superblocks(&scene.daemon, &volume);
            // The other member fails: what is flushed then must survive a restart.
            let fail = scene.manage("md0", ManageAction::Fail, MD0[0], false);
            scene.done("Manage", fail).await;
            scene.write().await;
            assert!(scene.daemon.end().await, "a clean end");
        });
        sim.power_cut();
        world.arrays.iter().for_each(|made| made.oracle.power_cut());
        world.disks.iter().for_each(|disk| disk.rest());
        Sim::new(seed).block_on(async {
            let scene = Scene::start(&world, &[0, 1, 2, 3]).await;
            world.check_started(&scene.daemon).await;
        });
    }
}

#[test]
fn a_member_that_was_removed_stays_removed() {
    each(&MD0, async |scene| {
        scene.give_bitmap().await;
        scene.write().await;
        let fail = scene.manage("md0", ManageAction::Fail, MD0[1], false);
        scene.done("Manage", fail).await;
        scene.write().await;
        let remove = scene.manage("md0", ManageAction::Remove, MD0[1], false);
        let [removed, added] = scene.both([("Manage", remove), ("Set", re_add(scene))]).await;
        assert!(is_done(&removed) || is_done(&added), "{removed:?} {added:?}");
        scene.rest().await;
        let is_member = scene.owners(MD0[1]) == 1;
        assert_eq!(is_member, !is_done(&removed), "{removed:?} {added:?}");
    });
}

#[test]
fn a_member_that_is_detached_from_an_inactive_array_is_closed_at_once() {
    each(&MD1[..1], async |scene| {
        let disk = scene.disk(MD1[0]);
        assert!(disk.is_open() && scene.daemon.service.stack.arrays.waiting().len() == 1);
        scene.done("Detach", json!({ "disk": disk.path })).await;
        assert!(!disk.is_open(), "{} is open", disk.path);
        assert!(scene.daemon.service.stack.arrays.waiting().is_empty());
    });
}

/// As udev hands them in at boot.
#[test]
fn members_that_come_at_once_make_one_array() {
    for seed in 0..SEEDS {
        let world = Rc::new(World::new(seed));
        let sim = Sim::new(seed);
        sim.block_on(async {
            let made = world.make(5, &[0, 1, 2, 3, 4, 5]).await;
            let scene = Scene::start(&world, &[]).await;
            let all: Vec<_> = (0..6)
                .map(|at| {
                    let daemon = Rc::clone(&scene.daemon);
                    let disk = json!({ "disk": scene.disk(at).path });
                    start(async move { daemon.call("Attach", disk).await })
                })
                .collect();
            let mut started = 0;
            for reply in all {
                let reply = reply.await;
                assert!(is_done(&reply), "{reply:?}");
                started +=
                    usize::from(reply.parameters.to_string().contains("which has been started"));
            }
            assert_eq!(started, 1);
            let volume = scene.daemon.service.stack.arrays.of(made.uuid).expect("an array");
            assert_eq!(volume.view.degraded(), 0);
            scene.rest().await;
        });
    }
}
