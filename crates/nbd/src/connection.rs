//! One connection in the transmission phase, on one reactor.

mod leaving;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ashlar_block::canary::broken;
use ashlar_block::request::RequestId;
use ashlar_block::sync::until;
use ashlar_block::{BioResult, Buffer, Segment, Status, patience};
use ashlar_engine::oneshot::{self, Sender};
use ashlar_engine::{ChunkList, blocking};
use event_listener::Event;
use futures_util::future::{Either, select};
use rustix::net::Shutdown as Direction;
use smallvec::SmallVec;

use crate::canary::Rule;
use crate::departure::Counted;
use crate::handshake::{ConnectError, ExportInfo, Failure, negotiate};
use crate::input::Input;
use crate::network::Network;
use crate::session::Session;
use crate::stream::Stream;
use crate::tls::{Channel, ClientTls};
use crate::uri::{Address, TlsParameters, Uri};
use crate::wire::{
    CMD_BLOCK_STATUS, CMD_FLAG_FUA, CMD_FLUSH, CMD_READ, FLAG_SEND_FLUSH, Fields, Header,
    MAX_STRING, REPLY_FLAG_DONE, REPLY_TYPE_BLOCK_STATUS, REPLY_TYPE_FLAG_ERROR, REPLY_TYPE_NONE,
    REPLY_TYPE_OFFSET_DATA, REPLY_TYPE_OFFSET_HOLE, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
};

/// How long connecting and the handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// `ESHUTDOWN`: the server is about to end.
const SHUTDOWN: u32 = 108;
/// The most descriptors of a reply (the protocol's bound is 2^20).
const MAX_DESCRIPTORS: u32 = 1 << 17;
/// Bytes of a chunk with an error beside its message: the error, the message's length, an offset.
const MAX_ERROR: usize = MAX_STRING + 14;

/// The memory of a command.
pub(crate) type Memory = SmallVec<[Segment; 2]>;

/// A command for the server.
pub(crate) struct Command {
    /// Its number, `CMD_*`.
    pub(crate) kind: u16,
    /// Its flags, `CMD_FLAG_*`.
    pub(crate) flags: u16,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// The memory of a read or a write.
    pub(crate) segments: Memory,
    /// The request that it executes.
    pub(crate) owner: Option<Owner>,
}

/// A request with a deadline, among those of all threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    thread: u64,
    id: RequestId,
}

impl Owner {
    /// The owner of a request of the current thread.
    pub(crate) fn here(id: RequestId) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static THREAD: u64 = NEXT.fetch_add(1, Relaxed);
        }
        Self { thread: THREAD.with(|number| *number), id }
    }
}

impl Command {
    /// A command without flags and memory.
    fn new(kind: u16, offset: u64, len: u32) -> Self {
        Self { kind, flags: 0, offset, len, segments: Memory::new(), owner: None }
    }
}

/// The length and the state of a part of an export, in the order of the export.
pub(crate) type Descriptor = (u32, u32);

/// What a command returns: descriptors, of a command that asks for them.
type Reply = Result<Vec<Descriptor>, Status>;

/// A command that waits for its reply.
struct Pending {
    command: Command,
    /// Bytes of a read that have come.
    received: u64,
    error: Option<Status>,
    descriptors: Vec<Descriptor>,
    /// Changes that were acknowledged before it was sent: those that a flush covers.
    covers: u64,
    done: Sender<Reply>,
}

/// A command of which nothing has been sent.
struct Unsent {
    cookie: u64,
    header: Vec<u8>,
    data: Memory,
}

/// See the module text.
pub(crate) struct Connection<N: Network> {
    stream: Channel<N::Stream>,
    is_structured: bool,
    has_cache: bool,
    /// The identifier of the context that tells of holes.
    allocation: Option<u32>,
    /// The cookie of the next command.
    cookie: Cell<u64>,
    pending: RefCell<HashMap<u64, Pending>>,
    outgoing: RefCell<VecDeque<Unsent>>,
    /// The request whose reply the receiving task takes at the moment.
    receiving: Cell<Option<Owner>>,
    /// The receiving task takes a reply at the moment, of a request or of another command.
    is_receiving: Cell<bool>,
    more: Event,
    session: OnceCell<Arc<Session>>,
    /// As one of the disk's, until it has ended.
    counted: RefCell<Option<Counted>>,
    is_leaving: Cell<bool>,
    /// Notified when a connection that leaves has no more commands.
    idle: Event,
    state: Cell<State>,
    ended: Event,
}

