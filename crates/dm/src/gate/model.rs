//! Checks two or three threads at the gate with loom, under the C11 memory model: all interleavings
//! in which running threads are interrupted up to three times.
//!
//! Checked: no I/O is inside while the gate is closed; I/O that enters sees what was done while it
//! was closed, and vice versa; no wake-up is lost (loom reports a deadlock).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Wake;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::{Arc, Mutex, Notify};
use loom::thread;

use super::*;

/// Two words, so that each thread has its own.
struct Loom;

impl Primitives for Loom {
    const SHARDS: usize = 2;
    fn shard() -> usize {
        0
    }
    type Word = AtomicU64;
    type Lock = Mutex<Waiters>;
}

impl Word for AtomicU64 {
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }
    fn add(&self, n: u64) -> u64 {
        self.fetch_add(n, Ordering::AcqRel)
    }
    fn sub(&self, n: u64) -> u64 {
        self.fetch_sub(n, Ordering::AcqRel)
    }
}

impl Lock for Mutex<Waiters> {
    fn with<R>(&self, work: impl FnOnce(&mut Waiters) -> R) -> R {
        work(&mut self.lock().unwrap())
    }
}

struct Signal(Notify);

impl Wake for Signal {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.notify();
    }
}

/// Runs a future to completion, sleeping while it is pending.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let signal = std::sync::Arc::new(Signal(Notify::new()));
    let waker = Waker::from(std::sync::Arc::clone(&signal));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => signal.0.wait(),
        }
    }
}

/// Polls a future once, and drops it.
fn give_up<F: Future>(future: F) -> Option<F::Output> {
    let signal = std::sync::Arc::new(Signal(Notify::new()));
    match pin!(future).poll(&mut Context::from_waker(&Waker::from(signal))) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// The state that the gate protects: loom detects accesses that overlap or do not see each other.
struct World<P: Primitives> {
    gate: Gate<P>,
    table: UnsafeCell<()>,
}

impl<P: Primitives> World<P> {
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
fn explore<P: Primitives + 'static>(preemptions: usize, threads: &[Thread<P>]) {
    let threads = threads.to_vec();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let world = Arc::new(World { gate: Gate::<P>::default(), table: UnsafeCell::new(()) });
        let started: Vec<_> = threads[1..]
            .iter()
            .map(|thread| {
                let (world, thread) = (Arc::clone(&world), *thread);
                thread::spawn(move || thread(&world))
            })
            .collect();
        threads[0](&world);
        started.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(world.gate.shards.iter().all(|shard| shard.0.load() == 0));
        assert_eq!(world.gate.held(), 0);
    });
}

fn io<P: Primitives>(world: &World<P>) {
    let _pass = block_on(world.enter(0));
    world.uses();
}

fn io_elsewhere<P: Primitives>(world: &World<P>) {
    let _pass = block_on(world.enter(1));
    world.uses();
}

fn suspend_and_resume<P: Primitives>(world: &World<P>) {
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
    fn twice<P: Primitives>(world: &World<P>) {
        suspend_and_resume(world);
        suspend_and_resume(world);
    }
    fn io_twice<P: Primitives>(world: &World<P>) {
        io(world);
        io(world);
    }
    explore::<Loom>(2, &[twice, io_twice]);
    explore::<Loom>(2, &[twice, io, io_elsewhere]);
}

#[test]
fn who_gives_up_does_so_without_a_trace() {
    fn hasty_io<P: Primitives>(world: &World<P>) {
        if let Some(_pass) = give_up(world.enter(0)) {
            world.uses();
        }
    }
    fn hasty_close<P: Primitives>(world: &World<P>) {
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
        self.0.load(Ordering::Acquire)
    }
    fn add(&self, n: u64) -> u64 {
        let before = self.0.load(Ordering::Acquire);
        self.0.fetch_add(n, Ordering::AcqRel);
        before
    }
    fn sub(&self, n: u64) -> u64 {
        self.0.fetch_sub(n, Ordering::AcqRel)
    }
}

struct Gapped;

impl Primitives for Gapped {
    const SHARDS: usize = 2;
    fn shard() -> usize {
        0
    }
    type Word = Gap;
    type Lock = Mutex<Waiters>;
}

#[test]
fn the_model_finds_a_gap_between_look_and_change() {
    let run = || explore::<Gapped>(3, &[suspend_and_resume, io]);
    let found = catch_unwind(AssertUnwindSafe(run)).expect_err("the model finds nothing");
    let said = found.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(said.contains("Concurrent read and write accesses"), "{said}");
}
