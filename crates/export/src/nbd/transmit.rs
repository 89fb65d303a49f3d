//! The transmission phase of one connection: receiving, executing and replying, interleaved in one task.
//!
//! Three parts share a [`Flow`]. The **receiver** parses requests and starts them as soon as they are admitted; the
//! **requests** run in any order, each as a future; the **sender** takes all replies that are ready and sends them with
//! one call, headers and data gathered. They are polled in this order until none makes progress.
//!
//! New requests go to the disks before replies are copied to the socket, and more is received after both: a waiting
//! disk costs more than a waiting client. But while a disk works on earlier requests of the connection, it does not wait: then
//! requests that have already arrived are received first, up to [`GATHERED_BYTES`], so that they meet in the plug and merge. (A
//! receive by the ring ends in a later turn, so without this each write with a payload of some size goes alone.) A client that sends one request at
//! a time never has earlier ones. The first reply of a turn is sent alone, later ones in ever larger calls: the
//! client wakes up while they are copied.
//!
//! The number and memory of requests between parsing and answering are bounded, see [`admission`](super::admission);
//! above the bound receiving stops and the socket pushes back.
//!
//! A request that was started always runs to its end, even if the connection fails: receiving may end early (DISC, end
//! of stream, error, shutdown) and so may sending (error), but never a request.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;

use ashlar_block::buffer::{Buffer, Segment};
use ashlar_block::plug;
use ashlar_engine::ChunkList;
use ashlar_nbd::stream::Stream;
use futures_util::future::Fuse;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use super::admission::{Admission, Ticket};
use super::end::{Disconnect, End};
use super::errno::Errno;
use super::execute::{Answer, Reply, cost, execute};
use super::export::OpenExport;
use super::input::Input;
use super::peer::{Direction, Peer};
use super::transmission::{Command, Header, REQUEST_LEN, Request, Terms, Verdict, judge};
use crate::stream::TryRecv;

/// Replies sent with the first call of a turn; each further call may send twice as many.
const FIRST_REPLIES: usize = 1;
/// The most replies sent with one call.
const BATCH_REPLIES: usize = 64;
/// The length of headers for which a connection keeps memory, bytes.
const PAGE_BYTES: usize = 4096;
/// Once a call has this much data, it takes no further reply, bytes.
const BATCH_BYTES: usize = 1 << 20;

/// The most requests that go to the disks together, beyond those of one receive.
const GATHERED_REQUESTS: usize = 64;
/// Once such requests read or write this much, they go to the disks, bytes.
const GATHERED_BYTES: u64 = 1 << 20;

/// Requests that have begun, and were not passed to the disks yet.
#[derive(Clone, Copy, Default)]
struct Gathered {
    requests: usize,
    /// What they read or write, bytes.
    bytes: u64,
    /// One of them is too large to merge: it has nothing to wait for.
    is_large: bool,
}

impl Gathered {
    fn with(self, request: &Request) -> Self {
        let has_data = matches!(request.command, Command::Read | Command::Write);
        let bytes = if has_data { request.length.into() } else { 0 };
        Self {
            requests: self.requests + 1,
            bytes: self.bytes + bytes,
            is_large: self.is_large || bytes >= plug::FLUSH_BYTES,
        }
    }
}

/// State shared by the parts of a connection.
struct Flow<'a> {
    peer: &'a Peer,
    admission: &'a Admission<'a>,
    replies: RefCell<VecDeque<Reply<'a>>>,
    stopping: Cell<bool>,
    begun: Cell<Gathered>,
    /// Requests that the disks had when the connection's task last looked.
    with_disks: Cell<usize>,
}

impl<'a> Flow<'a> {
    fn new(peer: &'a Peer, admission: &'a Admission<'a>) -> Self {
        let (replies, stopping, begun, with_disks) = Default::default();
        Self { peer, admission, replies, stopping, begun, with_disks }
    }

    fn reply(&self, reply: Reply<'a>) {
        self.replies.borrow_mut().push_back(reply);
        self.admission.step();
    }

    /// Waits until the started requests were passed to the disks.
    async fn submitted(&self) {
        let has_begun = || self.begun.get().requests > 0;
        poll_fn(|_| if has_begun() { Poll::Pending } else { Poll::Ready(()) }).await;
    }

