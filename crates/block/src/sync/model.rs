//! The threads of a test under the C11 memory model, by loom.
//!
//! A model runs in all interleavings in which running threads are interrupted a few times. It finds
//! accesses to a [`loom::cell::UnsafeCell`] that overlap or do not see each other, lost wake-ups (to loom,
//! a deadlock), and threads that never end (they reach loom's limit).

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc as StdArc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

pub use loom;
use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use loom::sync::{Arc, Mutex, Notify};

use super::{Lock, Primitives, Shards, Word};

/// The primitives of loom. `N` is the test's: for example a number of buckets, or of shards.
pub struct Loom<const N: usize = 1>;

impl<const N: usize> Primitives for Loom<N> {
    type Word = AtomicU64;
    type Lock<T: Default> = Mutex<T>;
}

impl<const N: usize> Shards for Loom<N> {
    const SHARDS: usize = N;
    fn shard() -> usize {
        0
    }
    fn is_own(_shard: usize) -> bool {
        false
    }
}

words!(AtomicU8: u8, AtomicU32: u32, AtomicU64: u64);

impl<T: Default> Lock<T> for Mutex<T> {
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.lock().unwrap())
    }
}

/// Preemptions within which almost all faults show.
const FEW: usize = 2;

/// Runs threads over one `world` in all interleavings with up to `preemptions` preemptions, and after
/// each of them `end`. Of three threads it tries no more than [`FEW`] preemptions, which takes seconds instead of half a minute,
/// unless loom's variable `LOOM_MAX_PREEMPTIONS` says otherwise, as in `make soak`.
pub fn explore<W: 'static>(
    preemptions: usize,
    world: impl Fn() -> W + Send + Sync + 'static,
    threads: &[fn(&W)],
    end: fn(&W),
) {
    let threads = threads.to_vec();
    let mut model = loom::model::Builder::new();
    let few = if threads.len() < 3 { preemptions } else { FEW };
    model.preemption_bound = Some(preemptions.min(model.preemption_bound.unwrap_or(few)));
    model.check(move || {
        let world = Arc::new(world());
        let mut started = Vec::new();
        for thread in &threads[1..] {
            let (world, thread) = (Arc::clone(&world), *thread);
            started.push(loom::thread::spawn(move || thread(&world)));
        }
        threads[0](&world);
        started.into_iter().for_each(|thread| thread.join().unwrap());
        end(&world);
    });
}

/// Whether a model finds that threads access a cell together. Any other fault fails the test.
pub fn overlaps(model: impl FnOnce()) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(model)) else { return false };
    let found = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(found.contains("Concurrent read and write accesses"), "{found}");
    true
}

struct Signal(Notify);

impl Wake for Signal {
    fn wake(self: StdArc<Self>) {
        self.0.notify();
    }
}

/// Runs a future to its end, sleeping while it has nothing to do.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let signal = StdArc::new(Signal(Notify::new()));
    let waker = Waker::from(StdArc::clone(&signal));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => signal.0.wait(),
        }
    }
}

/// Polls a future once and drops it.
pub fn give_up<F: Future>(future: F) -> Option<F::Output> {
    let waker = Waker::from(StdArc::new(Signal(Notify::new())));
    match pin!(future).poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
