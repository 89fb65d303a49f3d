//! Running arrays on several real reactors: clients on each thread write, discard, flush, read and verify, while an
//! operator fails, removes and adds members, rebuilds, checks and changes the bitmap.
//!
//! Each block belongs to one client, which knows its contents exactly; so every read is verified, during a
//! recovery too. Members are RAM disks whose I/O waits for a few turns of the reactor, so that the order of
//! completions varies.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use ashlar_block::{
    Bio, BlockDevice, Buffer, Disk, Flags, Gateway, IoFuture, Runtime, Sector, Sectors, Status,
};
use ashlar_engine::{Engine, EngineRuntime, RamDevice, Reactor, ReactorConfig, yield_now};
use ashlar_md::create::{NewDevice, create};
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{Array, Candidate, Options, Place, SyncRequest, plan, probe};
use ashlar_sim::Rng;
use futures_util::future::join_all;

use crate::common::{Shape, spec};

const DISK: Sectors = Sectors(4 * 2048);
const REACTORS: usize = 4;
/// Clients on each reactor.
const CLIENTS: u64 = 4;
/// Sectors of a block that belongs to one client.
const BLOCK: Sectors = Sectors(16);

/// A member whose I/O takes a few turns of its reactor, and fails if the test wants it.
struct ShakyMember {
    inner: Gateway,
    disk: Disk,
    rng: AtomicU64,
    broken: AtomicBool,
}

impl ShakyMember {
    fn new(name: String, seed: u64) -> Arc<Self> {
        let inner = Gateway::new(Arc::new(RamDevice::new(name.clone(), DISK).unwrap()));
        let disk = Disk::new(name, DISK, *inner.disk().limits());
        Arc::new(Self { inner, disk, rng: AtomicU64::new(seed), broken: AtomicBool::new(false) })
    }

    async fn perform(&self, bio: Bio) -> Result<(), Status> {
        let number = self.rng.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        for _ in 0..(number ^ number >> 29) % 4 {
            yield_now().await;
        }
        if self.broken.load(Relaxed) { Err(Status::Io) } else { self.inner.submit(bio).await }
    }
}

impl BlockDevice for ShakyMember {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        IoFuture::boxed(self.perform(bio))
    }
}

/// A client: the blocks `number`, `number + clients`, ... belong to it.
struct Client {
    volume: Gateway,
    rng: Rng,
    /// The generation of each of its blocks; none after a discard, which promises no contents.
    contents: Vec<Option<u8>>,
    number: u64,
    clients: u64,
}

impl Client {
    fn at(&self, block: usize) -> Sector {
        Sector((block as u64 * self.clients + self.number) * BLOCK.0)
    }

    fn stamp(&self, block: usize, generation: u8) -> Vec<u8> {
        let mut bytes = vec![generation; BLOCK.bytes() as usize];
        bytes[..8].copy_from_slice(&self.at(block).0.to_le_bytes());
        bytes
    }

    async fn verify(&self, block: usize) {
        let Some(generation) = self.contents[block] else { return };
        let read = self.volume.read(self.at(block), BLOCK).await.unwrap();
        let same = *read.as_slice() == self.stamp(block, generation);
        assert!(same, "sector {}: not generation {generation}", self.at(block));
    }

    async fn run(mut self, until: Arc<AtomicBool>) {
        while !until.load(Relaxed) {
            let block = self.rng.index(self.contents.len());
            match self.rng.below(16) {
                0..8 => {
                    let generation = self.rng.below(256) as u8;
                    let mut data = Buffer::from_slice(&self.stamp(block, generation));
                    let flags = if self.rng.below(8) == 0 { Flags::FUA } else { Flags::empty() };
                    self.volume.write(self.at(block), &mut data, flags).await.unwrap();
                    self.contents[block] = Some(generation);
                }
                8 => {
                    self.contents[block] = None;
                    // One that fails on a member fails, and the member stays: nothing was promised.
                    let done = self.volume.submit(Bio::discard(self.at(block), BLOCK)).await;
                    assert!(matches!(done, Ok(()) | Err(Status::Io)), "{done:?}");
                }
                9 => self.volume.flush().await.unwrap(),
                _ => self.verify(block).await,
            }
            yield_now().await;
        }
        for block in 0..self.contents.len() {
            self.verify(block).await;
        }
    }
}