/// The life of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// No more commands are sent, but replies still come.
    Draining,
    Closed,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum EndReason {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the server broke the protocol: {0}")]
    Protocol(&'static str),
}

/// Reads the credentials for TLS with a server.
async fn credentials(
    parameters: Box<TlsParameters>,
    address: Address,
) -> Result<ClientTls, Failure> {
    let load = move || {
        let host = match &address {
            Address::Tcp(host, _) => Some(host.as_str()),
            Address::Unix(_) => None,
        };
        ClientTls::load(&parameters, host)
    };
    let loaded = blocking::run(load).await.map_err(io::Error::other)?;
    loaded.map_err(Failure::Credentials)
}

impl<N: Network> Connection<N> {
    /// Connects to a server, and chooses the export. Commands can be sent once the connection has joined a session.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub(crate) async fn open(uri: &Uri) -> Result<(Rc<Self>, ExportInfo), ConnectError> {
        let Uri { address, export, tls } = uri;
        let opening = async {
            // Read each time: certificates are replaced before they expire.
            let tls = match tls {
                Some(parameters) => Some(credentials(parameters.clone(), address.clone()).await?),
                None => None,
            };
            let stream = Channel::plain(N::connect(address).await?);
            let mut input = Input::new();
            let info = negotiate(&stream, &mut input, export, tls.as_ref()).await?;
            Ok((stream, input, info))
        };
        let too_long = pin!(patience::wait(PATIENCE, N::sleep));
        let Either::Left((opened, _)) = select(pin!(opening), too_long).await else {
            return Err(ConnectError::Silent(address.clone()));
        };
        let (stream, input, info) =
            opened.map_err(|failure: Failure| failure.at(address, export))?;
        let this = Rc::new(Self {
            stream,
            is_structured: info.is_structured,
            cookie: Cell::new(0),
            pending: RefCell::default(),
            outgoing: RefCell::default(),
            receiving: Cell::new(None),
            is_receiving: Cell::new(false),
            more: Event::new(),
            has_cache: info.has(FLAG_SEND_FLUSH),
            allocation: info.allocation,
            session: OnceCell::new(),
            counted: RefCell::default(),
            is_leaving: Cell::new(false),
            idle: Event::new(),
            state: Cell::new(State::Open),
            ended: Event::new(),
        });
        N::spawn(Rc::clone(&this).send());
        N::spawn(Rc::clone(&this).receive(input));
        Ok((this, info))
    }

    /// Whether the server answers a read of `len` bytes: it may accept a connection and then close it.
    pub(crate) async fn answers(&self, len: u32) -> bool {
        let Some(mut buffer) = Buffer::try_alloc(len as usize) else { return false };
        if !self.is_open() {
            return false;
        }
        let segments = [buffer.whole()].into_iter().collect();
        let read = Command { segments, ..Command::new(CMD_READ, 0, len) };
        self.send_command(read, 0).await.is_ok()
    }

    /// Its session, as long as commands can be sent.
    pub(crate) fn session(&self) -> Option<&Arc<Session>> {
        self.session.get().filter(|session| self.is_open() && !session.has_ended())
    }

    fn is_open(&self) -> bool {
        self.state.get() == State::Open
    }

    fn is_closed(&self) -> bool {
        self.state.get() == State::Closed
    }

    /// Ends once no more commands can be sent.
    pub(crate) async fn ended(&self) {
        until(&self.ended, || !self.is_open()).await;
    }

    /// Has the server execute a command.
    pub(crate) async fn execute(self: Rc<Self>, command: Command) -> BioResult {
        self.ask(command).await.map(drop)
    }

    /// What the server tells of the state of a range: the parts from its start on, of which the last may go beyond it.
    pub(crate) async fn block_status(self: Rc<Self>, offset: u64, len: u32) -> Reply {
        if self.allocation.is_none() {
            return Err(Status::NotSupported);
        }
        self.ask(Command::new(CMD_BLOCK_STATUS, offset, len)).await
    }

    /// Sends a command, and waits for its reply.
    async fn ask(&self, command: Command) -> Reply {
        let session = self.session().ok_or(Status::Transport)?;
        if command.kind == CMD_FLUSH && session.must_fail_flush() {
            return Err(Status::Transport);
        }
        let covers = session.acknowledged();
        self.send_command(command, covers).await
    }

    async fn send_command(&self, command: Command, covers: u64) -> Reply {
        let cookie = self.cookie.get();
        self.cookie.set(cookie + 1);
        let (done, reply) = oneshot::channel();
        let data =
            if command.kind == CMD_READ { SmallVec::new() } else { command.segments.clone() };
        let unsent = Unsent { cookie, header: header(&command, cookie), data };
        self.outgoing.borrow_mut().push_back(unsent);
        let pending =
            Pending { command, received: 0, error: None, descriptors: Vec::new(), covers, done };
        self.pending.borrow_mut().insert(cookie, pending);
        self.more.notify(1);
        reply.await.unwrap_or(Err(Status::Transport))
    }

    /// A request has reached its deadline. If this connection has sent it, no more commands are sent here: the server may execute it at
    /// any time. One that was not sent fails, and one that other connections have, or that was answered meanwhile, means nothing here.
    pub(crate) fn abort(&self, owner: Owner) {
        let cookie = {
            let pending = self.pending.borrow();
            let its = pending.iter().find(|(_, pending)| pending.command.owner == Some(owner));
            its.map(|(cookie, _)| *cookie)
        };
        let is_here = cookie.is_some() || self.receiving.get() == Some(owner);
        if !is_here && !broken(Rule::AbortReachesItsConnectionOnly) {
            return;
        }
        if let Some(cookie) = cookie
            && self.take_unsent(cookie)
        {
            self.fail(cookie, Status::Timeout);
            return self.note_answer();
        }
        if self.is_open() {
            tracing::warn!("no reply from an NBD server within the deadline");
            self.drain();
        }
    }

    /// Cancels a command of which nothing has been sent; false if no unsent command has this cookie.
    fn take_unsent(&self, cookie: u64) -> bool {
        let mut outgoing = self.outgoing.borrow_mut();
        let place = outgoing.iter().position(|unsent| unsent.cookie == cookie);
        place.and_then(|place| outgoing.remove(place)).is_some()
    }

    /// Ends a command that the server does not execute.
    fn fail(&self, cookie: u64, status: Status) {
        let pending = self.pending.borrow_mut().remove(&cookie);
        if let Some(pending) = pending {
            pending.done.send(Err(status));
        }
    }

    fn end(&self, state: State) {
        self.state.set(state);
        if let Some(session) = self.session.get() {
            session.end();
        }
        for unsent in self.outgoing.take() {
            self.fail(unsent.cookie, Status::Transport);
        }
        self.more.notify(usize::MAX);
        self.ended.notify(usize::MAX);
    }

    /// Ends the connection: commands that wait for replies fail as those of a device that is gone.
    fn close(&self) {
        if self.is_closed() {
            return;
        }
        self.end(State::Closed);
        // A task that uses the stream ends, too.
        self.stream.end(Direction::Both);
        for (_, pending) in self.pending.take() {
            pending.done.send(Err(Status::Transport));
        }
        self.counted.take();
        self.idle.notify(usize::MAX);
    }

    async fn send(self: Rc<Self>) {
        let mut chunks = ChunkList::new();
        while self.is_open() {
            let more = self.more.listen();
            for Unsent { header, data, .. } in self.outgoing.borrow_mut().drain(..) {
                chunks.push_bytes(header);
                data.into_iter().for_each(|segment| chunks.push_segment(segment));
            }
            if chunks.is_empty() {
                more.await;
                continue;
            }
            let (sent, same) = self.stream.send(chunks).await;
            chunks = same;
            chunks.clear();
            // What was sent before the drain may still be answered.
            if let Err(error) = sent
                && self.is_open()
            {
                tracing::debug!(%error, "sending to an NBD server");
                self.close();
            }
        }
    }

    async fn receive(self: Rc<Self>, mut input: Input) {
        let ended = loop {
            if let Err(ended) = self.reply(&mut input).await {
                break ended;
            }
            self.receiving.set(None);
            self.is_receiving.set(false);
            self.note_answer();
        };
        if self.is_open() {
            tracing::warn!(reason = %ended, "the connection to an NBD server ended");
        }
        self.close();
    }

    /// Receives a reply, or a chunk of one.
    async fn reply(&self, input: &mut Input) -> Result<(), EndReason> {
        let stream = &self.stream;
        match u32::from_be_bytes(input.array(stream).await?) {
            SIMPLE_REPLY_MAGIC => {
                let header: [u8; 12] = input.array(stream).await?;
                let mut fields = Fields(&header);
                let error = fields.u32().unwrap_or_default();
                let mut pending = self.take(fields.u64().unwrap_or_default())?;
                let is_read = pending.command.kind == CMD_READ;
                if error != 0 {
                    pending.error = Some(status(error));
                } else if is_read && self.is_structured {
                    return Err(EndReason::Protocol("a read without a structured reply"));
                } else if is_read {
                    let (at, len) = (pending.command.offset, pending.command.len);
                    self.data(input, &mut pending, at, len).await?;
                }
                self.finish(pending)
            }
            STRUCTURED_REPLY_MAGIC if self.is_structured => self.chunk(input).await,
            _ => Err(EndReason::Protocol("no reply")),
        }
    }

    async fn chunk(&self, input: &mut Input) -> Result<(), EndReason> {
        let stream = &self.stream;
        let header: [u8; 16] = input.array(stream).await?;
        let mut fields = Fields(&header);
        let (flags, kind) = (fields.u16().unwrap_or_default(), fields.u16().unwrap_or_default());
        let (cookie, len) = (fields.u64().unwrap_or_default(), fields.u32().unwrap_or_default());
        let mut pending = self.take(cookie)?;
        match kind {
            REPLY_TYPE_NONE if len == 0 && flags & REPLY_FLAG_DONE != 0 => {}
            REPLY_TYPE_OFFSET_DATA if len > 8 => {
                let at = u64::from_be_bytes(input.array(stream).await?);
                self.data(input, &mut pending, at, len - 8).await?;
            }
            REPLY_TYPE_OFFSET_HOLE if len == 12 => {
                let at = u64::from_be_bytes(input.array(stream).await?);
                let len = u32::from_be_bytes(input.array(stream).await?);
                for segment in pending.part(at, len)? {
                    segment.fill_zero();
                }
            }
            REPLY_TYPE_BLOCK_STATUS if pending.command.kind == CMD_BLOCK_STATUS && len % 8 == 4 => {
                let context = u32::from_be_bytes(input.array(stream).await?);
                let is_first = pending.descriptors.is_empty();
                if Some(context) != self.allocation || len / 8 > MAX_DESCRIPTORS || !is_first {
                    return Err(EndReason::Protocol("descriptors that were not asked for"));
                }
                for _ in 0..len / 8 {
                    let bytes: [u8; 8] = input.array(stream).await?;
                    let mut fields = Fields(&bytes);
                    pending.descriptors.extend(fields.u32().zip(fields.u32()));
                }
            }
            error
                if error & REPLY_TYPE_FLAG_ERROR != 0
                    && (6..=MAX_ERROR).contains(&(len as usize)) =>
            {
                let bytes = input.bytes(stream, len as usize).await?;
                let mut fields = Fields(&bytes);
                let number = fields.u32().unwrap_or_default();
                let len = u32::from(fields.u16().unwrap_or_default());
                let message =
                    fields.bytes(len).ok_or(EndReason::Protocol("a message without an end"))?;
                if !message.is_empty() {
                    let message = String::from_utf8_lossy(message);
                    tracing::debug!(number, %message, "an NBD server reports an error");
                }
                // The first one counts.
                pending.error.get_or_insert(status(number));
            }
            _ => return Err(EndReason::Protocol("a chunk that fits no request")),
        }
        if flags & REPLY_FLAG_DONE != 0 {
            return self.finish(pending);
        }
        if self.is_closed() {
            pending.done.send(Err(Status::Transport));
        } else {
            self.pending.borrow_mut().insert(cookie, pending);
        }
        Ok(())
    }

    /// The command that a reply is for. If the rest of the reply does not come, dropping it tells its submitter.
    fn take(&self, cookie: u64) -> Result<Pending, EndReason> {
        let pending = self.pending.borrow_mut().remove(&cookie);
        let pending = pending.ok_or(EndReason::Protocol("a reply without a request"))?;
        self.receiving.set(pending.command.owner);
        self.is_receiving.set(true);
        Ok(pending)
    }

    /// Tells the submitter of a command that its reply is complete.
    fn finish(&self, pending: Pending) -> Result<(), EndReason> {
        let Pending { command, received, error, descriptors, covers, done } = pending;
        if let Some(error) = error {
            // A server that is about to end waits until its clients have left.
            if error == Status::Transport && self.is_open() {
                tracing::warn!("an NBD server is about to end");
                self.drain();
            }
            done.send(Err(error));
            return Ok(());
        }
        match command.kind {
            CMD_READ if received < u64::from(command.len) => {
                return Err(EndReason::Protocol("a read without all of its data"));
            }
            CMD_BLOCK_STATUS if descriptors.is_empty() => {
                return Err(EndReason::Protocol("a status without descriptors"));
            }
            CMD_READ | CMD_BLOCK_STATUS => {}
            CMD_FLUSH => self.session.get().into_iter().for_each(|it| it.settle(covers)),
            _ if command.flags & CMD_FLAG_FUA != 0 || !self.has_cache => {}
            _ => self.session.get().into_iter().for_each(|it| it.acknowledge()),
        }
        done.send(Ok(descriptors));
        Ok(())
    }

    /// Receives data of a read.
    async fn data(
        &self,
        input: &mut Input,
        pending: &mut Pending,
        at: u64,
        len: u32,
    ) -> Result<(), EndReason> {
        for segment in pending.part(at, len)? {
            input.fill(&self.stream, segment).await?;
        }
        Ok(())
    }

    /// See [`Driver::revoke`](ashlar_block::queue::Driver::revoke).
    pub(crate) fn revoke(&self, owner: Owner) -> bool {
        let mut pending = self.pending.borrow_mut();
        let mut reads = pending.values_mut().map(|pending| &mut pending.command);
        let read = reads.find(|command| command.owner == Some(owner));
        if read.is_none() && self.receiving.get() != Some(owner) {
            return false;
        }
        if let Some(read) = read
            && let Some(buffer) = Buffer::try_alloc(read.len as usize)
        {
            // For the late reply.
            read.segments = [buffer.into_whole()].into_iter().collect();
            return true;
        }
        // Ends what is being received.
        self.stream.end(Direction::Both);
        false
    }
}

