//! One random array with its disks, and its lives.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{BioResult, Features, Gateway, Limits, Runtime, Sector, Sectors};
use ashlar_md::create::CreatedArray;
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap};
use ashlar_md::ondisk::{Level, Version, change};
use ashlar_md::{Array, ArrayState, AssembleError, Options};
use ashlar_sim::oracle::stamp;
use ashlar_sim::{Media, Model, Oracle, Rng, Sim, SimDisk, SimRuntime, Snapshot, Stop, Value};
use futures_util::future::{join, join_all, select};

use crate::common::{Shape, candidates, gateway, make_with, spec, start};

mod checks;
mod network;
mod operator;
mod places;
mod script;

use network::Links;
use places::Places;
use script::{End, Facts, Script, Ways, misbehave};

const RUN: Options = Options { run: true, read_only: false, force: false };
/// What mdadm reserves for a partial parity log.
const PPL: u64 = 2304;
/// Some disks take longer for some commands.
const IO_TIMEOUT: Duration = Duration::from_secs(1);
const READ_ONLY: Options = Options { run: true, read_only: true, force: false };

/// See the module text.
pub(crate) struct World {
    seed: u64,
    rng: Rng,
    shape: Shape,
    media: Vec<Media>,
    kinds: Vec<Limits>,
    places: Vec<Places>,
    new: Vec<Snapshot>,
    oracle: Oracle,
    size: u64,
    /// Sectors of a logical block.
    block: u64,
    /// The disks whose members have recorded failures.
    failed: BTreeSet<usize>,
    /// Too many members may have failed while members listed bad blocks, so data may be lost.
    may_lose: Cell<bool>,
    /// The last life ended with all data on all members.
    whole: bool,
    /// Acknowledged writes may be lost in this life, if a flush reports that.
    loses_behind: Cell<bool>,
    /// The disks that the operator added in this life, or tried to add.
    added: RefCell<BTreeSet<usize>>,
    /// The links to the disks, if they are on a network.
    links: Option<Links>,
    /// The array has parity, was not stopped cleanly, and lacks a member, so that it does not start again, or blocks, which cannot be read.
    over: Cell<bool>,
    /// The length of the partial parity log, if there is one.
    ppl: Option<Sectors>,
    /// Commands have a latency tail, and may take effect after their link has broken.
    lags: bool,
}

/// The result of a life.
struct LifeResult {
    array: Arc<Array>,
    /// What is known about the copies.
    quiet: Quiescence,
}

/// Whether I/O is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quiescence {
    /// I/O may be under way.
    No,
    /// No I/O is; everything is on the disks, and the superblocks record that.
    Recorded,
    /// No write is under way.
    Synced,
}

fn random_shape(level: Level, rng: &mut Rng) -> Shape {
    let chunk_kib = [4, 4, 8][rng.index(3)];
    let mut shape = if level == Level::Raid1 {
        Shape::new(level, None, 0, 2 + rng.index(3))
    } else if level == Level::Raid10 {
        let layouts = [0x102, 0x102, 0x103, 0x201, 0x301, 0x202, 0x1_0201, 0x1_0301];
        let layout: u32 = layouts[rng.index(layouts.len())];
        let copies = ((layout & 255) * (layout >> 8 & 255)) as usize;
        Shape::new(level, Some(layout), chunk_kib, copies + rng.index(6 - copies))
    } else if level.has_parity() {
        let layouts: Vec<u32> = if level == Level::Raid6 {
            (0..6).chain(8..11).chain(16..21).collect()
        } else if level == Level::Raid5 {
            (0..6).collect()
        } else {
            vec![0]
        };
        let least = if level == Level::Raid6 { 4 } else { 3 };
        let layout = layouts[rng.index(layouts.len())];
        Shape::new(level, Some(layout), chunk_kib, least + rng.index(3))
    } else {
        Shape::new(level, None, chunk_kib, 2 + rng.index(3))
    };
    shape.version = Version::ALL[1 + rng.index(3)];
    shape
}

fn random_limits(rng: &mut Rng, logical_block_bytes: u32) -> Limits {
    let full = Limits { logical_block_bytes, ..Model::nvme().limits() };
    match rng.below(6) {
        0 => Limits { features: Features::WRITE_CACHE, ..full },
        1 => Limits { features: Features::empty(), ..full },
        2 => Limits { max_hw_discard: Sectors::ZERO, max_write_zeroes: Sectors::ZERO, ..full },
        _ => full,
    }
}