    /// Whether requests that have arrived are received before those that have begun go to the disks.
    fn gathers(&self) -> bool {
        let Gathered { requests, bytes, is_large } = self.begun.get();
        let has_room = requests < GATHERED_REQUESTS && bytes < GATHERED_BYTES && !is_large;
        requests > 0 && has_room && self.with_disks.get() > 0
    }

    /// Ends when the server stops.
    async fn stopped(&self) {
        poll_fn(|_| if self.stopping.get() { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

/// Serves `export` until the client or `stop` ends it and every request has ended.
pub(crate) async fn transmit<S: TryRecv>(
    stream: &S,
    input: Input<'_, S>,
    export: &OpenExport,
    terms: Terms,
    peer: &Peer,
    stop: impl Future<Output = ()>,
) -> Result<End, Disconnect> {
    let admission = Admission::new(peer);
    let flow = Flow::new(peer, &admission);
    let running = RefCell::new(FuturesUnordered::new());
    let start = |request, payload, ticket| {
        flow.begun.set(flow.begun.get().with(&request));
        running.borrow().push(execute(export, request, payload, ticket));
        admission.step();
    };
    let mut stop = pin!(stop);
    let mut receiver = pin!(receive(input, export, &terms, &flow, start).fuse());
    let mut sender = pin!(send(stream, terms.structured, &flow));
    let (mut ended, mut broken) = (None, None);
    poll_fn(|cx| {
        if !flow.stopping.get() && stop.as_mut().poll(cx).is_ready() {
            flow.stopping.set(true);
        }
        loop {
            let before = admission.steps();
            if ended.is_none()
                && broken.is_none()
                && let Poll::Ready(end) = receiver.as_mut().poll(cx)
            {
                ended = Some(end);
            }
            while let Poll::Ready(Some(reply)) = running.borrow_mut().poll_next_unpin(cx) {
                flow.reply(reply);
            }
            peer.set_running(running.borrow().len());
            flow.with_disks.set(running.borrow().len());
            if flow.begun.take().requests > 0 {
                plug::flush_current();
                admission.step();
            }
            if broken.is_none()
                && let Poll::Ready(error) = sender.as_mut().poll(cx)
            {
                broken = Some(error);
                receiver.set(Fuse::terminated());
            }
            if broken.is_some() {
                // They cannot be sent, and hold memory.
                flow.replies.borrow_mut().clear();
            }
            // The receiver has ended or was dropped, so only requests hold tickets.
            if (ended.is_some() || broken.is_some()) && admission.is_idle() {
                return Poll::Ready(());
            }
            if admission.steps() == before {
                return Poll::Pending;
            }
        }
    })
    .await;
    match (broken, ended) {
        (_, Some(Err(disconnect))) => Err(disconnect),
        (Some(error), _) => Err(error.into()),
        (None, Some(Ok(end))) => Ok(end),
        (None, None) => Ok(End::Closed),
    }
}

/// Parses and starts requests until the client or the server ends.
async fn receive<'a, S: TryRecv>(
    mut input: Input<'_, S>,
    export: &OpenExport,
    terms: &Terms,
    flow: &Flow<'a>,
    start: impl Fn(Request, Option<Buffer>, Ticket<'a>),
) -> Result<End, Disconnect> {
    loop {
        let Some(bytes) = input.bytes().first_chunk::<REQUEST_LEN>() else {
            if flow.stopping.get() {
                return Ok(End::Stopped);
            }
            let arrived = if flow.gathers() { input.try_fill()? } else { None };
            let more = if arrived.is_some() {
                arrived
            } else {
                flow.submitted().await;
                or_stopped(flow, input.fill()).await.transpose()?
            };
            match more {
                Some(true) => continue,
                Some(false) if input.is_empty() => return Ok(End::Closed),
                Some(false) => return Err(Disconnect::Truncated),
                None => return Ok(End::Stopped),
            }
        };
        let header = Header::parse(bytes).ok_or(Disconnect::BadMagic)?;
        input.consume(REQUEST_LEN);
        flow.peer.touch();
        let (error, message, skip, ticket) = match judge(&header, terms) {
            Verdict::Disconnect => return Err(Disconnect::Oversized(header.length)),
            Verdict::Run(Request { command: Command::Disc, .. }) => return Ok(End::Disc),
            Verdict::Run(request) if flow.stopping.get() => {
                let ticket = flow.admission.admit(0, || false).await;
                (Errno::Shutdown, "the server is shutting down", payload_len(&request), ticket)
            }
            Verdict::Run(request) => {
                let is_held_back = || export.volume().limiter().is_holding_back();
                let cost = cost(export, &request);
                let ticket = flow.admission.admit(cost, is_held_back).await;
                let len = payload_len(&request);
                if len == 0 {
                    start(request, None, ticket);
                    continue;
                }
                match Buffer::try_alloc(len as usize) {
                    Some(buffer) => {
                        let at_once = flow.gathers() && u64::from(len) < plug::FLUSH_BYTES;
                        let payload = input.payload(buffer, at_once);
                        let payload = flow.peer.transfer(Direction::In, len as usize, payload);
                        // A partial write is not executed; the client sees the connection end.
                        let payload = or_stopped(flow, payload).await.transpose()?;
                        let Some(payload) = payload else { return Ok(End::Stopped) };
                        start(request, Some(payload), ticket);
                        continue;
                    }
                    None => (Errno::NoMem, "out of memory", len, ticket),
                }
            }
            Verdict::Refuse { error, message, skip } => {
                (error, message, skip, flow.admission.admit(0, || false).await)
            }
        };
        match or_stopped(flow, input.skip(skip as usize)).await {
            Some(skipped) => skipped?,
            None => return Ok(End::Stopped),
        }
        let answer = Answer::Failed(error, message.to_owned());
        flow.reply(Reply { cookie: header.cookie, answer, ticket });
    }
}

/// Length of the payload that follows the request, bytes.
fn payload_len(request: &Request) -> u32 {
    if request.command == Command::Write { request.length } else { 0 }
}

/// `future`'s output, or `None` if it would have to wait while the server stops.
async fn or_stopped<T>(flow: &Flow<'_>, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut stopped = pin!(flow.stopped());
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => stopped.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Sends replies as they become ready; ends only with an error.
async fn send(stream: &impl Stream, structured: bool, flow: &Flow<'_>) -> io::Error {
    let (mut batch, mut chunks) = (Batch::default(), ChunkList::new());
    let mut most = FIRST_REPLIES;
    loop {
        poll_fn(|_| {
            if flow.replies.borrow().is_empty() {
                most = FIRST_REPLIES;
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        batch.gather(&mut flow.replies.borrow_mut(), most, structured, &mut chunks);
        most = (2 * most).min(BATCH_REPLIES);
        let bytes = chunks.len();
        let (sent, same) = flow.peer.transfer(Direction::Out, bytes, stream.send(chunks)).await;
        if let Err(error) = sent {
            return error;
        }
        chunks = same;
        chunks.clear();
        batch.tickets.clear();
    }
}

/// The replies of one call. The next call reuses the memory.
#[derive(Default)]
struct Batch<'a> {
    heads: Vec<u8>,
    /// Where headers are sent from, unless they are long.
    page: Option<Buffer>,
    /// Each data segment, and the end of the headers that precede it.
    data: Vec<(usize, Segment)>,
    tickets: Vec<Ticket<'a>>,
}

impl<'a> Batch<'a> {
    /// Takes the replies for one call, at most `most`, and adds what is to be sent to `chunks`. All headers share one buffer, of
    /// which the header segments are parts; data are sent from where they were read to. The replies' tickets are kept
    /// until the call has ended.
    fn gather(
        &mut self,
        replies: &mut VecDeque<Reply<'a>>,
        most: usize,
        structured: bool,
        chunks: &mut ChunkList,
    ) {
        self.heads.clear();
        let (mut bytes, mut count) = (0, 0);
        while count < most && bytes < BATCH_BYTES {
            let Some(Reply { cookie, answer, ticket }) = replies.pop_front() else { break };
            bytes += ticket.bytes();
            count += 1;
            self.tickets.push(ticket);
            if let Some(segment) = answer.encode(cookie, structured, &mut self.heads) {
                self.data.push((self.heads.len(), segment));
            }
        }
        let len = self.heads.len();
        let mut long = (len > PAGE_BYTES).then(|| Buffer::alloc(len));
        let heads = match &mut long {
            Some(long) => long,
            None => self.page.get_or_insert_with(|| Buffer::alloc(PAGE_BYTES)),
        };
        heads.as_mut_slice()[..len].copy_from_slice(&self.heads);
        let mut at = 0;
        for (end, segment) in self.data.drain(..) {
            chunks.push_segment(heads.segment(at..end));
            chunks.push_segment(segment);
            at = end;
        }
        if at < len {
            chunks.push_segment(heads.segment(at..len));
        }
    }
}
