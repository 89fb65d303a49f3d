//! A data channel: the requests of one thread for one volume, on their way to the worker and back.
//!
//! | link      | a new request             | leads to                                   |
//! |-----------|---------------------------|--------------------------------------------|
//! | attaching | waits                     | open; closed if the worker would not       |
//! | open      | is sent, or waits for room | closed, when the worker has closed its end |
//! | closed    | fails                     | -                                          |
//!
//! The queue's `nr_requests` bounds the waiting requests. A task of the channel sends them after
//! the tasks that were runnable: requests submitted at the same time go in one packet, if they fit.
//! To a worker in a sandbox their data go through this thread's [`Window`], and wait for room there.

use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use ashlar_block::bio::{Flags, Op};
use ashlar_block::request::Request;
use ashlar_block::status::{BioResult, Status};
use ashlar_engine::fd::Fd;
use ashlar_engine::spawn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use slab::Slab;
use zerocopy::{FromBytes, IntoBytes};

use super::opening::{Opening, Volume};
use super::window::{Room, Window};
use crate::control;
use crate::protocol::{
    Command, Completion, FUA, MAX_SUBMISSION_BYTES, RemoteSegment, Submission, op,
};

/// Completions per read from the socket.
const MAX_COMPLETIONS: usize = 64;
/// Packets received before other tasks run.
const MAX_PACKETS: usize = 256;
/// Room for several packets, independent of the system's default.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// How long an exiting thread waits for requests in flight before it leaks them.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

thread_local! {
    /// This thread's channels.
    static CHANNELS: RefCell<HashMap<Opening, Rc<Channel>>> = RefCell::default();
}

enum Link {
    Attaching,
    Open(Fd),
    Closed,
}

struct SentRequest {
    request: Request,
    /// Its completion carries this tag: it identifies a late completion for a former request of the slot.
    tag: u64,
    /// The room of its data, if they go through a window.
    room: Option<Room>,
}

struct State {
    link: Link,
    in_flight: Slab<SentRequest>,
    /// Not sent yet.
    waiting: VecDeque<Request>,
    /// The waker of the idle sending task.
    sender: Option<Waker>,
    sent: u32,
}

/// A packet, and the keys of its requests.
#[derive(Default)]
struct Batch {
    packet: Vec<u8>,
    keys: Vec<usize>,
}

/// What has no room for a request now.
enum NoRoom {
    Socket,
    Window(Rc<Window>),
}

/// See the module text.
pub(super) struct Channel {
    volume: Arc<Volume>,
    opening: Opening,
    /// `None`: the worker reaches the memory of requests.
    window: OnceCell<Rc<Window>>,
    state: RefCell<State>,
}

/// Passes a request to the current thread's channel for this opening of `volume`.
pub(super) fn submit(volume: &Arc<Volume>, opening: Opening, request: Request) {
    let channel = CHANNELS.try_with(|channels| {
        let mut channels = channels.borrow_mut();
        Rc::clone(channels.entry(opening).or_insert_with(|| Channel::attach(volume, opening)))
    });
    match channel {
        Ok(channel) => channel.submit(request),
        // The thread is exiting.
        Err(_) => request.complete(Err(Status::Io)),
    }
}

impl Channel {
    /// Makes a channel and asks the worker to take its other end.
    fn attach(volume: &Arc<Volume>, opening: Opening) -> Rc<Self> {
        let state = State {
            link: Link::Attaching,
            in_flight: Slab::new(),
            waiting: VecDeque::new(),
            sender: None,
            sent: 0,
        };
        let (volume, state) = (Arc::clone(volume), RefCell::new(state));
        let this = Rc::new(Self { volume, opening, window: OnceCell::new(), state });
        let channel = Rc::clone(&this);
        spawn(async move {
            // However the task ends, the guard fails the waiting requests.
            let guard = Guard(channel);
            let channel = &guard.0;
            match channel.connect().await {
                Ok(fd) => {
                    channel.state.borrow_mut().link = Link::Open(fd.clone());
                    let (sending, to) = (Rc::clone(channel), fd.clone());
                    // The sending task ends with this one.
                    let sender = spawn(async move { sending.send(&to).await });
                    channel.receive(&fd).await;
                    drop(sender);
                }
                Err(error) => {
                    tracing::error!(volume = channel.volume.name(), error, "no data channel");
                }
            }
        })
        .detach();
        this
    }

    async fn connect(&self) -> Result<Fd, String> {
        let (ours, theirs) = control::pair().map_err(|error| error.to_string())?;
        // A packet larger than the buffer would never be sent.
        if let Err(errno) = sockopt::set_socket_send_buffer_size(&ours, SEND_BUFFER_BYTES) {
            tracing::debug!(%errno, "the buffer of a data channel");
        }
        self.attach_to_worker(theirs).await?;
        Ok(Fd::new(ours))
    }

