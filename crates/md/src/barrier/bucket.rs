//! One bucket: two words that count I/O, and the list of waiters.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use smallvec::SmallVec;

use super::primitives::{Lock, Primitives, Std, Word};

/// The I/Os that are in the bucket: the low half of a word.
const COUNT: u64 = RAISE - 1;
/// One raise, in the word of writes. There is room for 2^31 of them.
const RAISE: u64 = 1 << 32;
/// All raises.
const RAISED: u64 = FROZEN - RAISE;
/// The array is frozen: in either word.
const FROZEN: u64 = 1 << 63;
/// What keeps a newcomer out. In the word of reads that is `FROZEN` alone.
const CLOSED: u64 = RAISED | FROZEN;

/// Regular I/O of two kinds, each with a word of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
}

/// What a future waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// The last raise was lowered, or the array unfrozen: regular I/O.
    Opened,
    /// The last regular I/O that others wait for has gone: a raise, a freeze.
    Drained,
    /// The last waiting write has got in: a raise to come.
    Unwaited,
}

/// Those who wait in a bucket; also what only they and the rare paths count.
#[derive(Default)]
pub struct Waiters {
    /// How often the lock was taken. It numbers the seats, too.
    turns: u64,
    /// Writes that stepped aside and are to get in before the next raise.
    waiting: u32,
    /// I/Os that are put by, to be retried.
    queued: u32,
    /// Ascending by number.
    seats: Vec<Seat>,
}

struct Seat {
    number: u64,
    event: Event,
    waker: Waker,
}

type Wakers = SmallVec<[Waker; 4]>;

impl Waiters {
    fn add(&mut self, event: Event, waker: Waker) -> u64 {
        self.seats.push(Seat { number: self.turns, event, waker });
        self.turns
    }

    /// The waker of a seat that was not woken yet, for the caller to drop without the lock.
    fn remove(&mut self, number: u64) -> Option<Waker> {
        let at = self.seats.binary_search_by_key(&number, |seat| seat.number).ok()?;
        Some(self.seats.remove(at).waker)
    }

    fn take(&mut self, which: impl Fn(Event) -> bool) -> Wakers {
        let woken = self.seats.extract_if(.., |seat| which(seat.event));
        woken.map(|seat| seat.waker).collect()
    }
}

/// On a cache line of its own: neither I/O in other buckets nor the array's other state slows it.
#[repr(align(64))]
pub(super) struct Bucket<P: Primitives> {
    /// By kind: reads; writes with the raises.
    words: [P::Word; 2],
    waiters: P::Lock,
}

const _: () = assert!(size_of::<Bucket<Std>>() == 64);

