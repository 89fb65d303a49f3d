//! A server on the simulator: byte streams, a disk with a cache, and what can go wrong.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use ashlar_block::sync::until;
use ashlar_block::{Runtime, Segment};
use ashlar_engine::{ChunkList, Receiver, oneshot};
use ashlar_sim::{Rng, SimRuntime};
use event_listener::Event;
use rustix::net::Shutdown;

use crate::network::Network;
use crate::stream::Stream;
use crate::uri::Address;
use crate::wire::{
    CMD_DISC, CMD_FLAG_FUA, CMD_FLUSH, CMD_READ, CMD_WRITE, FLAG_FIXED_NEWSTYLE, FLAG_HAS_FLAGS,
    FLAG_NO_ZEROES, FLAG_SEND_FLUSH, FLAG_SEND_FUA, Fields, Header, INFO_EXPORT, INIT_PASSWD,
    OPT_GO, OPT_STRUCTURED_REPLY, OPTS_MAGIC, REP_ACK, REP_ERR_UNSUP, REP_INFO, REP_MAGIC,
    REQUEST_LEN, SIMPLE_REPLY_MAGIC,
};

/// Sectors of the export.
pub(super) const SECTORS: usize = 64;
/// The bytes that a direction of a connection holds.
const ROOM: usize = 16 << 10;
/// A command is answered within this time, unless it hangs.
const USUAL: Duration = Duration::from_millis(300);
/// One that hangs is executed, or not, within this time.
const LATE: Duration = Duration::from_secs(8);

thread_local! {
    static SERVER: RefCell<Option<Rc<Server>>> = const { RefCell::new(None) };
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    bytes: RefCell<VecDeque<u8>>,
    is_closed: Cell<bool>,
    changed: Event,
}

impl Pipe {
    fn close(&self) {
        self.is_closed.set(true);
        self.changed.notify(usize::MAX);
    }

    async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.chunks(ROOM / 4) {
            let has_room = || self.bytes.borrow().len() + part.len() <= ROOM;
            until(&self.changed, || self.is_closed.get() || has_room()).await;
            if self.is_closed.get() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.bytes.borrow_mut().extend(part);
            self.changed.notify(usize::MAX);
        }
        Ok(())
    }

    /// The next bytes, at least one, at most `most`; none at the end.
    async fn recv(&self, most: usize) -> Vec<u8> {
        let has_some = || !self.bytes.borrow().is_empty();
        until(&self.changed, || self.is_closed.get() || has_some()).await;
        let mut bytes = self.bytes.borrow_mut();
        let some = most.min(bytes.len());
        let count = if some > 1 { 1 + server().below(some as u64) as usize } else { some };
        let taken = bytes.drain(..count).collect();
        drop(bytes);
        self.changed.notify(usize::MAX);
        taken
    }
}

/// One end of a connection.
#[derive(Clone)]
pub(crate) struct SimStream {
    to: Rc<Pipe>,
    from: Rc<Pipe>,
}

impl SimStream {
    async fn array<const N: usize>(&self) -> io::Result<[u8; N]> {
        let bytes = self.exactly(N).await?;
        Ok(bytes.try_into().expect("as many as asked for"))
    }

    async fn exactly(&self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            let more = self.from.recv(count - bytes.len()).await;
            if more.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            bytes.extend(more);
        }
        Ok(bytes)
    }
}

impl Stream for SimStream {
    async fn recv(&self, into: Segment) -> io::Result<usize> {
        let bytes = self.from.recv(into.len()).await;
        into.copy_from(&bytes);
        Ok(bytes.len())
    }

    async fn recv_exact(&self, into: Segment) -> io::Result<()> {
        into.copy_from(&self.exactly(into.len()).await?);
        Ok(())
    }

    async fn send(&self, from: Box<ChunkList>) -> (io::Result<()>, Box<ChunkList>) {
        (self.to.send(&from.to_vec()).await, from)
    }

    fn end(&self, how: Shutdown) {
        if how != Shutdown::Read {
            self.to.close();
        }
        if how != Shutdown::Write {
            self.from.close();
        }
    }
}

/// The network of the simulation: one thread, and one server.
pub(crate) struct Simulated;

impl Network for Simulated {
    type Stream = SimStream;
    type Thread = ();

    async fn connect(_: &Address) -> io::Result<SimStream> {
        let server = server();
        Self::sleep(Duration::from_nanos(server.below(20_000_000))).await;
        let (to, from) = (Rc::<Pipe>::default(), Rc::<Pipe>::default());
        let client = SimStream { to: Rc::clone(&to), from: Rc::clone(&from) };
        let stream = SimStream { to: from, from: to };
        Self::spawn(async move {
            // Its client notices how it ends.
            let (Ok(()) | Err(_)) = server.serve(stream).await;
        });
        Ok(client)
    }

