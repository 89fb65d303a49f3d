//! Which requests of a connection may begin.
//!
//! A request holds a [`Ticket`] from when it was parsed until its reply was sent. Whatever becomes of
//! it in between, what it counted for is given back by the ticket's end and by nothing else.
//!
//! Bounds: [`MAX_REQUESTS`] and [`MAX_BYTES`] for a connection, and the [`Budget`] for all of them. A
//! connection that has no request under way always gets one of up to [`ALWAYS_BYTES`], however short
//! memory is: clients that take their replies go on, though slowly, beside those that do not.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use super::budget::Budget;
use super::peer::Peer;

/// Requests of a connection in flight.
pub const MAX_REQUESTS: usize = 128;
/// Their memory, bytes; one request is always admitted.
pub const MAX_BYTES: usize = 64 << 20;
/// Memory of a request that is admitted whatever others hold, bytes.
pub const ALWAYS_BYTES: usize = 256 << 10;
/// What a request counts for at least, bytes: its state is memory, too.
const REQUEST_BYTES: usize = 4096;
/// What a connection takes from the budget beyond what it needs at once, bytes.
const PIECE_BYTES: usize = 256 << 10;

/// What the requests of a connection that are under way come to.
pub(crate) struct Admission<'a> {
    peer: &'a Peer,
    budget: &'a Budget,
    requests: Cell<usize>,
    /// Taken from the budget, and not held by any request.
    credit: Cell<usize>,
    /// Counts whatever another part of the connection may wait for.
    steps: Cell<u64>,
}

impl<'a> Admission<'a> {
    pub(crate) fn new(peer: &'a Peer) -> Self {
        let budget = peer.budget();
        budget.join();
        let (requests, credit, steps) = Default::default();
        Self { peer, budget, requests, credit, steps }
    }

    /// Waits until a request that holds `bytes` of memory may begin.
    pub(crate) async fn admit(&self, bytes: usize) -> Ticket<'_> {
        let bytes = bytes.max(REQUEST_BYTES).min(self.budget.most_at_once());
        poll_fn(|_| {
            let (requests, held) = (self.requests.get(), self.peer.held_bytes());
            let fits = requests < MAX_REQUESTS && held.saturating_add(bytes) <= MAX_BYTES;
            // No waker: the connection's task polls again after every step.
            if fits || requests == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if !self.pay(bytes) {
            // What is not needed now may be what another waits for.
            self.budget.give(self.credit.take());
            let mut turn = pin!(self.budget.take(bytes));
            poll_fn(|cx| {
                if turn.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                if self.is_idle() && bytes <= ALWAYS_BYTES {
                    self.budget.take_beyond_limit(bytes);
                    return Poll::Ready(());
                }
                Poll::Pending
            })
            .await;
        }
        self.requests.set(self.requests.get() + 1);
        self.peer.hold(bytes);
        Ticket { admission: self, bytes }
    }

    /// Takes `bytes` from what is at hand, or with a piece for later from the budget.
    fn pay(&self, bytes: usize) -> bool {
        let credit = self.credit.get();
        let left = match bytes.checked_sub(credit) {
            None | Some(0) => credit - bytes,
            Some(lack) if self.budget.try_take(lack + PIECE_BYTES) => PIECE_BYTES,
            Some(lack) if self.budget.try_take(lack) => 0,
            Some(_) => return false,
        };
        self.credit.set(left);
        true
    }

    fn release(&self, bytes: usize) {
        self.requests.set(self.requests.get() - 1);
        self.peer.release(bytes);
        let credit = self.credit.get() + bytes;
        let keep = if self.is_idle() || self.budget.is_short() {
            0
        } else if credit > 2 * PIECE_BYTES {
            PIECE_BYTES
        } else {
            credit
        };
        self.credit.set(keep);
        if credit > keep {
            self.budget.give(credit - keep);
        }
        self.step();
    }

    /// Whether no request is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.get() == 0
    }

    /// Says that something has changed for which another part of the connection may wait.
    pub(crate) fn step(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    /// How often [`Self::step`] was said.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.get()
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.budget.give(self.credit.get());
        self.budget.leave();
    }
}

/// A request's leave to be under way, with the memory that it holds.
pub(crate) struct Ticket<'a> {
    admission: &'a Admission<'a>,
    bytes: usize,
}

impl Ticket<'_> {
    /// Memory that the request holds, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.admission.release(self.bytes);
    }
}
