//! One bucket: two words that count I/O, and the list of waiters.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use ashlar_block::sync::{Lock, Primitives, Std, Word};
use smallvec::SmallVec;

/// Number of I/Os in the bucket: the low half of a word.
const COUNT: u64 = RAISE - 1;
/// One raise, in the word of writes. There is room for 2^31 of them.
const RAISE: u64 = 1 << 32;
/// All raises.
const RAISED: u64 = FROZEN - RAISE;
/// The array is frozen: in either word.
const FROZEN: u64 = 1 << 63;
/// The bits that keep new I/O out. In the word of reads only `FROZEN` occurs.
const CLOSED: u64 = RAISED | FROZEN;

/// The two kinds of regular I/O. Each has its own word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
}

/// What a future waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// The last raise was lowered, or the array unfrozen. Regular I/O waits for this.
    Opened,
    /// The last I/O left. Raises and freezes wait for this.
    Drained,
    /// The last waiting write entered. New raises wait for this.
    Unwaited,
}

/// The waiters of a bucket, and the counts that change only under its lock.
#[derive(Default)]
pub(super) struct Waiters {
    /// How often the lock was taken. Also numbers the waiters.
    turns: u64,
    /// Waiting writes, which enter before the next raise.
    waiting: u32,
    /// Ascending by number.
    queue: Vec<QueuedWaker>,
}

struct QueuedWaker {
    number: u64,
    event: Event,
    waker: Waker,
}

type Wakers = SmallVec<[Waker; 4]>;

impl Waiters {
    fn add(&mut self, event: Event, waker: Waker) -> u64 {
        self.queue.push(QueuedWaker { number: self.turns, event, waker });
        self.turns
    }

    /// The waker of a waiter that was not woken yet. The caller drops it outside the lock.
    fn remove(&mut self, number: u64) -> Option<Waker> {
        let at = self.queue.binary_search_by_key(&number, |queued| queued.number).ok()?;
        Some(self.queue.remove(at).waker)
    }

    fn take(&mut self, which: impl Fn(Event) -> bool) -> Wakers {
        let woken = self.queue.extract_if(.., |queued| which(queued.event));
        woken.map(|queued| queued.waker).collect()
    }
}

/// Each bucket has its own cache line, so that other buckets and other state do not slow it.
#[repr(align(64))]
pub(super) struct Bucket<P: Primitives> {
    /// By kind: reads; writes and raises.
    words: [P::Word; 2],
    waiters: P::Lock<Waiters>,
}

const _: () = assert!(size_of::<Bucket<Std>>() == 64);

/// Counts for one bucket or for all of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Regular reads.
    pub reads: u64,
    /// Regular writes, discards and write-zeroes.
    pub writes: u64,
    /// Raises, including those that still wait for writes.
    pub raised: u64,
    /// Writes that wait to begin.
    pub waiting: u64,
    /// How often a lock was taken since the array started.
    pub locks: u64,
}

impl<P: Primitives> Default for Bucket<P> {
    fn default() -> Self {
        Self { words: Default::default(), waiters: Default::default() }
    }
}

impl<P: Primitives> Bucket<P> {
    #[inline]
    fn word(&self, kind: Kind) -> &P::Word {
        &self.words[kind as usize]
    }

    fn writes(&self) -> &P::Word {
        self.word(Kind::Write)
    }

    fn with<R>(&self, work: impl FnOnce(&mut Waiters) -> R) -> R {
        self.waiters.with(|waiters| {
            waiters.turns += 1;
            work(waiters)
        })
    }

    fn wake(&self, which: impl Fn(Event) -> bool) {
        // Wakers may do anything, so they are not called under the lock.
        self.with(|waiters| waiters.take(which)).into_iter().for_each(Waker::wake);
    }

    /// Enters unless the bucket is raised or frozen.
    #[inline]
    pub(super) fn try_enter(&self, kind: Kind) -> bool {
        if self.word(kind).add(1) & CLOSED == 0 {
            return true;
        }
        self.leave(kind);
        false
    }

    /// Takes back one entry.
    #[inline]
    pub(super) fn leave(&self, kind: Kind) {
        let left = self.word(kind).sub(1) - 1;
        if left & COUNT == 0 && left != 0 {
            self.drained();
        }
    }

    #[cold]
    fn drained(&self) {
        self.wake(|event| event == Event::Drained);
    }

