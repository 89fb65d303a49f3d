//! Two or three threads under the C11 memory model, by loom: all
//! interleavings in which running threads are interrupted two or three times.
//!
//! Checked: parties that exclude each other are never inside together; the work of one is visible to the next;
//! no thread sleeps forever (to loom, a deadlock); no thread livelocks (it reaches loom's limit).
//!
//! The last part replaces the bucket's one word by the kernel's two. With full fences
//! that also passes; without one of them the model must find reader and freezer, or write and sync
//! I/O, inside together.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
use loom::sync::{Arc, Mutex, Notify};
use loom::thread;

use super::bucket::Waiters;
use super::primitives::{Lock, Word};
use super::*;

/// loom's word and lock, with as many buckets as a model needs.
struct Loom<const BUCKETS: usize>;

impl<const BUCKETS: usize> Primitives for Loom<BUCKETS> {
    const BUCKETS: usize = BUCKETS;
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
    fn update(&self, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
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

/// Runs a future to its end, sleeping while it has nothing to do.
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

/// Polls a future once and drops it.
fn give_up<F: Future>(future: F) -> Option<F::Output> {
    let signal = std::sync::Arc::new(Signal(Notify::new()));
    match pin!(future).poll(&mut Context::from_waker(&Waker::from(signal))) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// What the barrier protects: loom finds accesses that overlap or do not see each other.
struct Array<P: Primitives> {
    barrier: Barrier<P>,
    /// Shared by writes, exclusive to a sync I/O (or, the other way round, exclusive to a write).
    data: UnsafeCell<()>,
    /// Shared by reads, writes and sync I/O, exclusive to a freeze.
    shape: UnsafeCell<()>,
}

const LEN: Sectors = Sectors(8);
const START: Sector = Sector(0);

impl<P: Primitives> Array<P> {
    fn new() -> Self {
        let (data, shape) = (UnsafeCell::new(()), UnsafeCell::new(()));
        Self { barrier: Barrier::new(), data, shape }
    }

    fn reads(&self) {
        self.shape.with(|_| ());
    }

    fn shares_data(&self) {
        self.shape.with(|_| ());
        self.data.with(|_| ());
    }

    fn has_data_alone(&self) {
        self.shape.with(|_| ());
        self.data.with_mut(|_| ());
    }

    fn is_alone(&self) {
        self.shape.with_mut(|_| ());
    }
}

type Thread<P> = fn(&Array<P>);

/// Runs the threads in all interleavings with up to `preemptions` preemptions.
fn explore<P: Primitives + 'static>(preemptions: usize, threads: &[Thread<P>]) {
    let threads = threads.to_vec();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let array = Arc::new(Array::<P>::new());
        let started: Vec<_> = threads[1..]
            .iter()
            .map(|thread| {
                let (array, thread) = (Arc::clone(&array), *thread);
                thread::spawn(move || thread(&array))
            })
            .collect();
        threads[0](&array);
        started.into_iter().for_each(|thread| thread.join().unwrap());
        let counts = array.barrier.counts();
        assert_eq!(counts, Counts { locks: counts.locks, ..Counts::default() });
    });
}

type One = Loom<1>;

fn read<P: Primitives>(array: &Array<P>) {
    let _pass = block_on(array.barrier.wait_read(START));
    array.reads();
}

fn write<P: Primitives>(array: &Array<P>) {
    let _pass = block_on(array.barrier.wait(START, LEN));
    array.shares_data();
}

fn sync<P: Primitives>(array: &Array<P>) {
    let _raised = block_on(array.barrier.raise(START, LEN));
    array.has_data_alone();
}

/// Sync I/O as one of several.
fn sync_beside_sync<P: Primitives>(array: &Array<P>) {
    let _raised = block_on(array.barrier.raise(START, LEN));
    array.shares_data();
}

/// The only write, which excludes several [`sync_beside_sync`].
fn write_alone<P: Primitives>(array: &Array<P>) {
    let _pass = block_on(array.barrier.wait(START, LEN));
    array.has_data_alone();
}

fn freeze<P: Primitives>(array: &Array<P>) {
    let _frozen = block_on(array.barrier.freeze());
    array.is_alone();
}

#[test]
fn a_raise_and_two_writes_exclude_each_other_and_all_end() {
    explore::<One>(2, &[sync, write, write]);
}

#[test]
fn two_raises_and_a_write_exclude_each_other_and_all_end() {
    explore::<One>(2, &[sync_beside_sync, sync_beside_sync, write_alone]);
}

#[test]
fn a_freeze_excludes_reads_writes_and_raises_and_all_end() {
    explore::<One>(2, &[freeze, read, write]);
    explore::<One>(2, &[freeze, sync, read]);
    explore::<One>(2, &[freeze, sync, write]);
    explore::<One>(2, &[freeze, freeze, read]);
}

#[test]
fn who_gives_up_does_so_without_a_trace() {
    fn hasty_write<P: Primitives>(array: &Array<P>) {
        if let Some(_pass) = give_up(array.barrier.wait(START, LEN)) {
            array.shares_data();
        }
    }
    fn hasty_sync<P: Primitives>(array: &Array<P>) {
        if let Some(_raised) = give_up(array.barrier.raise(START, LEN)) {
            array.has_data_alone();
        }
    }
    fn hasty_write_alone<P: Primitives>(array: &Array<P>) {
        if let Some(_pass) = give_up(array.barrier.wait(START, LEN)) {
            array.has_data_alone();
        }
    }
    fn hasty_freeze<P: Primitives>(array: &Array<P>) {
        if let Some(_frozen) = give_up(array.barrier.freeze()) {
            array.is_alone();
        }
    }
    explore::<One>(2, &[sync, hasty_write, write]);
    explore::<One>(2, &[sync_beside_sync, hasty_write_alone, sync_beside_sync]);
    explore::<One>(2, &[hasty_sync, write, write]);
    explore::<One>(2, &[hasty_freeze, read, sync]);
    explore::<One>(2, &[hasty_freeze, freeze, write]);
}

