//! The loop over `/dev/fuse` on one reactor.
//!
//! Requests are read until none is left, then the reactor runs its turn. Each request on a volume becomes a task, so
//! that the I/O of a batch meets in the plug. The first 80 bytes of a message, which hold the headers of a WRITE, go to
//! a separate buffer: the data of a WRITE then begins at the start of an aligned buffer and goes to the device without
//! being copied. Only short data are copied out, because a large buffer held for each would waste memory.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use ashlar_block::buffer::{Buffer, Segment};
use ashlar_block::byte_volume::ByteVolume;
use ashlar_block::runtime::Runtime;
use rustix::io::Errno;

use super::abi::{self, MAX_WRITE, WRITE_HEAD, opcode};
use super::dev::FuseDev;
use super::gate::{Class, Gate, Hold};
use super::job::Job;
use super::reply;
use super::request::Request;
use super::session::{Action, Session};
use super::tree::Namespace;

/// The least that a request counts for in that sum.
const REQUEST_BYTES: usize = 4096;
/// Payloads up to this length are copied out of the receive buffer, bytes.
const COPY_BYTES: usize = 64 << 10;
/// The same for what may wait for rate limits: so it holds at most twice as much memory as it counts for.
const COPY_LIMITED_BYTES: usize = MAX_WRITE / 2;
/// Requests read before other tasks get a turn.
const BATCH: usize = 64;

/// Serves a mount until it ends, and then the requests still in flight. `limited_bytes`: see [`limited_bytes`](super::gate::limited_bytes).
///
/// Several reactors may serve one session, each with a handle to the same connection.
///
/// # Errors
/// Those of reading `/dev/fuse`, other than the end of the mount.
pub async fn serve<D: FuseDev, N: Namespace>(
    dev: Rc<D>,
    session: Arc<Session<N>>,
    runtime: Arc<dyn Runtime>,
    limited_bytes: usize,
) -> io::Result<()> {
    let server = Server { dev, session, runtime, gate: Rc::new(Gate::new(limited_bytes)) };
    let ended = server.run().await;
    server.gate.until(Gate::is_empty).await;
    ended
}

/// Tells the kernel at once that a volume has another size. `fd` is a descriptor of the session's mount.
pub fn tell_size<N: Namespace>(fd: impl AsFd, session: &Session<N>, volume: &Arc<ByteVolume>) {
    for notice in session.size_notices(volume) {
        match rustix::io::write(&fd, &notice) {
            // The kernel has forgotten the file, or the mount is gone.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => {}
            Err(error) => tracing::warn!(%error, "cannot notify the kernel of a volume's size"),
        }
    }
}

struct Server<D, N> {
    dev: Rc<D>,
    session: Arc<Session<N>>,
    runtime: Arc<dyn Runtime>,
    gate: Rc<Gate>,
}

impl<D: FuseDev, N: Namespace> Server<D, N> {
    async fn run(&self) -> io::Result<()> {
        let mut inbox = Inbox::new();
        let mut read = 0;
        loop {
            self.gate.until(Gate::is_open).await;
            match inbox.receive(&*self.dev) {
                Ok(len) => self.dispatch(&mut inbox, len),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => {
                        self.dev.readable().await?;
                        read = 0;
                    }
                    // The request was withdrawn while it was delivered.
                    Some(Errno::INTR | Errno::NOENT) => {}
                    Some(Errno::NODEV) => return Ok(()),
                    Some(_) | None => return Err(error),
                },
            }
            read += 1;
            if read >= BATCH {
                read = 0;
                give_way().await;
            }
        }
    }

    fn dispatch(&self, inbox: &mut Inbox, len: usize) {
        let (message, payload) = inbox.message(len);
        let action = match Request::parse(message, payload.len()) {
            Ok(request) => self.session.handle(&request, payload),
            Err(malformed) => {
                tracing::error!("{malformed}");
                self.session.refuse(&malformed)
            }
        };
        match action {
            Action::Reply(bytes) => send(&*self.dev, &[IoSlice::new(&bytes)]),
            Action::Silent => {}
            Action::Run(job) => {
                let class = if job.is_limited() { Class::Limited } else { Class::Free };
                let payload = job.wants_payload().then(|| inbox.take_payload(len, class));
                self.start(job, payload, class);
            }
        }
    }

    fn start(&self, job: Job, payload: Option<Segment>, class: Class) {
        let bytes = match class {
            Class::Free => job.data_bytes(),
            Class::Limited => job.payload_bytes(),
        };
        let promise = Promise {
            dev: Rc::clone(&self.dev),
            unique: Some(job.unique),
            hold: Hold::new(&self.gate, class, bytes.max(REQUEST_BYTES)),
        };
        self.runtime.spawn(match class {
            Class::Free => Box::pin(run(job, payload, promise)),
            Class::Limited => Box::pin(run_limited(job, payload, promise)),
        });
    }
}