impl Pending {
    /// The memory for `len` bytes at `at` of a read, which count as received.
    fn part(&mut self, at: u64, len: u32) -> Result<Memory, EndReason> {
        let Command { kind, offset, len: whole, segments, .. } = &self.command;
        let wrong = EndReason::Protocol("data that were not asked for");
        let Some(mut skip) = at.checked_sub(*offset).filter(|_| *kind == CMD_READ) else {
            return Err(wrong);
        };
        self.received += u64::from(len);
        if skip + u64::from(len) > u64::from(*whole) || self.received > u64::from(*whole) {
            return Err(wrong);
        }
        let (mut left, mut parts) = (len as usize, SmallVec::new());
        for segment in segments {
            let start = (segment.len() as u64).min(skip);
            skip -= start;
            let start = start as usize;
            let count = left.min(segment.len() - start);
            if count > 0 {
                parts.push(segment.slice(start..start + count));
                left -= count;
            }
        }
        Ok(parts)
    }
}

fn header(command: &Command, cookie: u64) -> Vec<u8> {
    let Command { kind, flags, offset, len, .. } = *command;
    Header { flags, number: kind, cookie, offset, length: len }.encode().to_vec()
}

/// The status for an error of the protocol.
fn status(number: u32) -> Status {
    match number {
        SHUTDOWN => Status::Transport,
        other => Status::from_errno(i32::try_from(other).unwrap_or_default()),
    }
}
