//! Random writes, discards, failures, daemon passes, syncs and power cuts; after every step the oracle
//! checks that everything that may differ is marked. After a cut, the bitmap of some member is loaded
//! and the chunks that it marks are synced; then the members must be the same.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;

use ashlar_block::{Sector, Status};
use ashlar_md::Bitmap;
use ashlar_md::internals::bitmap::{Contents, Kind, Purpose};
use ashlar_sim::{Rng, seeds};

use crate::bitmap::store::poll;
use crate::bitmap::world::{CHUNK, Canary, World};
use crate::bitmap::{crashed, place};

const CHUNKS: u64 = 6000;

/// An operation of the array, and whether it may be dropped now.
struct Task {
    future: Pin<Box<dyn Future<Output = Result<(), Status>>>>,
    may_drop: Rc<Cell<bool>>,
}

struct Run {
    rng: Rng,
    kind: Kind,
    canary: Canary,
    world: Rc<World>,
    bitmap: Rc<Bitmap>,
    tasks: Vec<Task>,
    /// The array's event count, as in its superblocks.
    events: Rc<Cell<u64>>,
    /// The bitmap's superblock was written since the last start.
    started: Rc<Cell<bool>>,
    /// The next chunk of the sync; the number of chunks if no sync is under way.
    synced: u32,
    writes: u64,
    cleared: u64,
}

impl Run {
    fn new(seed: u64, kind: Kind, canary: Canary) -> Self {
        let mut rng = Rng::new(seed);
        // Neighbours, both sides of block boundaries, and the last chunk.
        let (hot, contents) = match kind {
            Kind::Classic => (vec![0, 1, 2, 2047, 2048, 2049, 4000, 5999], Contents::InSync),
            Kind::Lockless => (vec![0, 1, 2, 511, 512, 513, 3000, 5999], Contents::NeverWritten),
        };
        let members = 2 + rng.index(2);
        let world = Rc::new(World::new(kind, canary, hot, members, rng.fork()));
        let bytes = crate::bitmap::bitmap(kind, CHUNKS, CHUNK, contents).encode();
        world.create(&bytes);
        let bitmap = Bitmap::load(&bytes, place(CHUNKS, CHUNK), crashed(0)).unwrap();
        let bitmap = Rc::new(bitmap);
        Self {
            rng,
            kind,
            canary,
            world,
            bitmap,
            tasks: Vec::new(),
            events: Rc::default(),
            started: Rc::new(Cell::new(false)),
            synced: CHUNKS as u32,
            writes: 0,
            cleared: 0,
        }
    }

    fn spawn(
        &mut self,
        may_drop: Rc<Cell<bool>>,
        future: impl Future<Output = Result<(), Status>> + 'static,
    ) {
        self.tasks.push(Task { future: Box::pin(future), may_drop });
    }

    /// Writes the bitmap's superblock, then counts the members' superblocks as written.
    fn update(&mut self) {
        let (bitmap, world) = (Rc::clone(&self.bitmap), Rc::clone(&self.world));
        let (events, started) = (Rc::clone(&self.events), Rc::clone(&self.started));
        // One at a time, as in the array.
        let next = events.get() + 1;
        self.spawn(Rc::default(), async move {
            while bitmap.write_super(next, &*world).await.is_err() {}
            events.set(events.get().max(next));
            started.set(true);
            Ok(())
        });
    }

    fn write(&mut self) {
        let (bitmap, world, canary) =
            (Rc::clone(&self.bitmap), Rc::clone(&self.world), self.canary);
        let slots = world.random_slots(&mut self.rng);
        let (sector, len) = world.span(&slots);
        let skip = self.rng.chance(1, 30).then(|| 1 + self.rng.index(world.members() - 1));
        if self.is_syncing(sector, len.0) {
            return;
        }
        let may_drop = Rc::new(Cell::new(true));
        let flag = Rc::clone(&may_drop);
        self.writes += 1;
        self.spawn(may_drop, async move {
            if canary == Canary::DataBeforeMark && bitmap.try_begin(sector, len).is_none() {
                flag.set(false);
                let mark = bitmap.begin(sector, len, &*world);
                let data = world.write_data(slots, None);
                return futures_util::future::join(mark, data).await.1;
            }
            let intent = bitmap.begin(sector, len, &*world).await?;
            flag.set(false);
            world.write_data(slots, skip).await?;
            if skip.is_some() && canary != Canary::FailureForgotten {
                intent.failed();
            }
            Ok(())
        });
    }

    fn discard(&mut self) {
        let (bitmap, world) = (Rc::clone(&self.bitmap), Rc::clone(&self.world));
        let slots = world.random_slots(&mut self.rng);
        let (sector, len) = world.span(&slots);
        if self.is_syncing(sector, len.0) {
            return;
        }
        let may_drop = Rc::new(Cell::new(true));
        let flag = Rc::clone(&may_drop);
        self.spawn(may_drop, async move {
            let discard = bitmap.begin_discard(sector, len, &*world).await?;
            flag.set(false);
            world.discard(slots).await?;
            discard.done();
            Ok(())
        });
    }

    fn clean(&mut self) {
        let (bitmap, world) = (Rc::clone(&self.bitmap), Rc::clone(&self.world));
        let (may_clear, now) = (self.rng.chance(4, 5), self.rng.chance(1, 2));
        self.cleared += 1;
        self.spawn(Rc::new(Cell::new(true)), async move {
            match now {
                true => bitmap.clean_now(may_clear, &*world).await,
                false => bitmap.clean(may_clear, &*world).await,
            }
        });
    }

    /// Whether the sync is at one of these sectors: no writes then, as the barrier ensures in the array.
    fn is_syncing(&self, sector: Sector, len: u64) -> bool {
        let at = u64::from(self.synced) * CHUNK;
        sector.0 < at + CHUNK && at < sector.0 + len
    }

