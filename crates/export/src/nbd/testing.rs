//! Shared by the connection tests: a pipe in memory, a device with random delays, a client.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ashlar_block::bio::{Bio, Op};
use ashlar_block::buffer::{Buffer, Segment};
use ashlar_block::byte_volume::ByteVolume;
use ashlar_block::device::{BlockDevice, IoFuture, LocalFuture};
use ashlar_block::disk::Disk;
use ashlar_block::extent::{ExtentState, Extents};
use ashlar_block::gateway::Gateway;
use ashlar_block::limits::{Features, Limits};
use ashlar_block::status::Status;
use ashlar_block::units::{Sector, Sectors};
use ashlar_engine::ChunkList;
use futures_util::future::join;
use rustix::net::Shutdown;

use super::budget::Budget;
use super::export::{Export, Exports};
use super::peer::Peer;
use super::server::{Disconnect, End, serve};
use super::transmission::{Command, Header};
use crate::stream::TryRecv;
use ashlar_nbd::stream::Stream;
use ashlar_nbd::wire::{Fields, OPTS_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC};

/// xorshift64*: random enough for a test, the same in every run.
pub(crate) struct Chance(Cell<u64>);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Cell::new(seed | 1))
    }

    pub(crate) fn below(&self, n: u64) -> u64 {
        let mut x = self.0.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0.set(x);
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

/// Polls `future` until it ends, in a busy loop: no waker is needed.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..50_000_000_u64 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
    panic!("nothing happens");
}

