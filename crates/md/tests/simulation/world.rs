//! One random array with its disks, and its lives.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Bio, BioResult, Features, Flags, Gateway, Limits, Sector, Sectors};
use ashlar_md::ondisk::bitmap_super::BitmapSuper;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::ondisk::{Level, Role, Superblock};
use ashlar_md::{Array, ArrayState, Options};
use ashlar_sim::oracle::stamp;
use ashlar_sim::scheduler::start as start_task;
use ashlar_sim::{Media, Mix, Model, Oracle, Rng, Sim, SimDisk, Snapshot, Stop, Value, Workload};
use futures_util::future::{join, join_all};

use crate::common::{Shape, candidates, gateway, make_with, spec, start};

const RUN: Options = Options { run: true, read_only: false };
const READ_ONLY: Options = Options { run: true, read_only: true };

const READS: Mix = Mix { read: 1, write: 0, write_fua: 0, flush: 0, discard: 0, write_zeroes: 0 };

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// At some step, wherever that is.
    Step(u64),
    /// When the work is done.
    Done,
    /// Some time after the work, when the array has become clean by itself.
    Idle,
    /// Stopped after the work.
    Stop,
    /// Stopped in the midst of it.
    StopEarly,
}

/// What a life is to be like.
#[derive(Debug)]
struct Script {
    /// Writers with a part of the array each, and readers of all of it. (Writes to one sector that
    /// are in flight together may leave its copies different, as in md; nobody sane does it.)
    work: Vec<Workload>,
    end: End,
    /// The members that misbehave.
    victims: Vec<usize>,
    /// More misbehave than can be done without, perhaps.
    too_many: bool,
}

/// Where things are on a member.
struct Places {
    superblock: Range<u64>,
    bitmap: Option<Range<u64>>,
    data: Range<u64>,
}