    async fn attach_to_worker(&self, theirs: OwnedFd) -> Result<(), String> {
        let worker = &self.volume.worker;
        let mut number = None;
        if worker.is_confined() {
            let failed = |error: io::Error| format!("no memory to share with the worker: {error}");
            let window = Window::of(worker).map_err(failed)?;
            let (command, file, window_number) = window.command().map_err(failed)?;
            // A channel connects once.
            let (Ok(()) | Err(_)) = self.window.set(window);
            worker.call_with(command, file).await.map_err(|error| error.to_string())?;
            number = Some(window_number);
        }
        let command = Command::Attach { volume: self.opening.number, window: number };
        match worker.call_with(command, theirs).await {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn submit(&self, request: Request) {
        let mut state = self.state.borrow_mut();
        if matches!(state.link, Link::Closed) {
            drop(state);
            return request.complete(Err(Status::Io));
        }
        state.waiting.push_back(request);
        if let Some(sender) = state.sender.take() {
            sender.wake();
        }
    }

    /// Sends submitted requests, until the channel closes.
    async fn send(&self, fd: &Fd) {
        let mut batch = Batch::default();
        loop {
            poll_fn(|context| {
                let mut state = self.state.borrow_mut();
                if state.waiting.is_empty() {
                    state.sender = Some(context.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .await;
            while let Err(full) = self.send_packet(fd, &mut batch) {
                match full {
                    // An error shows up again at the next send.
                    NoRoom::Socket => {
                        let (Ok(()) | Err(_)) = fd.writable().await;
                    }
                    NoRoom::Window(window) => window.room_given().await,
                }
            }
        }
    }

    /// Sends as many waiting requests as fit in a packet.
    fn send_packet(&self, fd: &Fd, batch: &mut Batch) -> Result<(), NoRoom> {
        let Batch { packet, keys } = batch;
        packet.clear();
        keys.clear();
        let mut state = self.state.borrow_mut();
        let State { in_flight, waiting, sent, .. } = &mut *state;
        while let Some(request) = waiting.pop_front() {
            let window = self.window.get().filter(|_| request.op().has_data());
            let room = window.and_then(|window| window.enter(&request));
            if window.is_some() && room.is_none() {
                waiting.push_front(request);
                break;
            }
            let before = packet.len();
            let entry = in_flight.vacant_entry();
            let tag = u64::from(*sent) << 32 | entry.key() as u64;
            match &room {
                Some(room) => add_to_packet(packet, &request, tag, [room.segment()].into_iter()),
                None => add_to_packet(packet, &request, tag, own_segments(&request)),
            }
            if before > 0 && packet.len() > MAX_SUBMISSION_BYTES {
                packet.truncate(before);
                waiting.push_front(request);
                break;
            }
            *sent = sent.wrapping_add(1);
            keys.push(entry.key());
            entry.insert(SentRequest { request, tag, room });
        }
        if let (true, Some(window)) = (keys.is_empty(), self.window.get()) {
            return Err(NoRoom::Window(Rc::clone(window)));
        }
        let Err(errno) =
            retry_on_intr(|| send(fd, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
        else {
            return Ok(());
        };
        // A packet is sent as a whole: the worker has not seen any of these.
        let back = keys.iter().rev().map(|key| in_flight.remove(*key).request);
        if matches!(errno, Errno::AGAIN | Errno::NOBUFS) {
            back.for_each(|request| waiting.push_front(request));
            return Err(NoRoom::Socket);
        }
        let failed: Vec<Request> = back.collect();
        // Completing a request may submit another.
        drop(state);
        tracing::debug!(%errno, "a packet was not sent");
        for request in failed.into_iter().rev() {
            self.end(request, Err(Status::Io));
        }
        Ok(())
    }

    /// Completes requests as the worker reports them, until it closes its end.
    async fn receive(&self, fd: &Fd) {
        let mut buffer = [0; MAX_COMPLETIONS * size_of::<Completion>()];
        loop {
            // Not through the ring: a cancelled operation could swallow a completion.
            if let Err(error) = fd.readable().await {
                return tracing::error!(%error, "waiting for a worker");
            }
            for _ in 0..MAX_PACKETS {
                match self.take(fd, &mut buffer) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(ClosedEnd) => return,
                }
            }
        }
    }

    /// Receives a packet; returns whether there was one.
    fn take(&self, fd: impl AsFd, buffer: &mut [u8]) -> Result<bool, ClosedEnd> {
        let len = match recv(fd, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(ClosedEnd),
            Ok((len, _)) => len,
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => return Ok(true),
            Err(errno) => {
                tracing::debug!(%errno, "a worker's data channel");
                return Err(ClosedEnd);
            }
        };
        let mut rest = &buffer[..len];
        while let Ok((completion, more)) = Completion::read_from_prefix(rest) {
            self.complete(completion);
            rest = more;
        }
        Ok(true)
    }

    fn complete(&self, Completion { tag, errno, .. }: Completion) {
        let key = tag as u32 as usize;
        let mut state = self.state.borrow_mut();
        if state.in_flight.get(key).is_none_or(|in_flight| in_flight.tag != tag) {
            return tracing::error!(tag, "a worker ended a request that it was not given");
        }
        let SentRequest { request, room, .. } = state.in_flight.remove(key);
        // Completing a request may submit another.
        drop(state);
        let result = match errno {
            0 => Ok(()),
            errno => Err(Status::from_errno(errno)),
        };
        if let (Some(room), Ok(())) = (&room, result)
            && request.op() == Op::Read
        {
            room.read(&request);
        }
        // Before its submitter asks for more.
        drop(room);
        self.end(request, result);
    }

    fn end(&self, request: Request, result: BioResult) {
        if let Err(status) = result {
            self.volume.failed(request.op(), request.sector(), status);
        }
        request.complete(result);
    }

    /// Fails all requests: the worker can no longer touch their memory.
    fn close(&self) {
        let (in_flight, waiting) = {
            let mut state = self.state.borrow_mut();
            state.link = Link::Closed;
            (std::mem::take(&mut state.in_flight), std::mem::take(&mut state.waiting))
        };
        // An open volume may get a new channel; that one fails too if the worker is dead.
        if let Ok(removed) =
            CHANNELS.try_with(|channels| channels.borrow_mut().remove(&self.opening))
        {
            drop(removed);
        }
        for (_, SentRequest { request, .. }) in in_flight {
            self.end(request, Err(Status::Io));
        }
        for request in waiting {
            self.end(request, Err(Status::Io));
        }
    }

    /// Waits, without a reactor, until nothing is in flight.
    fn drain(&self, fd: &Fd) {
        let deadline = Instant::now() + DRAIN_LIMIT;
        let mut buffer = [0; MAX_COMPLETIONS * size_of::<Completion>()];
        while !self.state.borrow().in_flight.is_empty() {
            match self.take(fd, &mut buffer) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(ClosedEnd) => return,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let lost = std::mem::take(&mut self.state.borrow_mut().in_flight);
                tracing::error!(count = lost.len(), "requests never ended; leaking their memory");
                std::mem::forget(lost);
                return;
            }
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            // The loop checks whatever poll returns.
            let (Ok(_) | Err(_)) = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout));
        }
    }
}

/// The worker has closed its end.
struct ClosedEnd;

/// A channel's task. When the task ends, or is dropped with its reactor, the channel closes.
struct Guard(Rc<Channel>);

impl Drop for Guard {
    fn drop(&mut self) {
        let fd = match &self.0.state.borrow().link {
            Link::Open(fd) => Some(fd.clone()),
            Link::Attaching | Link::Closed => None,
        };
        if let Some(fd) = fd {
            // Waiting requests are no longer sent: the sending task is gone.
            self.0.drain(&fd);
        }
        self.0.close();
    }
}

fn code(op: Op) -> u8 {
    match op {
        Op::Read => op::READ,
        Op::Write => op::WRITE,
        Op::Flush => op::FLUSH,
        Op::Discard => op::DISCARD,
        Op::WriteZeroes => op::WRITE_ZEROES,
    }
}

/// The segments of a request, in the memory of this process.
fn own_segments(request: &Request) -> impl Iterator<Item = RemoteSegment> {
    request.segments().map(|segment| RemoteSegment {
        address: segment.as_ptr() as u64,
        len_bytes: segment.len() as u64,
    })
}

/// Adds a request and its segments, if it moves data, to a packet.
fn add_to_packet(
    packet: &mut Vec<u8>,
    request: &Request,
    tag: u64,
    list: impl Iterator<Item = RemoteSegment>,
) {
    let at = packet.len();
    packet.resize(at + size_of::<Submission>(), 0);
    let mut segments = 0;
    if request.op().has_data() {
        let mut last: Option<RemoteSegment> = None;
        for RemoteSegment { address, len_bytes } in list {
            match &mut last {
                // Merge segments that are adjacent in memory.
                Some(last) if last.address + last.len_bytes == address => {
                    last.len_bytes += len_bytes
                }
                _ => {
                    if let Some(done) = last.replace(RemoteSegment { address, len_bytes }) {
                        packet.extend_from_slice(done.as_bytes());
                        segments += 1;
                    }
                }
            }
        }
        if let Some(done) = last {
            packet.extend_from_slice(done.as_bytes());
            segments += 1;
        }
    }
    let header = Submission {
        tag,
        offset_bytes: request.sector().bytes(),
        len_bytes: request.len().bytes(),
        op: code(request.op()),
        flags: if request.flags().contains(Flags::FUA) { FUA } else { 0 },
        segments,
        reserved: 0,
    };
    packet[at..at + size_of::<Submission>()].copy_from_slice(header.as_bytes());
}