/// Lets all other futures run once.
pub(crate) async fn turn() {
    let mut polled = false;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[derive(Default)]
struct Channel {
    bytes: VecDeque<u8>,
    closed: bool,
    broken: bool,
}

/// One end of a connection in memory.
pub(crate) struct Pipe {
    from: Rc<RefCell<Channel>>,
    to: Rc<RefCell<Channel>>,
    /// The most bytes per receive.
    fragment: Cell<usize>,
    /// The most bytes that wait in the other direction.
    room: usize,
    pub(crate) sends: Cell<usize>,
}

/// Two ends; each direction holds `room` bytes, and a receive returns at most `fragment` bytes.
pub(crate) fn pipe(room: usize, fragment: usize) -> (Pipe, Pipe) {
    let (a, b) = (Rc::<RefCell<Channel>>::default(), Rc::<RefCell<Channel>>::default());
    let end = |from: &Rc<_>, to: &Rc<_>| Pipe {
        from: Rc::clone(from),
        to: Rc::clone(to),
        fragment: Cell::new(fragment),
        room,
        sends: Cell::new(0),
    };
    (end(&a, &b), end(&b, &a))
}

impl Pipe {
    /// Ends this end's stream.
    pub(crate) fn close(&self) {
        self.to.borrow_mut().closed = true;
    }

    /// Makes the other end's sends fail.
    pub(crate) fn refuse(&self) {
        self.from.borrow_mut().broken = true;
    }

    /// The bytes that have arrived, without waiting.
    pub(crate) fn drain(&self) -> Vec<u8> {
        self.from.borrow_mut().bytes.drain(..).collect()
    }

    async fn send_bytes(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            poll_fn(|_| {
                let to = self.to.borrow();
                let free = to.broken || to.bytes.len() < self.room;
                if free { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let mut to = self.to.borrow_mut();
            if to.broken {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let n = bytes.len().min(self.room - to.bytes.len());
            to.bytes.extend(&bytes[..n]);
            bytes = &bytes[n..];
        }
        Ok(())
    }
}

impl Stream for Pipe {
    async fn recv(&self, into: Segment) -> io::Result<usize> {
        turn().await;
        poll_fn(|_| match self.try_recv(into.clone()) {
            Ok(None) => Poll::Pending,
            Ok(Some(n)) => Poll::Ready(Ok(n)),
            Err(error) => Poll::Ready(Err(error)),
        })
        .await
    }

    async fn recv_exact(&self, mut into: Segment) -> io::Result<()> {
        while !into.is_empty() {
            let n = self.recv(into.clone()).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            into.split_to(n);
        }
        Ok(())
    }

    async fn send(&self, from: Box<ChunkList>) -> (io::Result<()>, Box<ChunkList>) {
        self.sends.set(self.sends.get() + 1);
        (self.send_bytes(&from.to_vec()).await, from)
    }

    fn end(&self, how: Shutdown) {
        if how != Shutdown::Read {
            self.close();
        }
        if how != Shutdown::Write {
            self.refuse();
        }
    }
}

impl TryRecv for Pipe {
    fn try_recv(&self, into: Segment) -> io::Result<Option<usize>> {
        let mut from = self.from.borrow_mut();
        if from.bytes.is_empty() && !from.closed {
            return Ok(None);
        }
        let n = into.len().min(from.bytes.len()).min(self.fragment.get());
        let part: Vec<u8> = from.bytes.drain(..n).collect();
        into.copy_from(&part);
        Ok(Some(n))
    }
}

struct StoredBytes {
    now: Vec<u8>,
    durable: Vec<u8>,
    seed: u64,
}

/// A RAM device with a volatile cache whose I/O takes a random number of polls.
pub(crate) struct SlowRam {
    disk: Disk,
    stored: Mutex<StoredBytes>,
    most_polls: u64,
    /// Every other block of so many sectors is a hole; 0: none.
    hole: u64,
    bad: Mutex<Vec<u64>>,
    counts: Mutex<Counts>,
}

/// Counts of the I/Os of a [`SlowRam`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub(crate) started: usize,
    pub(crate) ended: usize,
    pub(crate) most_at_a_time: usize,
}

impl SlowRam {
    pub(crate) fn new(bytes: usize, most_polls: u64) -> Arc<Self> {
        Self::with_features(bytes, most_polls, Features::FAST_ZERO)
    }

    /// A disk with these features, too.
    pub(crate) fn with_features(bytes: usize, most_polls: u64, features: Features) -> Arc<Self> {
        let limits = Limits {
            max_hw_discard: Sectors(1 << 20),
            max_write_zeroes: Sectors(1 << 20),
            max_hw_sectors: Sectors(1 << 20),
            max_segments: 1024,
            features: Features::WRITE_CACHE | Features::FUA | Features::ROTATIONAL | features,
            ..Limits::default()
        };
        let sectors = Sectors::from_bytes_floor(bytes as u64);
        let stored = StoredBytes { now: vec![0; bytes], durable: vec![0; bytes], seed: 99 };
        Arc::new(Self {
            disk: Disk::new("ram", sectors, limits),
            stored: Mutex::new(stored),
            most_polls,
            hole: 0,
            bad: Mutex::default(),
            counts: Mutex::default(),
        })
    }

    /// A device that says that every other block of `hole_bytes` is a hole.
    pub(crate) fn with_holes(bytes: usize, hole_bytes: u64) -> Arc<Self> {
        let mut ram = Self::new(bytes, 0);
        Arc::get_mut(&mut ram).unwrap().hole = hole_bytes / 512;
        ram
    }

    pub(crate) fn volume(self: &Arc<Self>) -> ByteVolume {
        let device: Arc<dyn BlockDevice> = Arc::clone(self) as Arc<dyn BlockDevice>;
        ByteVolume::new(Gateway::new(device))
    }

    /// Makes reads and writes that touch `sector` fail from now on.
    pub(crate) fn fail(&self, sector: u64) {
        self.bad.lock().unwrap().push(sector);
    }

    /// The contents.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.stored.lock().unwrap().now.clone()
    }

    /// The contents after a power cut.
    pub(crate) fn durable_bytes(&self) -> Vec<u8> {
        self.stored.lock().unwrap().durable.clone()
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.counts.lock().unwrap()
    }

    fn apply(&self, bio: &Bio) -> Result<(), Status> {
        let range = bio.sector.bytes() as usize..bio.end().bytes() as usize;
        let sectors = bio.sector.0..bio.end().0;
        if bio.op.has_data() && self.bad.lock().unwrap().iter().any(|bad| sectors.contains(bad)) {
            return Err(Status::Medium);
        }
        let mut stored = self.stored.lock().unwrap();
        let stored = &mut *stored;
        match bio.op {
            Op::Read => {
                let mut at = range.start;
                for segment in &bio.segments {
                    segment.copy_from(&stored.now[at..at + segment.len()]);
                    at += segment.len();
                }
            }
            Op::Write => {
                let mut at = range.start;
                for segment in &bio.segments {
                    segment.copy_to(&mut stored.now[at..at + segment.len()]);
                    at += segment.len();
                }
                if bio.flags.contains(ashlar_block::bio::Flags::FUA) {
                    stored.durable[range.clone()].copy_from_slice(&stored.now[range]);
                }
            }
            Op::Flush => stored.durable.clone_from(&stored.now),
            Op::Discard | Op::WriteZeroes => stored.now[range].fill(0),
        }
        Ok(())
    }
}

impl BlockDevice for SlowRam {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(async move {
            turn().await;
            if self.hole == 0 {
                return Ok(Extents::data(at, len));
            }
            let (mut extents, end) = (Extents::new(at), at + len);
            while extents.end() < end {
                let block = extents.end().0 / self.hole;
                let hole = ExtentState::HOLE | ExtentState::ZERO;
                let state = if block % 2 == 1 { hole } else { ExtentState::empty() };
                extents.extend_to(Sector((block + 1) * self.hole).min(end), state);
            }
            Ok(extents)
        })
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        let polls = {
            let x = &mut self.stored.lock().unwrap().seed;
            *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*x >> 33) % (self.most_polls + 1)
        };
        let mut counts = self.counts.lock().unwrap();
        counts.started += 1;
        counts.most_at_a_time = counts.most_at_a_time.max(counts.started - counts.ended);
        drop(counts);
        if polls == 0 {
            let result = self.apply(&bio);
            self.counts.lock().unwrap().ended += 1;
            return IoFuture::ready(result);
        }
        IoFuture::boxed(async move {
            let mut left = polls;
            poll_fn(|context| {
                left -= 1;
                context.waker().wake_by_ref();
                if left == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let result = self.apply(&bio);
            self.counts.lock().unwrap().ended += 1;
            result
        })
    }
}

/// Size of the tests' device, bytes.
pub(crate) const SIZE: usize = 4 << 20;

/// Exports `ram` as `md0`.
pub(crate) fn exports(ram: &Arc<SlowRam>) -> Exports {
    let exports = Exports::new();
    exports.add(Export::new("md0", ram.volume()).unwrap()).unwrap();
    exports
}

/// A connection with a separate budget.
pub(crate) fn alone() -> Peer {
    Peer::alone(Arc::new(Budget::new(1 << 30)))
}

/// Runs the server on one end of a pipe and `client` on the other.
pub(crate) fn session<T, F: Future<Output = T>>(
    exports: &Exports,
    fragment: usize,
    client: impl FnOnce(Pipe) -> F,
) -> (Result<End, Disconnect>, T) {
    let (server, end) = pipe(1 << 20, fragment);
    run(join(
        async {
            let result = serve(&server, exports, &alone(), pending(), pending()).await;
            server.close();
            result
        },
        client(end),
    ))
}

/// `len` bytes that depend on the seed.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let chance = Chance::new(seed * 2 + 1);
    (0..len).map(|_| chance.below(256) as u8).collect()
}

/// A client's side of a connection.
pub(crate) struct Client {
    pub(crate) pipe: Pipe,
    structured: bool,
}

/// A reply, simple or structured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReceivedReply {
    Done,
    Data(u64, Vec<u8>),
    Extents(Vec<(u32, u32)>),
    Failed(u32, String),
}