    fn spawn(task: impl Future<Output = ()> + 'static) {
        SimRuntime.spawn(Box::pin(task));
    }

    async fn sleep(duration: Duration) {
        SimRuntime.sleep(duration).await;
    }

    fn run_on<F, Fut>((): &(), make: F) -> Receiver<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let future = make();
        Self::spawn(async move { sender.send(future.await) });
        receiver
    }
}

/// A connection, as the server sees it.
struct Served {
    stream: SimStream,
    /// When each command came that has no answer yet, by its cookie.
    unanswered: RefCell<Vec<(u64, u64)>>,
    /// The commands that may still be executed.
    busy: Cell<usize>,
    idle: Event,
    /// The server has closed it, and executes nothing more that came here.
    is_cut: Cell<bool>,
}

impl Served {
    fn cut(&self) {
        self.is_cut.set(true);
        self.stream.end(Shutdown::Both);
    }

    fn begin(&self, cookie: u64) {
        self.busy.set(self.busy.get() + 1);
        self.unanswered.borrow_mut().push((cookie, SimRuntime.now_ns()));
    }

    fn answered(&self, cookie: u64) {
        self.unanswered.borrow_mut().retain(|(other, _)| *other != cookie);
    }

    fn end(&self) {
        self.busy.set(self.busy.get() - 1);
        self.idle.notify(usize::MAX);
    }
}

/// See the module text.
pub(super) struct Server {
    rng: RefCell<Rng>,
    /// The contents, with the cache, and without it.
    data: RefCell<[u64; SECTORS]>,
    durable: RefCell<[u64; SECTORS]>,
    connections: RefCell<Vec<Rc<Served>>>,
    /// One command in so many hangs; 0: none.
    pub(super) hangs_in: Cell<u64>,
    /// The least age of the oldest command without an answer when a client leaves a connection for that.
    pub(super) patience: Cell<Duration>,
    pub(super) opened: Cell<usize>,
    pub(super) left: Cell<usize>,
    pub(super) wrongly_left: Cell<usize>,
    /// Connections that ended with the client's word.
    pub(super) farewells: Cell<usize>,
}

/// The server of this thread.
pub(super) fn server() -> Rc<Server> {
    SERVER.with_borrow(Clone::clone).expect("a server runs")
}

fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let head = [
        &REP_MAGIC.to_be_bytes()[..],
        &option.to_be_bytes(),
        &kind.to_be_bytes(),
        &(data.len() as u32).to_be_bytes(),
    ];
    [&head.concat(), data].concat()
}

impl Server {
    /// Runs one, in place of the one before.
    pub(super) fn start(rng: Rng) -> Rc<Self> {
        let this = Rc::new(Self {
            rng: RefCell::new(rng),
            data: RefCell::new([0; SECTORS]),
            durable: RefCell::new([0; SECTORS]),
            connections: RefCell::default(),
            hangs_in: Cell::new(0),
            patience: Cell::default(),
            opened: Cell::new(0),
            left: Cell::new(0),
            wrongly_left: Cell::new(0),
            farewells: Cell::new(0),
        });
        SERVER.set(Some(Rc::clone(&this)));
        this
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.rng.borrow_mut().below(bound)
    }

    fn is_one_in(&self, count: u64) -> bool {
        count > 0 && self.below(count) == 0
    }

    /// The connections that have not ended.
    pub(super) fn clients(&self) -> usize {
        self.connections.borrow().iter().filter(|served| !served.is_cut.get()).count()
    }

    /// Ends all connections. With `restart` it loses any part of what was not flushed.
    pub(super) fn cut(&self, restart: bool) {
        self.connections.take().iter().for_each(|served| served.cut());
        if restart {
            let durable = *self.durable.borrow();
            for (value, kept) in self.data.borrow_mut().iter_mut().zip(durable) {
                if self.below(2) == 0 {
                    *value = kept;
                }
            }
            *self.durable.borrow_mut() = *self.data.borrow();
        }
    }

    async fn serve(self: Rc<Self>, stream: SimStream) -> io::Result<()> {
        shake_hands(&stream).await?;
        self.opened.set(self.opened.get() + 1);
        let served = Rc::new(Served {
            stream,
            unanswered: RefCell::default(),
            busy: Cell::new(0),
            idle: Event::new(),
            is_cut: Cell::new(false),
        });
        self.connections.borrow_mut().push(Rc::clone(&served));
        while let Ok(head) = served.stream.array::<REQUEST_LEN>().await {
            let Header { flags, number: kind, cookie, offset, length: len } =
                Header::parse(&head).unwrap();
            let data = if kind == CMD_WRITE { len } else { 0 };
            let Ok(data) = served.stream.exactly(data as usize).await else { break };
            if kind == CMD_DISC {
                assert_eq!(served.unanswered.borrow().len(), 0, "it waits for the replies");
                self.farewells.set(self.farewells.get() + 1);
                served.cut();
                return Ok(());
            }
            served.begin(cookie);
            let command = Command { flags, kind, cookie, sector: offset / 512, len, data };
            Simulated::spawn(Rc::clone(&self).execute(Rc::clone(&served), command));
        }
        if !served.is_cut.get() {
            self.is_left(&served);
        }
        // Closed once all that came has been executed or dropped.
        until(&served.idle, || served.busy.get() == 0).await;
        served.cut();
        Ok(())
    }