impl World {
    /// A random new array of this level.
    pub(crate) fn new(level: Level, seed: u64) -> Self {
        Self::random(level, seed, false)
    }

    fn random(level: Level, seed: u64, lags: bool) -> Self {
        let mut rng = Rng::new(seed ^ 0x6d64);
        let shape = random_shape(level, &mut rng);
        let block = if rng.chance(1, 5) { 8 } else { 1 };
        // The length of a partial parity log, if there is one.
        let ppl = (level == Level::Raid5 && rng.chance(1, 3))
            .then(|| Sectors([16, 40, 528, 600, 2048][rng.index(5)]));
        let spares = if level == Level::Raid0 { 0 } else { [0, 0, 1, 2][rng.index(4)] };
        // Sometimes an array that is synced in several windows.
        let least = if rng.chance(1, 12) { 5000 } else { 400 };
        let least = least + if ppl.is_some() { PPL } else { 0 };
        let sizes: Vec<Sectors> = (0..shape.members + spares)
            .map(|_| Sectors(least + rng.below(160)).round_down(Sectors(block)))
            .collect();
        let media: Vec<Media> = sizes.iter().map(|size| Media::new(*size)).collect();
        // The array's block size is the largest of its members'.
        let mut kinds: Vec<Limits> = sizes.iter().map(|_| random_limits(&mut rng, 512)).collect();
        let large = rng.index(shape.members);
        kinds[large].logical_block_bytes = block as u32 * 512;
        let mut world = Self {
            seed,
            rng,
            kinds,
            media,
            places: Vec::new(),
            new: Vec::new(),
            oracle: Oracle::new(seed, Value::Zeroes),
            size: 0,
            block,
            failed: BTreeSet::new(),
            may_lose: Cell::new(false),
            whole: false,
            loses_behind: Cell::new(false),
            added: RefCell::default(),
            links: None,
            over: Cell::new(false),
            lags,
            ppl,
            shape,
        };
        world.make(&sizes);
        world
    }

    fn make(&mut self, sizes: &[Sectors]) {
        let sim = Sim::new(self.rng.next_u64());
        let disks = self.disks();
        sim.block_on(async {
            let mut spec = spec(&self.shape, sizes);
            if self.redundant() {
                self.furnish(&mut spec);
            }
            if self.ppl.is_some() {
                spec.ppl = true;
                spec.bitmap = NewBitmap::None;
                spec.data_offset = (spec.version != Version::V1_0).then_some(Sectors(256 + PPL));
            }
            let mut made = make_with(&spec, &disks).await;
            if let Some(len) = self.ppl {
                self.shorten_logs(&mut made, len);
            }
            let array = start(&sim, &disks, &READ_ONLY).await.expect("a new array");
            self.size = gateway(&array).capacity().0;
            let used = array.status().await.used_dev_size;
            for new in made.superblocks.iter().flatten() {
                let sb = &new.superblock;
                let used = if self.redundant() { used } else { sb.data_size };
                let mut places = Places::of(sb, used.0, self.block);
                for bitmap in [NewBitmap::Internal { chunk: Some(8192) }, NewBitmap::Lockless] {
                    let size = array.personality().sync_size();
                    if let Ok(new) = change::place_bitmap([sb], size, bitmap, true) {
                        let at = sb.super_offset.0.saturating_add_signed(new.offset.into());
                        places.allow_bitmap_at(at, sb.device_size().0);
                    }
                }
                self.places.push(places);
            }
        });
        drop(sim);
        // Stamp all sectors outside the array's areas, so that overwriting them is detected.
        for ((medium, places), size) in self.media.iter().zip(&self.places).zip(sizes) {
            for sector in (0..size.0).filter(|sector| !places.hold(*sector)) {
                medium.poke(Sector(sector), &stamp(self.seed, sector, u64::MAX));
            }
            self.new.push(medium.snapshot());
        }
    }

    /// Gives the members shorter partial parity logs than mdadm does.
    fn shorten_logs(&self, made: &mut CreatedArray, len: Sectors) {
        for (medium, new) in self.media.iter().zip(made.superblocks.iter_mut().flatten()) {
            let sb = &mut new.superblock;
            sb.ppl.as_mut().expect("a log").len = len;
            let bytes = sb.encode(512).expect("a superblock");
            for (sector, bytes) in (sb.super_offset.0..).zip(bytes.chunks(512)) {
                medium.poke(Sector(sector), bytes);
            }
        }
    }

