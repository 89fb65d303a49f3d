//! A gate around a value: I/O passes it and uses the value; a change closes it, and may replace the value.
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
//!
//! # The value
//!
//! References to the value come from three places: a [`Pass`], which is counted in its word; a
//! [`ClosedGate`], of which there is one at a time; and [`Gate::get`], under the lock. The value changes only
//! through an exclusive reference to a [`ClosedGate`], under the lock. A `ClosedGate` is given out when each word
//! is closed and counts nothing, and the words stay closed as long as it exists: so no reference is
//! alive then. An I/O that is counted in a closed word leaves again and never gets a `Pass`.

#![allow(unsafe_code)]

#[cfg(test)]
mod model;

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::rwlock::{Guard, RwLock};
use super::{Lock, Shards, Std, Word};

/// The gate is closed; the rest of the word counts the I/Os inside.
const CLOSED: u64 = 1 << 63;

/// Each on separate cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Shard<W>(W);

/// The waiting futures.
#[derive(Default)]
struct Waiters {
    /// Number of waiters so far.
    turns: u64,
    /// Held I/O, in ascending order of their numbers.
    queue: VecDeque<(u64, Waker)>,
    /// The closing thread.
    closer: Option<Waker>,
    /// The gate is closed, without a [`ClosedGate`].
    kept: bool,
}

/// See the module text.
pub struct Gate<T = (), P: Shards = Std> {
    value: UnsafeCell<T>,
    shards: Box<[Shard<P::Word>]>,
    waiters: P::Lock<Waiters>,
    /// The right to close the gate.
    closing: RwLock,
}

// SAFETY: the module text explains why no reference to the value is alive when it changes. Threads share the value
// (`Sync`), and the last one to use it may drop it (`Send`).
unsafe impl<T: Send + Sync> Sync for Gate<T> {}

impl<T> Gate<T> {
    /// An open gate around `value`.
    pub fn new(value: T) -> Self {
        Self::with_primitives(value)
    }
}

impl<T: Default> Default for Gate<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T, P: Shards> fmt::Debug for Gate<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("held", &self.held()).finish_non_exhaustive()
    }
}

impl<T, P: Shards> Gate<T, P> {
    /// Private, because the value is sound only with primitives that do what they promise.
    fn with_primitives(value: T) -> Self {
        let shards = std::iter::repeat_with(Shard::default).take(P::SHARDS).collect();
        let (value, waiters) = (UnsafeCell::new(value), Default::default());
        Self { value, shards, waiters, closing: RwLock::new() }
    }

    /// Admits an I/O, if the gate is open.
    #[inline]
    pub fn try_enter(&self) -> Option<Pass<'_, T, P>> {
        self.try_enter_by(P::shard())
    }

    #[inline]
    fn try_enter_by(&self, shard: usize) -> Option<Pass<'_, T, P>> {
        let word = &self.shards[shard].0;
        let closed = word.add(1) & CLOSED != 0;
        // If the gate is closed, the pass is dropped at once, which counts as leaving.
        let pass = Pass { gate: self, word };
        (!closed).then_some(pass)
    }

    /// Admits an I/O once the gate is open.
    pub fn enter(&self) -> GateEntry<'_, T, P> {
        GateEntry { gate: self, shard: P::shard(), number: None }
    }

    /// Keeps new I/O out, and waits until the gate is empty. Callers take turns. A future that is dropped before leaves
    /// the gate as it was.
    pub async fn close(&self) -> ClosedGate<'_, T, P> {
        let alone = self.closing.write().await;
        let kept = self.waiters.with(|waiters| std::mem::take(&mut waiters.kept));
        if !kept {
            for Shard(word) in &self.shards {
                word.add(CLOSED);
            }
        }
        let mut closed = ClosedGate { gate: self, keeps: kept, _alone: alone };
        for Shard(word) in &self.shards {
            poll_fn(|cx| self.poll_empty(word, cx)).await;
        }
        closed.keeps = false;
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

    /// Admits I/O again; held I/O first.
    fn open(&self) {
        for Shard(word) in &self.shards {
            word.sub(CLOSED);
        }
        for (_, waker) in self.waiters.with(|waiters| std::mem::take(&mut waiters.queue)) {
            waker.wake();
        }
    }

    /// A copy of the value, whether the gate is open or closed. Takes a lock that all threads share, so it is for those
    /// that are not I/O.
    pub fn get(&self) -> T
    where
        T: Clone,
    {
        // SAFETY: the value changes only under this lock.
        self.waiters.with(|_| unsafe { &*self.value.get() }.clone())
    }

    /// Number of held I/Os.
    pub fn held(&self) -> usize {
        self.waiters.with(|waiters| waiters.queue.len())
    }

    #[cold]
    fn emptied(&self) {
        if let Some(waker) = self.waiters.with(|waiters| waiters.closer.take()) {
            waker.wake();
        }
    }
}

/// An I/O's permission to be inside and to use the value, until it is dropped.
#[must_use = "the I/O may not be in flight without it"]
pub struct Pass<'a, T = (), P: Shards = Std> {
    gate: &'a Gate<T, P>,
    word: &'a P::Word,
}

impl<T, P: Shards> Deref for Pass<'_, T, P> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the word counts this pass until it is dropped, and was not closed before: so no `ClosedGate` is given out
        // meanwhile, and the value does not change.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T, P: Shards> Drop for Pass<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        if self.word.sub(1) == CLOSED | 1 {
            self.gate.emptied();
        }
    }
}