    /// Syncs the next chunk.
    fn sync(&mut self) {
        let chunk = self.synced;
        if chunk >= CHUNKS as u32 || self.world.is_busy(chunk) {
            return;
        }
        let start = Sector(u64::from(chunk) * CHUNK);
        let step = self.bitmap.start_sync(start, Purpose::Resync, false);
        if step.needed {
            self.world.sync(chunk);
            self.bitmap.end_sync(start..start + step.run, true);
        }
        self.synced += 1;
    }

    fn cut_power(&mut self) -> Result<(), String> {
        self.tasks.clear();
        self.world.cut_power();
        self.world.check()?;
        let member = self.rng.index(self.world.members());
        let area = self.world.area(member);
        let bitmap = Bitmap::load(&area, place(CHUNKS, CHUNK), crashed(self.events.get()))
            .map_err(|error| format!("member {member}: {error}"))?;
        if bitmap.was_stale() {
            return Err("the bitmap is older than the superblocks".into());
        }
        let needed = |chunk: u64| bitmap.needs_sync(Sector(chunk * CHUNK), Purpose::Resync).needed;
        if let Some(slot) = self
            .world
            .differing()
            .into_iter()
            .find(|slot| !needed(self.world.span(&(*slot..*slot + 1)).0.0 / CHUNK))
        {
            return Err(format!("slot {slot} differs and is not synced"));
        }
        self.bitmap = Rc::new(bitmap);
        self.started.set(false);
        self.synced = 0;
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        match self.rng.below(100) {
            0..8 if self.tasks.len() < 12 => self.write(),
            8..11 if self.tasks.len() < 12 => self.discard(),
            11..13 if self.tasks.len() < 12 => self.clean(),
            13 if self.tasks.is_empty() => self.update(),
            14 if self.rng.chance(1, 6) => self.cut_power()?,
            15 if !self.tasks.is_empty() => {
                let index = self.rng.index(self.tasks.len());
                if self.tasks[index].may_drop.get() {
                    drop(self.tasks.swap_remove(index));
                }
            }
            16 if self.rng.chance(1, 10) => {
                // Start a chunk, and stop the sync.
                let start = Sector(u64::from(self.synced) * CHUNK);
                self.bitmap.start_sync(start, Purpose::Resync, false);
                self.bitmap.close_sync();
                self.synced = CHUNKS as u32;
            }
            17..40 => (0..200).for_each(|_| self.sync()),
            40..70 => self.world.step(),
            _ if !self.tasks.is_empty() => {
                let index = self.rng.index(self.tasks.len());
                if poll(self.tasks[index].future.as_mut()).is_ready() {
                    drop(self.tasks.swap_remove(index));
                }
            }
            _ => self.world.step(),
        }
        self.world.check()
    }

    fn run(&mut self, steps: u32) -> Result<(), String> {
        for step in 0..steps {
            self.step().map_err(|error| format!("step {step}: {error}"))?;
        }
        self.settle()
    }

    /// At the end, with no operation in flight, everything is synced and all marks are cleared.
    fn settle(&mut self) -> Result<(), String> {
        let finish = |run: &mut Self| {
            for round in 0.. {
                assert!(round < 1_000_000, "operations that never end");
                run.tasks.retain_mut(|task| poll(task.future.as_mut()).is_pending());
                if run.tasks.is_empty() {
                    return;
                }
                run.world.step();
            }
        };
        finish(self);
        self.update();
        finish(self);
        self.bitmap.close_sync();
        self.synced = 0;
        while self.synced < CHUNKS as u32 {
            self.sync();
        }
        if !self.world.differing().is_empty() {
            return Err("something still differs after a sync".into());
        }
        for _ in 0..200 {
            let (bitmap, world) = (Rc::clone(&self.bitmap), Rc::clone(&self.world));
            self.spawn(Rc::default(), async move { bitmap.clean_now(true, &*world).await });
            finish(self);
        }
        self.world.check()?;
        match self.bitmap.marked_chunks() {
            0 => Ok(()),
            left => Err(format!("{left} chunks stay marked")),
        }
    }
}

fn hunt(kind: Kind, canary: Canary, count: u64, steps: u32) -> Option<String> {
    for seed in seeds(count) {
        if let Err(error) = Run::new(seed, kind, canary).run(steps) {
            return Some(format!("{kind:?}, seed {seed}: {error}"));
        }
    }
    None
}

#[test]
fn no_power_cut_leaves_a_difference_without_a_classic_mark() {
    assert_eq!(hunt(Kind::Classic, Canary::None, 60, 4000), None);
}

#[test]
fn no_power_cut_leaves_a_difference_without_a_lockless_mark() {
    assert_eq!(hunt(Kind::Lockless, Canary::None, 60, 4000), None);
}

/// The oracle detects each kind of failure that the bitmap prevents.
#[test]
fn the_oracle_sees_every_canary() {
    let canaries = [
        Canary::DataBeforeMark,
        Canary::FlushLies,
        Canary::FirstMemberIsEnough,
        Canary::FailureForgotten,
    ];
    for canary in canaries {
        for kind in [Kind::Classic, Kind::Lockless] {
            assert!(
                hunt(kind, canary, 60, 4000).is_some(),
                "{canary:?} was not seen with {kind:?}"
            );
        }
    }
}

/// Checks that a run exercises writes and cleaning.
#[test]
fn a_run_writes_and_cleans() {
    let mut run = Run::new(0, Kind::Lockless, Canary::None);
    run.run(4000).unwrap();
    assert!(run.writes > 100 && run.cleared > 30 && run.events.get() > 2);
    assert_eq!(run.kind, run.bitmap.kind());
}
