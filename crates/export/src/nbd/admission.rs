//! Which requests of a connection may begin.
//!
//! A request holds a [`Ticket`] from when it was parsed until its reply was sent. Whatever becomes of
//! it in between, what it counted for is given back by the ticket's end and by nothing else.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

/// Requests of a connection in flight.
pub const MAX_REQUESTS: usize = 128;
/// Their memory, bytes; one request is always admitted.
pub const MAX_BYTES: usize = 64 << 20;

/// What the requests of a connection that are under way come to.
#[derive(Default)]
pub(crate) struct Admission {
    requests: Cell<usize>,
    bytes: Cell<usize>,
    /// Counts whatever another part of the connection may wait for.
    steps: Cell<u64>,
}

impl Admission {
    /// Waits until a request that holds `bytes` of memory may begin.
    pub(crate) async fn admit(&self, bytes: usize) -> Ticket<'_> {
        poll_fn(|_| {
            let (requests, held) = (self.requests.get(), self.bytes.get());
            let fits = requests < MAX_REQUESTS && held.saturating_add(bytes) <= MAX_BYTES;
            // No waker: the connection's task polls again after every step.
            if fits || requests == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
        Ticket { admission: self, bytes }
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

/// A request's leave to be under way, with the memory that it holds.
pub(crate) struct Ticket<'a> {
    admission: &'a Admission,
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
        let admission = self.admission;
        admission.requests.set(admission.requests.get() - 1);
        admission.bytes.set(admission.bytes.get() - self.bytes);
        admission.step();
    }
}
