//! The connections of a listener on a thread, and the task that watches them.
//!
//! The thread that accepts has those in the handshake; those in transmission are on the threads that serve them.
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
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use ashlar_block::buffer;
use ashlar_engine::net::Socket;
use ashlar_engine::{ReceiveError, blocking, memory, now_ns, sleep, spawn};
use ashlar_nbd::tls::{Channel, TlsSession};
use rustix::net::Shutdown;

use super::budget::Budget;
use super::clients::Origin;
use super::config::{Config, Tls};
use super::export::Exports;
use super::peer::{Admitted, Peer, Room};
use super::server::Disconnect;
use super::throttle::Topic;

/// The longest round of the watching task.
const ROUND: Duration = Duration::from_secs(1);
/// If an ended connection had this much memory, the allocator is asked to return what it keeps, bytes.
const MUCH_BYTES: usize = 1 << 20;

thread_local! {
    /// Those in transmission on this thread, of each listener.
    static HERE: RefCell<Vec<Weak<Peers>>> = const { RefCell::new(Vec::new()) };
}

/// What the connections of a listener share on all threads.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) tls: Tls,
    pub(crate) exports: Arc<Exports>,
    budget: Arc<Budget>,
    room: Arc<Room>,
}

impl Shared {
    /// For the connections of one listener to `exports`.
    pub(crate) fn new(
        config: Config,
        tls: Tls,
        budget: Arc<Budget>,
        exports: Arc<Exports>,
    ) -> Arc<Self> {
        Arc::new(Self { config, tls, exports, budget, room: Room::new(config.max_connections) })
    }

    /// Calls `message` to log, unless clients have caused too many messages.
    pub(crate) fn say(&self, topic: Topic, message: impl FnOnce()) {
        self.exports.throttle.say(topic, now_ns(), message);
    }
}

/// A connection.
pub(crate) struct Connection {
    /// Before the socket: a client that sees the end of its connection finds room for another.
    pub(crate) peer: Peer,
    pub(crate) stream: Channel<Socket>,
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
        if let Err(error) = rustix::net::shutdown(self.stream.stream(), Shutdown::Both) {
            tracing::debug!(%error, "shutting an NBD connection down");
        }
    }
}

/// See the module text.
pub(crate) struct Peers {
    pub(crate) shared: Arc<Shared>,
    clock_ns: Rc<Cell<u64>>,
    /// By age.
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    next: Cell<u64>,
    /// How many have left this thread and not ended.
    away: Cell<usize>,
    is_watched: Cell<bool>,
    /// Whether a connection that had much memory has ended.
    memory_came_back: Cell<bool>,
    waiting: RefCell<Option<Waker>>,
}

impl Peers {
    /// Those of a listener in the handshake.
    pub(crate) fn new(shared: Arc<Shared>) -> Rc<Self> {
        let (clock_ns, connections, next, away, is_watched, memory_came_back, waiting) =
            Default::default();
        Rc::new(Self {
            shared,
            clock_ns,
            connections,
            next,
            away,
            is_watched,
            memory_came_back,
            waiting,
        })
    }

    /// Those of a listener in transmission on the current thread.
    pub(crate) fn here(shared: &Arc<Shared>) -> Rc<Self> {
        HERE.with_borrow_mut(|all| {
            all.retain(|peers| peers.strong_count() > 0);
            let mut known = all.iter().filter_map(Weak::upgrade);
            known.find(|peers| Arc::ptr_eq(&peers.shared, shared)).unwrap_or_else(|| {
                let new = Self::new(Arc::clone(shared));
                all.push(Rc::downgrade(&new));
                new
            })
        })
    }

    /// Adds a connection, which begins its handshake, or continues its transmission. If too many are in the handshake, the
    /// oldest of them is dropped.
    pub(crate) fn admit(
        self: &Rc<Self>,
        stream: Channel<Socket>,
        admitted: Option<Admitted>,
    ) -> PeerSlot {
        self.watch();
        let Shared { config, budget, room, .. } = &*self.shared;
        let (origin, clock_ns) = (Origin::of(stream.stream()), Rc::clone(&self.clock_ns));
        let peer = Peer::new(origin, Arc::clone(budget), Arc::clone(room), clock_ns);
        if let Some(admitted) = admitted {
            peer.resume(admitted);
        }
        let connection = Rc::new(Connection { peer, stream, dropped: RefCell::default() });
        let number = self.next.replace(self.next.get() + 1);
        let mut connections = self.connections.borrow_mut();
        connections.insert(number, Rc::clone(&connection));
        let in_handshake = |connection: &&Rc<Connection>| {
            !connection.peer.is_served() && connection.dropped.borrow().is_none()
        };
        if connections.values().filter(in_handshake).count() > config.max_handshakes
            && let Some(oldest) = connections.values().find(in_handshake)
        {
            oldest.drop_for(Disconnect::Crowded);
        }
        PeerSlot { peers: Rc::clone(self), number, connection }
    }

