//! The connection of a disk, and its successors, on a thread of their own.

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use ashlar_block::{BioResult, Status};
use ashlar_engine::{Handle, Reactor};
use futures_util::future::{Either, select};

use crate::connection::{Command, Connection, Descriptor, Owner};
use crate::departure::{self, Departure};
use crate::handshake::{ConnectError, ExportInfo};
use crate::network::{Internet, Network};
use crate::session::{Losses, Session};
use crate::uri::Uri;

/// How long the link waits before it connects again, at first and at most; in between twice as long each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LAST_WAIT: Duration = Duration::from_secs(10);

/// How long opening waits for the end of a former disk's connections.
const PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    /// The link of this thread, a [`Link`].
    static LINK: RefCell<Option<Rc<dyn Any>>> = const { RefCell::new(None) };
}

struct Link<N: Network> {
    uri: Uri,
    info: ExportInfo,
    connection: RefCell<Option<Rc<Connection<N>>>>,
    losses: Arc<Losses>,
    departure: Arc<Departure>,
    /// Those before the present connection that may still receive something.
    former: RefCell<Vec<Weak<Connection<N>>>>,
}

/// The thread of a link, as other threads see it.
pub(crate) struct LinkThread<N: Network>(N::Thread);

impl<N: Network> Clone for LinkThread<N> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The link of a disk, which ends when this is released or dropped.
pub(crate) struct LinkHandle<N: Network> {
    thread: LinkThread<N>,
    uri: Uri,
    departure: Arc<Departure>,
}

impl LinkHandle<Internet> {
    /// Connects, and keeps connected until this is released or dropped. Blocks until the first connection stands.
    ///
    /// # Errors
    /// [`ConnectError`]; no thread or reactor.
    pub(crate) fn start(uri: Uri, losses: Arc<Losses>) -> Result<(Self, ExportInfo), ConnectError> {
        let address = uri.address.clone();
        let failed = |source: io::Error| ConnectError::Io { address: address.clone(), source };
        let (sender, started) = mpsc::channel();
        if !departure::wait(&uri, PATIENCE) {
            return Err(ConnectError::Late(address));
        }
        let (own, departure) = (uri.clone(), Arc::<Departure>::default());
        let its = Arc::clone(&departure);
        let run = move || match Reactor::new(Default::default()) {
            Ok(reactor) => reactor.block_on(async {
                match Link::<Internet>::begin(uri, losses, its).await {
                    Ok(link) => {
                        if sender.send(Ok((Handle::current(), link.info))).is_ok() {
                            link.keep().await;
                        }
                        LINK.set(None);
                    }
                    // If nothing receives it, nothing wants to know.
                    Err(error) => drop(sender.send(Err(error))),
                }
            }),
            Err(source) => {
                let address = uri.address.clone();
                drop(sender.send(Err(ConnectError::Io { address, source })));
            }
        };
        thread::Builder::new().name("ashlar-nbd".to_owned()).spawn(run).map_err(&failed)?;
        let died = |_| failed(io::Error::other("its thread has ended"));
        let (handle, info) = started.recv().map_err(died)??;
        Ok((Self { thread: LinkThread(handle), uri: own, departure }, info))
    }
}

impl<N: Network> LinkHandle<N> {
    /// As [`LinkHandle::start`], on the current thread.
    #[cfg(test)]
    pub(crate) async fn here(
        uri: Uri,
        thread: N::Thread,
        losses: Arc<Losses>,
    ) -> Result<(Self, ExportInfo), ConnectError> {
        let departure = Arc::<Departure>::default();
        let link = Link::<N>::begin(uri.clone(), losses, Arc::clone(&departure)).await?;
        let info = link.info;
        N::spawn(async move { link.keep().await });
        Ok((Self { thread: LinkThread(thread), uri, departure }, info))
    }

    pub(crate) fn thread(&self) -> LinkThread<N> {
        self.thread.clone()
    }

    /// Ends all connections of the disk, also those of its [lanes](crate::lanes), and opens no more. Waits for nothing.
    pub(crate) fn release(&self) {
        self.departure.begin_in_flight(&self.uri);
    }

    #[inline]
    pub(crate) fn is_released(&self) -> bool {
        self.departure.has_begun()
    }

    /// Has the server execute a command.
    pub(crate) async fn execute(&self, command: Command) -> BioResult {
        let executed = self.thread.on_connection(move |connection| connection.execute(command));
        executed.await.unwrap_or(Err(Status::Transport))
    }