impl Places {
    fn hold(&self, sector: u64) -> bool {
        self.superblock.contains(&sector)
            || self.data.contains(&sector)
            || self.bitmap.as_ref().is_some_and(|bitmap| bitmap.contains(&sector))
    }
}

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
    /// The slots whose disks are still there.
    present: Vec<usize>,
    /// The slots whose members are known to have failed.
    failed: Vec<usize>,
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
    } else {
        Shape::new(level, None, chunk_kib, 2 + rng.index(3))
    };
    shape.version = ashlar_md::ondisk::Version::ALL[1 + rng.index(3)];
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
        let mut rng = Rng::new(seed ^ 0x6d64);
        let shape = random_shape(level, &mut rng);
        let block = if rng.chance(1, 5) { 8 } else { 1 };
        let sizes: Vec<Sectors> = (0..shape.members)
            .map(|_| Sectors(400 + rng.below(160)).round_down(Sectors(block)))
            .collect();
        let media: Vec<Media> = sizes.iter().map(|size| Media::new(*size)).collect();
        // The array has the largest block of its members.
        let mut kinds: Vec<Limits> = sizes.iter().map(|_| random_limits(&mut rng, 512)).collect();
        let large = rng.index(kinds.len());
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
            present: (0..shape.members).collect(),
            failed: Vec::new(),
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
            if self.redundant() && self.rng.chance(1, 3) {
                spec.bitmap = NewBitmap::Internal { chunk: None };
            }
            let made = make_with(&spec, &disks).await;
            let array = start(&sim, &disks, &READ_ONLY).await.expect("a new array");
            self.size = gateway(&array).capacity().0;
            let used = array.status().await.used_dev_size;
            for new in made.superblocks.iter().flatten() {
                let sb = &new.superblock;
                let used = if self.redundant() { used } else { sb.data_size };
                let (at, data) = (sb.super_offset.0, sb.data_offset.0);
                self.places.push(Places {
                    superblock: at..at + self.block,
                    bitmap: sb.bitmap_start().map(|start| start.0..start.0 + self.block),
                    data: data..data + used.0,
                });
            }
        });
        drop(sim);
        // What is not the array's is recognised when it is overwritten.
        for ((medium, places), size) in self.media.iter().zip(&self.places).zip(sizes) {
            for sector in (0..size.0).filter(|sector| !places.hold(*sector)) {
                medium.poke(Sector(sector), &stamp(self.seed, sector, u64::MAX));
            }
            self.new.push(medium.snapshot());
        }
    }

    fn disks(&self) -> Vec<SimDisk> {
        let disk = |(slot, (medium, limits)): (usize, (&Media, &Limits))| {
            SimDisk::with(format!("d{slot}"), medium.clone(), *limits, Model::nvme())
        };
        self.media.iter().zip(&self.kinds).enumerate().map(disk).collect()
    }

    fn redundant(&self) -> bool {
        self.shape.level != Level::Raid0
    }

    /// One life: from assembly to an end. False if there can be no other.
    pub(crate) fn live(&mut self) -> bool {
        let sim = Sim::new(self.rng.next_u64());
        sim.set_time_limit(Duration::from_secs(3600));
        let disks = self.disks();
        let here: Vec<SimDisk> = disks
            .into_iter()
            .enumerate()
            .filter(|(s, _)| self.present.contains(s))
            .map(|d| d.1)
            .collect();
        let whole = match sim.block_on(start(&sim, &here, &RUN)) {
            Ok(array) if array.is_unsynced() => return self.only_look(sim, &here),
            Ok(array) => array.degraded() == 0,
            Err(error) => panic!("{:?}: {error}", self.shape),
        };
        let script = self.script(whole && self.redundant());
        let rng = self.rng.fork();
        let stop = match script.end {
            End::Step(n) => Stop::AfterSteps(n),
            End::Done | End::Idle | End::Stop | End::StopEarly => Stop::AfterSteps(u64::MAX),
        };
        if std::env::var_os("ASHLAR_SEED").is_some() {
            eprintln!("{script:?}");
        }
        let ended = sim.block_on_until(self.life(&sim, &here, &script, rng), stop);
        for medium in &self.media {
            medium.heal();
        }
        if let Some((array, stopped)) = ended {
            let failed: Vec<usize> =
                (0..self.shape.members).filter(|slot| is_faulty(&sim, &array, *slot)).collect();
            if stopped == Some(Ok(())) {
                if !array.is_unsynced() {
                    self.check_copies(&sim, &array);
                }
                self.failed.extend(failed);
            }
        }
        if self.rng.chance(2, 3) {
            sim.power_cut();
            self.oracle.power_cut();
        } else {
            sim.kill();
            self.oracle.kill();
        }
        self.check_outside();
        self.check_bitmaps();
        true
    }

    /// What comes next; with `spare` one member can be done without.
    fn script(&mut self, spare: bool) -> Script {
        let rng = &mut self.rng;
        let end = match rng.below(10) {
            0..3 => End::Step(rng.below(400)),
            3 | 4 => End::Step(rng.below(4000)),
            5 => End::Done,
            6 => End::Idle,
            7 => End::StopEarly,
            _ => End::Stop,
        };
        let victims = match rng.below(8) {
            0..4 => Vec::new(),
            4..7 => vec![rng.index(self.shape.members)],
            _ => (0..self.shape.members).filter(|_| rng.chance(1, 2)).collect(),
        };
        let too_many = victims.len() > usize::from(spare);
        let (mix, max_len) = match rng.below(5) {
            0 => (Mix { discard: 30, write_zeroes: 20, ..Mix::default() }, 24),
            1 => (Mix { discard: 0, ..Mix::default() }, 24),
            2 => (Mix { read: 2, write: 2, discard: 10, ..Mix::default() }, self.size),
            _ => (Mix::default(), 8),
        };
        let mut cuts: Vec<u64> =
            (0..rng.below(5)).map(|_| rng.below(self.size / self.block) * self.block).collect();
        cuts.extend([0, self.size]);
        cuts.sort_unstable();
        cuts.dedup();
        let common = Workload {
            align: self.block,
            max_len: max_len.max(self.block),
            tasks: 1,
            ios: 2 + rng.index(16),
            mix,
            tolerate_errors: too_many || end == End::StopEarly,
            ..Workload::over(0..self.size)
        };
        let readers = Workload { mix: READS, tasks: rng.index(3), max_len: 40, ..common.clone() };
        let mut work: Vec<Workload> =
            cuts.windows(2).map(|w| Workload { span: w[0]..w[1], ..common.clone() }).collect();
        work.push(readers);
        Script { work, end, victims, too_many }
    }

    /// Lets the victims misbehave from now on, or from some time on.
    fn misbehave(&self, script: &Script, rng: &mut Rng) {
        for &slot in &script.victims {
            let (medium, places) = (self.media[slot].clone(), &self.places[slot]);
            let len = places.data.end - places.data.start;
            let mut range = || {
                let at = places.data.start + rng.below(len);
                at..(at + 1 + rng.below(24)).min(places.data.end)
            };
            let (one, other) = (range(), range());
            let superblock = places.superblock.clone();
            let (n, delay) = (rng.below(20), Duration::from_micros(rng.below(3000)));
            let kind = rng.below(9);
            let misbehave = move || match kind {
                0 => medium.kill(),
                1 => medium.fail_nth_write(n),
                2 => medium.fail_writes(one),
                3 => {
                    medium.fail_reads(one.clone());
                    medium.fail_writes(one);
                }
                4 => medium.fail_writes(superblock),
                5 => medium.slow_down(2 + n * n * 10),
                6 => medium.drop_support(ashlar_block::Op::Flush),
                _ => {
                    medium.fail_reads(one);
                    medium.fail_reads(other);
                }
            };
            if rng.chance(1, 2) {
                misbehave();
            } else {
                drop(start_task(async move {
                    ashlar_block::Runtime::sleep(&ashlar_sim::SimRuntime, delay).await;
                    misbehave();
                }));
            }
        }
    }

    async fn life(
        &self,
        sim: &Sim,
        disks: &[SimDisk],
        script: &Script,
        mut rng: Rng,
    ) -> (Arc<Array>, Option<BioResult>) {
        let array = start(sim, disks, &RUN).await.expect("as planned");
        let volume = gateway(&array);
        // An array that crashed and has one copy left stays as it is until it is written or stopped.
        let crashed = array.is_active();
        let members = array.status().await.members;
        for slot in &self.failed {
            assert!(!members[*slot].in_sync, "the failed member {slot} is used again");
        }
        self.settle(&array, &mut rng).await;
        self.misbehave(script, &mut rng);
        let work = self.work(&volume, script, &mut rng);
        if script.end == End::StopEarly {
            let stop = async {
                sim.runtime().sleep(Duration::from_micros(self.rng.clone().below(4000))).await;
                array.stop().await
            };
            let ((), stopped) = join(work, stop).await;
            return self.ended(array, stopped, script);
        }
        work.await;
        match script.end {
            End::Step(_) | End::Done => (array, None),
            End::Stop | End::StopEarly => {
                let stopped = array.stop().await;
                self.ended(array, stopped, script)
            }
            End::Idle => {
                // A slow member may take its time.
                for _ in 0..600 {
                    sim.runtime().sleep(Duration::from_secs(1)).await;
                    if array.state() == ArrayState::Clean && self.redundant() {
                        let told = self.says_clean(&array, disks).await;
                        assert!(told, "{:?}: not recorded", self.shape);
                        return self.ended(array, Ok(()), script);
                    }
                }
                let may_stay = crashed || script.too_many || !self.redundant();
                assert!(may_stay, "{:?}: never clean", self.shape);
                (array, None)
            }
        }
    }

    /// Whether the superblocks of all members in sync say clean. (One that died unnoticed cannot say
    /// anything.)
    async fn says_clean(&self, array: &Array, disks: &[SimDisk]) -> bool {
        let members = array.status().await.members;
        let mut found = candidates(disks).await.into_iter().filter(|candidate| {
            members.iter().any(|m| m.in_sync && m.path.as_deref() == Some(&*candidate.path))
        });
        found.all(|candidate| candidate.sb.is_clean())
    }

    /// The array was stopped, or became clean: then everything is on the disks.
    fn ended(
        &self,
        array: Arc<Array>,
        stopped: BioResult,
        script: &Script,
    ) -> (Arc<Array>, Option<BioResult>) {
        assert!(script.too_many || stopped.is_ok(), "{:?}: stop: {stopped:?}", self.shape);
        let flush = self.oracle.begin_flush();
        self.oracle.end(flush, stopped);
        (array, Some(stopped))
    }

    async fn work(&self, volume: &Gateway, script: &Script, rng: &mut Rng) {
        let mut parts = script.work.iter().map(|part| (part, rng.fork())).collect::<Vec<_>>();
        let running = parts.iter_mut().map(|(part, rng)| part.run(volume, &self.oracle, rng));
        for ended in join_all(running).await {
            ended.unwrap_or_else(|violation| panic!("{:?}: {violation}", self.shape));
        }
    }

    /// Reads everything, in pieces of any size. What is undefined since the last life, and may differ
    /// from copy to copy, is written first.
    async fn settle(&self, array: &Arc<Array>, rng: &mut Rng) {
        let volume = gateway(array);
        // What a killed process left in the disks' caches is there for good now.
        let flush = self.oracle.begin_flush();
        self.oracle.end(flush, volume.flush().await);
        let undefined = |sector: &u64| self.oracle.allowed(*sector).contains(&Value::Anything);
        let mut at = 0;
        while let Some(from) = (at..self.size).find(undefined) {
            at = (from..self.size).find(|sector| !undefined(sector)).unwrap_or(self.size);
            let ticket = self.oracle.begin_write_zeroes(from..at, Flags::FUA);
            let zeroes = Bio::write_zeroes(Sector(from), Sectors(at - from));
            self.oracle.end(ticket, volume.submit(zeroes.with_flags(Flags::FUA)).await);
        }
        let mut at = 0;
        while at < self.size {
            let to = self.size.min(at + self.block * (1 + rng.below(200)));
            let ticket = self.oracle.begin_read(at..to);
            let data = volume.read(Sector(at), Sectors(to - at)).await;
            let data = data.unwrap_or_else(|e| panic!("{:?}: sector {at}: {e}", self.shape));
            let checked = self.oracle.check_read(ticket, data.as_slice());
            checked.unwrap_or_else(|violation| panic!("{:?}: {violation}", self.shape));
            at = to;
        }
    }

    /// An array that was not stopped cleanly and has two copies of something: it is read, twice, and
    /// goes on with one copy of everything if some of its members make one.
    fn only_look(&mut self, sim: Sim, disks: &[SimDisk]) -> bool {
        assert!(self.redundant());
        let before: Vec<Snapshot> = self.media.iter().map(Media::snapshot).collect();
        let bad = self.rng.index(self.shape.members);
        let sector = self.places[bad].data.start + self.rng.below(128);
        let mut rng = self.rng.fork();
        let single = sim.block_on(async {
            let array = start(&sim, disks, &READ_ONLY).await.expect("as planned");
            let members = array.status().await.members;
            let in_sync: Vec<usize> =
                (0..members.len()).filter(|slot| members[*slot].in_sync).collect();
            if in_sync.len() == members.len() {
                self.media[bad].fail_reads(sector..sector + 2);
            }
            let mut seen: Vec<Option<Vec<u8>>> = vec![None; self.size as usize];
            for _ in 0..2 {
                self.look(&array, &mut seen, &mut rng).await;
            }
            array.stop().await.expect("nothing to do");
            self.single_copies(&array, &in_sync)
        });
        self.media[bad].heal();
        for (medium, before) in self.media.iter().zip(&before) {
            assert!(medium.diff(before).is_empty(), "{:?}: reading wrote", self.shape);
        }
        drop(sim);
        if single.is_empty() {
            return false;
        }
        self.present = single[self.rng.index(single.len())].clone();
        true
    }

    /// One look at every sector, which must hold something it may hold, and what it held last time.
    async fn look(&self, array: &Arc<Array>, seen: &mut [Option<Vec<u8>>], rng: &mut Rng) {
        let volume = gateway(array);
        let mut at = 0;
        while at < self.size {
            let to = self.size.min(at + self.block * (1 + rng.below(60)));
            let data = volume.read(Sector(at), Sectors(to - at)).await;
            let data = data.unwrap_or_else(|e| panic!("{:?}: sector {at}: {e}", self.shape));
            for (sector, bytes) in (at..to).zip(data.as_slice().chunks(512)) {
                let allowed = self.oracle.allowed(sector);
                let fits = allowed.iter().any(|value| match value {
                    Value::Anything => true,
                    Value::Zeroes => bytes == [0; 512],
                    Value::Stamp(write) => bytes == stamp(self.seed, sector, *write),
                });
                assert!(fits, "{:?}: sector {sector} holds none of {allowed:?}", self.shape);
                let last = seen[sector as usize].get_or_insert_with(|| bytes.to_vec());
                assert!(last == bytes, "{:?}: sector {sector} changed", self.shape);
            }
            at = to;
        }
    }

    /// The sets of members that hold one copy of everything.
    fn single_copies(&self, array: &Array, in_sync: &[usize]) -> Vec<Vec<usize>> {
        let map = array.personality();
        let sets = (1u32..1 << in_sync.len()).map(|mask| {
            let picked = in_sync.iter().enumerate().filter(move |(bit, _)| mask >> bit & 1 == 1);
            picked.map(|(_, slot)| *slot).collect::<Vec<_>>()
        });
        let single = |set: &Vec<usize>| {
            (0..self.size).all(|sector| {
                let copies = map.map(Sector(sector));
                copies.iter().filter(|at| set.contains(&at.disk)).count() == 1
            })
        };
        sets.filter(single).collect()
    }

    /// All copies on members in sync are the same, but for what was discarded.
    fn check_copies(&self, sim: &Sim, array: &Array) {
        let members = sim.block_on(array.status()).members;
        for sector in 0..self.size {
            let copies = array.personality().map(Sector(sector));
            let present = copies.iter().filter(|at| members[at.disk].in_sync);
            let mut held = present.map(|at| {
                let at_disk = self.places[at.disk].data.start + at.sector.0;
                self.media[at.disk].peek(Sector(at_disk))
            });
            let first = held.next().expect("a copy");
            let same = held.all(|other| other == first);
            let undefined = || self.oracle.allowed(sector).contains(&Value::Anything);
            assert!(same || undefined(), "{:?}: copies of sector {sector} differ", self.shape);
        }
    }

    /// Nothing but data areas and superblocks has changed.
    fn check_outside(&self) {
        for ((medium, places), new) in self.media.iter().zip(&self.places).zip(&self.new) {
            for part in medium.diff(new) {
                let beside = part.clone().find(|sector| !places.hold(*sector));
                assert!(beside.is_none(), "{:?}: {part:?} changed", self.shape);
            }
        }
    }

    /// If an array was not stopped cleanly its bitmaps are out of date: nobody trusts bits that were
    /// not kept up.
    fn check_bitmaps(&self) {
        let read = |slot: &usize| {
            let (medium, places) = (&self.media[*slot], &self.places[*slot]);
            let bitmap = medium.peek_range(Sector(places.bitmap.as_ref()?.start), Sectors(1));
            let bytes = medium.peek_range(Sector(places.superblock.start), Sectors(8));
            let sb = Superblock::parse(self.shape.version, &bytes, medium.capacity());
            let bitmap = BitmapSuper::parse(&bitmap).expect("a bitmap");
            Some((sb.expect("a superblock"), bitmap.events.get()))
        };
        let members: Vec<_> = self.present.iter().filter_map(read).collect();
        let freshest = members.iter().map(|(sb, _)| sb).max_by_key(|sb| sb.events);
        let Some(freshest) = freshest.filter(|sb| !sb.is_clean()) else { return };
        for (sb, bitmap) in &members {
            let active = matches!(freshest.roles[sb.dev_number as usize], Role::Active(_));
            assert!(!active || *bitmap < freshest.events, "{:?}: bitmap trusted", self.shape);
        }
    }
}

fn is_faulty(sim: &Sim, array: &Array, slot: usize) -> bool {
    sim.block_on(array.status()).members[slot].faulty
}
