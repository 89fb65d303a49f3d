//! Random arrays and a volume group on a set of disks, and the lives of daemons that serve them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ashlar_block::{Gateway, LocalFuture, Runtime, Sectors};
use ashlar_md::ArrayState;
use ashlar_md::create::{NewDevice, create};
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap, NewMember};
use ashlar_md::ondisk::{DeviceFlags, Level, Version};
use ashlar_sim::scheduler::{JoinHandle, start};
use ashlar_sim::{Mix, Oracle, Rng, Sim, SimDisk, SimRuntime, Stop, Value, Workload};
use ashlar_stack::arrays::Volume;
use uuid::Uuid;

use super::daemon::Daemon;
use super::disks::{LARGE, SMALL, SimulatedDisk};
use super::groups::MadeGroup;
use super::record::Record;
use crate::service::Service;

/// The disks of the machine: the first four are members of two arrays, the last two are physical volumes of a group, and those
/// between are blank.
const DISKS: u64 = 8;
const MEMBERS: [[usize; 2]; 2] = [[0, 1], [2, 3]];
const PHYSICAL: [usize; 2] = [6, 7];
/// The clients that call the daemon at once, and how many calls each makes.
const CLIENTS: usize = 3;
const CALLS: u64 = 8;
/// What clients do with an array.
pub(super) const USE: Mix =
    Mix { read: 30, write: 40, write_fua: 8, flush: 20, discard: 0, write_zeroes: 10 };
pub(super) const WRITES: Mix =
    Mix { read: 0, write: 1, write_fua: 0, flush: 0, discard: 0, write_zeroes: 0 };
/// The parts of each array, for a client of its own.
pub(super) const PARTS: u64 = 2;
/// In the reason why an array does not start whose members were used without each other.
const SPLIT: &str = "used without the other";
/// The longest life.
const LIFE: Duration = Duration::from_secs(3600);
/// How long an array may take to come to rest once nothing happens to it.
const CALM: Duration = Duration::from_secs(200);

/// An array of the world.
pub(super) struct MadeArray {
    pub(super) uuid: Uuid,
    pub(super) name: String,
    /// Its size in sectors.
    pub(super) size: u64,
    pub(super) oracle: Oracle,
    /// Whether its data is known. A user who starts an array from a member that lacks what was written later gets old data.
    pub(super) is_known: Cell<bool>,
    /// The members in sync while their copies may differ.
    pub(super) differing: RefCell<Option<BTreeSet<String>>>,
}

