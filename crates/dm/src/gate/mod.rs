//! The gate of a device: I/O passes it, and a suspension closes it.
//!
//! Each thread counts its I/O in its own word, which also has a bit for "closed". Entering is one
//! atomic addition, whose result tells whether the gate was open. Closing adds to each word. All
//! threads agree on the order of changes to one word: so an I/O either was counted before its word
//! was closed, and the closer waits for it, or it sees the bit in the result of its addition, and
//! leaves again. There is no gap between check and change.
//!
//! No wake-up is lost. A waiter takes the lock, checks its word, and stores a waker, all under the
//! lock. The thread that opens the gate, or the last I/O to leave a closed word, changes the word
//! first, then takes the lock and wakes. If the waiter checked before the change, its waker is
//! already stored; if after, it saw the change. Held I/O is woken in order of arrival. Nothing is
//! handed over: woken futures check again, so a dropped future leaves nothing to clean up.
//!
//! Every I/O that passes later sees what happened while the gate was closed, and the closer sees
//! what earlier I/O did: all changes acquire and release. `model.rs` checks all this.

#[cfg(test)]
mod model;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use ashlar_block::stats;
use ashlar_block::sync::{Lock, Primitives, Std, Word};

/// The gate is closed; the rest of the word counts the I/Os inside.
const CLOSED: u64 = 1 << 63;

/// Each on separate cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Shard<W>(W);

/// The waiting futures.
#[derive(Default)]
struct Waiters {
    /// Number of seats given so far.
    turns: u64,
    /// Held I/O, in ascending order of seats.
    seats: VecDeque<(u64, Waker)>,
    /// The closing thread.
    closer: Option<Waker>,
}

/// Primitives, and the words of a gate that has them.
pub(crate) trait Shards: Primitives {
    /// Number of words in which I/O is counted.
    const SHARDS: usize;
    /// The word of the calling thread, below [`Self::SHARDS`].
    fn shard() -> usize;
}

impl Shards for Std {
    const SHARDS: usize = stats::SHARDS;

    #[inline]
    fn shard() -> usize {
        stats::thread_shard()
    }
}

/// See the module text.
pub(crate) struct Gate<P: Shards = Std> {
    shards: Box<[Shard<P::Word>]>,
    waiters: P::Lock<Waiters>,
}

impl<P: Shards> Default for Gate<P> {
    fn default() -> Self {
        let shards = std::iter::repeat_with(Shard::default).take(P::SHARDS).collect();
        Self { shards, waiters: Default::default() }
    }
}

impl<P: Shards> Gate<P> {
    /// Admits an I/O, if the gate is open.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<Pass<'_, P>> {
        self.try_enter_by(P::shard())
    }

    #[inline]
    fn try_enter_by(&self, shard: usize) -> Option<Pass<'_, P>> {
        let word = &self.shards[shard].0;
        let closed = word.add(1) & CLOSED != 0;
        // If the gate is closed, the pass is dropped at once, which counts as leaving.
        let pass = Pass { gate: self, word };
        (!closed).then_some(pass)
    }

    /// Admits an I/O once the gate is open.
    pub(crate) fn enter(&self) -> Enter<'_, P> {
        Enter { gate: self, shard: P::shard(), seat: None }
    }

    /// Keeps new I/O out, and waits until the gate is empty. Only one caller at a time.
    pub(crate) async fn close(&self) -> Closed<'_, P> {
        for shard in &self.shards {
            shard.0.add(CLOSED);
        }
        // From here on, a drop opens the gate.
        let closed = Closed { gate: self };
        for Shard(word) in &self.shards {
            poll_fn(|cx| self.poll_empty(word, cx)).await;
        }
        closed
    }

    fn poll_empty(&self, word: &P::Word, cx: &Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        // The old waker is dropped outside the lock: this may drop a task.
        let (poll, _old) = self.waiters.with(|waiters| match word.load() & !CLOSED {
            0 => (Poll::Ready(()), waiters.closer.take()),
            _ => (Poll::Pending, waiters.closer.replace(waker)),
        });
        poll
    }

    /// Admits I/O again after [`Closed::keep`]; held I/O first.
    pub(crate) fn open(&self) {
        for shard in &self.shards {
            shard.0.sub(CLOSED);
        }
        for (_, waker) in self.waiters.with(|waiters| std::mem::take(&mut waiters.seats)) {
            waker.wake();
        }
    }

    /// Number of held I/Os.
    pub(crate) fn held(&self) -> usize {
        self.waiters.with(|waiters| waiters.seats.len())
    }

    #[cold]
    fn emptied(&self) {
        if let Some(waker) = self.waiters.with(|waiters| waiters.closer.take()) {
            waker.wake();
        }
    }
}

/// An I/O's permission to be inside, until it is dropped.
#[must_use = "the I/O may not be in flight without it"]
pub(crate) struct Pass<'a, P: Shards = Std> {
    gate: &'a Gate<P>,
    word: &'a P::Word,
}

impl<P: Shards> Drop for Pass<'_, P> {
    #[inline]
    fn drop(&mut self) {
        if self.word.sub(1) == CLOSED | 1 {
            self.gate.emptied();
        }
    }
}

/// The gate is closed and empty; dropping this opens it.
#[must_use = "the gate opens when it is dropped"]
pub(crate) struct Closed<'a, P: Shards = Std> {
    gate: &'a Gate<P>,
}

impl<P: Shards> Closed<'_, P> {
    /// Keeps the gate closed until [`Gate::open`].
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl<P: Shards> Drop for Closed<'_, P> {
    fn drop(&mut self) {
        self.gate.open();
    }
}

/// A held I/O's entry.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Enter<'a, P: Shards = Std> {
    gate: &'a Gate<P>,
    shard: usize,
    /// The number of its seat; the seat may have been removed since.
    seat: Option<u64>,
}

impl<'a, P: Shards> Enter<'a, P> {
    /// Takes a seat, or keeps the existing one; false if the gate is open.
    fn sit(&mut self, cx: &Context<'_>) -> bool {
        let word = &self.gate.shards[self.shard].0;
        let waker = cx.waker().clone();
        let seat = &mut self.seat;
        let (sits, _old) = self.gate.waiters.with(|waiters| {
            if word.load() & CLOSED == 0 {
                return (false, None);
            }
            let place = seat.and_then(|number| waiters.find(number));
            if let Some((_, old)) = place.and_then(|place| waiters.seats.get_mut(place)) {
                return (true, Some(std::mem::replace(old, waker)));
            }
            waiters.turns += 1;
            *seat = Some(waiters.turns);
            waiters.seats.push_back((waiters.turns, waker));
            (true, None)
        });
        sits
    }

    fn stand_up(&mut self) {
        if let Some(number) = self.seat.take() {
            let remove = |waiters: &mut Waiters| waiters.seats.remove(waiters.find(number)?);
            drop(self.gate.waiters.with(remove));
        }
    }
}

impl Waiters {
    fn find(&self, number: u64) -> Option<usize> {
        self.seats.binary_search_by_key(&number, |(number, _)| *number).ok()
    }
}

impl<'a, P: Shards> Future for Enter<'a, P> {
    type Output = Pass<'a, P>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Pass<'a, P>> {
        loop {
            if let Some(pass) = self.gate.try_enter_by(self.shard) {
                self.stand_up();
                return Poll::Ready(pass);
            }
            if self.sit(cx) {
                return Poll::Pending;
            }
        }
    }
}

impl<P: Shards> Drop for Enter<'_, P> {
    fn drop(&mut self) {
        self.stand_up();
    }
}
