//! The connections of a listener, and the task that watches them.
//!
//! In each round it looks for clients that block others: those idle for longer than allowed, and those that neither
//! take their replies nor send their payload while memory is short. It shuts their sockets down, which ends their
//! connections as if the clients had disconnected.
//!
//! Connections in the handshake are counted apart from those in transmission, so that neither kind can keep the other
//! out: of those in the handshake the oldest is dropped for a new one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use ashlar_block::buffer;
use ashlar_engine::net::Socket;
use ashlar_engine::{ReceiveError, blocking, memory, now_ns, sleep, spawn};
use rustix::net::Shutdown;

use super::budget::Budget;
use super::export::Exports;
use super::listen::Config;
use super::peer::{Peer, Room};
use super::server::Disconnect;
use super::throttle::Topic;

/// The longest round of the watching task.
const ROUND: Duration = Duration::from_secs(1);
/// If an ended connection had this much memory, the allocator is asked to return what it keeps, bytes.
const MUCH_BYTES: usize = 1 << 20;

/// A connection.
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    pub(crate) peer: Peer,
    dropped: RefCell<Option<Disconnect>>,
}

impl Connection {
    /// Why it was dropped from outside, if it was.
    pub(crate) fn dropped(&self) -> Option<Disconnect> {
        self.dropped.take()
    }

    fn drop_for(&self, why: Disconnect) {
        if self.dropped.borrow().is_some() {
            return;
        }
        *self.dropped.borrow_mut() = Some(why);
        if let Err(error) = rustix::net::shutdown(&self.socket, Shutdown::Both) {
            tracing::debug!(%error, "shutting an NBD connection down");
        }
    }
}

/// See the module text.
pub(crate) struct Peers {
    config: Config,
    budget: Arc<Budget>,
    room: Rc<Room>,
    clock_ns: Rc<Cell<u64>>,
    /// By age.
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    next: Cell<u64>,
    is_watched: Cell<bool>,
    /// Whether a connection that had much memory has ended.
    memory_came_back: Cell<bool>,
    waiting: RefCell<Option<Waker>>,
    exports: Arc<Exports>,
}

impl Peers {
    /// For the connections of one listener to `exports`.
    pub(crate) fn new(config: Config, budget: Arc<Budget>, exports: Arc<Exports>) -> Rc<Self> {
        let room = Rc::new(Room { most: config.max_connections, served: Cell::default() });
        let (clock_ns, connections, next, is_watched, memory_came_back, waiting) =
            Default::default();
        Rc::new(Self {
            config,
            budget,
            room,
            clock_ns,
            connections,
            next,
            is_watched,
            memory_came_back,
            waiting,
            exports,
        })
    }

    /// Adds a connection. If too many are in the handshake, the oldest of them is dropped.
    pub(crate) fn admit(self: &Rc<Self>, socket: Socket) -> Seat {
        self.watch();
        let peer =
            Peer::new(Arc::clone(&self.budget), Rc::clone(&self.room), Rc::clone(&self.clock_ns));
        let connection = Rc::new(Connection { socket, peer, dropped: RefCell::default() });
        let number = self.next.replace(self.next.get() + 1);
        let mut connections = self.connections.borrow_mut();
        connections.insert(number, Rc::clone(&connection));
        let in_handshake = |connection: &&Rc<Connection>| {
            !connection.peer.is_served() && connection.dropped.borrow().is_none()
        };
        if connections.values().filter(in_handshake).count() > self.config.max_handshakes
            && let Some(oldest) = connections.values().find(in_handshake)
        {
            oldest.drop_for(Disconnect::Crowded);
        }
        Seat { peers: Rc::clone(self), number, connection }
    }

    /// Ends when no connection is left.
    pub(crate) async fn all_gone(&self) {
        poll_fn(|cx| {
            if self.connections.borrow().is_empty() {
                return Poll::Ready(());
            }
            *self.waiting.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        self.exports.throttle.end();
    }

    /// Calls `message` to log, unless clients have caused too many messages.
    pub(crate) fn say(&self, topic: Topic, message: impl FnOnce()) {
        self.exports.throttle.say(topic, now_ns(), message);
    }

    /// Starts the watching task, which ends when no connection is left, and nothing that they caused.
    fn watch(self: &Rc<Self>) {
        self.clock_ns.set(now_ns());
        if self.is_watched.replace(true) {
            return;
        }
        let peers = Rc::clone(self);
        let round = peers.round();
        let watch = async move {
            // A client may also end while the allocator returns memory.
            while !peers.connections.borrow().is_empty()
                || peers.memory_came_back.get()
                || peers.exports.throttle.is_behind()
            {
                sleep(round).await;
                peers.look_after().await;
                peers.exports.throttle.catch_up(now_ns());
            }
            peers.is_watched.set(false);
        };
        spawn(watch).detach();
    }

    /// A quarter of the shortest time limit.
    fn round(&self) -> Duration {
        let shortest = self.config.idle.unwrap_or(ROUND).min(self.config.patience);
        (shortest / 4).clamp(Duration::from_millis(1), ROUND)
    }

    async fn look_after(&self) {
        self.clock_ns.set(now_ns());
        for connection in self.connections.borrow().values() {
            if self.config.idle.is_some_and(|idle| connection.peer.is_idle_for(idle)) {
                connection.drop_for(Disconnect::Idle);
            } else if connection.peer.is_in_the_way(self.config.patience) {
                connection.drop_for(Disconnect::Slow);
            }
        }
        if self.memory_came_back.take() {
            // This thread's kept buffers stay if there are connections that can use them.
            if self.connections.borrow().is_empty() {
                buffer::drop_kept();
            }
            let (Ok(()) | Err(ReceiveError)) = blocking::run(memory::trim).await;
        }
    }
}

/// A connection's entry in the listener's table; dropping it removes the entry.
pub(crate) struct Seat {
    peers: Rc<Peers>,
    number: u64,
    connection: Rc<Connection>,
}

impl Seat {
    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }
}

impl Deref for Seat {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.peers.connections.borrow_mut().remove(&self.number);
        if self.connection.peer.most_held_bytes() >= MUCH_BYTES {
            self.peers.memory_came_back.set(true);
        }
        if let Some(waker) = self.peers.waiting.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::pin::pin;

    use ashlar_engine::{Reactor, ReactorConfig, timeout, yield_now};

    use super::super::budget::MIN_BUDGET_BYTES;
    use super::*;

    #[test]
    fn memory_that_comes_back_while_the_allocator_is_asked_is_given_back_too() {
        Reactor::new(ReactorConfig::default()).unwrap().block_on(async {
            let config = Config { patience: Duration::from_millis(4), ..Config::default() };
            let peers = Peers::new(config, Arc::new(Budget::new(MIN_BUDGET_BYTES)), Arc::default());
            let [first, last] = [(); 2].map(|()| {
                let (ours, _) = UnixStream::pair().unwrap();
                let seat = peers.admit(Socket::from_fd(ours.into()));
                seat.peer.hold(MUCH_BYTES);
                seat.peer.release(MUCH_BYTES);
                seat
            });
            drop(first);
            while peers.memory_came_back.get() {
                yield_now().await;
            }
            // The watching task has seen it, and waits for the allocator.
            drop(last);
            let given_back = async {
                while peers.memory_came_back.get() || peers.is_watched.get() {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            assert!(timeout(Duration::from_secs(10), pin!(given_back)).await.is_some());
        });
    }
}