/// An array of simulated shape on real reactors.
#[derive(Clone, Copy)]
struct Trial {
    level: Level,
    layout: Option<u32>,
    members: usize,
    bitmap: NewBitmap,
}

async fn start(trial: Trial, members: &[Arc<ShakyMember>]) -> Arc<Array> {
    let shape = Shape::new(trial.level, trial.layout, 64, trial.members);
    let mut spec = spec(&shape, &vec![DISK; trial.members]);
    spec.bitmap = trial.bitmap;
    let gateways: Vec<Gateway> =
        members.iter().map(|member| Gateway::new(Arc::<ShakyMember>::clone(member))).collect();
    let devices: Vec<_> = gateways[..trial.members]
        .iter()
        .map(|gateway| {
            let path = gateway.disk().name().to_owned();
            let (gateway, wiped) = (gateway.clone(), Vec::new());
            Some(NewDevice { gateway, path, known_zero: true, wiped })
        })
        .collect();
    create(&spec, &devices).await.unwrap();
    let mut candidates = Vec::new();
    for gateway in &gateways[..trial.members] {
        let (path, sb) = (gateway.disk().name().to_owned(), probe(gateway).await.unwrap().unwrap());
        candidates.push(Candidate { gateway: gateway.clone(), path, sb });
    }
    let plan = plan(candidates, &Options::default()).await.unwrap();
    let array = Array::start(plan, "md0", Arc::new(EngineRuntime));
    let unlimited = Some(u64::from(u32::MAX));
    array.sync_settings().set_speed_min_kib(unlimited);
    array.sync_settings().set_speed_max_kib(unlimited);
    array
}

/// Fails a member in one of two ways, removes it, adds it again, and checks that all copies are the same.
async fn operate(array: &Arc<Array>, members: &[Arc<ShakyMember>], rng: &mut Rng) {
    let victim = rng.index(members.len());
    let path = members[victim].disk.name();
    let found = array.members().placed().find(|(_, rdev)| rdev.path() == path);
    let index = found.map(|(index, _)| index).unwrap();
    if rng.below(2) == 0 {
        members[victim].broken.store(true, Relaxed);
        // The clients' writes find out.
        while !array.members().get(index).unwrap().is_faulty() {
            yield_now().await;
        }
    } else {
        array.fail(index).await.unwrap();
    }
    EngineRuntime.sleep(std::time::Duration::from_millis(rng.below(5))).await;
    array.remove(index).await.unwrap();
    members[victim].broken.store(false, Relaxed);
    let gateway = Gateway::new(Arc::<ShakyMember>::clone(&members[victim]));
    if rng.below(4) == 0 {
        let wanted = if array.bitmap().is_some() {
            NewBitmap::None
        } else {
            NewBitmap::Internal { chunk: Some(64 << 10) }
        };
        array.set_bitmap(wanted).await.unwrap();
    }
    let options = crate::manage::world::options(rng.next_u64().into());
    array.add(gateway, path, options).await.unwrap();
    array.sync_ended().await;
    let (status, sync) = (array.status().await, array.sync_status());
    assert_eq!(array.degraded(), 0, "{path} was not rebuilt: {status:?}, {sync:?}");
    assert!(
        array.members().placed().all(|(index, _)| array.members().place(index) != Place::Spare)
    );
    array.request_sync(SyncRequest::Check).unwrap();
    array.sync_ended().await;
    assert_eq!(array.sync_status().mismatches, Sectors::ZERO, "after {path} was rebuilt");
}

/// Waits, on a reactor of the test's thread, for a future that another thread completes.
fn wait<F: Future>(future: F) -> F::Output {
    Reactor::new(ReactorConfig::default()).unwrap().block_on(future)
}

