//! When the requests of a connection may begin.
//!
//! A request holds a [`Ticket`] from parsing until its reply was sent. Only dropping the ticket releases what the
//! request was counted for, however the request ends.
//!
//! Bounds: [`MAX_REQUESTS`] and [`MAX_BYTES`] for a connection, and the [`Budget`] for all of them. A connection
//! without a request in flight is always admitted one of up to [`ALWAYS_BYTES`], however short memory is: clients that
//! take their replies make progress, though slowly, beside those that do not. While requests of the volume wait for its rate limits, a
//! connection has no more than its share of half of the budget: the other half is for volumes that can use it.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use super::budget::Budget;
use super::peer::Peer;

/// The most requests of a connection in flight.
pub const MAX_REQUESTS: usize = 128;
/// The most memory of these requests, bytes; one request is always admitted.
pub const MAX_BYTES: usize = 64 << 20;
/// Memory of a request that is admitted however much others hold, bytes.
pub const ALWAYS_BYTES: usize = 256 << 10;
/// The least that a request counts for, bytes: its state is memory, too.
const REQUEST_BYTES: usize = 4096;
/// What a connection takes from the budget in advance, beyond its present need, bytes.
const PIECE_BYTES: usize = 256 << 10;

/// The count and the memory of a connection's requests in flight.
pub(crate) struct Admission<'a> {
    peer: &'a Peer,
    budget: &'a Budget,
    requests: Cell<usize>,
    /// Taken from the budget, but not held by any request.
    credit: Cell<usize>,
    /// Counts the changes that another part of the connection may wait for.
    steps: Cell<u64>,
}

impl<'a> Admission<'a> {
    pub(crate) fn new(peer: &'a Peer) -> Self {
        let budget = peer.budget();
        budget.join();
        let (requests, credit, steps) = Default::default();
        Self { peer, budget, requests, credit, steps }
    }

    /// Waits until a request that holds `bytes` of memory may begin. `is_held_back`: whether requests of the volume wait for its
    /// rate limits.
    pub(crate) async fn admit(&self, bytes: usize, is_held_back: impl Fn() -> bool) -> Ticket<'_> {
        let bytes = bytes.max(REQUEST_BYTES).min(self.budget.most_at_once());
        poll_fn(|_| {
            let (requests, held) = (self.requests.get(), self.peer.held_bytes());
            let share = if is_held_back() { self.budget.fair_share() } else { MAX_BYTES };
            let most = share.min(MAX_BYTES);
            let fits = requests < MAX_REQUESTS && held.saturating_add(bytes) <= most;
            // No waker needed: the connection's task polls again after every step.
            if fits || requests == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if !self.pay(bytes) {
            // Another connection may be waiting for the credit that is not needed now.
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

    /// Takes `bytes` from the credit, or from the budget, if possible with a piece for later.
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

    /// Whether no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.get() == 0
    }

    /// Records a change that another part of the connection may wait for.
    pub(crate) fn step(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    /// How often [`Self::step`] was called.
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

/// A request's permission to be in flight, with the memory that it holds.
pub(crate) struct Ticket<'a> {
    admission: &'a Admission<'a>,
    bytes: usize,
}

impl Ticket<'_> {
    /// The memory that the request holds, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.admission.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use futures_util::FutureExt;

    use super::super::budget::MIN_BUDGET_BYTES;
    use super::super::clients::Origin;
    use super::super::peer::Room;
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn connections_that_wait_for_rate_limits_leave_half_of_the_budget_to_others() {
        let budget = Arc::new(Budget::new(MIN_BUDGET_BYTES));
        let peer = || {
            let room = Room::new(2);
            Peer::new(Origin::default(), Arc::clone(&budget), room, Rc::default())
        };
        let (slow, fast) = (peer(), peer());
        let (slow, fast) = (Admission::new(&slow), Admission::new(&fast));
        let fill = |admission: &Admission<'_>, is_held_back: bool| {
            let admit = || admission.admit(MIB, || is_held_back).now_or_never();
            std::iter::from_fn(admit).map(std::mem::forget).count()
        };
        assert_eq!(fill(&slow, true), budget.fair_share() / MIB);
        // Pieces that were taken in advance are no more than that.
        let rest = (MIN_BUDGET_BYTES - budget.fair_share() - 2 * PIECE_BYTES) / MIB;
        assert!(fill(&fast, false) >= rest);
        // One without a request in flight always gets one.
        let idle = peer();
        let idle = Admission::new(&idle);
        assert!(idle.admit(ALWAYS_BYTES, || true).now_or_never().is_some());
    }
}