/// See the module text.
pub(super) struct World {
    seed: u64,
    /// Whether it prints what happens.
    pub(super) is_traced: bool,
    rng: RefCell<Rng>,
    pub(super) disks: Vec<Rc<SimulatedDisk>>,
    pub(super) arrays: Vec<MadeArray>,
    pub(super) group: MadeGroup,
    pub(super) record: RefCell<Record>,
    /// Whether a disk has misbehaved in this life.
    pub(super) had_trouble: Cell<bool>,
    /// Whether a user has to decide with which disk an array continues.
    pub(super) is_over: Cell<bool>,
    /// That of the present life.
    service: RefCell<Weak<Service>>,
}

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// After this many steps of the scheduler.
    Step(u64),
    /// When the clients have ended.
    Done,
    /// When everything has come to rest.
    Calm,
    /// By a request.
    Asked,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self::with_room(seed, LARGE)
    }

    /// A world in which disks that are no members of arrays have this size.
    pub(super) fn with_room(seed: u64, room: Sectors) -> Self {
        let mut rng = Rng::new(seed ^ 0x686f_7374);
        // Of each array perhaps one member, and perhaps a blank disk.
        let is_local = |n: u64| n.is_multiple_of(2) || PHYSICAL.contains(&(n as usize));
        let far: Vec<bool> = (0..DISKS).map(|n| !is_local(n) && rng.chance(1, 2)).collect();
        let is_member = |n: u64| MEMBERS.iter().flatten().any(|at| *at == n as usize);
        let size = |n: u64| if is_member(n) { SMALL } else { room };
        let disks =
            (0..).zip(far).map(|(n, is_far)| Rc::new(SimulatedDisk::new(n, size(n), is_far)));
        let mut world = Self {
            seed,
            is_traced: std::env::var_os("ASHLAR_SEED").is_some(),
            disks: disks.collect(),
            arrays: Vec::new(),
            group: MadeGroup::new(seed),
            record: RefCell::default(),
            had_trouble: Cell::new(false),
            is_over: Cell::new(false),
            service: RefCell::default(),
            rng: RefCell::new(rng),
        };
        let sim = Sim::new(world.draw(Rng::next_u64));
        sim.block_on(async {
            for (number, members) in (0..).zip(MEMBERS) {
                let made = world.make(number, &members).await;
                world.arrays.push(made);
            }
            world.make_group(&PHYSICAL).await;
        });
        drop(sim);
        world
    }

    pub(super) fn draw<T>(&self, f: impl FnOnce(&mut Rng) -> T) -> T {
        f(&mut self.rng.borrow_mut())
    }

    pub(super) async fn make(&self, number: u64, members: &[usize]) -> MadeArray {
        let disks: Vec<&Rc<SimulatedDisk>> = members.iter().map(|at| &self.disks[*at]).collect();
        let member = |(n, disk): (usize, &&Rc<SimulatedDisk>)| {
            Some(NewMember {
                device: disk.media.capacity(),
                device_uuid: Uuid::from_u128(u128::from(number) << 32 | n as u128),
                flags: DeviceFlags::default(),
            })
        };
        let uuid = Uuid::from_u128(0x1000 + u128::from(number));
        let bitmap = match self.draw(|rng| rng.below(4)) {
            0 => NewBitmap::None,
            _ => NewBitmap::Internal { chunk: Some(4096) },
        };
        let spec = CreateSpec {
            version: Version::V1_2,
            level: Level::Raid1,
            layout: None,
            chunk: None,
            raid_devices: disks.len() as u32,
            members: disks.iter().enumerate().map(member).collect(),
            size: None,
            data_offset: Some(Sectors(256)),
            set_uuid: uuid,
            name: format!("sim:{number}"),
            ctime: 1_700_000_000,
            assume_clean: true,
            bitmap,
            write_behind: 0,
            daemon_sleep: 1,
            ppl: false,
            bad_block_log: false,
            numbers: Default::default(),
        };
        let new = |disk: &&Rc<SimulatedDisk>| {
            Some(NewDevice {
                gateway: SimDisk::over(disk.name(), disk.media.clone()).gateway(),
                path: disk.path.clone(),
                known_zero: true,
                wiped: Vec::new(),
            })
        };
        let made =
            create(&spec, &disks.iter().map(new).collect::<Vec<_>>()).await.expect("an array");
        let size = made.superblocks.iter().flatten().next().expect("a member").superblock.size;
        MadeArray {
            uuid,
            name: format!("md{number}"),
            size: size.0,
            oracle: Oracle::new(self.seed ^ number, Value::Zeroes),
            is_known: Cell::new(true),
            differing: RefCell::default(),
        }
    }

    /// The array with this identity.
    pub(super) fn array(&self, uuid: Uuid) -> Option<&MadeArray> {
        self.arrays.iter().find(|array| array.uuid == uuid)
    }

    /// One life of a daemon: from its start to an end. Returns the simulation's fingerprint.
    pub(super) fn live(self: &Rc<Self>) -> u64 {
        let sim = Sim::new(self.draw(Rng::next_u64));
        sim.set_time_limit(LIFE);
        let end = self.draw(|rng| match rng.below(7) {
            0 | 1 => End::Step(500 + rng.below(12_000)),
            2 | 3 => End::Asked,
            4 => End::Done,
            _ => End::Calm,
        });
        let stop = match end {
            End::Step(n) => Stop::AfterSteps(n),
            End::Done | End::Calm | End::Asked => Stop::AfterSteps(u64::MAX),
        };
        let is_cut = self.draw(|rng| rng.chance(1, 2));
        sim.block_on_until(Rc::clone(self).life(end), stop);
        self.trace(format_args!("{end:?}, {}", if is_cut { "power cut" } else { "kill" }));
        let course = sim.fingerprint();
        if let Some(service) = self.service.take().upgrade() {
            self.look_at_snapshots(&service, true);
        }
        self.disks.iter().for_each(|disk| disk.media.answer());
        self.group.end();
        let oracles = self.arrays.iter().map(|array| array.oracle.clone());
        let oracles: Vec<Oracle> = oracles.chain(self.group.oracles()).collect();
        if is_cut {
            sim.power_cut();
            oracles.iter().for_each(Oracle::power_cut);
        } else {
            sim.kill();
            oracles.iter().for_each(Oracle::kill);
        }
        self.had_trouble.set(false);
        self.disks.iter().for_each(|disk| disk.rest());
        self.record.borrow_mut().clear();
        self.recycle();
        course
    }

    /// Makes disks blank that no array needs, as a user does once no daemon has them.
    fn recycle(&self) {
        for disk in &self.disks {
            let is_md = disk.superblock().is_some() && !self.is_needed(disk);
            let is_stale = is_md || disk.physical().is_some() && !self.is_listed(disk);
            if is_stale && self.draw(|rng| rng.chance(1, 2)) {
                disk.make_blank();
            }
        }
    }

    /// Whether the freshest superblock of a disk's array has the disk among the members.
    pub(super) fn is_needed(&self, disk: &SimulatedDisk) -> bool {
        let Some(sb) = disk.superblock() else { return false };
        let mut freshest = sb.clone();
        for other in &self.disks {
            if let Some(other) = other.superblock()
                && other.set_uuid == sb.set_uuid
                && other.events > freshest.events
            {
                freshest = other;
            }
        }
        freshest.events <= sb.events + 1 || freshest.role_of(sb.dev_number) == sb.role()
    }

    async fn life(self: Rc<Self>, end: End) {
        let mut paths = Vec::new();
        for disk in &self.disks {
            if disk.superblock().is_some() || disk.physical().is_some() {
                paths.push(disk.path.clone());
            }
        }
        self.draw(|rng| shuffle(&mut paths, rng));
        let daemon = Rc::new(Daemon::start(&self.disks, &paths).await);
        *self.service.borrow_mut() = Rc::downgrade(&daemon.service);
        if daemon.failures.iter().any(|why| why.contains(SPLIT)) {
            self.trace(format_args!("a user has to decide: {:?}", daemon.failures));
            return self.is_over.set(true);
        }
        self.check_started(&daemon).await;
        self.check_groups_started(&daemon).await;
        let focus = self.draw(|rng| (rng.index(self.disks.len()), rng.index(self.arrays.len())));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (world, daemon, rng) =
                    (Rc::clone(&self), Rc::clone(&daemon), self.draw(Rng::fork));
                start(async move { world.client(&daemon, focus, CALLS, rng).await })
            })
            .collect();
        let others = self.others(&daemon);
        if end == End::Asked {
            let after = self.draw(|rng| rng.below(2_000_000));
            SimRuntime.sleep(Duration::from_micros(after)).await;
            let stopped = daemon.end().await;
            for client in clients {
                client.await;
            }
            return self.check_stopped(&daemon, stopped);
        }
        for client in clients {
            client.await;
        }
        for other in others {
            other.await;
        }
        if end == End::Calm {
            self.come_to_rest(&daemon).await;
        }
    }

    /// The tasks beside the clients that call: I/O, disks that misbehave, and repeated checks of everything.
    fn others(self: &Rc<Self>, daemon: &Rc<Daemon>) -> Vec<JoinHandle<()>> {
        let task = |work: fn(Rc<Self>, Rc<Daemon>, Rng) -> LocalFuture<'static, ()>| {
            start(work(Rc::clone(self), Rc::clone(daemon), self.draw(Rng::fork)))
        };
        vec![
            task(|world, daemon, rng| {
                Box::pin(async move { world.use_arrays(&daemon, 0, rng).await })
            }),
            task(|world, daemon, rng| {
                Box::pin(async move { world.use_arrays(&daemon, 1, rng).await })
            }),
            task(|world, _, rng| Box::pin(async move { world.trouble(rng).await })),
            task(|world, daemon, rng| Box::pin(async move { world.watch(&daemon, rng).await })),
        ]
    }

    /// Clients of the volumes write and read.
    async fn use_arrays(&self, daemon: &Daemon, part: u64, mut rng: Rng) {
        for _ in 0..12 {
            SimRuntime.sleep(pause(&mut rng)).await;
            if rng.chance(1, 2) {
                self.use_volume(daemon, part, &mut rng).await;
                continue;
            }
            let made = &self.arrays[rng.index(self.arrays.len())];
            let Some(volume) = daemon.service.stack.arrays.of(made.uuid) else { continue };
            let Some(open) = volume.bytes.open() else { continue };
            self.work(daemon, (made, part, USE), (&volume, open.gateway()), &mut rng).await;
            let is_over = daemon.service.ending.draining().is_stopped();
            let stopped = volume.view.state() == ArrayState::Inactive;
            assert!(is_over || !stopped, "{} was stopped while a client has it open", made.name);
        }
    }

    /// Some I/O in a part of an array: writes that overlap may reach its copies in different orders, as with Linux.
    async fn work(
        &self,
        daemon: &Daemon,
        (made, part, mix): (&MadeArray, u64, Mix),
        (volume, gateway): (&Volume, &Gateway),
        rng: &mut Rng,
    ) {
        let workload = Workload {
            tasks: 1,
            ios: 6,
            max_len: 16,
            mix,
            tolerate_errors: true,
            ..Workload::over(made.size * part / PARTS..made.size * (part + 1) / PARTS)
        };
        self.trace(format_args!("I/O on {}", made.name));
        let done = workload.run(gateway, &made.oracle, rng).await;
        self.trace(format_args!("I/O on {} has ended: {done:?}", made.name));
        self.check_sync_of(volume);
        if let Err(violation) = done
            && made.is_known.get()
        {
            panic!("{}: {violation}: {}", made.name, self.state(daemon));
        }
    }

    /// Disks misbehave, one at a time.
    async fn trouble(&self, mut rng: Rng) {
        for _ in 0..rng.below(4) {
            SimRuntime.sleep(pause(&mut rng)).await;
            let disk = &self.disks[rng.index(self.disks.len())];
            self.trace(format_args!("{} misbehaves", disk.path));
            self.had_trouble.set(true);
            if disk.physical().is_some() {
                self.group.had_trouble.set(true);
            }
            disk.misbehave(&mut rng).await;
            self.trace(format_args!("{} behaves again", disk.path));
        }
    }

    async fn watch(&self, daemon: &Daemon, mut rng: Rng) {
        for _ in 0..40 {
            SimRuntime.sleep(Duration::from_micros(rng.below(20_000))).await;
            self.check_owners(daemon);
            self.check_sync(daemon);
            self.look_at_snapshots(&daemon.service, false);
        }
    }

    /// Waits until nothing is in progress, and checks everything.
    async fn come_to_rest(&self, daemon: &Daemon) {
        self.disks.iter().for_each(|disk| disk.media.heal());
        // Writes continue after all that happened.
        let mut rng = self.draw(Rng::fork);
        for volume in daemon.service.stack.arrays.running() {
            if let Some(made) = self.array(volume.view.status().uuid) {
                self.work(daemon, (made, 0, WRITES), (&volume, volume.bytes.gateway()), &mut rng)
                    .await;
            }
        }
        self.reactivate(daemon).await;
        let begun_ns = SimRuntime.now_ns();
        let lasts = |limit: Duration| SimRuntime.now_ns() - begun_ns > limit.as_nanos() as u64;
        while !self.is_calm(daemon) || !self.is_group_calm(daemon).await {
            assert!(!lasts(CALM), "no rest after {CALM:?}: {}", self.state(daemon));
            SimRuntime.sleep(Duration::from_millis(500)).await;
        }
        self.check_at_rest(daemon).await;
        self.check_group_at_rest(daemon).await;
    }
}

/// A moment, or a while: commands come at once, or after the arrays have reacted.
pub(super) fn pause(rng: &mut Rng) -> Duration {
    let most_us = [1, 100, 1000, 1000, 20_000, 1_500_000][rng.index(6)];
    Duration::from_micros(rng.below(most_us))
}

fn shuffle<T>(all: &mut [T], rng: &mut Rng) {
    for at in (1..all.len()).rev() {
        all.swap(at, rng.index(at + 1));
    }
}