    /// Adds random options of a redundant array: bitmap, bad block log, flags.
    fn furnish(&mut self, spec: &mut CreateSpec) {
        let (rng, lags) = (&mut self.rng, self.lags);
        spec.daemon_sleep = 1;
        spec.bad_block_log = rng.chance(1, 3);
        spec.bitmap = match rng.below(4) {
            0 => NewBitmap::None,
            1 if self.shape.version == Version::V1_2 && !self.shape.level.has_parity() => {
                NewBitmap::Lockless
            }
            _ => NewBitmap::Internal { chunk: Some(4096 << rng.below(3)) },
        };
        if !self.shape.level.has_parity() && rng.chance(if lags { 2 } else { 1 }, 3) {
            let mut members = spec.members.iter_mut().flatten().skip(1);
            members.by_ref().filter(|_| rng.chance(1, 2)).for_each(|m| m.flags.write_mostly = true);
            if matches!(spec.bitmap, NewBitmap::Internal { .. }) {
                spec.write_behind = 1 + rng.below(4) as u32;
            }
        }
    }

    fn disks(&self) -> Vec<SimDisk> {
        let disk = |(at, (medium, limits)): (usize, (&Media, &Limits))| {
            let model = self.links.as_ref().map_or(Model::nvme(), |links| links.models[at]);
            let name = format!("d{at}");
            match self.has_deadlines() {
                true => SimDisk::with_io_timeout(name, medium.clone(), *limits, model, IO_TIMEOUT),
                false => SimDisk::with(name, medium.clone(), *limits, model),
            }
        };
        self.media.iter().zip(&self.kinds).enumerate().map(disk).collect()
    }

    /// Whether the requests of its disks have deadlines: then disks may fall silent.
    fn has_deadlines(&self) -> bool {
        self.seed % 2 == 1 || self.links.is_some()
    }

    /// The number of the disk with this path.
    fn disk_at(&self, path: &str) -> usize {
        path[1..].parse().expect("the name of a disk")
    }

    fn redundant(&self) -> bool {
        self.shape.level != Level::Raid0
    }

    /// One life: from assembly to an end.
    pub(crate) fn live(&mut self) {
        if self.over.get() {
            return;
        }
        let sim = Sim::new(self.rng.next_u64());
        sim.set_time_limit(Duration::from_secs(3600));
        let disks = self.disks();
        let end = End::random(&mut self.rng);
        let rng = self.rng.fork();
        let stop = match end {
            End::Step(n) => Stop::AfterSteps(n),
            End::Done | End::Synced | End::Idle | End::Stop | End::StopEarly | End::Repaired => {
                Stop::AfterSteps(u64::MAX)
            }
        };
        let ended = sim.block_on_until(self.life(&sim, &disks, end, rng), stop).flatten();
        if self.over.get() {
            return;
        }
        self.oracle.expect_losses(None);
        let added = self.added.take();
        self.failed.retain(|disk| !added.contains(disk));
        for disk in added {
            self.places[disk].allow_erasing(self.media[disk].capacity());
        }
        self.whole = false;
        // The daemon is killed before it has recorded that a member lost its cache: as after a power cut, only what was
        // flushed must be there.
        let unrecorded = !ended.as_ref().is_some_and(|lived| lived.quiet == Quiescence::Recorded);
        let dropped = self.media.iter().any(Media::dropped_cache);
        // The same goes for a write behind that would have failed the next flush.
        let loses = (self.loses_behind.take() || dropped) && unrecorded;
        if let Some(LifeResult { array, quiet }) = ended {
            self.whole = quiet == Quiescence::Recorded
                && !array.is_unsynced()
                && array.degraded() == 0
                && !operator::lists_bad_blocks(&array);
            if quiet != Quiescence::No && !array.is_unsynced() {
                self.check_copies(&array);
            }
            // A member may have failed a moment ago, while marks were cleared.
            if quiet == Quiescence::Recorded && array.is_recorded() {
                let faulty = array.members().iter().filter(|(_, rdev)| rdev.is_faulty());
                let faulty: Vec<usize> =
                    faulty.map(|(_, rdev)| self.disk_at(rdev.path())).collect();
                self.failed.extend(faulty);
            }
        }
        for medium in &self.media {
            medium.heal();
        }
        if self.rng.chance(2, 3) {
            sim.power_cut();
            self.oracle.power_cut();
        } else {
            sim.kill();
            if loses { self.oracle.power_cut() } else { self.oracle.kill() }
        }
        self.check_outside();
    }