    /// Waits until it can enter, and enters. Returns false, without entering, if the array is frozen
    /// and the caller is `holding` other buckets.
    pub(super) async fn enter(&self, kind: Kind, holding: bool) -> bool {
        let _waiting = (kind == Kind::Write).then(|| WaitingWrite::new(self));
        let word = self.word(kind);
        let enter = |held: u64| (held & CLOSED == 0).then_some(held + 1);
        self.until(Event::Opened, |_| match word.update(enter) {
            Ok(_) => Some(true),
            Err(held) => (holding && held & FROZEN != 0).then_some(false),
        })
        .await
    }

    /// Raises once no write waits here. Returns what [`Self::enter`] returns.
    pub(super) async fn raise(&self, holding: bool) -> bool {
        self.until(Event::Unwaited, |waiters| {
            let waited_for = waiters.waiting > 0;
            let raise = |held| (!waited_for && held & FROZEN == 0).then(|| held + RAISE);
            match self.writes().update(raise) {
                Ok(_) => Some(true),
                Err(held) => (holding && held & FROZEN != 0).then_some(false),
            }
        })
        .await
    }

    /// After a raise: waits until no write is in the bucket.
    pub(super) async fn without_writes(&self) {
        self.until(Event::Drained, |_| (self.writes().load() & COUNT == 0).then_some(())).await;
    }

    /// Takes back one raise.
    pub(super) fn lower(&self) {
        let left = self.writes().sub(RAISE) - RAISE;
        if left & RAISED == 0 {
            // Writes may enter now; a freeze may have waited for this, too.
            self.wake(|event| event != Event::Unwaited);
        }
    }

    /// Keeps new I/O out, and sends back waiters that hold other buckets.
    pub(super) fn freeze(&self) {
        self.words.iter().for_each(|word| _ = word.add(FROZEN));
        self.wake(|_| true);
    }

    /// After a freeze: waits until the bucket is empty.
    pub(super) async fn without_io(&self) {
        let still = || self.words.iter().all(|word| word.load() == FROZEN);
        if !still() {
            self.until(Event::Drained, |_| still().then_some(())).await;
        }
    }

    /// Undoes a freeze.
    pub(super) fn unfreeze(&self) {
        self.words.iter().for_each(|word| _ = word.sub(FROZEN));
        self.wake(|_| true);
    }

    /// The bucket's counts. Under I/O they are from slightly different moments.
    pub(super) fn counts(&self) -> Counts {
        let (reads, writes) = (self.word(Kind::Read).load(), self.writes().load());
        self.waiters.with(|waiters| Counts {
            reads: reads & COUNT,
            writes: writes & COUNT,
            raised: (writes & RAISED) / RAISE,
            waiting: waiters.waiting.into(),
            locks: waiters.turns,
        })
    }

    /// Waits until `ready` returns an answer. Calls it under the lock, now and at each `event` in
    /// this bucket. A dropped future leaves no trace.
    async fn until<T>(&self, event: Event, mut ready: impl FnMut(&mut Waiters) -> Option<T>) -> T {
        let mut waiter = Waiter { bucket: self, number: None };
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            // Neither the old waker nor the new one is dropped under the lock.
            let (answer, _unused) = self.with(|waiters| {
                let old = waiter.number.take().and_then(|number| waiters.remove(number));
                match ready(waiters) {
                    Some(answer) => (Poll::Ready(answer), [old, Some(waker)]),
                    None => {
                        waiter.number = Some(waiters.add(event, waker));
                        (Poll::Pending, [old, None])
                    }
                }
            });
            answer
        })
        .await
    }
}

/// A place in the queue of waiters; leaves it when dropped.
struct Waiter<'a, P: Primitives> {
    bucket: &'a Bucket<P>,
    number: Option<u64>,
}

impl<P: Primitives> Drop for Waiter<'_, P> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            drop(self.bucket.with(|waiters| waiters.remove(number)));
        }
    }
}

/// A write that waits to enter, before any new raise.
struct WaitingWrite<'a, P: Primitives>(&'a Bucket<P>);

impl<'a, P: Primitives> WaitingWrite<'a, P> {
    fn new(bucket: &'a Bucket<P>) -> Self {
        bucket.with(|waiters| waiters.waiting += 1);
        Self(bucket)
    }
}

impl<P: Primitives> Drop for WaitingWrite<'_, P> {
    fn drop(&mut self) {
        let woken = self.0.with(|waiters| {
            waiters.waiting -= 1;
            let last = waiters.waiting == 0;
            waiters.take(|event| last && event == Event::Unwaited)
        });
        woken.into_iter().for_each(Waker::wake);
    }
}
