//! The connection of a disk, and its successors, on a thread of their own.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ashlar_block::{BioResult, Status};
use ashlar_engine::{Handle, Reactor, sleep};
use event_listener::Event;
use futures_util::future::{Either, select};

use crate::connection::{Command, Connection, Losses};
use crate::handshake::{ConnectError, ExportInfo};
use crate::uri::Uri;
use crate::wire::{CMD_FLUSH, FLAG_READ_ONLY};

/// How long the link waits before it connects again, at first and at most; in between twice as long each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LAST_WAIT: Duration = Duration::from_secs(10);

thread_local! {
    /// The link of this thread.
    static LINK: RefCell<Option<Rc<Link>>> = const { RefCell::new(None) };
}

struct Link {
    uri: Uri,
    info: ExportInfo,
    connection: RefCell<Option<Rc<Connection>>>,
    losses: Rc<Losses>,
    is_over: Cell<bool>,
    over: Event,
}

/// The link of a disk, as other threads see it.
pub(crate) struct LinkHandle(Handle);

impl LinkHandle {
    /// Connects, and keeps connected until this is dropped. Blocks until the first connection stands.
    ///
    /// # Errors
    /// [`ConnectError`]; no thread or reactor.
    pub(crate) fn start(uri: Uri) -> Result<(Self, ExportInfo), ConnectError> {
        let address = uri.address.clone();
        let failed = |source: io::Error| ConnectError::Io { address: address.clone(), source };
        let (sender, started) = mpsc::channel();
        let run = move || match Reactor::new(Default::default()) {
            Ok(reactor) => reactor.block_on(async {
                let losses = Rc::default();
                match Connection::open(&uri, Rc::clone(&losses)).await {
                    Ok((connection, info)) => {
                        let link = Rc::new(Link::new(uri, info, connection, losses));
                        LINK.set(Some(Rc::clone(&link)));
                        if sender.send(Ok((Handle::current(), info))).is_ok() {
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
        Ok((Self(handle), info))
    }

    /// Has `report` called when a connection ends with acknowledged changes that were not flushed.
    pub(crate) fn report_losses(&self, report: impl Fn() + Send + 'static) {
        drop(self.0.spawn_on(|| async {
            let link = LINK.with_borrow(Clone::clone);
            if let Some(link) = link {
                let (Ok(()) | Err(_)) = link.losses.report.set(Box::new(report));
            }
        }));
    }

    /// Has the server execute a command.
    pub(crate) async fn execute(&self, command: Command) -> BioResult {
        let result = self.0.spawn_on(move || async move {
            match LINK.with_borrow(Clone::clone) {
                Some(link) => link.execute(command).await,
                None => Err(Status::Transport),
            }
        });
        result.await.unwrap_or(Err(Status::Transport))
    }

    /// Sends no more commands on the present connection: the server has not answered one in time.
    pub(crate) fn reset(&self) {
        drop(self.0.spawn_on(|| async {
            let link = LINK.with_borrow(Clone::clone);
            if let Some(connection) = link.and_then(|link| link.connection.borrow().clone()) {
                tracing::warn!("no reply from an NBD server within the deadline");
                connection.drain();
            }
        }));
    }
}

impl Drop for LinkHandle {
    fn drop(&mut self) {
        drop(self.0.spawn_on(|| async {
            if let Some(link) = LINK.with_borrow(Clone::clone) {
                link.is_over.set(true);
                link.over.notify(usize::MAX);
            }
        }));
    }
}

impl Link {
    fn new(uri: Uri, info: ExportInfo, connection: Rc<Connection>, losses: Rc<Losses>) -> Self {
        Self {
            uri,
            info,
            connection: RefCell::new(Some(connection)),
            losses,
            is_over: Cell::new(false),
            over: Event::new(),
        }
    }

    async fn execute(&self, command: Command) -> BioResult {
        let Some(connection) = self.connection.borrow().clone() else {
            return Err(Status::Transport);
        };
        if command.kind == CMD_FLUSH && self.losses.is_untold.replace(false) {
            return Err(Status::Transport);
        }
        connection.execute(command).await
    }

    /// Keeps a connection until the end.
    async fn keep(&self) {
        loop {
            let connection = self.connection.borrow().clone();
            if let Some(connection) = connection {
                let ended = pin!(connection.ended());
                if let Either::Right(((), _)) = select(ended, pin!(self.over())).await {
                    return connection.leave().await;
                }
                *self.connection.borrow_mut() = None;
            }
            let again = pin!(self.connect_again());
            let Either::Left((connection, _)) = select(again, pin!(self.over())).await else {
                return;
            };
            *self.connection.borrow_mut() = Some(connection);
        }
    }

    async fn over(&self) {
        while !self.is_over.get() {
            let over = self.over.listen();
            if !self.is_over.get() {
                over.await;
            }
        }
    }

    async fn connect_again(&self) -> Rc<Connection> {
        let (mut wait, server) = (FIRST_WAIT, &self.uri.address);
        let mut is_told = false;
        loop {
            sleep(wait).await;
            match Connection::open(&self.uri, Rc::clone(&self.losses)).await {
                Ok((connection, info)) => {
                    let Some(why) = self.misfit(&info) else {
                        tracing::info!(%server, "connected to an NBD server again");
                        return connection;
                    };
                    connection.leave().await;
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::error!(%server, why, "an NBD server has come back with another export");
                    }
                }
                Err(error) => tracing::debug!(%error, "connecting to an NBD server again"),
            }
            wait = (wait * 2).min(LAST_WAIT);
        }
    }

    /// Why an export cannot stand for the one that was first there.
    fn misfit(&self, info: &ExportInfo) -> Option<&'static str> {
        let lacks = self.info.flags & !info.flags;
        if info.size_bytes < self.info.size_bytes {
            Some("it is smaller")
        } else if !self.info.has(FLAG_READ_ONLY) && info.has(FLAG_READ_ONLY) {
            Some("it is read-only")
        } else if lacks & !FLAG_READ_ONLY != 0 {
            Some("it can do less")
        } else if info.min_block_bytes > self.info.min_block_bytes
            || info.max_block_bytes < self.info.max_block_bytes
        {
            Some("it has other block sizes")
        } else {
            None
        }
    }
}
