//! The gate of a device: I/O passes it, and a suspension closes it.
//!
//! Each thread counts its I/O in a word of its own, in which a bit says that the gate is closed. To
//! enter is one atomic addition, and what the word held before says whether the gate was open. To
//! close is an addition to each of the words. All threads agree on the order of changes to one word:
//! so an I/O either was counted when its word was closed, and is waited for, or finds the bit in what
//! its own addition returns, and steps back. There is no gap between a look and a change.
//!
//! Nobody sleeps for ever. Who must wait takes the lock, looks at its word, and leaves a waker, all
//! under the lock. Who opens, or is the last to leave a closed word, changes the word first, then
//! takes the lock and wakes. If the waiter looked before the change, its waker is there by then; if
//! after, it saw the change. Held I/O is woken in the order in which it came. Nothing is handed over:
//! the woken look again, so who is dropped owes nothing.
//!
//! What happened while the gate was closed is seen by all who pass it afterwards, and what they did by
//! whoever closes it: all changes acquire and release. `model.rs` checks all this.

mod primitives;

#[cfg(test)]
mod model;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use primitives::{Lock, Primitives, Std, Word};

/// The gate is closed; the rest of the word is the number of I/Os that are in.
const CLOSED: u64 = 1 << 63;

/// On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard<W>(W);

/// Those who wait.
#[derive(Default)]
pub(crate) struct Waiters {
    /// Seats given so far.
    turns: u64,
    /// Held I/O, ascending by number.
    seats: VecDeque<(u64, Waker)>,
    /// Whoever closes the gate.
    closer: Option<Waker>,
}

/// See the module text.
pub(crate) struct Gate<P: Primitives = Std> {
    shards: Box<[Shard<P::Word>]>,
    waiters: P::Lock,
}

impl<P: Primitives> Default for Gate<P> {
    fn default() -> Self {
        let shards = std::iter::repeat_with(Shard::default).take(P::SHARDS).collect();
        Self { shards, waiters: P::Lock::default() }
    }
}

impl<P: Primitives> Gate<P> {
    /// Lets an I/O in, if the gate is open.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<Pass<'_, P>> {
        self.try_enter_by(P::shard())
    }

    #[inline]
    fn try_enter_by(&self, shard: usize) -> Option<Pass<'_, P>> {
        let word = &self.shards[shard].0;
        let closed = word.add(1) & CLOSED != 0;
        // Dropped at once if it came in vain, which counts as leaving.
        let pass = Pass { gate: self, word };
        (!closed).then_some(pass)
    }

    /// Lets an I/O in once the gate is open.
    pub(crate) fn enter(&self) -> Enter<'_, P> {
        Enter { gate: self, shard: P::shard(), seat: None }
    }

    /// Keeps I/O from entering, and waits for what is in. One at a time.
    pub(crate) async fn close(&self) -> Closed<'_, P> {
        for shard in &self.shards {
            shard.0.add(CLOSED);
        }
        // From here on: dropped, it opens.
        let closed = Closed { gate: self };
        for Shard(word) in &self.shards {
            poll_fn(|cx| self.poll_empty(word, cx)).await;
        }
        closed
    }

    fn poll_empty(&self, word: &P::Word, cx: &Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        // An old waker is dropped, and with it perhaps a task, without the lock.
        let (poll, _old) = self.waiters.with(|waiters| match word.load() & !CLOSED {
            0 => (Poll::Ready(()), waiters.closer.take()),
            _ => (Poll::Pending, waiters.closer.replace(waker)),
        });
        poll
    }

    /// Lets I/O in again that [`Closed::keep`] kept out; what is held first.
    pub(crate) fn open(&self) {
        for shard in &self.shards {
            shard.0.sub(CLOSED);
        }
        for (_, waker) in self.waiters.with(|waiters| std::mem::take(&mut waiters.seats)) {
            waker.wake();
        }
    }

    /// Whether nothing is in. What is not seen here and enters meanwhile sees what the caller did before.
    pub(crate) fn is_empty(&self) -> bool {
        // By an addition: all agree on the order of changes to a word, a load might find an old one.
        self.shards.iter().all(|Shard(word)| word.add(0) & !CLOSED == 0)
    }

    /// How many I/Os are held.
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

/// An I/O's leave to be in, until it is dropped.
#[must_use = "the I/O may not be in flight without it"]
pub(crate) struct Pass<'a, P: Primitives = Std> {
    gate: &'a Gate<P>,
    word: &'a P::Word,
}

impl<P: Primitives> Drop for Pass<'_, P> {
    #[inline]
    fn drop(&mut self) {
        if self.word.sub(1) == CLOSED | 1 {
            self.gate.emptied();
        }
    }
}

/// The gate is closed and nobody is in; it opens when this is dropped.
#[must_use = "the gate opens when it is dropped"]
pub(crate) struct Closed<'a, P: Primitives = Std> {
    gate: &'a Gate<P>,
}

impl<P: Primitives> Closed<'_, P> {
    /// Leaves it closed until somebody says [`Gate::open`].
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl<P: Primitives> Drop for Closed<'_, P> {
    fn drop(&mut self) {
        self.gate.open();
    }
}

/// The way in of an I/O that is held.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Enter<'a, P: Primitives = Std> {
    gate: &'a Gate<P>,
    shard: usize,
    /// The number of its seat; it may have been taken away since.
    seat: Option<u64>,
}

impl<'a, P: Primitives> Enter<'a, P> {
    /// Takes a seat, or keeps the one it has; false if the gate is open.
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

impl<'a, P: Primitives> Future for Enter<'a, P> {
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

impl<P: Primitives> Drop for Enter<'_, P> {
    fn drop(&mut self) {
        self.stand_up();
    }
}