impl Client {
    pub(crate) async fn send(&self, bytes: &[u8]) {
        self.pipe.send_bytes(bytes).await.unwrap();
    }

    /// The next `len` bytes; `None` at the end of the stream.
    pub(crate) async fn take(&self, len: usize) -> Option<Vec<u8>> {
        let mut got = Vec::new();
        while got.len() < len {
            let mut buffer = Buffer::alloc(len - got.len());
            let n = self.pipe.recv(buffer.whole()).await.unwrap();
            if n == 0 {
                return None;
            }
            got.extend(&buffer.as_slice()[..n]);
        }
        Some(got)
    }

    pub(crate) async fn option(&self, option: u32, data: &[u8]) {
        let mut message = OPTS_MAGIC.to_be_bytes().to_vec();
        message.extend(option.to_be_bytes());
        message.extend((data.len() as u32).to_be_bytes());
        message.extend(data);
        self.send(&message).await;
    }

    /// Receives option replies up to the final one and returns its type.
    pub(crate) async fn option_end(&self) -> u32 {
        loop {
            let head = self.take(20).await.unwrap();
            let mut fields = Fields(&head[12..]);
            let (kind, len) = (fields.u32().unwrap(), fields.u32().unwrap());
            self.take(len as usize).await.unwrap();
            if kind == 1 || kind >> 31 == 1 {
                return kind;
            }
        }
    }

