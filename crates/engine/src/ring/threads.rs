//! What a ring does, where io_uring is refused (containers, `kernel.io_uring_disabled`): threads execute the operations on files,
//! and epoll tells when sockets are ready for theirs.
//!
//! It takes the same entries as the kernel's ring, and posts the same completions.
//!
//! | operation | executed |
//! |---|---|
//! | read, write, fdatasync, fallocate; connect to a Unix socket | by the [pool] |
//! | recv, send, sendmsg, accept, connect, poll; read of a stream | on the reactor's thread, without waiting, once epoll says that it is possible |
//! | shutdown, cancel | at once |
//! | others | not supported: their users have another way |

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ashlar_block::sync::lock;
use io_uring::{opcode, squeue};
use rustix::event::{EventfdFlags, epoll, eventfd};

use super::Completion;
use super::pool;
use super::sqe::Sqe;
use crate::fd::STREAM;
use crate::sys::{checked, uninterrupted};

/// Events that end any wait.
const ENDS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// The mark of the inbox among epoll's events.
const INBOX: u64 = u64::MAX;

/// What the threads of the pool have executed for a ring.
pub(super) struct Inbox {
    done: Mutex<Vec<Completion>>,
    /// Whether the reactor sleeps, or is about to.
    sleeps: AtomicBool,
    event: OwnedFd,
}

impl Inbox {
    /// Adds a completion, and wakes the reactor.
    pub(super) fn post(&self, user_data: u64, result: i32) {
        lock(&self.done).push(Completion { user_data, result, flags: 0 });
        // Either the reactor sees the completion before it sleeps, or this thread sees that it sleeps.
        if self.sleeps.swap(false, SeqCst) {
            let (Ok(_) | Err(_)) = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    fn is_empty(&self) -> bool {
        lock(&self.done).is_empty()
    }
}

/// A result as io_uring posts it: a count, or minus an errno.
pub(super) fn returned(result: io::Result<i64>) -> i32 {
    match result {
        Ok(count) => i32::try_from(count).unwrap_or(i32::MAX),
        Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
    }
}

/// An operation that waits until its descriptor is ready.
struct Waiting {
    sqe: Sqe,
    events: u32,
    /// Whether the connection has been begun.
    connects: bool,
}

pub(crate) struct ThreadsRing {
    queue: Vec<Sqe>,
    /// Operations that wait, by descriptor: those of one have one registration.
    waiting: HashMap<RawFd, Vec<Waiting>>,
    posted: Vec<Completion>,
    inbox: Arc<Inbox>,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl ThreadsRing {
    /// # Errors
    /// No descriptors.
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &event, epoll::EventData::new_u64(INBOX), epoll::EventFlags::IN)?;
        let inbox = Inbox { done: Mutex::default(), sleeps: AtomicBool::new(false), event };
        Ok(Self {
            queue: Vec::new(),
            waiting: HashMap::new(),
            posted: Vec::new(),
            inbox: Arc::new(inbox),
            epoll,
            events: Vec::with_capacity(64),
        })
    }

    pub(super) fn queued(&self) -> u32 {
        self.queue.len() as u32
    }

    /// # Safety
    /// As `Ring::push`.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) {
        self.queue.push(Sqe::read(entry));
    }

    /// Begins all queued operations.
    pub(super) fn flush(&mut self) {
        let mut queue = std::mem::take(&mut self.queue);
        let is_for_pool = |sqe: &Sqe| match sqe.opcode {
            opcode::Read::CODE => sqe.offset != STREAM,
            opcode::Readv::CODE
            | opcode::Write::CODE
            | opcode::Writev::CODE
            | opcode::Fsync::CODE
            | opcode::Fallocate::CODE => true,
            opcode::Connect::CODE => is_unix(sqe),
            _ => false,
        };
        let is_pooled = queue.iter().any(is_for_pool);
        for sqe in queue.iter().filter(|sqe| !is_for_pool(sqe)) {
            self.begin(*sqe);
        }
        if is_pooled {
            let jobs = queue.iter().copied().filter(is_for_pool);
            // SAFETY: the promise given to push().
            unsafe { pool::execute_all(jobs, &self.inbox) };
        }
        queue.clear();
        self.queue = queue;
    }

    fn post(&mut self, user_data: u64, result: i32) {
        self.posted.push(Completion { user_data, result, flags: 0 });
    }

