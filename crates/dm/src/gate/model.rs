//! Checks two or three threads at the gate with loom, under the C11 memory model: all interleavings
//! in which running threads are interrupted up to three times.
//!
//! Checked: no I/O is inside while the gate is closed; I/O that enters sees what was done while it
//! was closed, and vice versa; no wake-up is lost (loom reports a deadlock).

use ashlar_block::sync::model::loom::cell::UnsafeCell;
use ashlar_block::sync::model::loom::sync::Mutex;
use ashlar_block::sync::model::loom::sync::atomic::AtomicU64;
use ashlar_block::sync::model::{self, Loom, block_on, give_up, overlaps};

use super::*;

/// Two words, so that each thread has its own.
impl Shards for Loom {
    const SHARDS: usize = 2;
    fn shard() -> usize {
        0
    }
}

/// The state that the gate protects: loom detects accesses that overlap or do not see each other.
struct World<P: Shards> {
    gate: Gate<P>,
    table: UnsafeCell<()>,
}

impl<P: Shards> World<P> {
    fn uses(&self) {
        self.table.with(|_| ());
    }

    fn changes(&self) {
        self.table.with_mut(|_| ());
    }

    fn enter(&self, shard: usize) -> Enter<'_, P> {
        Enter { gate: &self.gate, shard, seat: None }
    }
}

type Thread<P> = fn(&World<P>);

/// Runs the threads in all interleavings, with up to `preemptions` interruptions.
fn explore<P: Shards + 'static>(preemptions: usize, threads: &[Thread<P>]) {
    let world = || World { gate: Gate::<P>::default(), table: UnsafeCell::new(()) };
    model::explore(preemptions, world, threads, |world| {
        assert!(world.gate.shards.iter().all(|shard| shard.0.load() == 0));
        assert_eq!(world.gate.held(), 0);
    });
}

fn io<P: Shards>(world: &World<P>) {
    let _pass = block_on(world.enter(0));
    world.uses();
}

fn io_elsewhere<P: Shards>(world: &World<P>) {
    let _pass = block_on(world.enter(1));
    world.uses();
}

fn suspend_and_resume<P: Shards>(world: &World<P>) {
    block_on(world.gate.close()).keep();
    world.changes();
    world.gate.open();
}

#[test]
fn nothing_is_in_while_the_gate_is_closed_and_all_end() {
    explore::<Loom>(3, &[suspend_and_resume, io]);
    explore::<Loom>(2, &[suspend_and_resume, io, io]);
    explore::<Loom>(2, &[suspend_and_resume, io, io_elsewhere]);
}

#[test]
fn a_gate_may_be_closed_again_and_again() {
    fn twice<P: Shards>(world: &World<P>) {
        suspend_and_resume(world);
        suspend_and_resume(world);
    }
    fn io_twice<P: Shards>(world: &World<P>) {
        io(world);
        io(world);
    }
    explore::<Loom>(2, &[twice, io_twice]);
    explore::<Loom>(2, &[twice, io, io_elsewhere]);
}

#[test]
fn who_gives_up_does_so_without_a_trace() {
    fn hasty_io<P: Shards>(world: &World<P>) {
        if let Some(_pass) = give_up(world.enter(0)) {
            world.uses();
        }
    }
    fn hasty_close<P: Shards>(world: &World<P>) {
        if let Some(_closed) = give_up(world.gate.close()) {
            world.changes();
        }
    }
    explore::<Loom>(2, &[suspend_and_resume, hasty_io, io]);
    explore::<Loom>(3, &[hasty_close, io]);
    explore::<Loom>(2, &[hasty_close, io, io_elsewhere]);
}

/// A faulty gate whose I/O first checks and then counts itself: two steps with a gap between.
#[derive(Default)]
struct Gap(AtomicU64);

impl Word for Gap {
    fn load(&self) -> u64 {
        Word::load(&self.0)
    }
    fn add(&self, n: u64) -> u64 {
        let before = self.load();
        self.0.add(n);
        before
    }
    fn sub(&self, n: u64) -> u64 {
        self.0.sub(n)
    }
    fn update(&self, next: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        self.0.update(next)
    }
}

struct Gapped;

impl Primitives for Gapped {
    type Word = Gap;
    type Lock<T: Default> = Mutex<T>;
}

impl Shards for Gapped {
    const SHARDS: usize = 2;
    fn shard() -> usize {
        0
    }
}

#[test]
fn the_model_finds_a_gap_between_look_and_change() {
    assert!(overlaps(|| explore::<Gapped>(3, &[suspend_and_resume, io])));
}
