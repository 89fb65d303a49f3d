//! A random origin with its snapshots, and its lives.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use ashlar_block::{Features, Gateway, Sectors, Status};
use ashlar_dm::{Device, LoadError};
use ashlar_sim::{Media, Mix, Model, Rng, Sim, Stop, Workload, scheduler};

use crate::snapshot::rig::{Rig, read, status};

mod discards;
mod view;

use view::View;

/// An existing snapshot.
#[derive(Clone)]
struct Snap {
    number: u64,
    media: Media,
    chunk: u64,
    how: &'static str,
    /// The table's discard features.
    features: &'static str,
    /// Sectors per logical block of its COW device.
    block: u64,
    view: View,
    /// The COW device is too small for a copy of everything.
    may_overflow: bool,
    /// Since its creation, something failed that can make it invalid.
    faulty: bool,
    /// Its COW device was gone: its state on disk may be outdated.
    lost: bool,
    merging: bool,
}

impl Snap {
    fn name(&self) -> String {
        format!("snap{}", self.number)
    }

    fn cow(&self) -> String {
        format!("cow{}", self.number)
    }
}

/// State that survives a life.
struct State {
    size: u64,
    /// Sectors per logical block of the origin.
    block: u64,
    origin: Media,
    view: View,
    snaps: Vec<Snap>,
    taken: u64,
    /// Faults of this life.
    origin_fails: bool,
    /// Whether all work in this life is in one region.
    crowded: bool,
    /// Discards that were passed to the origin in this life.
    passed_down: Vec<Range<u64>>,
}

/// See the module text.
pub(crate) struct World {
    seed: u64,
    lives: u64,
    rng: Rng,
    state: Rc<RefCell<State>>,
}

/// A live device of a life.
struct LiveDevice {
    device: Arc<Device>,
    gateway: Gateway,
}

/// The state of a life.
#[derive(Clone)]
struct Life {
    rig: Rig,
    state: Rc<RefCell<State>>,
    rng: Rc<RefCell<Rng>>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x736e_6170);
        let block = if rng.chance(1, 3) { 8 } else { 1 };
        let size = (160 + rng.below(700)) / block * block;
        let origin = Media::noisy(Sectors(size), seed);
        let view = View::of(&origin, size, seed);
        let state = State {
            size,
            block,
            origin,
            view,
            snaps: Vec::new(),
            taken: 0,
            origin_fails: false,
            crowded: false,
            passed_down: Vec::new(),
        };
        Self { seed, lives: 0, rng, state: Rc::new(RefCell::new(state)) }
    }

    /// A boot, some work, and an end of any kind.
    pub(crate) fn live(&mut self) {
        self.lives += 1;
        let sim = Sim::new(self.seed.wrapping_mul(64) + self.lives);
        let rng = Rc::new(RefCell::new(self.rng.fork()));
        let life = Life { rig: Rig::default(), state: Rc::clone(&self.state), rng };
        let faults = self.rng.chance(1, 4);
        let ends = self.rng.below(4);
        let steps = [400, 2000, 6000][self.rng.index(3)];
        let stop = Stop::AfterSteps(1 + self.rng.below(steps));
        self.state.borrow_mut().crowded = self.rng.chance(1, 3);
        let boot = sim.block_on(life.boot());
        if self.rng.chance(1, 6) {
            self.state.borrow().origin.slow_down(30);
        }
        let work = life.work(&boot, faults);
        let whole = match ends {
            0 => {
                sim.block_on(work);
                sim.block_on(life.check_all(&boot));
                true
            }
            _ => sim.block_on_until(work, stop).is_some(),
        };
        let cut = ends != 1 || whole && self.rng.chance(1, 2);
        drop(boot);
        drop(life);
        if cut {
            sim.power_cut();
        } else {
            sim.kill();
        }
        let mut state = self.state.borrow_mut();
        state.origin.heal();
        state.origin_fails = false;
        state.passed_down.clear();
        let views = state.snaps.iter().map(|snap| &snap.view);
        for view in std::iter::once(&state.view).chain(views) {
            if cut { view.power_cut() } else { view.kill() }
        }
        // Transient snapshots do not survive a life.
        state.snaps.retain(|snap| !snap.lost && snap.how != "N");
        for snap in &state.snaps {
            snap.media.heal();
        }
    }
}

