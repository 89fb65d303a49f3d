//! The memory that the requests of a mount hold on one reactor, and when a further request is taken.
//!
//! The kernel hands over the requests of all volumes in one queue, and with their data: a thread cannot leave those of a volume whose
//! requests wait for its rate limits, and take others. It can only stop taking any. So requests on volumes with rate limits have memory of
//! their own. They take none from the other volumes, and only when that memory is full does the thread stop.
//!
//! A read needs no memory while it waits: it gets its buffer when the limits have let it pass, in the order in which they did
//! ([`Gate::room`]), from the memory of all requests. The data of a write have come with it. All of these may be a share of the machine's
//! memory ([`limited_bytes`]), and beside it as much as other requests leave of [`IN_FLIGHT_BYTES`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

use ashlar_engine::oneshot::{self, Sender};

/// Limit on the data of requests in flight on one reactor, bytes; above it no further request is read.
const IN_FLIGHT_BYTES: usize = 64 << 20;
/// The most of the data of requests on volumes with rate limits on one reactor, bytes.
const MAX_LIMITED_BYTES: u64 = 256 << 20;
/// The part of the available memory that these have on all reactors: it is divided by this.
const LIMITED_PART: u64 = 8;

/// The memory that requests on volumes with rate limits may hold on each of `reactors` that serve a mount, bytes, where this many bytes
/// are available.
pub fn limited_bytes(available_bytes: u64, reactors: usize) -> usize {
    let share = available_bytes / LIMITED_PART / reactors.max(1) as u64;
    share.min(MAX_LIMITED_BYTES) as usize
}

/// Whose memory a request holds.
#[derive(Clone, Copy)]
pub(super) enum Class {
    /// That of requests that no limits delay.
    Free,
    /// That of requests on volumes with rate limits.
    Limited,
}

/// The memory that the requests in flight hold, and who waits for it.
pub(super) struct Gate {
    free: Cell<usize>,
    limited: Cell<usize>,
    limited_bound: usize,
    /// The one task that takes requests, and waits for the end of all.
    taker: RefCell<Option<Waker>>,
    /// Reads that have passed their limits, in this order, with the bytes that they need.
    passed: RefCell<VecDeque<(usize, Sender<Hold>)>>,
}

impl Gate {
    /// A gate that lets requests on volumes with rate limits hold `limited_bound` bytes.
    pub(super) fn new(limited_bound: usize) -> Self {
        Self {
            free: Cell::default(),
            limited: Cell::default(),
            limited_bound,
            taker: RefCell::default(),
            passed: RefCell::default(),
        }
    }

    fn held(&self, class: Class) -> &Cell<usize> {
        match class {
            Class::Free => &self.free,
            Class::Limited => &self.limited,
        }
    }

    /// Whether a further request may be taken.
    pub(super) fn is_open(&self) -> bool {
        let (free, limited) = (self.free.get(), self.limited.get());
        free < IN_FLIGHT_BYTES && (limited < self.limited_bound || free + limited < IN_FLIGHT_BYTES)
    }

    /// Whether no request is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.free.get() == 0 && self.limited.get() == 0
    }

    /// Waits until something is true that the end of requests makes true. Only one task may wait.
    pub(super) fn until(&self, is_so: impl Fn(&Self) -> bool) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            if is_so(self) {
                return Poll::Ready(());
            }
            *self.taker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    /// Memory for a read that has passed its limits, when those have theirs that passed before it.
    pub(super) async fn room(self: &Rc<Self>, bytes: usize) -> Option<Hold> {
        let (sender, receiver) = oneshot::channel();
        self.passed.borrow_mut().push_back((bytes, sender));
        self.serve_passed();
        // The sender stays in the queue until it sends.
        receiver.await.ok()
    }

    fn serve_passed(self: &Rc<Self>) {
        // Otherwise this is called by the end of a hold below.
        let Ok(mut passed) = self.passed.try_borrow_mut() else { return };
        while self.free.get() < IN_FLIGHT_BYTES
            && let Some((bytes, sender)) = passed.pop_front()
        {
            // Of a read that was dropped it ends at once.
            sender.send(Hold::new(self, Class::Free, bytes));
        }
    }
}