/// The gate is closed and empty; dropping this opens it.
#[must_use = "the gate opens when it is dropped"]
pub struct ClosedGate<'a, T = (), P: Shards = Std> {
    gate: &'a Gate<T, P>,
    /// Whether the gate stays closed when this is dropped.
    keeps: bool,
    _alone: Guard<'a>,
}

impl<T, P: Shards> ClosedGate<'_, T, P> {
    /// Leaves the gate closed. The next [`Gate::close`] takes over without waiting.
    pub fn keep(mut self) {
        self.keeps = true;
    }

    /// Replaces the value, and returns the previous one.
    pub fn replace(&mut self, value: T) -> T {
        self.change(|place| std::mem::replace(place, value))
    }

    fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: there is no `Pass`, as long as this exists; no other `ClosedGate`, because this one holds the right to close;
        // no reference from this one, which is borrowed exclusively; and none from `Gate::get`, because of the lock.
        self.gate.waiters.with(|_| change(unsafe { &mut *self.gate.value.get() }))
    }
}

impl<T, P: Shards> Deref for ClosedGate<'_, T, P> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: only an exclusive reference to this one changes the value as long as it exists.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T, P: Shards> Drop for ClosedGate<'_, T, P> {
    fn drop(&mut self) {
        if self.keeps {
            self.gate.waiters.with(|waiters| waiters.kept = true);
        } else {
            self.gate.open();
        }
    }
}

/// A held I/O's entry.
#[must_use = "futures do nothing unless polled"]
pub struct GateEntry<'a, T = (), P: Shards = Std> {
    gate: &'a Gate<T, P>,
    shard: usize,
    /// Its number in the queue of waiters; it may have been removed since.
    number: Option<u64>,
}

impl<T, P: Shards> GateEntry<'_, T, P> {
    /// Joins the queue of waiters, or keeps the place in it; false if the gate is open.
    fn prepare_to_wait(&mut self, cx: &Context<'_>) -> bool {
        let word = &self.gate.shards[self.shard].0;
        let waker = cx.waker().clone();
        let number = &mut self.number;
        let (waits, _old) = self.gate.waiters.with(|waiters| {
            if word.load() & CLOSED == 0 {
                return (false, None);
            }
            let place = number.and_then(|number| waiters.find(number));
            if let Some((_, old)) = place.and_then(|place| waiters.queue.get_mut(place)) {
                return (true, Some(std::mem::replace(old, waker)));
            }
            waiters.turns += 1;
            *number = Some(waiters.turns);
            waiters.queue.push_back((waiters.turns, waker));
            (true, None)
        });
        waits
    }

    fn finish_wait(&mut self) {
        if let Some(number) = self.number.take() {
            let remove = |waiters: &mut Waiters| waiters.queue.remove(waiters.find(number)?);
            drop(self.gate.waiters.with(remove));
        }
    }
}

impl Waiters {
    fn find(&self, number: u64) -> Option<usize> {
        self.queue.binary_search_by_key(&number, |(number, _)| *number).ok()
    }
}

impl<'a, T, P: Shards> Future for GateEntry<'a, T, P> {
    type Output = Pass<'a, T, P>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some(pass) = self.gate.try_enter_by(self.shard) {
                self.finish_wait();
                return Poll::Ready(pass);
            }
            if self.prepare_to_wait(cx) {
                return Poll::Pending;
            }
        }
    }
}

impl<T, P: Shards> Drop for GateEntry<'_, T, P> {
    fn drop(&mut self) {
        self.finish_wait();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::task::Wake;
    use std::thread::{self, Thread};

    use super::*;

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }

    fn now<F: Future>(future: F) -> Option<F::Output> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Real threads and a value on the heap: Miri finds a use of a freed value, and a race.
    #[test]
    fn a_value_lives_as_long_as_those_inside_use_it() {
        let rounds = if cfg!(miri) { 20 } else { 2000 };
        let gate = Gate::new(Arc::new(AtomicU64::new(1)));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let pass = match gate.try_enter() {
                            Some(pass) => pass,
                            None => block_on(gate.enter()),
                        };
                        assert_eq!(pass.load(Relaxed), 1);
                    }
                });
            }
            // Readers that are not I/O.
            scope.spawn(|| (0..rounds).for_each(|_| assert!(gate.get().load(Relaxed) <= 1)));
            scope.spawn(|| {
                for _ in 0..rounds {
                    let mut closed = block_on(gate.close());
                    let old = closed.replace(Arc::new(AtomicU64::new(1)));
                    closed.keep();
                    // Nothing inside uses the old value any more.
                    old.store(0, Relaxed);
                    drop(block_on(gate.close()));
                }
            });
        });
    }

    #[test]
    fn a_gate_that_is_kept_closed_is_taken_over_and_opened() {
        let gate = Gate::new(7);
        block_on(gate.close()).keep();
        assert!(gate.try_enter().is_none() && gate.get() == 7);
        let mut closed = block_on(gate.close());
        assert_eq!((*closed, closed.replace(8), *closed), (7, 7, 8));
        assert!(now(gate.close()).is_none(), "there is a closer");
        drop(closed);
        assert_eq!(gate.try_enter().as_deref(), Some(&8));
    }

    #[test]
    fn a_closer_that_gives_up_leaves_the_gate_as_it_was() {
        let gate = Gate::<()>::default();
        let pass = gate.try_enter();
        assert!(pass.is_some() && now(gate.close()).is_none());
        assert!(gate.try_enter().is_some(), "it was open");
        drop(pass);
        block_on(gate.close()).keep();
        drop(gate.close());
        assert!(gate.try_enter().is_none(), "it was closed");
    }
}