/// The devices after a boot: the origin (or the snapshot being merged into it), and the snapshots.
struct Boot {
    origin: LiveDevice,
    snaps: RefCell<Vec<(u64, LiveDevice)>>,
}

impl Life {
    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.borrow_mut())
    }

    fn line(&self, snap: &Snap, kind: &str) -> String {
        let size = self.state.borrow().size;
        let Snap { how, chunk, features, .. } = snap;
        format!("0 {size} {kind} real {} {how} {chunk}{features}", snap.cow())
    }

    fn origin_line(&self) -> String {
        format!("0 {} snapshot-origin real", self.state.borrow().size)
    }

    /// Disks differ: one may be slow enough for much to happen on the others meanwhile, or lack FUA.
    fn disk(&self, name: &str, media: &Media, block: u64) {
        let models = [Model::nvme(), Model::nvme(), Model::hdd(), Model::instant()];
        let (model, fua) = self.draw(|rng| (models[rng.index(models.len())], rng.chance(3, 4)));
        let mut limits = model.limits();
        limits.logical_block_bytes = Sectors(block).bytes() as u32;
        limits.features.set(Features::FUA, fua);
        self.rig.disk_with(name, media, model, limits);
    }

    async fn boot(&self) -> Boot {
        let snaps = self.state.borrow().snaps.clone();
        let (media, block) = {
            let state = self.state.borrow();
            (state.origin.clone(), state.block)
        };
        self.disk("real", &media, block);
        let mut live = Vec::new();
        let mut origin = self.origin_line();
        for snap in &snaps {
            self.disk(&snap.cow(), &snap.media, snap.block);
            if snap.merging {
                origin = self.line(snap, "snapshot-merge");
                continue;
            }
            let line = self.line(snap, "snapshot");
            let (device, gateway) = self.rig.device(&snap.name(), &line).await;
            live.push((snap.number, LiveDevice { device, gateway }));
        }
        let (device, gateway) = self.rig.device("origin", &origin).await;
        let boot = Boot { origin: LiveDevice { device, gateway }, snaps: RefCell::new(live) };
        self.check_all(&boot).await;
        // The fate of writes before a failed flush is known now.
        let view = self.state.borrow().view.clone();
        if view.is_shaky() {
            view.rebase(&boot.origin.gateway, false).await.expect("a healthy origin");
        }
        let snaps = self.state.borrow().snaps.clone();
        let live: Vec<_> =
            boot.snaps.borrow().iter().map(|(n, live)| (*n, live.gateway.clone())).collect();
        for (number, gateway) in live {
            let snap = snaps.iter().find(|s| s.number == number && s.view.is_shaky());
            if let Some(snap) = snap {
                snap.view.rebase(&gateway, false).await.expect("a healthy snapshot");
            }
        }
        boot
    }

    /// Reads everything; an invalid snapshot must say so, and have a reason.
    async fn check_all(&self, boot: &Boot) {
        let (size, view) = {
            let state = self.state.borrow();
            (state.size, state.view.clone())
        };
        if !self.state.borrow().origin_fails {
            view.check(&boot.origin.gateway, 0..size).await.expect("the origin can be read");
        }
        let numbers: Vec<u64> = boot.snaps.borrow().iter().map(|(number, _)| *number).collect();
        for number in numbers {
            self.check_snap(boot, number, size).await;
        }
    }

    async fn check_snap(&self, boot: &Boot, number: u64, size: u64) {
        let (device, gateway) = {
            let live = boot.snaps.borrow();
            let Some((_, live)) = live.iter().find(|(other, _)| *other == number) else { return };
            (Arc::clone(&live.device), live.gateway.clone())
        };
        let found = self.state.borrow().snaps.iter().find(|s| s.number == number).cloned();
        let Some(snap) = found else { return };
        let result = snap.view.check(&gateway, 0..size).await;
        let said = status(&device);
        if said == "Invalid" {
            assert!(
                snap.may_overflow || snap.faulty || self.state.borrow().origin_fails,
                "snapshot {number} is invalid for no reason"
            );
            assert_eq!(read(&gateway, 0, 8).await, Err(Status::Io), "an invalid snapshot");
            self.forget(boot, number);
            return;
        }
        if let Err(status) = result {
            let fails = snap.faulty || self.state.borrow().origin_fails;
            assert!(fails, "snapshot {number} ({said}) cannot be read: {status}");
        }
    }

    fn forget(&self, boot: &Boot, number: u64) {
        self.state.borrow_mut().snaps.retain(|snap| snap.number != number);
        boot.snaps.borrow_mut().retain(|(other, _)| *other != number);
        self.rig.remove(&format!("snap{number}"));
    }

    /// All users work, with changes at the same time, until all are done.
    async fn work(&self, boot: &Boot, faults: bool) {
        for _ in 0..3 {
            if faults {
                self.misbehave(boot).await;
            }
            let origin = self.state.borrow().view.clone();
            let mut tasks = vec![scheduler::start(self.clone().users(
                boot.origin.gateway.clone(),
                origin,
                None,
            ))];
            let live: Vec<_> =
                boot.snaps.borrow().iter().map(|(n, l)| (*n, l.gateway.clone())).collect();
            for (number, gateway) in live {
                let view = self
                    .state
                    .borrow()
                    .snaps
                    .iter()
                    .find(|s| s.number == number)
                    .map(|s| s.view.clone());
                if let Some(view) = view {
                    tasks.push(scheduler::start(self.clone().users(gateway, view, Some(number))));
                }
            }
            let merging = self.state.borrow().snaps.iter().any(|snap| snap.merging);
            if !merging && boot.snaps.borrow().len() < 3 && self.draw(|rng| rng.chance(1, 2)) {
                self.take(boot).await;
            }
            for task in tasks {
                task.await;
            }
            if merging {
                self.end_merge(boot).await;
            } else if self.draw(|rng| rng.chance(1, 5)) {
                self.begin_merge(boot).await;
            } else if self.draw(|rng| rng.chance(1, 8)) {
                self.reload(boot).await;
            }
        }
    }

    /// Reads and writes on one device, in several tasks.
    async fn users(self, gateway: Gateway, view: View, snap: Option<u64>) {
        let size = self.state.borrow().size;
        let block = gateway.disk().limits().logical_block().0;
        let (mut rng, max_len, writes) =
            self.draw(|rng| (rng.fork(), [4, 16, 40, 130][rng.index(4)], rng.chance(3, 4)));
        // Sometimes all work is in a few chunks.
        let span = if self.state.borrow().crowded { 0..size.min(48) } else { 0..size };
        // Snapshots are mostly read.
        let write = if snap.is_none() || writes { 40 } else { 0 };
        let mix = Mix {
            // Then only the view can tell what a read may return.
            read: if view.is_shaky() { 0 } else { 10 },
            write,
            write_fua: write / 8,
            flush: 4,
            // `discards` handles these.
            discard: 0,
            write_zeroes: write / 10,
        };
        let ios = 4 + rng.below(10) as usize;
        let work = Workload {
            span: span.clone(),
            align: block,
            max_len,
            tasks: 3,
            ios,
            mix,
            tolerate_errors: true,
        };
        let reader =
            scheduler::start(self.clone().reader(gateway.clone(), view.clone(), span.clone(), ios));
        let discards =
            scheduler::start(self.clone().discards(gateway.clone(), view.clone(), span, ios, snap));
        let errors = work.run(&gateway, &view.oracle(), &mut rng).await.expect("what was written");
        let errors = errors + reader.await + discards.await;
        let state = self.state.borrow();
        let fails = state.origin_fails
            || state.snaps.iter().any(|s| {
                let concerned = Some(s.number) == snap || s.merging && snap.is_none();
                concerned && (s.faulty || s.may_overflow)
            });
        let gone = snap.is_some_and(|n| !state.snaps.iter().any(|s| s.number == n));
        assert!(errors == 0 || fails || gone, "{errors} I/Os of {snap:?} failed");
    }

    async fn reader(self, gateway: Gateway, view: View, span: Range<u64>, ios: usize) -> u64 {
        let mut errors = 0;
        let block = gateway.disk().limits().logical_block().0;
        for _ in 0..ios {
            let range = self.some_range(&span, block, 70);
            errors += u64::from(view.check(&gateway, range).await.is_err());
        }
        errors
    }

    /// A range of whole units.
    fn some_range(&self, span: &Range<u64>, unit: u64, max_len: u64) -> Range<u64> {
        let units = span.end / unit;
        self.draw(|rng| {
            let at = rng.below(units);
            let len = 1 + rng.below((units - at).min(1 + max_len / unit));
            at * unit..(at + len) * unit
        })
    }

    /// Takes a new snapshot of the live origin.
    async fn take(&self, boot: &Boot) {
        let (size, media, origin_block) = {
            let state = self.state.borrow();
            (state.size, state.origin.clone(), state.block)
        };
        let (chunk, how, part, seed) = self.draw(|rng| {
            let how = ["P", "PO", "P", "PO", "N"][rng.index(5)];
            ([2, 4, 8, 8, 8, 16, 32][rng.index(7)], how, rng.below(6), rng.next_u64())
        });
        let (features, large) = self.draw(|rng| {
            let zeroes = " 1 discard_zeroes_cow";
            let passes = " 2 discard_zeroes_cow discard_passdown_origin";
            (["", "", zeroes, zeroes, passes][rng.index(5)], rng.chance(1, 4))
        });
        // Its block size is the larger one of both devices.
        let block = if large && size.is_multiple_of(8) { 8 } else { 1 };
        let chunk = chunk.max(block).max(origin_block);
        let number = self.state.borrow().taken + 1;
        self.state.borrow_mut().taken = number;
        let chunks = size.div_ceil(chunk);
        let enough = 2 + chunks + chunks / (chunk * 32) + 1;
        let may_overflow = part < 2;
        let cow = if may_overflow { 3 + enough * (1 + part) / 4 } else { enough } * chunk;
        let cow_media = if self.draw(|rng| rng.chance(1, 2)) {
            let noisy = Media::noisy(Sectors(cow), seed);
            noisy.poke(ashlar_block::Sector(0), &[0; 4096][..4096.min(cow as usize * 512)]);
            noisy
        } else {
            Media::new(Sectors(cow))
        };
        if boot.origin.device.suspend(true).await.is_err() {
            return;
        }
        let view = View::of(&media, size, seed);
        let fails = self.state.borrow().origin_fails;
        let mut snap = Snap {
            number,
            media: cow_media,
            chunk,
            how,
            features,
            block,
            view,
            may_overflow,
            faulty: fails,
            lost: false,
            merging: false,
        };
        self.disk(&snap.cow(), &snap.media, snap.block);
        let line = self.line(&snap, "snapshot");
        let (device, gateway) = self.rig.device(&snap.name(), &line).await;
        snap.faulty |= self.state.borrow().origin_fails;
        // A discard may have been in flight all the time.
        let passed_down = self.state.borrow().passed_down.clone();
        passed_down.into_iter().for_each(|range| snap.view.loses(range));
        self.state.borrow_mut().snaps.push(snap);
        boot.snaps.borrow_mut().push((number, LiveDevice { device, gateway }));
        boot.origin.device.resume().await.expect("the origin resumes");
    }

    /// Makes something fail from now on.
    async fn misbehave(&self, boot: &Boot) {
        let n = self.state.borrow().snaps.len();
        let (which, kind, when) = self.draw(|rng| (rng.index(n + 1), rng.below(7), rng.below(20)));
        if kind > 4 {
            return self.fail_a_flush(boot, which, when % 8).await;
        }
        let mut state = self.state.borrow_mut();
        if which == n {
            state.origin_fails = true;
            state.snaps.iter_mut().for_each(|snap| snap.faulty = true);
            if kind < 3 {
                state.origin.fail_nth_read(when)
            } else {
                state.origin.fail_nth_write(when)
            }
            return;
        }
        let snap = &mut state.snaps[which];
        snap.faulty = true;
        match kind {
            0 | 1 => snap.media.fail_nth_read(when),
            2 | 3 => snap.media.fail_nth_write(when),
            _ if snap.merging => {}
            _ => {
                snap.lost = true;
                snap.media.kill();
            }
        }
    }

    /// Makes a flush of a disk fail, which drops the disk's cache.
    async fn fail_a_flush(&self, boot: &Boot, which: usize, when: u64) {
        let snap = self.state.borrow().snaps.get(which).cloned();
        let (view, gateway) = match &snap {
            Some(snap) if !snap.merging => {
                let live = boot.snaps.borrow();
                let live = live.iter().find(|(number, _)| *number == snap.number);
                let Some((_, live)) = live else { return };
                (snap.view.clone(), live.gateway.clone())
            }
            // The contents of the origin's device are on both disks then.
            Some(_) | None => (self.state.borrow().view.clone(), boot.origin.gateway.clone()),
        };
        if view.rebase(&gateway, true).await.is_err() {
            return;
        }
        let mut state = self.state.borrow_mut();
        match snap {
            None => {
                state.origin_fails = true;
                state.origin.fail_nth_flush(when);
            }
            Some(snap) => {
                snap.media.fail_nth_flush(when);
                state.snaps[which].faulty = true;
            }
        }
    }

    /// Merges one of the snapshots into the origin.
    async fn begin_merge(&self, boot: &Boot) {
        let numbers: Vec<u64> = boot.snaps.borrow().iter().map(|(number, _)| *number).collect();
        if numbers.is_empty() || self.state.borrow().origin_fails {
            return;
        }
        let number = numbers[self.draw(|rng| rng.index(numbers.len()))];
        let at = boot.snaps.borrow().iter().position(|(other, _)| *other == number).unwrap();
        let found = self.state.borrow().snaps.iter().find(|snap| snap.number == number).cloned();
        let snap = found.expect("a snapshot");
        let live = boot.snaps.borrow().get(at).map(|(_, live)| Arc::clone(&live.device)).unwrap();
        if status(&live) == "Invalid" || snap.faulty {
            return;
        }
        let line = self.line(&snap, "snapshot-merge");
        let table = self.rig.table(&line).await;
        if snap.how == "N" {
            assert!(table.is_err(), "a transient snapshot is to be merged");
            return;
        }
        let table = table.expect("a table");
        if snap.block > self.state.borrow().block {
            // The origin's device cannot change to larger blocks.
            let loaded = boot.origin.device.load(table).await;
            assert!(matches!(loaded, Err(LoadError::BlockSize { .. })), "{loaded:?}");
            return;
        }
        boot.origin.device.suspend(true).await.expect("a quiet origin");
        live.suspend(true).await.expect("a quiet snapshot");
        {
            let mut state = self.state.borrow_mut();
            let snap = state.snaps.iter_mut().find(|s| s.number == number).unwrap();
            snap.merging = true;
            let view = snap.view.clone();
            state.view = view;
        }
        boot.snaps.borrow_mut().remove(at);
        self.rig.remove(&snap.name());
        drop(live);
        boot.origin.device.load(table).await.expect("a table that fits");
        boot.origin.device.resume().await.expect("the merge begins");
    }

    /// Waits for the end of the merge, unless it fails.
    async fn end_merge(&self, boot: &Boot) {
        for _ in 0..40_000 {
            let said = status(&boot.origin.device);
            let done = said.split_once(' ').is_some_and(|(used, metadata)| {
                used.split_once('/').is_some_and(|(allocated, _)| allocated == metadata)
            });
            if done {
                if let Err(status) = boot.origin.device.suspend(true).await {
                    let state = self.state.borrow();
                    let faulty = state.snaps.iter().any(|snap| snap.merging && snap.faulty);
                    assert!(faulty || state.origin_fails, "a quiet device: {status}");
                    return;
                }
                self.rig.reload(&boot.origin.device, &self.origin_line()).await;
                self.state.borrow_mut().snaps.retain(|snap| !snap.merging);
                return;
            }
            if said == "Merge failed" {
                let state = self.state.borrow();
                let faulty = state.snaps.iter().any(|snap| snap.merging && snap.faulty);
                assert!(faulty || state.origin_fails, "a merge failed for no reason");
                return;
            }
            let runtime = ashlar_sim::SimRuntime;
            ashlar_block::Runtime::sleep(&runtime, std::time::Duration::from_millis(20)).await;
        }
        panic!("the merge does not end: {}", status(&boot.origin.device));
    }

    /// Loads tables again, as LVM does at every change.
    async fn reload(&self, boot: &Boot) {
        let live: Vec<_> =
            boot.snaps.borrow().iter().map(|(n, l)| (*n, Arc::clone(&l.device))).collect();
        for (number, device) in live {
            let snap = self.state.borrow().snaps.iter().find(|s| s.number == number).cloned();
            let Some(snap) = snap else { continue };
            let invalid = status(&device) == "Invalid";
            let suspended = device.suspend(true).await;
            assert!(suspended.is_ok() || !invalid, "an invalid snapshot cannot be suspended");
            if suspended.is_ok() {
                self.rig.reload(&device, &self.line(&snap, "snapshot")).await;
            }
        }
    }
}
