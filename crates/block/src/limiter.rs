//! The rate limits of a volume: which requests of its clients wait, and for how long.
//!
//! # Theory
//!
//! Reads and changes are limited apart. Each of these directions has two buckets of tokens, one for bytes and one for requests, and a
//! queue. A request passes if no other waits and both buckets have its tokens; otherwise it waits at the end of the queue. The first in
//! the queue passes at the first moment at which both buckets have its tokens. So requests of a direction pass in the order in which they
//! came, a small one never overtakes a large one, and none waits longer than the limits demand. In any time of T seconds pass at most
//! rate x T and a burst of tokens, and what the last request of that time borrows if it is larger than a burst.
//!
//! Tokens are taken when a request passes, and not when it comes. A request that is dropped while it waits has taken nothing; one that has
//! passed gives nothing back.
//!
//! All requests that wait in a direction need one timer. The task of the first one has it: it sleeps until that one may pass, and then
//! lets all pass that may. Whoever changes which one is the first, or when it may pass, wakes the first one's task, which sets its timer
//! anew: so a limit that is raised, lowered or taken away counts at once for those that wait.
//!
//! # Threads
//!
//! The buckets and the queues of a volume are under a lock that is held for a few instructions. Why not atomics: a request that is limited by
//! bytes and by requests takes from two buckets at one moment, and a change of a rate concerns those that wait. A generic cell rate
//! algorithm in one word (which the crate governor has) gives each request its time when it comes: with two limits the requests that wait
//! for one of them pass the other all at once, and no time changes when the rate does. Governor's rates never change, either, and it
//! refuses what is larger than a burst, and lets requests that wait overtake each other.
//!
//! A volume without limits has no lock on its path: a request loads one flag, in no order. A request that comes while limits are set may
//! not see them yet; one that sees the flag when the limits are gone finds buckets that let all pass.
//!
//! No wake-up is lost. A waiter looks at its place and stores its waker under the lock; whoever lets it pass, or makes it the first, does
//! that under the lock, too, takes the waker, and wakes when the lock is free.

mod bucket;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::SmallVec;

use crate::future::LocalFuture;
use crate::io_max::{IoMax, IoMaxChange};
use crate::runtime::Runtime;
use crate::sync::{Lock, Primitives, Std};
use bucket::Bucket;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// It reads.
    Read,
    /// It changes data: a write, a write of zeroes, a discard.
    Write,
}

/// The requests of a direction that had to wait.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Delays {
    /// Those that wait now.
    pub waiting: u64,
    /// All that ever waited.
    pub requests: u64,
    /// The time for which those waited that have passed, added up, in nanoseconds.
    pub time_ns: u64,
}

/// Wakers that are called when the lock is free.
type Wakers = SmallVec<[Waker; 4]>;

/// A request in a queue.
#[derive(Debug)]
struct Waiter {
    number: u64,
    bytes: u64,
    since_ns: u64,
    waker: Waker,
}

/// A direction.
#[derive(Debug, Default)]
struct Way {
    bytes: Bucket,
    requests: Bucket,
    /// By their numbers.
    queue: VecDeque<Waiter>,
    next: u64,
    delays: Delays,
}

impl Way {
    fn wait_ns(&mut self, bytes: u64, now_ns: u64) -> u64 {
        self.bytes.wait_ns(bytes, now_ns).max(self.requests.wait_ns(1, now_ns))
    }

    fn take(&mut self, bytes: u64) {
        self.bytes.take(bytes);
        self.requests.take(1);
    }

    /// Lets those pass that may. Adds the wakers of these to `woken`, and that of the request that is the first afterwards.
    fn serve(&mut self, now_ns: u64, woken: &mut Wakers) {
        let before = woken.len();
        while let Some(first) = self.queue.pop_front() {
            if self.wait_ns(first.bytes, now_ns) > 0 {
                self.queue.push_front(first);
                break;
            }
            self.take(first.bytes);
            self.delays.time_ns += now_ns.saturating_sub(first.since_ns);
            woken.push(first.waker);
        }
        if woken.len() > before {
            self.wake_first(woken);
        }
    }

    fn wake_first(&self, woken: &mut Wakers) {
        woken.extend(self.queue.front().map(|first| first.waker.clone()));
    }

    /// The place of a request in the queue; `None` if it has passed.
    fn place(&self, number: u64) -> Option<usize> {
        self.queue.binary_search_by_key(&number, |waiter| waiter.number).ok()
    }
}

#[derive(Default)]
struct State {
    max: IoMax,
    /// Set with the first limits.
    runtime: Option<Arc<dyn Runtime>>,
    is_lifted: bool,
    ways: [Way; 2],
}

impl State {
    /// Puts the limits in force, and lets those pass that may now.
    fn apply(&mut self, woken: &mut Wakers) {
        let Some(runtime) = &self.runtime else { return };
        let (now_ns, max) = (runtime.now_ns(), self.in_force());
        let rates = [(max.rbps(), max.riops()), (max.wbps(), max.wiops())];
        for (way, (bytes, requests)) in self.ways.iter_mut().zip(rates) {
            way.bytes.set(bytes, max.burst_ms(), now_ns);
            way.requests.set(requests, max.burst_ms(), now_ns);
            way.serve(now_ns, woken);
            way.wake_first(woken);
        }
    }

    fn in_force(&self) -> IoMax {
        if self.is_lifted { IoMax::default() } else { self.max }
    }
}

