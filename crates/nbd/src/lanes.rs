//! Connections of the threads that submit requests.
//!
//! Where the server promises that a flush on one connection covers what others have acknowledged (`CAN_MULTI_CONN`), each
//! reactor that submits many requests has a connection of its own: no request changes threads. It is opened in the background;
//! until then requests go over the [link](crate::link).
//!
//! A new connection may be one to a server that has just been restarted, and has lost what the others had acknowledged.
//! Therefore it joins the [session](crate::session) only after the link's connection, which is older, has answered a request that was sent after the
//! new connection's handshake: both are connections to the same life of the server. And only after it has answered a request itself: a server
//! that accepts no more than some connections may close one after its handshake, which must fail no request.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{self, Arc};
use std::time::Duration;

use ashlar_engine::{sleep, spawn};
use futures_util::future::{Either, select};

use crate::connection::{Connection, Owner};
use crate::handshake::{ConnectError, ExportInfo};
use crate::link::LinkThread;
use crate::network::Internet;
use crate::uri::Uri;

/// The most connections of a disk, beside that of the link. Threads without one use the link.
const MAX_LANES: usize = 8;
/// The requests after which a thread gets a connection: commands that look at a few blocks need none.
const FEW: u32 = 32;
/// How long a thread waits before it connects again.
const WAIT: Duration = Duration::from_secs(1);

thread_local! {
    /// The lanes of this thread, by the disk's number.
    static LANES: RefCell<HashMap<usize, Rc<Lane>>> = RefCell::default();
}

/// The connection of one thread.
struct Lane {
    disk: sync::Weak<Lanes>,
    connection: RefCell<Option<Rc<Connection<Internet>>>>,
    /// Those before it that may still receive something.
    former: RefCell<Vec<Weak<Connection<Internet>>>>,
    requests: Cell<u32>,
    is_opening: Cell<bool>,
}

impl Lane {
    /// The connection, as long as commands can be sent.
    fn current(&self) -> Option<Rc<Connection<Internet>>> {
        self.connection.borrow().as_ref().filter(|it| it.session().is_some()).cloned()
    }
}

/// All lanes of a disk.
pub(crate) struct Lanes {
    number: usize,
    uri: Uri,
    info: ExportInfo,
    link: LinkThread<Internet>,
    /// What the link reads to vouch for a connection.
    block_bytes: u32,
    count: AtomicUsize,
}

impl Lanes {
    pub(crate) fn new(
        uri: Uri,
        info: ExportInfo,
        link: LinkThread<Internet>,
        block_bytes: u32,
    ) -> Arc<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, SeqCst);
        Arc::new(Self { number, uri, info, link, block_bytes, count: AtomicUsize::new(0) })
    }

    fn lane(&self) -> Option<Rc<Lane>> {
        LANES.with_borrow(|lanes| lanes.get(&self.number).cloned())
    }

    /// Whether the current thread has a connection.
    pub(crate) fn are_here(&self) -> bool {
        self.current().is_some()
    }

    /// The connection of the current thread.
    pub(crate) fn current(&self) -> Option<Rc<Connection<Internet>>> {
        self.lane().and_then(|lane| lane.current())
    }

    /// See [`Driver::revoke`](ashlar_block::queue::Driver::revoke).
    pub(crate) fn revoke(&self, owner: Owner) -> bool {
        let Some(lane) = self.lane() else { return false };
        let connection = lane.connection.borrow().clone();
        lane.former
            .borrow()
            .iter()
            .filter_map(Weak::upgrade)
            .chain(connection)
            .any(|it| it.revoke(owner))
    }

    /// The connection of the current thread, if there is one.
    pub(crate) fn here(self: &Arc<Self>) -> Option<Rc<Connection<Internet>>> {
        let lane = self.lane().or_else(|| self.add())?;
        if let Some(connection) = lane.current() {
            return Some(connection);
        }
        lane.requests.set(lane.requests.get().saturating_add(1));
        if lane.requests.get() > FEW && !lane.is_opening.replace(true) {
            spawn(Arc::clone(self).open(lane)).detach();
        }
        None
    }

    /// A lane for the current thread, unless there are too many.
    fn add(self: &Arc<Self>) -> Option<Rc<Lane>> {
        let count = |count| (count < MAX_LANES).then_some(count + 1);
        self.count.fetch_update(SeqCst, SeqCst, count).ok()?;
        let lane = Rc::new(Lane {
            disk: Arc::downgrade(self),
            connection: RefCell::default(),
            former: RefCell::default(),
            requests: Cell::new(0),
            is_opening: Cell::new(false),
        });
        LANES.with_borrow_mut(|lanes| {
            lanes.retain(|_, lane| lane.disk.strong_count() > 0);
            lanes.insert(self.number, Rc::clone(&lane));
        });
        Some(lane)
    }

    /// Connects for the current thread, and waits until that connection has ended.
    async fn open(self: Arc<Self>, lane: Rc<Lane>) {
        match self.connect().await {
            Ok(Some(connection)) => {
                *lane.connection.borrow_mut() = Some(Rc::clone(&connection));
                connection.ended().await;
                let mut former = lane.former.borrow_mut();
                former.retain(|connection| connection.strong_count() > 0);
                former.extend(lane.connection.take().as_ref().map(Rc::downgrade));
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "another connection to an NBD server"),
        }
        sleep(WAIT).await;
        lane.is_opening.set(false);
    }

    /// A connection that has joined the present session.
    async fn connect(&self) -> Result<Option<Rc<Connection<Internet>>>, ConnectError> {
        let Some(session) = self.link.session().await else { return Ok(None) };
        let opening = pin!(Connection::open(&self.uri));
        let Either::Left((opened, _)) = select(opening, pin!(session.ended())).await else {
            return Ok(None);
        };
        let (connection, info) = opened?;
        let suits = async {
            // Another export would be refused by the link, too.
            self.info.misfit(&info).is_none()
                && self.link.vouches(Arc::clone(&session), self.block_bytes).await
                && connection.answers(self.block_bytes).await
        };
        if let Either::Left((true, _)) = select(pin!(suits), pin!(session.ended())).await {
            connection.join(Arc::clone(&session));
            return Ok(Some(Rc::clone(&connection)));
        }
        connection.leave().await;
        Ok(None)
    }
}