/// A discard of two buckets, a raise of both, and a freeze; each may meet another halfway.
#[test]
fn nobody_waits_in_a_circle() {
    const BOTH: Sectors = Sectors(UNIT.0 * 2);
    const SECOND: Sector = Sector(UNIT.0);
    fn discard<P: Primitives>(array: &Array<P>) {
        let _pass = block_on(array.barrier.wait(START, BOTH));
        array.shares_data();
    }
    fn sync_both<P: Primitives>(array: &Array<P>) {
        let _raised = block_on(array.barrier.raise(START, BOTH));
        array.has_data_alone();
    }
    fn sync_second<P: Primitives>(array: &Array<P>) {
        let _raised = block_on(array.barrier.raise(SECOND, LEN));
    }
    fn write_second<P: Primitives>(array: &Array<P>) {
        let _pass = block_on(array.barrier.wait(SECOND, LEN));
        array.shares_data();
    }
    type Two = Loom<2>;
    explore::<Two>(2, &[discard, sync_both]);
    explore::<Two>(2, &[discard, freeze]);
    explore::<Two>(2, &[sync_both, freeze]);
    explore::<Two>(2, &[discard, sync_second, freeze]);
    explore::<Two>(2, &[sync_both, write_second, freeze]);
}

/// loom gives up (a failure) if the other thread makes no progress while this one loops.
#[test]
fn nobody_is_starved_by_others_that_never_stop() {
    fn until_the_other_is_done(first: Thread<One>, again: Thread<One>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let array = Arc::new((Array::new(), AtomicBool::new(false)));
            let other = Arc::clone(&array);
            let other = thread::spawn(move || {
                first(&other.0);
                other.1.store(true, Ordering::Release);
            });
            while !array.1.load(Ordering::Acquire) {
                again(&array.0);
                thread::yield_now();
            }
            other.join().unwrap();
        });
    }
    until_the_other_is_done(sync, write);
    until_the_other_is_done(write, sync);
    until_the_other_is_done(freeze, read);
    until_the_other_is_done(read, freeze);
}

/// The kernel's form: separate words for the number of I/Os and the raises. Each side changes its
/// word and reads the other's; `IO` and `SYNC` say whether with a full fence between.
#[derive(Default)]
struct Apart<const IO: bool, const SYNC: bool> {
    count: AtomicU64,
    rest: AtomicU64,
}

impl<const IO: bool, const SYNC: bool> Apart<IO, SYNC> {
    fn change(&self, n: u64, change: impl Fn(&AtomicU64) -> u64) -> u64 {
        let (mine, other, fenced) = match n {
            1 => (&self.count, &self.rest, IO),
            _ => (&self.rest, &self.count, SYNC),
        };
        let before = change(mine);
        if fenced {
            fence(Ordering::SeqCst);
        }
        before | other.load(Ordering::Acquire)
    }
}

impl<const IO: bool, const SYNC: bool> Word for Apart<IO, SYNC> {
    fn load(&self) -> u64 {
        self.count.load(Ordering::Acquire) | self.rest.load(Ordering::Acquire)
    }
    fn add(&self, n: u64) -> u64 {
        self.change(n, |word| word.fetch_add(n, Ordering::AcqRel))
    }
    fn sub(&self, n: u64) -> u64 {
        self.change(n, |word| word.fetch_sub(n, Ordering::AcqRel))
    }
    fn update(&self, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let before = self.load();
        match next(before) {
            Some(after) => Ok(self.add(after - before)),
            None => Err(before),
        }
    }
}

struct Kernel<const IO: bool, const SYNC: bool>;

impl<const IO: bool, const SYNC: bool> Primitives for Kernel<IO, SYNC> {
    const BUCKETS: usize = 1;
    type Word = Apart<IO, SYNC>;
    type Lock = Mutex<Waiters>;
}

/// What the model finds wrong with the kernel's form.
fn fault<const IO: bool, const SYNC: bool>(threads: &[Thread<Kernel<IO, SYNC>>]) -> Option<String> {
    let found = catch_unwind(AssertUnwindSafe(|| explore(3, threads))).err()?;
    Some(found.downcast_ref::<String>().cloned().unwrap_or_default())
}

fn assert_overlaps(fault: Option<String>) {
    let fault = fault.expect("the model finds nothing");
    assert!(fault.contains("Concurrent read and write accesses"), "{fault}");
}

#[test]
fn two_words_need_a_fence_on_both_sides_of_raise_and_write() {
    assert_eq!(fault::<true, true>(&[sync, write]), None);
    assert_overlaps(fault::<false, true>(&[sync, write]));
    assert_overlaps(fault::<true, false>(&[sync, write]));
}

#[test]
fn two_words_need_a_fence_on_both_sides_of_freeze_and_read() {
    assert_eq!(fault::<true, true>(&[freeze, read]), None);
    assert_overlaps(fault::<false, true>(&[freeze, read]));
    assert_overlaps(fault::<true, false>(&[freeze, read]));
}