    /// Ends when no connection is left, here or on the threads to which they went.
    pub(crate) async fn all_gone(&self) {
        poll_fn(|cx| {
            if self.connections.borrow().is_empty() && self.away.get() == 0 {
                return Poll::Ready(());
            }
            *self.waiting.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        self.shared.exports.throttle.end();
    }

    /// Lets [`Self::all_gone`] look again.
    fn tell(&self) {
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
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
            let throttle = &peers.shared.exports.throttle;
            // A client may also end while the allocator returns memory.
            while !peers.connections.borrow().is_empty()
                || peers.memory_came_back.get()
                || throttle.is_behind()
            {
                sleep(round).await;
                peers.look_after().await;
                throttle.catch_up(now_ns());
            }
            peers.is_watched.set(false);
        };
        spawn(watch).detach();
    }

    /// A quarter of the shortest time limit.
    fn round(&self) -> Duration {
        let Config { idle, patience, .. } = self.shared.config;
        let shortest = idle.unwrap_or(ROUND).min(patience);
        (shortest / 4).clamp(Duration::from_millis(1), ROUND)
    }

    async fn look_after(&self) {
        let Config { idle, patience, .. } = self.shared.config;
        self.clock_ns.set(now_ns());
        for connection in self.connections.borrow().values() {
            if idle.is_some_and(|idle| connection.peer.is_idle_for(idle)) {
                connection.drop_for(Disconnect::Idle);
            } else if connection.peer.is_in_the_way(patience) {
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

/// A connection's entry in the table of its thread; dropping it removes the entry.
pub(crate) struct PeerSlot {
    peers: Rc<Peers>,
    number: u64,
    connection: Rc<Connection>,
}

impl PeerSlot {
    /// Takes the connection, whose transmission has begun, away from this thread.
    ///
    /// # Errors
    /// It was dropped from outside meanwhile.
    pub(crate) fn depart(self) -> Result<(Departed, Away), Disconnect> {
        let away = Away::new(Rc::clone(&self.peers));
        let connection = Rc::clone(&self.connection);
        drop(self);
        // Nothing else has it, and the handshake has left nothing in flight.
        let Some(Connection { peer, stream, dropped }) = Rc::into_inner(connection) else {
            return Err(io::Error::other("the connection is in use").into());
        };
        let (socket, tls) = stream.into_parts();
        match (dropped.into_inner(), peer.leave(), socket.into_fd()) {
            (None, Some(admitted), Ok(fd)) => Ok((Departed { admitted, fd, tls }, away)),
            (Some(why), ..) => Err(why),
            (None, ..) => Err(io::Error::other("the connection is in its handshake").into()),
        }
    }
}

/// A connection between two threads.
pub(crate) struct Departed {
    admitted: Admitted,
    fd: OwnedFd,
    tls: Option<TlsSession>,
}

impl Departed {
    /// Continues the connection on the current thread.
    pub(crate) fn arrive(self, shared: &Arc<Shared>) -> PeerSlot {
        let stream = Channel::resume(Socket::from_fd(self.fd), self.tls);
        Peers::here(shared).admit(stream, Some(self.admitted))
    }
}

/// A connection that has left this thread; dropped when it has ended.
pub(crate) struct Away(Rc<Peers>);

impl Away {
    fn new(peers: Rc<Peers>) -> Self {
        peers.away.set(peers.away.get() + 1);
        Self(peers)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.0.away.set(self.0.away.get() - 1);
        self.0.tell();
    }
}

impl Deref for PeerSlot {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        self.peers.connections.borrow_mut().remove(&self.number);
        if self.connection.peer.most_held_bytes() >= MUCH_BYTES {
            self.peers.memory_came_back.set(true);
        }
        self.peers.tell();
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
            let budget = Arc::new(Budget::new(MIN_BUDGET_BYTES));
            let peers = Peers::new(Shared::new(config, Tls::default(), budget, Arc::default()));
            let [first, last] = [(); 2].map(|()| {
                let (ours, _) = UnixStream::pair().unwrap();
                let slot = peers.admit(Channel::plain(Socket::from_fd(ours.into())), None);
                slot.peer.hold(MUCH_BYTES);
                slot.peer.release(MUCH_BYTES);
                slot
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