    async fn life(
        &self,
        sim: &Sim,
        disks: &[SimDisk],
        end: End,
        mut rng: Rng,
    ) -> Option<LifeResult> {
        let array = self.assemble(sim, disks, &mut rng).await?;
        let volume = gateway(&array);
        for (_, rdev) in array.members().placed() {
            let failed = self.failed.contains(&self.disk_at(rdev.path()));
            assert!(!failed || !rdev.is_in_sync(), "{} failed and is used again", rdev.path());
        }
        let (redundant, unsynced) = (self.redundant(), array.is_unsynced());
        let (size, block, disk_count) = (self.size, self.block, disks.len());
        let spare = redundant && array.degraded() == 0 && !operator::lists_bad_blocks(&array);
        let unruly = self.lags;
        // What more failures leave of an array with parity is not told apart.
        let careful = self.shape.level.has_parity();
        let facts = Facts { size, block, disks: disk_count, spare, redundant, unruly, careful };
        let script = Script::random(facts, end, &mut rng);
        if std::env::var_os("ASHLAR_SEED").is_some() {
            eprintln!("{:?} unsynced: {unsynced}, {script:#?}", self.shape);
            eprintln!("{:#?}", array.status().await.notes);
        }
        self.settle(&array, &mut rng).await;
        self.may_lose.set(self.may_lose.get() | script.too_many);
        if self.may_lose_writes_behind(&array, &script) {
            self.loses_behind.set(true);
            let volume = gateway(&array);
            self.oracle.expect_losses(Some(Box::new(move || volume.disk().losses())));
        }
        let mut faults = rng.fork();
        let trouble = async {
            // While copies may differ, the member with the first copy must not fail: another may hold
            // old data.
            while array.is_unsynced() {
                SimRuntime.sleep(Duration::from_micros(200)).await;
            }
            // On a network, it is the links that misbehave.
            let victims = if self.links.is_none() { &script.victims[..] } else { &[] };
            for &disk in victims {
                let data = self.places[disk].data;
                let ways = Ways { keeps_data: !script.too_many, silence: self.has_deadlines() };
                misbehave(&self.media[disk], data, ways, &mut faults);
            }
        };
        let trouble = Box::pin(trouble);
        let network = self.links.as_ref().map(|_| rng.fork());
        let work = Box::pin(self.work(&volume, &script, &mut rng));
        let lived = async {
            let operator = self.operate(&array, disks, &script, self.rng.clone().fork());
            join(operator, select_first(work, trouble)).await;
            self.trickle(&volume, &script).await;
        };
        let work = async {
            match network {
                Some(rng) => {
                    let network = self.network(&array, disks, &script, rng);
                    select_first(Box::pin(lived), Box::pin(network)).await;
                }
                None => lived.await,
            }
        };
        if end == End::StopEarly {
            let stop = async {
                SimRuntime.sleep(Duration::from_micros(self.rng.clone().below(4000))).await;
                array.stop().await
            };
            let ((), stopped) = join(work, stop).await;
            return Some(self.recorded(array.clone(), stopped, &script));
        }
        work.await;
        Some(self.come_to_an_end(array, disks, &script).await)
    }

    /// Starts the array; perhaps without one of its disks, if the others suffice.
    async fn assemble(&self, sim: &Sim, disks: &[SimDisk], rng: &mut Rng) -> Option<Arc<Array>> {
        if self.whole && self.redundant() && rng.chance(1, 4) {
            let away = rng.index(disks.len());
            let there = disks.iter().enumerate().filter(|(at, _)| *at != away);
            let there: Vec<&SimDisk> = there.map(|(_, disk)| disk).collect();
            if let Ok(array) = start(sim, &there, &RUN).await {
                return Some(array);
            }
        }
        match start(sim, disks, &RUN).await {
            // Bad blocks are data that only parity has, which a crash may have left wrong.
            Ok(array)
                if self.shape.level.has_parity()
                    && array.is_unsynced()
                    && operator::lists_bad_blocks(&array) =>
            {
                self.over.set(true);
                None
            }
            Ok(array) => Some(array),
            Err(AssembleError::DirtyDegraded { .. }) if self.shape.level.has_parity() => {
                self.over.set(true);
                None
            }
            Err(error) => panic!("{:?}: {error}", self.shape),
        }
    }