    /// Begins an operation that does not block.
    fn begin(&mut self, sqe: Sqe) {
        let events = match sqe.opcode {
            opcode::AsyncCancel::CODE => return self.cancel(sqe.address),
            opcode::PollAdd::CODE => sqe.flags,
            opcode::Read::CODE | opcode::Recv::CODE | opcode::Accept::CODE => libc::EPOLLIN as u32,
            opcode::Send::CODE | opcode::SendMsg::CODE | opcode::Connect::CODE => {
                libc::EPOLLOUT as u32
            }
            _ => {
                let result = at_once(&sqe);
                return self.post(sqe.user_data, returned(result));
            }
        };
        let mut waiting = Waiting { sqe, events, connects: false };
        // A poll, and a read that cannot be told not to block, first wait.
        let waits = matches!(sqe.opcode, opcode::PollAdd::CODE | opcode::Read::CODE);
        if waits || waiting.go_on(0).map(|result| self.post(sqe.user_data, result)).is_none() {
            let all = self.waiting.entry(sqe.fd).or_default();
            let (before, is_first) = (events_of(all), all.is_empty());
            all.push(waiting);
            let now = events_of(all);
            if (is_first || now != before)
                && let Err(error) = self.register(sqe.fd, now, is_first)
            {
                self.ready(sqe.fd, u32::MAX, Some(error));
            }
        }
    }

    /// Has epoll look for events of a descriptor.
    fn register(&self, fd: RawFd, events: u32, is_first: bool) -> rustix::io::Result<()> {
        // SAFETY: an operation in flight keeps it open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let data = epoll::EventData::new_u64(fd.as_raw_fd() as u64);
        let flags = epoll::EventFlags::from_bits_retain(events);
        if !is_first {
            // One that is exclusive cannot be changed.
            epoll::delete(&self.epoll, fd)?;
        }
        epoll::add(&self.epoll, fd, data, flags)
    }

    /// Goes on with the operations of a descriptor that has these events, or is none that epoll can watch.
    fn ready(&mut self, fd: RawFd, events: u32, refused: Option<rustix::io::Errno>) {
        let Some(mut all) = self.waiting.remove(&fd) else { return };
        let before = events_of(&all);
        let mut posted = std::mem::take(&mut self.posted);
        all.retain_mut(|waiting| {
            if events & (waiting.events | ENDS) == 0 {
                return true;
            }
            // A file that epoll cannot watch is ready at any time.
            let seen = if refused.is_some() { waiting.events } else { events };
            let Some(result) = waiting.go_on(seen) else { return refused.is_none() };
            posted.push(Completion { user_data: waiting.sqe.user_data, result, flags: 0 });
            false
        });
        self.posted = posted;
        self.keep(fd, before, all, refused.is_some());
    }

    /// Keeps the operations of a descriptor that are left.
    fn keep(&mut self, fd: RawFd, before: u32, all: Vec<Waiting>, is_refused: bool) {
        // SAFETY: the slot of an operation keeps it open until its completion is harvested.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        if all.is_empty() {
            if !is_refused && let Err(error) = epoll::delete(&self.epoll, borrowed) {
                tracing::error!(%error, "epoll");
            }
            return;
        }
        let now = events_of(&all);
        self.waiting.insert(fd, all);
        if now != before
            && let Err(error) = self.register(fd, now, false)
        {
            tracing::error!(%error, "epoll");
        }
    }

    fn cancel(&mut self, user_data: u64) {
        let is_it = |waiting: &Waiting| waiting.sqe.user_data == user_data;
        let found = self.waiting.iter().find(|(_, all)| all.iter().any(is_it)).map(|(fd, _)| *fd);
        if let Some((fd, mut all)) = found.and_then(|fd| Some((fd, self.waiting.remove(&fd)?))) {
            let before = events_of(&all);
            all.retain(|waiting| !is_it(waiting));
            self.keep(fd, before, all, false);
        } else if !pool::cancel(user_data, &self.inbox) {
            return;
        }
        self.post(user_data, -libc::ECANCELED);
    }

    /// Begins queued operations, and looks for completions. With `wait`, as the kernel's ring.
    ///
    /// # Errors
    /// Those of epoll_wait(2).
    pub(super) fn enter(&mut self, wait: Option<Option<Duration>>) -> io::Result<()> {
        self.flush();
        let mut limit = match wait {
            None => Some(Duration::ZERO),
            Some(limit) => limit,
        };
        self.inbox.sleeps.store(true, SeqCst);
        if !self.posted.is_empty() || !self.inbox.is_empty() {
            limit = Some(Duration::ZERO);
        }
        let limit = limit.map(|limit| rustix::event::Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let waited =
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), limit.as_ref());
        self.inbox.sleeps.store(false, SeqCst);
        for event in &events {
            match event.data.u64() {
                INBOX => {
                    let (Ok(_) | Err(_)) = rustix::io::read(&self.inbox.event, &mut [0; 8]);
                }
                fd => {
                    let flags = event.flags;
                    self.ready(fd as RawFd, flags.bits(), None);
                }
            }
        }
        self.events = events;
        match waited {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether entering would do anything.
    pub(super) fn has_work(&self) -> bool {
        !self.queue.is_empty() || !self.waiting.is_empty()
    }

    pub(super) fn has_completions(&self) -> bool {
        !self.posted.is_empty() || !self.inbox.is_empty()
    }

    pub(super) fn harvest(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.posted);
        into.append(&mut lock(&self.inbox.done));
    }
}

