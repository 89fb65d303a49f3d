//! The state of a connection that the listener's watching task sees.
//!
//! The protocol code never reads a clock: times are those of the watching task's last round. This costs a request
//! nothing and is exact to one round.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::budget::{Budget, SessionMemory};
use super::clients::Origin;

/// The least rate, bytes per second, at which a client must take or send data while others wait for the memory that its
/// transfer holds.
const LEAST_BYTES_PER_SECOND: u64 = 1 << 20;

/// How many connections of a listener are in transmission, on all threads, and the most allowed. Only the thread that accepts
/// them lets further ones in.
#[derive(Debug)]
pub(crate) struct Room {
    most: usize,
    served: AtomicUsize,
}

impl Room {
    /// For at most `most` connections.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, served: AtomicUsize::new(0) })
    }
}

/// A connection's part of the room, and the memory of its session of TLS, until it is dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    room: Arc<Room>,
    _session: Option<SessionMemory>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.room.served.fetch_sub(1, SeqCst);
    }
}

/// A transfer that waits for the client: replies for the client to take, or a payload for it to send.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    since_ns: u64,
    bytes: usize,
}

/// A direction of transfers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// Replies to the client.
    Out,
    /// A payload from the client.
    In,
}

/// See the module text.
#[derive(Debug)]
pub struct Peer {
    origin: Origin,
    budget: Arc<Budget>,
    room: Arc<Room>,
    /// The watching task's time.
    clock_ns: Rc<Cell<u64>>,
    /// Since its transmission began.
    admitted: RefCell<Option<Admitted>>,
    /// The memory of its session of TLS, until its transmission begins.
    session: RefCell<Option<SessionMemory>>,
    was_refused: Cell<bool>,
    /// Memory held by its requests.
    held_bytes: Cell<usize>,
    most_held_bytes: Cell<usize>,
    /// Requests running on the volume.
    running: Cell<usize>,
    active_ns: Cell<u64>,
    transfers: [Cell<Option<Transfer>>; 2],
}

impl Peer {
    /// The only connection of its listener.
    pub fn alone(budget: Arc<Budget>) -> Self {
        Self::new(Origin::Unknown, budget, Room::new(1), Rc::default())
    }

    pub(crate) fn new(
        origin: Origin,
        budget: Arc<Budget>,
        room: Arc<Room>,
        clock_ns: Rc<Cell<u64>>,
    ) -> Self {
        let active_ns = Cell::new(clock_ns.get());
        let (admitted, session, was_refused, held_bytes, most_held_bytes, running, transfers) =
            Default::default();
        Self {
            origin,
            budget,
            room,
            clock_ns,
            admitted,
            session,
            was_refused,
            held_bytes,
            most_held_bytes,
            running,
            active_ns,
            transfers,
        }
    }

    /// Who is at the other end.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Keeps the memory of its session of TLS.
    pub(crate) fn secure(&self, session: SessionMemory) {
        *self.session.borrow_mut() = Some(session);
    }

    /// Whether the limit on served connections leaves room for this one.
    pub(crate) fn has_room(&self) -> bool {
        self.room.served.load(SeqCst) < self.room.most
    }

    /// Whether its listener serves one connection at a time.
    pub(crate) fn is_alone(&self) -> bool {
        self.room.most == 1
    }

    /// Records that it was refused for lack of room.
    pub(crate) fn refuse(&self) {
        self.was_refused.set(true);
    }

    /// Whether it was refused for lack of room.
    pub(crate) fn was_refused(&self) -> bool {
        self.was_refused.get()
    }

    /// Records that its transmission begins.
    pub(crate) fn begin(&self) {
        self.room.served.fetch_add(1, SeqCst);
        let (room, _session) = (Arc::clone(&self.room), self.session.take());
        self.resume(Admitted { room, _session });
    }

    /// Records that its transmission, which began on another thread, continues here.
    pub(crate) fn resume(&self, admitted: Admitted) {
        *self.admitted.borrow_mut() = Some(admitted);
        self.touch();
    }

    /// Takes its part of the room, for the thread on which it continues.
    pub(crate) fn leave(self) -> Option<Admitted> {
        self.admitted.into_inner()
    }

    /// Whether its transmission has begun.
    pub(crate) fn is_served(&self) -> bool {
        self.admitted.borrow().is_some()
    }

    /// Memory held by its requests, bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }

    /// The maximum of [`Self::held_bytes`] so far.
    pub(crate) fn most_held_bytes(&self) -> usize {
        self.most_held_bytes.get()
    }

    pub(crate) fn hold(&self, bytes: usize) {
        let held = self.held_bytes.get() + bytes;
        self.held_bytes.set(held);
        self.most_held_bytes.set(self.most_held_bytes.get().max(held));
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.held_bytes.set(self.held_bytes.get() - bytes);
    }

    /// Records how many requests run on the volume.
    pub(crate) fn set_running(&self, running: usize) {
        self.running.set(running);
    }

    /// Records that the client was active.
    pub(crate) fn touch(&self) {
        self.active_ns.set(self.clock_ns.get());
    }

    /// Runs a transfer of `bytes`, which is visible to the watching task meanwhile.
    pub(crate) async fn transfer<T>(
        &self,
        direction: Direction,
        bytes: usize,
        transfer: impl Future<Output = T>,
    ) -> T {
        let shown = &self.transfers[direction as usize];
        shown.set(Some(Transfer { since_ns: self.clock_ns.get(), bytes }));
        let output = transfer.await;
        shown.set(None);
        self.touch();
        output
    }

    /// Whether the client has been idle for `time` while no request of it was running.
    pub(crate) fn is_idle_for(&self, time: Duration) -> bool {
        let idle_ns = self.clock_ns.get().saturating_sub(self.active_ns.get());
        self.is_served() && self.running.get() == 0 && u128::from(idle_ns) > time.as_nanos()
    }

    /// Whether others wait for memory while this connection holds more than its share, and a transfer of it is late: it
    /// has taken longer than `patience` plus the time it takes at the least rate.
    pub(crate) fn is_in_the_way(&self, patience: Duration) -> bool {
        let now_ns = self.clock_ns.get();
        let is_late = |transfer: Transfer| {
            let due = patience.as_nanos()
                + u128::from(1_000_000_000 * (transfer.bytes as u64) / LEAST_BYTES_PER_SECOND);
            u128::from(now_ns.saturating_sub(transfer.since_ns)) > due
        };
        self.budget.is_short()
            && self.held_bytes() >= self.budget.fair_share()
            && self.transfers.iter().filter_map(Cell::get).any(is_late)
    }
}