    /// Occasional writes in the first writer's part of the array.
    async fn trickle(&self, volume: &Gateway, script: &Script) {
        let mut rng = self.rng.clone().fork();
        let Some(first) = script.work.first() else { return };
        // Members of a network come back meanwhile.
        let more = if self.links.is_some() { 40 } else { 0 };
        let one =
            if self.lags { script::one_in_few_blocks(first) } else { script::one_write(first) };
        for _ in 0..script.trickle + more {
            SimRuntime.sleep(Duration::from_millis(20 + rng.below(150))).await;
            let done = one.run(volume, &self.oracle, &mut rng).await;
            done.unwrap_or_else(|violation| panic!("{:?}: {violation}", self.shape));
        }
    }

    async fn come_to_an_end(
        &self,
        array: Arc<Array>,
        disks: &[SimDisk],
        script: &Script,
    ) -> LifeResult {
        Self::let_go(&array);
        match script.end {
            End::Step(_) | End::Done => LifeResult { array, quiet: Quiescence::No },
            End::Synced | End::Repaired => {
                // Waits for writes behind.
                self.flush(&array).await;
                array.sync_ended().await;
                if script.end == End::Repaired && script.victims.is_empty() {
                    self.repair(&array).await;
                }
                LifeResult { array, quiet: Quiescence::Synced }
            }
            End::Stop | End::StopEarly => {
                let stopped = array.stop().await;
                self.recorded(array, stopped, script)
            }
            End::Idle => {
                // A slow member may take long.
                for _ in 0..600 {
                    SimRuntime.sleep(Duration::from_secs(1)).await;
                    if array.state() == ArrayState::Clean && self.redundant() {
                        // If copies may differ, the superblocks say so: a resync gave up.
                        let told = array.is_unsynced() || self.says_clean(&array, disks).await;
                        assert!(told, "{:?}: not recorded", self.shape);
                        return self.recorded(array, Ok(()), script);
                    }
                }
                let may_stay = script.too_many || !self.redundant();
                assert!(may_stay, "{:?}: never clean", self.shape);
                LifeResult { array, quiet: Quiescence::No }
            }
        }
    }

    /// Whether the superblocks of all in-sync members say clean. (A member that died unnoticed has no
    /// readable one.)
    async fn says_clean(&self, array: &Array, disks: &[SimDisk]) -> bool {
        let members = array.status().await.members;
        let mut found = candidates(disks).await.into_iter().filter(|candidate| {
            members.iter().any(|m| m.in_sync && m.path.as_deref() == Some(&*candidate.path))
        });
        found.all(|candidate| candidate.sb.is_clean())
    }

    /// The array was stopped, or became clean: everything is on the disks.
    fn recorded(&self, array: Arc<Array>, stopped: BioResult, script: &Script) -> LifeResult {
        assert!(script.too_many || stopped.is_ok(), "{:?}: stop: {stopped:?}", self.shape);
        let flush = self.oracle.begin_flush();
        self.oracle.end(flush, stopped);
        let quiet = if stopped.is_ok() { Quiescence::Recorded } else { Quiescence::No };
        LifeResult { array, quiet }
    }

    async fn work(&self, volume: &Gateway, script: &Script, rng: &mut Rng) {
        let mut parts = script.work.iter().map(|part| (part, rng.fork())).collect::<Vec<_>>();
        let running = parts.iter_mut().map(|(part, rng)| part.run(volume, &self.oracle, rng));
        for ended in join_all(running).await {
            ended.unwrap_or_else(|violation| panic!("{:?}: {violation}", self.shape));
        }
    }
}

/// Runs `first` to its end, and `other` concurrently.
async fn select_first(
    first: impl Future<Output = ()> + Unpin,
    other: impl Future<Output = ()> + Unpin,
) {
    use futures_util::future::Either;
    if let Either::Right(((), first)) = select(first, other).await {
        first.await;
    }
}
