//! Checks two or three threads at the gate with loom, under the C11 memory model: all interleavings
//! in which running threads are interrupted up to three times.
//!
//! Checked: no I/O is inside while the value changes; I/O that enters sees the change, and vice
//! versa, and so do those that get a copy; no wake-up is lost (loom reports a deadlock).

use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::AtomicU64;

use super::*;
use crate::sync::Primitives;
use crate::sync::model::{self, Loom, block_on, give_up, overlaps};

/// Two words, so that each thread has its own.
type TwoWords = Loom<2>;

/// The value: loom detects accesses that overlap or do not see each other.
#[derive(Default)]
struct Value(UnsafeCell<()>);

impl Value {
    fn uses(&self) {
        self.0.with(|_| ());
    }
}

impl Clone for Value {
    fn clone(&self) -> Self {
        self.uses();
        Self::default()
    }
}

type World<P> = Gate<Value, P>;

fn enter<P: Shards>(gate: &World<P>, shard: usize) -> GateEntry<'_, Value, P> {
    GateEntry { gate, shard, number: None }
}

type Thread<P> = fn(&World<P>);

/// Runs the threads in all interleavings, with up to `preemptions` interruptions.
fn explore<P: Shards + 'static>(preemptions: usize, threads: &[Thread<P>]) {
    let world = || World::<P>::with_primitives(Value::default());
    model::explore(preemptions, world, threads, |gate| {
        assert!(gate.shards.iter().all(|shard| shard.0.load() == 0));
        assert_eq!(gate.held(), 0);
    });
}

fn io<P: Shards>(gate: &World<P>) {
    block_on(enter(gate, 0)).uses();
}

fn io_elsewhere<P: Shards>(gate: &World<P>) {
    block_on(enter(gate, 1)).uses();
}

fn changes<P: Shards>(closed: &mut ClosedGate<'_, Value, P>) {
    closed.uses();
    closed.change(|value| value.0.with_mut(|_| ()));
}

/// Closes the gate, and opens it in a second step.
fn suspend_and_resume<P: Shards>(gate: &World<P>) {
    let mut closed = block_on(gate.close());
    changes(&mut closed);
    closed.keep();
    changes(&mut block_on(gate.close()));
}

fn replace<P: Shards>(gate: &World<P>) {
    changes(&mut block_on(gate.close()));
}

#[test]
fn nothing_is_in_while_the_gate_is_closed_and_all_end() {
    explore::<TwoWords>(3, &[suspend_and_resume, io]);
    explore::<TwoWords>(2, &[suspend_and_resume, io, io]);
    explore::<TwoWords>(2, &[suspend_and_resume, io, io_elsewhere]);
}

#[test]
fn a_gate_may_be_closed_again_and_again() {
    fn twice<P: Shards>(gate: &World<P>) {
        replace(gate);
        replace(gate);
    }
    fn io_twice<P: Shards>(gate: &World<P>) {
        io(gate);
        io(gate);
    }
    explore::<TwoWords>(2, &[twice, io_twice]);
    explore::<TwoWords>(2, &[twice, io, io_elsewhere]);
}

#[test]
fn closers_take_turns() {
    explore::<TwoWords>(3, &[replace, replace]);
    explore::<TwoWords>(2, &[suspend_and_resume, replace, io]);
}

#[test]
fn a_copy_is_of_the_value_before_a_change_or_after_it() {
    fn copy<P: Shards>(gate: &World<P>) {
        gate.get().uses();
    }
    explore::<TwoWords>(3, &[suspend_and_resume, copy]);
    explore::<TwoWords>(2, &[replace, copy, io]);
}

#[test]
fn whoever_gives_up_does_so_without_a_trace() {
    fn hasty_io<P: Shards>(gate: &World<P>) {
        if let Some(pass) = give_up(enter(gate, 0)) {
            pass.uses();
        }
    }
    fn hasty_close<P: Shards>(gate: &World<P>) {
        if let Some(mut closed) = give_up(gate.close()) {
            changes(&mut closed);
        }
    }
    explore::<TwoWords>(2, &[suspend_and_resume, hasty_io, io]);
    explore::<TwoWords>(3, &[hasty_close, io]);
    explore::<TwoWords>(2, &[hasty_close, io, io_elsewhere]);
}

/// The word of a faulty gate: an I/O first checks it and then counts itself, in two steps.
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

struct GapPrimitives;

impl Primitives for GapPrimitives {
    type Word = Gap;
    type Lock<T: Default> = Mutex<T>;
}

impl Shards for GapPrimitives {
    const SHARDS: usize = 2;
    fn shard() -> usize {
        0
    }
    fn is_own(_shard: usize) -> bool {
        false
    }
}

#[test]
fn the_model_finds_a_gap_between_look_and_change() {
    assert!(overlaps(|| explore::<GapPrimitives>(3, &[suspend_and_resume, io])));
}