/// The events for which all these operations wait.
fn events_of(all: &[Waiting]) -> u32 {
    const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
    let events = all.iter().fold(0, |events, waiting| events | waiting.events);
    // Of several reactors, one is woken, unless this one waits for something else, too.
    if all.len() > 1 { events & !EXCLUSIVE } else { events }
}

fn is_unix(sqe: &Sqe) -> bool {
    // SAFETY: the entry's memory is an address of a socket, which begins with its family.
    let family = unsafe { sqe.memory::<libc::sa_family_t>().read_unaligned() };
    i32::from(family) == libc::AF_UNIX
}

/// Executes an operation that never waits.
fn at_once(sqe: &Sqe) -> io::Result<i64> {
    match sqe.opcode {
        opcode::Shutdown::CODE => {
            // SAFETY: no memory is named.
            checked(unsafe { libc::shutdown(sqe.fd, sqe.len as i32) }).map(i64::from)
        }
        _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
    }
}

impl Waiting {
    /// Executes the operation as far as that is possible without waiting, of a descriptor that has these events. `None`: it has to
    /// wait.
    fn go_on(&mut self, events: u32) -> Option<i32> {
        let Sqe { opcode: operation, fd, len, flags, .. } = self.sqe;
        let flags = (flags as i32 & !libc::MSG_WAITALL) | libc::MSG_DONTWAIT;
        let result = match operation {
            opcode::PollAdd::CODE => {
                let seen = events & (self.events | ENDS) & !(libc::EPOLLEXCLUSIVE as u32);
                return Some(seen as i32);
            }
            opcode::Read::CODE => {
                let memory = self.sqe.memory();
                // SAFETY: the promise given to push(). There is something to read, so it does not block.
                uninterrupted(|| unsafe { libc::read(fd, memory, len as usize) })
            }
            opcode::Recv::CODE => {
                let memory = self.sqe.memory();
                // SAFETY: the promise given to push().
                uninterrupted(|| unsafe { libc::recv(fd, memory, len as usize, flags) })
            }
            opcode::Send::CODE => {
                let memory = self.sqe.memory();
                // SAFETY: the promise given to push().
                uninterrupted(|| unsafe { libc::send(fd, memory, len as usize, flags) })
            }
            opcode::SendMsg::CODE => {
                let message = self.sqe.memory::<libc::msghdr>();
                // SAFETY: the promise given to push().
                uninterrupted(|| unsafe { libc::sendmsg(fd, message, flags) })
            }
            opcode::Accept::CODE => {
                let (flags, null) = (self.sqe.flags as i32, std::ptr::null_mut());
                let size = std::ptr::null_mut();
                let accepted = without_blocking(fd).and_then(|()| {
                    // SAFETY: no memory is named.
                    uninterrupted(|| unsafe { libc::accept4(fd, null, size, flags) })
                });
                accepted.map(|fd| fd as isize)
            }
            opcode::Connect::CODE => self.connect().map(|()| 0),
            _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            result => Some(returned(result.map(|count| count as i64))),
        }
    }

    /// Begins a connection, or looks what has become of it.
    fn connect(&mut self) -> io::Result<()> {
        let fd = self.sqe.fd;
        if self.connects {
            // SAFETY: the operation is in flight.
            let fd = unsafe { self.sqe.fd() };
            return rustix::net::sockopt::socket_error(fd)?.map_err(io::Error::from);
        }
        without_blocking(fd)?;
        self.connects = true;
        let size = self.sqe.offset as libc::socklen_t;
        // SAFETY: the promise given to push() for the address.
        match checked(unsafe { libc::connect(fd, self.sqe.memory(), size) }) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            result => result.map(drop),
        }
    }
}

/// Makes calls on a descriptor fail that would wait.
fn without_blocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: an operation in flight keeps it open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}