/// What is in a bucket or in all of them, at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Regular reads.
    pub reads: u64,
    /// Regular writes, discards and write-zeroes.
    pub writes: u64,
    /// Raises, those that still wait for writes among them.
    pub raised: u64,
    /// Writes that wait to begin.
    pub waiting: u64,
    /// I/Os that failed and wait to be retried; not counted as reads or writes meanwhile.
    pub queued: u64,
    /// How often a lock was taken since the array began.
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
        // Wakers may do anything: not under the lock.
        self.with(|waiters| waiters.take(which)).into_iter().for_each(Waker::wake);
    }

    /// Enters if nothing keeps out.
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

    /// Waits until it can enter, and does. Whether it did: one that is `holding` other buckets is
    /// sent back, false, when the array is frozen.
    pub(super) async fn enter(&self, kind: Kind, holding: bool) -> bool {
        let _waiting = (kind == Kind::Write).then(|| Waiting::new(self));
        let word = self.word(kind);
        let enter = |held: u64| (held & CLOSED == 0).then_some(held + 1);
        self.until(Event::Opened, |_| match word.update(enter) {
            Ok(_) => Some(true),
            Err(held) => (holding && held & FROZEN != 0).then_some(false),
        })
        .await
    }

    /// Raises, once no write waits here. Answers as [`Self::enter`].
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

    /// After a raise: ends when no write is here.
    pub(super) async fn without_writes(&self) {
        self.until(Event::Drained, |_| (self.writes().load() & COUNT == 0).then_some(())).await;
    }

    /// Takes back one raise.
    pub(super) fn lower(&self) {
        let left = self.writes().sub(RAISE) - RAISE;
        if left & RAISED == 0 {
            // Writes go on; a freeze may have waited for this, too.
            self.wake(|event| event != Event::Unwaited);
        }
    }

    /// Lets nothing new begin, and sends back those who hold other buckets and wait here.
    pub(super) fn freeze(&self) {
        self.words.iter().for_each(|word| _ = word.add(FROZEN));
        self.wake(|_| true);
    }

    /// After a freeze: ends when nothing is here.
    pub(super) async fn without_io(&self) {
        let still = || self.words.iter().all(|word| word.load() == FROZEN);
        if !still() {
            self.until(Event::Drained, |_| still().then_some(())).await;
        }
    }

    /// Takes back a freeze.
    pub(super) fn unfreeze(&self) {
        self.words.iter().for_each(|word| _ = word.sub(FROZEN));
        self.wake(|_| true);
    }

    /// Counts an I/O that is put by.
    pub(super) fn queue(&self) {
        self.with(|waiters| waiters.queued += 1);
    }

    /// Takes back [`Self::queue`].
    pub(super) fn unqueue(&self) {
        self.with(|waiters| waiters.queued -= 1);
    }

    /// What is here. The counts are of slightly different moments if there is I/O.
    pub(super) fn counts(&self) -> Counts {
        let (reads, writes) = (self.word(Kind::Read).load(), self.writes().load());
        self.waiters.with(|waiters| Counts {
            reads: reads & COUNT,
            writes: writes & COUNT,
            raised: (writes & RAISED) / RAISE,
            waiting: waiters.waiting.into(),
            queued: waiters.queued.into(),
            locks: waiters.turns,
        })
    }

    /// Waits until `ready` has an answer. It is asked under the lock, now and at each `event` that
    /// happens here. Dropped, it leaves nothing behind.
    async fn until<T>(&self, event: Event, mut ready: impl FnMut(&mut Waiters) -> Option<T>) -> T {
        let mut seated = Seated { bucket: self, number: None };
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            // Neither the old waker nor the new one is dropped under the lock.
            let (answer, _unused) = self.with(|waiters| {
                let old = seated.number.take().and_then(|number| waiters.remove(number));
                match ready(waiters) {
                    Some(answer) => (Poll::Ready(answer), [old, Some(waker)]),
                    None => {
                        seated.number = Some(waiters.add(event, waker));
                        (Poll::Pending, [old, None])
                    }
                }
            });
            answer
        })
        .await
    }
}

/// One who waits; gives up the seat when dropped.
struct Seated<'a, P: Primitives> {
    bucket: &'a Bucket<P>,
    number: Option<u64>,
}

impl<P: Primitives> Drop for Seated<'_, P> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            drop(self.bucket.with(|waiters| waiters.remove(number)));
        }
    }
}

/// A write that waits to get in, before any raise to come.
struct Waiting<'a, P: Primitives>(&'a Bucket<P>);

impl<'a, P: Primitives> Waiting<'a, P> {
    fn new(bucket: &'a Bucket<P>) -> Self {
        bucket.with(|waiters| waiters.waiting += 1);
        Self(bucket)
    }
}

impl<P: Primitives> Drop for Waiting<'_, P> {
    fn drop(&mut self) {
        let woken = self.0.with(|waiters| {
            waiters.waiting -= 1;
            let last = waiters.waiting == 0;
            waiters.take(|event| last && event == Event::Unwaited)
        });
        woken.into_iter().for_each(Waker::wake);
    }
}