fn run(trial: Trial, seed: u64) {
    const ROUNDS: usize = 3;
    let engine = Engine::start(REACTORS).unwrap();
    let members = (0..trial.members).map(|i| ShakyMember::new(format!("d{i}"), seed + i as u64));
    let members: Vec<Arc<ShakyMember>> = members.collect();
    let (over, clients) = (Arc::new(AtomicBool::new(false)), REACTORS as u64 * CLIENTS);
    let on = members.clone();
    let array = wait(engine.handles()[0].spawn_on(move || async move { start(trial, &on).await }));
    let array = array.unwrap();
    let blocks = array.disk().capacity().0 / BLOCK.0 / clients;
    let mut running = Vec::new();
    for (reactor, handle) in (0..).zip(engine.handles()) {
        let (array, over) = (Arc::clone(&array), Arc::clone(&over));
        running.push(handle.spawn_on(move || async move {
            let clients = (0..CLIENTS).map(|client| {
                let number = reactor * CLIENTS + client;
                let (volume, rng) =
                    (Gateway::new(Arc::<Array>::clone(&array)), Rng::new(seed ^ number));
                // A new array promises no contents.
                let contents = vec![None; blocks as usize];
                let client = Client { volume, rng, contents, number, clients };
                client.run(Arc::clone(&over))
            });
            join_all(clients).await;
        }));
    }
    let (on, operated) = (Arc::clone(&array), members.clone());
    let operator = engine.handles()[1].spawn_on(move || async move {
        let mut rng = Rng::new(seed);
        for _ in 0..ROUNDS {
            operate(&on, &operated, &mut rng).await;
        }
    });
    let ended = wait(operator);
    over.store(true, Relaxed);
    let clients: Vec<_> = running.into_iter().map(wait).collect();
    ended.expect("the operator");
    clients.into_iter().for_each(|client| client.expect("a client"));
    let stopped = engine.handles()[2].spawn_on(move || async move { array.stop().await });
    assert_eq!(wait(stopped), Ok(Ok(())));
}

/// Runs a shape with the seeds of the environment.
fn trial(level: Level, layout: Option<u32>, members: usize, bitmap: NewBitmap) {
    for seed in ashlar_sim::seeds(1) {
        let _reminder = ashlar_sim::runs::RunReminder::new("threads", seed);
        run(Trial { level, layout, members, bitmap }, seed);
    }
}

#[test]
fn a_mirror_keeps_its_contents_on_several_reactors() {
    trial(Level::Raid1, None, 2, NewBitmap::Internal { chunk: Some(64 << 10) });
}

#[test]
fn near_copies_keep_their_contents_on_several_reactors() {
    trial(Level::Raid10, None, 4, NewBitmap::None);
}

#[test]
fn far_copies_keep_their_contents_on_several_reactors() {
    trial(Level::Raid10, Some(0x201), 3, NewBitmap::Lockless);
}

/// A wait for a sync, on another thread than the sync's, ended at once if it looked while the sync was just beginning:
/// what it had seen before the beginning and after it, together, looked as if there were nothing to do.
#[test]
fn a_wait_on_another_thread_does_not_end_before_the_sync() {
    const ROUNDS: u64 = 100;
    let trial = Trial { level: Level::Raid1, layout: None, members: 2, bitmap: NewBitmap::None };
    let engine = Engine::start(REACTORS).unwrap();
    let members: Vec<_> = (0..2).map(|i| ShakyMember::new(format!("d{i}"), i)).collect();
    let on = members.clone();
    let array = wait(engine.handles()[0].spawn_on(move || async move { start(trial, &on).await }));
    let array = array.unwrap();
    // Odd while a member that was added lacks data.
    let phase = Arc::new(AtomicU64::new(0));
    let mut waits = Vec::new();
    for handle in &engine.handles()[2..] {
        let (array, phase) = (Arc::clone(&array), Arc::clone(&phase));
        waits.push(handle.spawn_on(move || async move {
            let mut early = 0;
            loop {
                let before = phase.load(SeqCst);
                if before >= 2 * ROUNDS {
                    return early;
                }
                if before % 2 == 1 {
                    array.sync_ended().await;
                    early += u32::from(array.degraded() > 0 && phase.load(SeqCst) == before);
                }
                yield_now().await;
            }
        }));
    }
    let operator = engine.handles()[1].spawn_on(move || async move {
        let mut rng = Rng::new(1);
        for _ in 0..ROUNDS {
            let found = array.members().placed().find(|(_, rdev)| rdev.path() == "d1");
            let (index, rdev) = found.unwrap();
            let (gateway, path) = (rdev.gateway().clone(), rdev.path().to_owned());
            array.fail(index).await.unwrap();
            array.remove(index).await.unwrap();
            let options = crate::manage::world::options(rng.next_u64().into());
            array.add(gateway, &path, options).await.unwrap();
            phase.fetch_add(1, SeqCst);
            while array.degraded() > 0 {
                yield_now().await;
            }
            phase.fetch_add(1, SeqCst);
        }
    });
    wait(operator).unwrap();
    let early: u32 = waits.into_iter().map(|early| wait(early).unwrap()).sum();
    assert_eq!(early, 0, "waits that ended early");
}
