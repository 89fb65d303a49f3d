//! The server's loop, fed with recorded messages.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;

use ashlar_block::{
    Disk, Driver, Gateway, Limits, LocalFuture, Queue, Request, Runtime, Sectors, Status, plug,
};

use super::super::abi::{self, opcode};
use super::super::dev::FuseDev;
use super::super::server::serve;
use super::ram::Ram;
use super::*;

/// A device that delivers messages and keeps the replies. It ends once all were delivered.
#[derive(Default)]
struct RecordingDevice {
    messages: RefCell<VecDeque<Vec<u8>>>,
    replies: RefCell<Vec<Vec<u8>>>,
    /// All messages are there from the beginning; otherwise every other read finds none, so that each request is its own batch.
    together: bool,
    dry: Cell<bool>,
}

impl FuseDev for RecordingDevice {
    fn try_read(&self, head: &mut [u8], body: &mut [u8]) -> io::Result<usize> {
        if !self.together && !self.dry.replace(!self.dry.get()) {
            return Err(Errno::AGAIN.into());
        }
        let Some(message) = self.messages.borrow_mut().pop_front() else {
            return Err(Errno::NODEV.into());
        };
        let (front, back) = message.split_at(message.len().min(head.len()));
        head[..front.len()].copy_from_slice(front);
        body[..back.len()].copy_from_slice(back);
        Ok(message.len())
    }

    /// Lets the tasks run.
    async fn readable(&self) -> io::Result<()> {
        let mut waited = false;
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut waited, true) { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.replies.borrow_mut().push(parts.iter().flat_map(|part| part.to_vec()).collect());
        Ok(())
    }
}

thread_local! {
    static TASKS: RefCell<VecDeque<LocalFuture<'static, ()>>> = const { RefCell::new(VecDeque::new()) };
}

struct TestRuntime;

impl Runtime for TestRuntime {
    fn now_ns(&self) -> u64 {
        0
    }

    fn wall_clock(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) -> LocalFuture<'static, ()> {
        Box::pin(async {})
    }

    fn spawn(&self, task: LocalFuture<'static, ()>) {
        TASKS.with_borrow_mut(|tasks| tasks.push_back(task));
    }
}

/// Serves the messages; the tasks run whenever the server waits.
fn serve_all(ram: &Arc<Ram>, messages: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let dev = RecordingDevice { messages: RefCell::new(messages.into()), ..Default::default() };
    serve_from(dev, ram.volume())
}

/// Serves the messages of `dev`; whenever the server waits, the tasks run, and then the plug is flushed, as by a reactor.
fn serve_from(dev: RecordingDevice, volume: Arc<ByteVolume>) -> Vec<Vec<u8>> {
    let dev = Rc::new(dev);
    let (_, session) = session(&[("dev/md0", volume)]);
    let mut server = Box::pin(serve(Rc::clone(&dev), Arc::new(session), Arc::new(TestRuntime), 0));
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..10_000 {
        if let Poll::Ready(result) = server.as_mut().poll(&mut cx) {
            result.expect("the end of the mount is not an error");
            return dev.replies.take();
        }
        let mut tasks = TASKS.take();
        tasks.retain_mut(|task| task.as_mut().poll(&mut cx).is_pending());
        plug::flush_current();
        TASKS.with_borrow_mut(|new| new.extend(tasks));
    }
    panic!("the server does not end");
}