    /// The client sends nothing more: it has reason to.
    fn is_left(&self, served: &Served) {
        self.left.set(self.left.get() + 1);
        let oldest = served.unanswered.borrow().iter().map(|(_, since_ns)| *since_ns).min();
        let age_ns = oldest.map(|since_ns| SimRuntime.now_ns() - since_ns);
        let patience_ns = self.patience.get().as_nanos() as u64;
        if age_ns.is_none_or(|age_ns| age_ns < patience_ns) {
            self.wrongly_left.set(self.wrongly_left.get() + 1);
        }
    }

    async fn execute(self: Rc<Self>, served: Rc<Served>, command: Command) {
        let hangs = self.is_one_in(self.hangs_in.get());
        let within = if hangs { LATE } else { USUAL };
        Simulated::sleep(Duration::from_nanos(self.below(within.as_nanos() as u64))).await;
        // A late one happens, or is dropped.
        let is_dropped = hangs && self.below(2) == 0;
        if !served.is_cut.get() && !is_dropped {
            let mut reply = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
            reply.extend(0_u32.to_be_bytes());
            reply.extend(command.cookie.to_be_bytes());
            reply.extend(self.apply(&command));
            if !hangs {
                // The client may be gone.
                let (Ok(()) | Err(_)) = served.stream.to.send_whole(reply).await;
                served.answered(command.cookie);
            }
        }
        served.end();
    }

    fn apply(&self, command: &Command) -> Vec<u8> {
        let range = command.sector as usize..command.sector as usize + command.len as usize / 512;
        let mut data = self.data.borrow_mut();
        match command.kind {
            CMD_READ => {
                data[range].iter().flat_map(|value| value.to_le_bytes().repeat(64)).collect()
            }
            CMD_WRITE => {
                for (sector, bytes) in range.zip(command.data.chunks(512)) {
                    let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    data[sector] = value;
                    if command.flags & CMD_FLAG_FUA != 0 {
                        self.durable.borrow_mut()[sector] = value;
                    }
                }
                Vec::new()
            }
            CMD_FLUSH => {
                *self.durable.borrow_mut() = *data;
                Vec::new()
            }
            other => panic!("command {other}"),
        }
    }
}

struct Command {
    flags: u16,
    kind: u16,
    cookie: u64,
    sector: u64,
    len: u32,
    data: Vec<u8>,
}

impl Pipe {
    /// Sends a message that no other one may divide.
    async fn send_whole(&self, bytes: Vec<u8>) -> io::Result<()> {
        let has_room = || self.bytes.borrow().len() + bytes.len() <= ROOM;
        until(&self.changed, || self.is_closed.get() || has_room()).await;
        if self.is_closed.get() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.bytes.borrow_mut().extend(bytes);
        self.changed.notify(usize::MAX);
        Ok(())
    }
}

async fn shake_hands(stream: &SimStream) -> io::Result<()> {
    let own = FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES;
    let greeting = [&INIT_PASSWD.to_be_bytes()[..], &OPTS_MAGIC.to_be_bytes(), &own.to_be_bytes()];
    stream.to.send(&greeting.concat()).await?;
    stream.array::<4>().await?;
    loop {
        let head = stream.array::<16>().await?;
        let mut fields = Fields(&head[8..]);
        let (option, len) = (fields.u32().unwrap(), fields.u32().unwrap());
        stream.exactly(len as usize).await?;
        if option != OPT_GO {
            assert_eq!(option, OPT_STRUCTURED_REPLY);
            stream.to.send(&option_reply(option, REP_ERR_UNSUP, &[])).await?;
            continue;
        }
        let flags = FLAG_HAS_FLAGS | FLAG_SEND_FLUSH | FLAG_SEND_FUA;
        let info = [
            &INFO_EXPORT.to_be_bytes()[..],
            &(SECTORS as u64 * 512).to_be_bytes(),
            &flags.to_be_bytes(),
        ];
        stream.to.send(&option_reply(option, REP_INFO, &info.concat())).await?;
        return stream.to.send(&option_reply(option, REP_ACK, &[])).await;
    }
}