/// What a request does next.
enum Step {
    Passes,
    /// It waits for others.
    Waits,
    /// It is the first, and waits for that many nanoseconds from that moment.
    Sleeps(u64, u64, Arc<dyn Runtime>),
}

/// See the module text.
pub struct Limiter<P: Primitives = Std> {
    /// Whether there are limits.
    is_on: AtomicBool,
    state: P::Lock<State>,
}

impl<P: Primitives> Default for Limiter<P> {
    fn default() -> Self {
        Self { is_on: AtomicBool::new(false), state: P::Lock::default() }
    }
}

impl<P: Primitives> Limiter<P> {
    /// Whether there are limits. Otherwise a request need not ask.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// The limits that were set.
    pub fn max(&self) -> IoMax {
        self.state.with(|state| state.max)
    }

    /// Changes the limits. They count at once, also for requests that wait.
    pub fn set(&self, change: &IoMaxChange, runtime: &Arc<dyn Runtime>) {
        self.change(|state| {
            state.max = change.of(state.max);
            state.runtime.get_or_insert_with(|| Arc::clone(runtime));
        });
    }

    /// Lets all requests pass from now on, whatever is set: for a daemon that stops.
    pub fn lift(&self) {
        self.change(|state| state.is_lifted = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut woken = Wakers::new();
        self.state.with(|state| {
            change(state);
            state.apply(&mut woken);
            self.is_on.store(!state.in_force().is_none(), Relaxed);
        });
        woken.into_iter().for_each(Waker::wake);
    }

    /// Whether requests wait.
    pub fn is_holding_back(&self) -> bool {
        self.is_on() && self.state.with(|state| state.ways.iter().any(|way| !way.queue.is_empty()))
    }

    /// The reads and the changes that had to wait.
    pub fn delays(&self) -> (Delays, Delays) {
        self.state.with(|state| {
            let [reads, writes] = &state.ways;
            let of = |way: &Way| Delays { waiting: way.queue.len() as u64, ..way.delays };
            (of(reads), of(writes))
        })
    }

    /// Waits until a request that reads or changes this many bytes may begin.
    pub fn pass(&self, direction: Direction, bytes: u64) -> Passing<'_, P> {
        Passing { limiter: self, direction, bytes, number: None, timer: None }
    }
}

/// A request that wants to begin; ends when it may.
pub struct Passing<'a, P: Primitives = Std> {
    limiter: &'a Limiter<P>,
    direction: Direction,
    bytes: u64,
    /// Set while it waits.
    number: Option<u64>,
    /// When it rings, in ns; only the first one in the queue has one.
    timer: Option<(u64, LocalFuture<'static, ()>)>,
}

impl<P: Primitives> Passing<'_, P> {
    fn step(&mut self, cx: &Context<'_>) -> Step {
        let (limiter, mut woken) = (self.limiter, Wakers::new());
        let step = limiter.state.with(|state| {
            // Without one there were never limits.
            let Some(runtime) = &state.runtime else { return Step::Passes };
            let now_ns = runtime.now_ns();
            let way = &mut state.ways[self.direction as usize];
            let number = match self.number {
                Some(number) => number,
                None if way.queue.is_empty() && way.wait_ns(self.bytes, now_ns) == 0 => {
                    way.take(self.bytes);
                    return Step::Passes;
                }
                None => {
                    let (number, waker) = (way.next, cx.waker().clone());
                    way.next += 1;
                    way.delays.requests += 1;
                    let (bytes, since_ns) = (self.bytes, now_ns);
                    way.queue.push_back(Waiter { number, bytes, since_ns, waker });
                    *self.number.insert(number)
                }
            };
            way.serve(now_ns, &mut woken);
            let Some(place) = way.place(number) else {
                self.number = None;
                return Step::Passes;
            };
            way.queue[place].waker.clone_from(cx.waker());
            if place > 0 {
                return Step::Waits;
            }
            Step::Sleeps(way.wait_ns(self.bytes, now_ns), now_ns, Arc::clone(runtime))
        });
        woken.into_iter().for_each(Waker::wake);
        step
    }
}

impl<P: Primitives> Future for Passing<'_, P> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            let (wait_ns, now_ns, runtime) = match this.step(cx) {
                Step::Passes => return Poll::Ready(()),
                Step::Waits => {
                    this.timer = None;
                    return Poll::Pending;
                }
                Step::Sleeps(wait_ns, now_ns, runtime) => (wait_ns, now_ns, runtime),
            };
            let until_ns = now_ns.saturating_add(wait_ns);
            if this.timer.as_ref().is_none_or(|(rings_ns, _)| *rings_ns != until_ns) {
                this.timer = Some((until_ns, runtime.sleep(Duration::from_nanos(wait_ns))));
            }
            if let Some((_, timer)) = &mut this.timer
                && timer.as_mut().poll(cx).is_pending()
            {
                return Poll::Pending;
            }
            this.timer = None;
        }
    }
}

impl<P: Primitives> Drop for Passing<'_, P> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut woken = Wakers::new();
        self.limiter.state.with(|state| {
            let way = &mut state.ways[self.direction as usize];
            let Some(place) = way.place(number) else { return };
            way.queue.remove(place);
            if place == 0 {
                way.wake_first(&mut woken);
            }
        });
        woken.into_iter().for_each(Waker::wake);
    }
}