/// Runs a job, and answers its request.
async fn run<D: FuseDev>(job: Job, payload: Option<Segment>, promise: Promise<D>) {
    let done = job.run(payload).await;
    match &done.data {
        Some(data) => promise.keep(&[IoSlice::new(&done.head), IoSlice::new(data.as_slice())]),
        None => promise.keep(&[IoSlice::new(&done.head)]),
    }
}

/// The same for a volume with rate limits: a read gets its memory when they have let it pass.
async fn run_limited<D: FuseDev>(mut job: Job, payload: Option<Segment>, promise: Promise<D>) {
    let _room = match job.pass().await {
        Some(bytes) => promise.hold.gate().room(bytes).await,
        None => None,
    };
    run(job, payload, promise).await;
}

/// Writes a reply.
fn send<D: FuseDev>(dev: &D, parts: &[IoSlice<'_>]) {
    match dev.write(parts).map_err(|error| (Errno::from_io_error(&error), error)) {
        Ok(()) => {}
        // The mount or the request is gone: no process waits for the reply.
        Err((Some(Errno::NODEV | Errno::NOENT), _)) => {}
        Err((_, error)) => tracing::error!(%error, "the kernel did not accept a FUSE reply"),
    }
}

/// The promise to answer a request. Dropped without an answer (its task panicked, or the reactor ends) it answers EIO:
/// the process that waits must not hang.
struct Promise<D: FuseDev> {
    dev: Rc<D>,
    unique: Option<u64>,
    hold: Hold,
}

impl<D: FuseDev> Promise<D> {
    fn keep(mut self, parts: &[IoSlice<'_>]) {
        self.unique = None;
        send(&*self.dev, parts);
    }
}

impl<D: FuseDev> Drop for Promise<D> {
    fn drop(&mut self) {
        if let Some(unique) = self.unique.take() {
            send(&*self.dev, &[IoSlice::new(&reply::error(unique, Errno::IO))]);
        }
    }
}

/// Lets the queued tasks run.
fn give_way() -> impl Future<Output = ()> {
    let mut waited = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// The buffers that requests are received into.
struct Inbox {
    head: [u8; WRITE_HEAD],
    body: Buffer,
    /// A message longer than `head` that is not a WRITE, in one piece.
    joined: Vec<u8>,
}

impl Inbox {
    fn new() -> Self {
        Self { head: [0; WRITE_HEAD], body: Buffer::alloc(MAX_WRITE), joined: Vec::new() }
    }

    fn receive<D: FuseDev>(&mut self, dev: &D) -> io::Result<usize> {
        dev.try_read(&mut self.head, self.body.as_mut_slice())
    }

    /// The message of `len` bytes: headers and arguments, and the payload of a WRITE.
    fn message(&mut self, len: usize) -> (&[u8], &[u8]) {
        let head = &self.head[..len.min(WRITE_HEAD)];
        let body = &self.body.as_slice()[..len.saturating_sub(WRITE_HEAD).min(MAX_WRITE)];
        let code = head.get(4..8).and_then(|code| code.try_into().ok()).map(u32::from_ne_bytes);
        if body.is_empty() || code == Some(opcode::WRITE) {
            return (head, body);
        }
        self.joined.clear();
        self.joined.extend_from_slice(head);
        self.joined.extend_from_slice(body);
        (&self.joined, &[])
    }

    /// Takes the payload of the WRITE of `len` bytes that was just received.
    fn take_payload(&mut self, len: usize, class: Class) -> Segment {
        let payload = len.saturating_sub(WRITE_HEAD).min(MAX_WRITE);
        let copied = match class {
            Class::Free => COPY_BYTES,
            Class::Limited => COPY_LIMITED_BYTES,
        };
        if payload <= copied {
            return Buffer::from_slice(&self.body.as_slice()[..payload]).whole();
        }
        let mut full = std::mem::replace(&mut self.body, Buffer::alloc(MAX_WRITE));
        full.segment(0..payload)
    }
}

const _: () = assert!(size_of::<abi::InHeader>() >= 8 && COPY_BYTES < MAX_WRITE);