thread_local! {
    /// The number of bios of each request of a [`Counter`].
    static BIOS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A driver that counts, and does nothing.
struct Counter;

impl Driver for Counter {
    fn queue_rq(&self, rq: Request) {
        BIOS.with_borrow_mut(|bios| bios.push(rq.nr_bios()));
        rq.complete(Ok(()));
    }
}

/// Messages that open the volume: nodes 2 and 3, handle 1.
fn opened() -> Vec<Vec<u8>> {
    vec![
        message(opcode::LOOKUP, 1, b"dev", &[0]),
        message(opcode::LOOKUP, 2, b"md0", &[0]),
        message(opcode::OPEN, 3, &abi::OpenIn { flags: 2, open_flags: 0 }, &[]),
    ]
}

fn write_message(offset: u64, data: &[u8]) -> Vec<u8> {
    let args = abi::WriteIn { fh: 1, offset, size: data.len() as u32, ..Default::default() };
    message(opcode::WRITE, 3, &args, data)
}

fn read_message(offset: u64, size: u32) -> Vec<u8> {
    message(opcode::READ, 3, &abi::ReadIn { fh: 1, offset, size, ..Default::default() }, &[])
}

#[test]
fn payloads_of_every_class_of_size_arrive_whole() {
    let ram = Ram::new("md0", 4 << 20);
    let mut messages = opened();
    let sizes = [1, 79, 80, 81, 4096, 65_535, 65_536, 65_537, 1 << 20];
    let data = |len: usize| (0..len).map(|i| (i ^ len) as u8).collect::<Vec<_>>();
    for len in sizes {
        messages.push(write_message(1000, &data(len)));
        messages.push(read_message(1000, len as u32));
    }
    let replies = serve_all(&ram, messages);
    assert_eq!(replies.len(), 3 + 2 * sizes.len());
    for (len, pair) in sizes.into_iter().zip(replies[3..].chunks(2)) {
        assert_eq!(body::<abi::WriteOut>(&pair[0]).size as usize, len);
        assert_eq!(reply_parts(&pair[1]), (0, &data(len)[..]));
    }
}

/// They are read until none is left, or a batch is full, before the first goes to the disk.
#[test]
fn writes_that_are_there_together_merge() {
    for (writes, requests) in [(1, &[1][..]), (30, &[30]), (200, &[61, 64, 64, 11])] {
        let disk = Disk::new("md0", Sectors(1 << 20), Limits::default());
        let volume = ByteVolume::new(Gateway::new(Arc::new(Queue::new(disk, Counter))));
        let mut messages = opened();
        messages.extend((0..writes).map(|i| write_message(i * 4096, &[7; 4096])));
        let messages = RefCell::new(messages.into());
        let dev = RecordingDevice { messages, together: true, ..Default::default() };
        let replies = serve_from(dev, Arc::new(volume));
        assert_eq!(replies.len() as u64, 3 + writes);
        assert!(replies[3..].iter().all(|reply| body::<abi::WriteOut>(reply).size == 4096));
        assert_eq!(BIOS.take(), requests);
    }
}

#[test]
fn messages_longer_than_the_head_are_joined() {
    let ram = Ram::new("md0", 1 << 20);
    let long = [b'x'; 255];
    let mut messages = opened();
    messages.push(message(opcode::LOOKUP, 1, &long[..], &[0]));
    let forgets: Vec<_> = (0..100).map(|_| abi::ForgetOne { nodeid: 2, nlookup: 1 }).collect();
    messages.push(message(
        opcode::BATCH_FORGET,
        0,
        &abi::BatchForgetIn { count: 100, dummy: 0 },
        forgets.as_bytes(),
    ));
    messages.push(message(opcode::GETATTR, 2, &[0u64; 2], &[]));
    let replies = serve_all(&ram, messages);
    assert_eq!(errno(&replies[3]), Some(Errno::NOENT));
    assert_eq!(errno(&replies[4]), Some(Errno::STALE));
    assert_eq!(replies.len(), 5);
}

#[test]
fn more_data_than_may_be_in_flight_is_served_in_time() {
    let ram = Ram::new("md0", 1 << 20);
    let mut messages = opened();
    messages.extend((0..200).map(|_| read_message(0, 1 << 20)));
    let replies = serve_all(&ram, messages);
    assert_eq!(replies.len(), 203);
    assert!(replies[3..].iter().all(|reply| reply_parts(reply).1.len() == 1 << 20));
}

#[test]
fn failures_and_nonsense_are_answered_too() {
    let ram = Ram::new("md0", 1 << 20);
    ram.break_with(Status::Io);
    let mut messages = opened();
    messages.push(write_message(0, &[0; 512]));
    let mut nonsense = message(opcode::OPEN, 3, &[0u8; 3], &[]);
    messages.push(nonsense.clone());
    nonsense[0] = 1;
    messages.push(nonsense);
    messages.push(b"short".to_vec());
    messages.push(message(4242, 1, &[0u8; 0], &[]));
    let replies = serve_all(&ram, messages);
    let errors: Vec<_> = replies[3..].iter().map(|reply| errno(reply)).collect();
    assert_eq!(
        errors,
        [Some(Errno::IO), Some(Errno::INVAL), Some(Errno::INVAL), Some(Errno::NOSYS)]
    );
}

#[test]
fn a_request_whose_task_is_lost_is_answered_with_eio() {
    let ram = Ram::new("md0", 1 << 20);
    let dev =
        Rc::new(RecordingDevice { messages: RefCell::new(opened().into()), ..Default::default() });
    dev.messages.borrow_mut().push_back(read_message(0, 512));
    let (_, session) = session(&[("dev/md0", ram.volume())]);
    let mut server = Box::pin(serve(Rc::clone(&dev), Arc::new(session), Arc::new(TestRuntime), 0));
    let mut cx = Context::from_waker(Waker::noop());
    while !dev.messages.borrow().is_empty() {
        assert!(server.as_mut().poll(&mut cx).is_pending());
    }
    assert_eq!(dev.replies.borrow().len(), 3);
    drop(TASKS.take());
    assert_eq!(errno(&dev.replies.borrow()[3]), Some(Errno::IO));
    while server.as_mut().poll(&mut cx).is_pending() {}
}

/// A clock that stands still, and never rings.
struct Stopped;

impl Runtime for Stopped {
    fn now_ns(&self) -> u64 {
        0
    }

    fn wall_clock(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) -> LocalFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn spawn(&self, _: LocalFuture<'static, ()>) {
        unreachable!("limits start no tasks");
    }
}

/// A server of a volume whose limits let one request pass, open as handle 1, and of one without limits, open as handle 2.
struct LimitedServer {
    dev: Rc<RecordingDevice>,
    limited: Arc<ByteVolume>,
    server: LocalFuture<'static, io::Result<()>>,
    has_ended: bool,
}

impl LimitedServer {
    fn new(requests: Vec<Vec<u8>>, limited_bytes: usize) -> Self {
        let (limited, other) = (Ram::new("md0", 1 << 20).volume(), Ram::new("md1", 4096).volume());
        let change = "rbps=1 wbps=1 burst_ms=1".parse().unwrap();
        limited.limiter().set(&change, &(Arc::new(Stopped) as Arc<dyn Runtime>));
        let (_, session) = session(&[("dev/md0", Arc::clone(&limited)), ("dev/md1", other)]);
        let mut messages = opened();
        messages.extend([
            message(opcode::LOOKUP, 2, b"md1", &[0]),
            message(opcode::OPEN, 4, &abi::OpenIn { flags: 2, open_flags: 0 }, &[]),
        ]);
        messages.extend(requests);
        let messages = RefCell::new(messages.into());
        let dev = Rc::new(RecordingDevice { messages, together: true, ..Default::default() });
        let runtime = Arc::new(TestRuntime);
        let server = Box::pin(serve(Rc::clone(&dev), Arc::new(session), runtime, limited_bytes));
        Self { dev, limited, server, has_ended: false }
    }

    /// Runs it until it can do no more; returns the new replies.
    fn run(&mut self) -> Vec<Vec<u8>> {
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..1000 {
            if !self.has_ended {
                self.has_ended = self.server.as_mut().poll(&mut cx).is_ready();
            }
            let mut tasks = TASKS.take();
            tasks.retain_mut(|task| task.as_mut().poll(&mut cx).is_pending());
            TASKS.with_borrow_mut(|new| new.extend(tasks));
        }
        self.dev.replies.take()
    }

    fn untaken(&self) -> usize {
        self.dev.messages.borrow().len()
    }
}

const OPENED: usize = 5;

fn read_of_the_other() -> Vec<u8> {
    message(opcode::READ, 4, &abi::ReadIn { fh: 2, size: 512, ..Default::default() }, &[])
}

#[test]
fn requests_that_wait_for_limits_do_not_keep_a_volume_without_limits_waiting() {
    let write = write_message(0, &[1; 1 << 20]);
    for (waiting, limited_bytes) in [(read_message(0, 1 << 20), 0), (write, 128 << 20)] {
        let mut requests = vec![waiting; 70];
        requests.push(read_of_the_other());
        let mut server = LimitedServer::new(requests, limited_bytes);
        let replies = server.run();
        assert_eq!(replies.len(), OPENED + 2, "one of each volume is answered");
        let read = reply_parts(&replies[OPENED + 1]);
        assert_eq!(read, (0, &[0; 512][..]));
        assert!(!server.has_ended && server.untaken() == 0);
        server.limited.limiter().lift();
        assert_eq!(server.run().len(), 69);
        assert!(server.has_ended);
    }
}

#[test]
fn the_data_of_writes_that_wait_for_limits_have_a_bound() {
    let mut requests = vec![write_message(0, &[1; 1 << 20]); 70];
    requests.push(read_of_the_other());
    let mut server = LimitedServer::new(requests, 4 << 20);
    assert_eq!(server.run().len(), OPENED + 1);
    assert_eq!(server.untaken(), 6, "64 MiB wait, and one has passed");
    server.limited.limiter().lift();
    assert_eq!(server.run().len(), 70);
    assert!(server.has_ended);
}