/// Memory that a request holds until this is dropped.
pub(super) struct Hold {
    gate: Rc<Gate>,
    class: Class,
    bytes: usize,
}

impl Hold {
    /// Memory that a request takes, also beyond the bounds: they count before a request is taken.
    pub(super) fn new(gate: &Rc<Gate>, class: Class, bytes: usize) -> Self {
        let held = gate.held(class);
        held.set(held.get() + bytes);
        Self { gate: Rc::clone(gate), class, bytes }
    }

    pub(super) fn gate(&self) -> &Rc<Gate> {
        &self.gate
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let held = self.gate.held(self.class);
        held.set(held.get() - self.bytes);
        self.gate.serve_passed();
        if let Some(taker) = self.gate.taker.take() {
            taker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::Context;

    use super::*;

    fn now<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn requests_on_volumes_with_limits_take_no_memory_from_others() {
        let gate = Rc::new(Gate::new(2 * IN_FLIGHT_BYTES));
        let all = Hold::new(&gate, Class::Limited, 2 * IN_FLIGHT_BYTES - 1);
        assert!(gate.is_open());
        let free = Hold::new(&gate, Class::Free, IN_FLIGHT_BYTES);
        assert!(!gate.is_open());
        drop(free);
        assert!(gate.is_open());
        let one_more = Hold::new(&gate, Class::Limited, 1);
        assert!(!gate.is_open());
        drop((all, one_more));
        assert!(gate.is_open() && gate.is_empty());
    }

    #[test]
    fn with_little_memory_all_requests_share_what_one_kind_may_have() {
        let gate = Rc::new(Gate::new(1));
        let limited = Hold::new(&gate, Class::Limited, IN_FLIGHT_BYTES - 1);
        assert!(gate.is_open());
        let free = Hold::new(&gate, Class::Free, 1);
        assert!(!gate.is_open());
        drop(limited);
        assert!(gate.is_open() && !gate.is_empty());
        drop(free);
    }

    #[test]
    fn reads_that_have_passed_get_memory_in_order() {
        let gate = Rc::new(Gate::new(0));
        let all = Hold::new(&gate, Class::Free, IN_FLIGHT_BYTES);
        let most = IN_FLIGHT_BYTES / 2 + 1;
        let (mut one, mut gone) = (pin!(gate.room(most)), Box::pin(gate.room(most)));
        let (mut two, mut three) = (pin!(gate.room(most)), pin!(gate.room(1)));
        assert!(now(one.as_mut()).is_none() && now(gone.as_mut()).is_none());
        assert!(now(two.as_mut()).is_none() && now(three.as_mut()).is_none());
        drop(gone);
        drop(all);
        // The last one waits, although it is small.
        assert!(now(three.as_mut()).is_none());
        let (one, two) = (now(one.as_mut()).flatten(), now(two.as_mut()).flatten());
        assert!(one.is_some() && two.is_some() && !gate.is_open());
        drop(one);
        assert!(now(three.as_mut()).flatten().is_some());
        drop(two);
        assert!(gate.is_empty());
    }

    /// When a reactor ends it drops all tasks.
    #[test]
    fn very_many_reads_that_are_dropped_hold_nothing() {
        let gate = Rc::new(Gate::new(0));
        let all = Hold::new(&gate, Class::Free, IN_FLIGHT_BYTES);
        for _ in 0..100_000 {
            assert!(now(pin!(gate.room(1))).is_none());
        }
        drop(all);
        assert!(gate.is_empty() && gate.passed.borrow().is_empty());
    }

    #[test]
    fn the_memory_of_volumes_with_limits_is_a_share_of_what_is_available() {
        assert_eq!(limited_bytes(1 << 30, 2), 64 << 20);
        assert_eq!(limited_bytes(1 << 40, 2), 256 << 20);
        assert_eq!(limited_bytes(0, 0), 0);
    }
}