    /// See [`Connection::block_status`].
    pub(crate) async fn block_status(
        &self,
        offset: u64,
        len: u32,
    ) -> Result<Vec<Descriptor>, Status> {
        let told =
            self.thread.on_connection(move |connection| connection.block_status(offset, len));
        told.await.unwrap_or(Err(Status::Transport))
    }

    /// See [`Connection::abort`]. A thread's messages arrive in their order: by then the connection has the command if it gets it at
    /// all, and not yet another one of the same owner. A former connection needs no message: it no longer sends anything.
    pub(crate) fn abort(&self, owner: Owner) {
        drop(self.thread.on_connection(async move |connection| connection.abort(owner)));
    }
}

impl<N: Network> LinkThread<N> {
    /// Does something with the present connection, if there is one; it is begun even if the result is dropped.
    fn on_connection<F, Fut>(
        &self,
        work: F,
    ) -> impl Future<Output = Option<Fut::Output>> + use<N, F, Fut>
    where
        F: FnOnce(Rc<Connection<N>>) -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        let done = N::run_on(&self.0, move || async move {
            let link = Link::<N>::here();
            let connection = link.and_then(|link| link.connection.borrow().clone())?;
            Some(work(connection).await)
        });
        async move { done.await.ok().flatten() }
    }

    /// The present session.
    pub(crate) async fn session(&self) -> Option<Arc<Session>> {
        self.on_connection(async |connection| connection.session().cloned()).await.flatten()
    }

    /// Whether the server of this session answers a request that is sent now, a read of `len` bytes.
    pub(crate) async fn vouches(&self, session: Arc<Session>, len: u32) -> bool {
        let answers = self.on_connection(async move |connection| {
            let is_same = connection.session().is_some_and(|it| Arc::ptr_eq(it, &session));
            is_same && connection.answers(len).await
        });
        answers.await.unwrap_or(false)
    }
}

impl<N: Network> Drop for LinkHandle<N> {
    /// No request is in flight: each has a reference to the disk.
    fn drop(&mut self) {
        self.departure.begin();
    }
}

impl<N: Network> Link<N> {
    /// That of this thread.
    fn here() -> Option<Rc<Self>> {
        LINK.with_borrow(Clone::clone)?.downcast().ok()
    }

    /// Connects, and becomes the link of this thread.
    async fn begin(
        uri: Uri,
        losses: Arc<Losses>,
        departure: Arc<Departure>,
    ) -> Result<Rc<Self>, ConnectError> {
        let (connection, info) = Connection::open(&uri).await?;
        connection.join(Session::new(Arc::clone(&losses), Arc::clone(&departure)));
        let this = Rc::new(Self {
            uri,
            info,
            connection: RefCell::new(Some(connection)),
            losses,
            departure,
            former: RefCell::default(),
        });
        LINK.set(Some(Rc::<Self>::clone(&this)));
        Ok(this)
    }

    /// Keeps a connection until the disk is no longer used, and all have ended.
    async fn keep(&self) {
        loop {
            let connection = self.connection.borrow().clone();
            if let Some(connection) = connection {
                let ended = pin!(connection.ended());
                if let Either::Right(_) = select(ended, pin!(self.departure.begun())).await {
                    break;
                }
                self.connection.take();
                let mut former = self.former.borrow_mut();
                former.retain(|connection| connection.strong_count() > 0);
                former.push(Rc::downgrade(&connection));
            }
            let again = pin!(self.connect_again());
            let Either::Left((connection, _)) = select(again, pin!(self.departure.begun())).await
            else {
                break;
            };
            connection.join(Session::new(Arc::clone(&self.losses), Arc::clone(&self.departure)));
            *self.connection.borrow_mut() = Some(connection);
        }
        // They leave by themselves; their tasks need this thread until then.
        let present = self.connection.borrow().clone();
        let former = self.former.take();
        for connection in former.iter().filter_map(Weak::upgrade).chain(present) {
            connection.closed().await;
        }
    }

    async fn connect_again(&self) -> Rc<Connection<N>> {
        let (mut wait, server) = (FIRST_WAIT, &self.uri.address);
        let mut is_told = false;
        loop {
            N::sleep(wait).await;
            match Connection::open(&self.uri).await {
                Ok((connection, info)) => {
                    let Some(why) = self.info.misfit(&info) else {
                        tracing::info!(%server, "connected to an NBD server again");
                        return connection;
                    };
                    connection.leave().await;
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::error!(%server, why, "an NBD server is online again with a different export");
                    }
                }
                Err(error) => tracing::debug!(%error, "connecting to an NBD server again"),
            }
            wait = (wait * 2).min(LAST_WAIT);
        }
    }
}