    /// Begins the handshake.
    pub(crate) async fn greet(pipe: Pipe, structured: bool) -> Self {
        let client = Self { pipe, structured };
        client.take(18).await.unwrap();
        client.send(&[0, 0, 0, 3]).await;
        client
    }

    /// Negotiates and begins transmission of `name`: with GO, structured replies and `base:allocation`, or with
    /// EXPORT_NAME only.
    pub(crate) async fn connect(pipe: Pipe, name: &str, structured: bool) -> Self {
        let client = Self::greet(pipe, structured).await;
        if !structured {
            client.option(1, name.as_bytes()).await;
            client.take(10).await.unwrap();
            return client;
        }
        let mut named = (name.len() as u32).to_be_bytes().to_vec();
        named.extend(name.as_bytes());
        client.option(8, &[]).await;
        assert_eq!(client.option_end().await, 1);
        let query = b"\0\0\0\x01\0\0\0\x0fbase:allocation";
        client.option(10, &[&named[..], query].concat()).await;
        assert_eq!(client.option_end().await, 1);
        client.option(7, &[&named[..], &[0, 0]].concat()).await;
        assert_eq!(client.option_end().await, 1);
        client
    }

    /// A request as bytes.
    pub(crate) fn request(
        command: Command,
        flags: u16,
        cookie: u64,
        offset: u64,
        length: u32,
    ) -> Vec<u8> {
        Header { flags, number: command as u16, cookie, offset, length }.encode().to_vec()
    }

    /// The next reply, with its cookie. The caller must know the data length of a simple reply.
    pub(crate) async fn reply(
        &self,
        read_len: impl Fn(u64) -> usize,
    ) -> Option<(u64, ReceivedReply)> {
        if !self.structured {
            let head = self.take(16).await?;
            let mut fields = Fields(&head);
            assert_eq!(fields.u32(), Some(SIMPLE_REPLY_MAGIC));
            let (error, cookie) = (fields.u32()?, fields.u64()?);
            let len = if error == 0 { read_len(cookie) } else { 0 };
            return Some(match (error, len) {
                (0, 0) => (cookie, ReceivedReply::Done),
                (0, len) => (cookie, ReceivedReply::Data(0, self.take(len).await?)),
                (error, _) => (cookie, ReceivedReply::Failed(error, String::new())),
            });
        }
        let head = self.take(20).await?;
        let mut fields = Fields(&head);
        assert_eq!(fields.u32(), Some(STRUCTURED_REPLY_MAGIC));
        assert_eq!(fields.u16(), Some(1), "every reply is one chunk");
        let (kind, cookie, len) = (fields.u16()?, fields.u64()?, fields.u32()?);
        let payload = self.take(len as usize).await?;
        let mut fields = Fields(&payload);
        let got = match kind {
            0 => ReceivedReply::Done,
            1 => ReceivedReply::Data(fields.u64()?, fields.rest().to_vec()),
            5 => {
                assert_eq!(fields.u32(), Some(1));
                let pair = |mut pair: Fields<'_>| Some((pair.u32()?, pair.u32()?));
                ReceivedReply::Extents(
                    fields.rest().chunks(8).map_while(|at| pair(Fields(at))).collect(),
                )
            }
            0x8001 => {
                let (error, len) = (fields.u32()?, fields.u16()?);
                let text = fields.bytes(len.into())?.to_vec();
                ReceivedReply::Failed(error, String::from_utf8(text).unwrap())
            }
            other => panic!("chunk type {other}"),
        };
        Some((cookie, got))
    }

    /// Sends a request and waits for its reply; no other request may be in flight.
    pub(crate) async fn ask(
        &self,
        command: Command,
        flags: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> ReceivedReply {
        let mut message = Self::request(command, flags, 77, offset, length);
        message.extend(data);
        self.send(&message).await;
        let len = if command == Command::Read { length as usize } else { 0 };
        let (cookie, got) = self.reply(|_| len).await.unwrap();
        assert_eq!(cookie, 77);
        got
    }
}
