//! Two or three threads under the C11 memory model, by loom: all
//! interleavings in which running threads are interrupted two or three times.
//!
//! Checked: parties that exclude each other are never inside together; the work of one is visible to the next;
//! no thread sleeps forever (to loom, a deadlock); no thread livelocks (it reaches loom's limit).
//!
//! The last part replaces the bucket's one word by the kernel's two. With full fences
//! that also passes; without one of them the model must find reader and freezer, or write and sync
//! I/O, inside together.

use std::sync::atomic::Ordering;

use ashlar_block::sync::model::loom::cell::UnsafeCell;
use ashlar_block::sync::model::loom::sync::atomic::{AtomicBool, AtomicU64, fence};
use ashlar_block::sync::model::loom::{sync::Mutex, thread};
use ashlar_block::sync::model::{self, Loom, block_on, give_up, overlaps};
use ashlar_block::sync::{Primitives, Word};

use super::*;

impl<const BUCKETS: usize> Buckets for Loom<BUCKETS> {
    const BUCKETS: usize = BUCKETS;
}

/// What the barrier protects: loom finds accesses that overlap or do not see each other.
struct Array<P: Buckets> {
    barrier: Barrier<P>,
    /// Shared by writes, exclusive to a sync I/O (or, the other way round, exclusive to a write).
    data: UnsafeCell<()>,
    /// Shared by reads, writes and sync I/O, exclusive to a freeze.
    shape: UnsafeCell<()>,
}

const LEN: Sectors = Sectors(8);
const START: Sector = Sector(0);

impl<P: Buckets> Array<P> {
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
fn explore<P: Buckets + 'static>(preemptions: usize, threads: &[Thread<P>]) {
    model::explore(preemptions, Array::new, threads, |array| {
        let counts = array.barrier.counts();
        assert_eq!(counts, Counts { locks: counts.locks, ..Counts::default() });
    });
}

type One = Loom<1>;

fn read<P: Buckets>(array: &Array<P>) {
    let _pass = block_on(array.barrier.wait_read(START, Sectors(1)));
    array.reads();
}

fn write<P: Buckets>(array: &Array<P>) {
    let _pass = block_on(array.barrier.wait(START, LEN));
    array.shares_data();
}

fn sync<P: Buckets>(array: &Array<P>) {
    let _raised = block_on(array.barrier.raise(START, LEN));
    array.has_data_alone();
}

/// Sync I/O as one of several.
fn sync_beside_sync<P: Buckets>(array: &Array<P>) {
    let _raised = block_on(array.barrier.raise(START, LEN));
    array.shares_data();
}

/// The only write, which excludes several [`sync_beside_sync`].
fn write_alone<P: Buckets>(array: &Array<P>) {
    let _pass = block_on(array.barrier.wait(START, LEN));
    array.has_data_alone();
}

fn freeze<P: Buckets>(array: &Array<P>) {
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
    fn hasty_write<P: Buckets>(array: &Array<P>) {
        if let Some(_pass) = give_up(array.barrier.wait(START, LEN)) {
            array.shares_data();
        }
    }
    fn hasty_sync<P: Buckets>(array: &Array<P>) {
        if let Some(_raised) = give_up(array.barrier.raise(START, LEN)) {
            array.has_data_alone();
        }
    }
    fn hasty_write_alone<P: Buckets>(array: &Array<P>) {
        if let Some(_pass) = give_up(array.barrier.wait(START, LEN)) {
            array.has_data_alone();
        }
    }
    fn hasty_freeze<P: Buckets>(array: &Array<P>) {
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
    fn discard<P: Buckets>(array: &Array<P>) {
        let _pass = block_on(array.barrier.wait(START, BOTH));
        array.shares_data();
    }
    fn sync_both<P: Buckets>(array: &Array<P>) {
        let _raised = block_on(array.barrier.raise(START, BOTH));
        array.has_data_alone();
    }
    fn sync_second<P: Buckets>(array: &Array<P>) {
        let _raised = block_on(array.barrier.raise(SECOND, LEN));
    }
    fn write_second<P: Buckets>(array: &Array<P>) {
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

/// loom stops with a failure if the other thread makes no progress while this one loops.
#[test]
fn nobody_is_starved_by_others_that_never_stop() {
    fn until_the_other_is_done(first: Thread<One>, again: Thread<One>) {
        type World = (Array<One>, AtomicBool, [Thread<One>; 2]);
        fn once((array, done, [first, _]): &World) {
            first(array);
            done.store(true, Ordering::Release);
        }
        fn on_and_on((array, done, [_, again]): &World) {
            while !done.load(Ordering::Acquire) {
                again(array);
                thread::yield_now();
            }
        }
        let world = move || (Array::new(), AtomicBool::new(false), [first, again]);
        model::explore(2, world, &[on_and_on, once], |_| ());
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
    fn update(&self, mut next: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        let before = self.load();
        match next(before) {
            Some(after) => Ok(self.add(after - before)),
            None => Err(before),
        }
    }
}

struct Kernel<const IO: bool, const SYNC: bool>;

impl<const IO: bool, const SYNC: bool> Primitives for Kernel<IO, SYNC> {
    type Word = Apart<IO, SYNC>;
    type Lock<T: Default> = Mutex<T>;
}

impl<const IO: bool, const SYNC: bool> Buckets for Kernel<IO, SYNC> {
    const BUCKETS: usize = 1;
}

/// Runs threads over the kernel's form.
fn kernel<const IO: bool, const SYNC: bool>(threads: &[Thread<Kernel<IO, SYNC>>]) {
    explore(3, threads);
}

#[test]
fn two_words_need_a_fence_on_both_sides_of_raise_and_write() {
    kernel::<true, true>(&[sync, write]);
    assert!(overlaps(|| kernel::<false, true>(&[sync, write])));
    assert!(overlaps(|| kernel::<true, false>(&[sync, write])));
}

#[test]
fn two_words_need_a_fence_on_both_sides_of_freeze_and_read() {
    kernel::<true, true>(&[freeze, read]);
    assert!(overlaps(|| kernel::<false, true>(&[freeze, read])));
    assert!(overlaps(|| kernel::<true, false>(&[freeze, read])));
}
