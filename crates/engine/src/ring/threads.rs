//! What a ring does, where io_uring is refused (containers, `kernel.io_uring_disabled`): threads execute the operations on files,
//! and epoll tells when sockets are ready for theirs.
//!
//! It takes the same entries as the kernel's ring, and posts the same completions.
//!
//! | operation | executed |
//! |---|---|
//! | read, write, fdatasync, fallocate | by the [pool] |
//! | recv, send, sendmsg, accept, connect, poll; read of a stream | on the reactor's thread, without waiting, once epoll says that it is possible |
//! | connect to a Unix socket | at once; while the server's queue is full, which epoll does not watch, again every 5 ms |
//! | shutdown, cancel | at once |
//! | others | not supported: their users have another way |

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{opcode, squeue};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::OFlags;

use super::Completion;
use super::inbox::{Inbox, returned};
use super::pool;
use super::sqe::{STREAM, Sqe};
use crate::sys::{checked, uninterrupted};

/// Events that end any wait.
const ENDS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// The time between two attempts to connect to a Unix socket whose queue is full.
const RETRY: Duration = Duration::from_millis(5);
/// The mark of the inbox among epoll's events.
const INBOX: u64 = u64::MAX;

/// An operation that waits until its descriptor is ready.
struct Waiting {
    sqe: Sqe,
    events: u32,
}

pub(crate) struct ThreadsRing {
    queue: Vec<Sqe>,
    /// Empty: the pool's share of the queue, while it is begun.
    pooled: Vec<Sqe>,
    /// Operations that wait, by descriptor: those of one have one registration.
    waiting: HashMap<RawFd, Vec<Waiting>>,
    /// Connections to Unix sockets, and when they are tried again.
    retried: Vec<(Instant, Waiting)>,
    posted: Vec<Completion>,
    inbox: Arc<Inbox>,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl ThreadsRing {
    /// # Errors
    /// No descriptors.
    pub(super) fn new() -> io::Result<Self> {
        let inbox = Inbox::new()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(INBOX);
        // Edge-triggered: epoll reports each wake-up once, so that the count need not be read.
        epoll::add(&epoll, inbox.event(), data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        Ok(Self {
            queue: Vec::new(),
            pooled: Vec::new(),
            waiting: HashMap::new(),
            retried: Vec::new(),
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
        let mut pooled = std::mem::take(&mut self.pooled);
        for sqe in queue.drain(..) {
            if sqe.opcode == opcode::AsyncCancel::CODE {
                // What is cancelled may be in this batch.
                let place = pooled.iter().position(|other| other.user_data == sqe.address);
                match place {
                    Some(place) => {
                        pooled.remove(place);
                        self.post(sqe.address, -libc::ECANCELED);
                    }
                    None => self.cancel(sqe.address),
                }
            } else if is_for_pool(&sqe) {
                pooled.push(sqe);
            } else {
                self.begin(sqe);
            }
        }
        if !pooled.is_empty() {
            // SAFETY: the promise given to push().
            unsafe { pool::execute_all(pooled.drain(..), &self.inbox) };
        }
        (self.queue, self.pooled) = (queue, pooled);
    }

    fn post(&mut self, user_data: u64, result: i32) {
        self.posted.push(Completion::new(user_data, result));
    }

    /// Begins an operation that does not block.
    fn begin(&mut self, sqe: Sqe) {
        let events = match sqe.opcode {
            opcode::PollAdd::CODE => poll_events(sqe.flags),
            opcode::Read::CODE | opcode::Recv::CODE | opcode::Accept::CODE => libc::EPOLLIN as u32,
            opcode::Send::CODE | opcode::SendMsg::CODE | opcode::Connect::CODE => {
                libc::EPOLLOUT as u32
            }
            _ => {
                let result = at_once(&sqe);
                return self.post(sqe.user_data, returned(result));
            }
        };
        let waiting = Waiting { sqe, events };
        // A poll, and a read that cannot be made non-blocking, first wait.
        let waits = matches!(sqe.opcode, opcode::PollAdd::CODE | opcode::Read::CODE);
        if waits || waiting.go_on(0).map(|ended| self.posted.push(ended)).is_none() {
            if sqe.opcode == opcode::Connect::CODE && is_unix(&sqe) {
                return self.retried.push((Instant::now() + RETRY, waiting));
            }
            let mut all = self.waiting.remove(&sqe.fd).unwrap_or_default();
            let before = events_of(&all);
            all.push(waiting);
            self.keep(sqe.fd, before, all);
        }
    }

    /// Continues the operations of a descriptor that has these events.
    fn ready(&mut self, fd: RawFd, events: u32) {
        let Some(mut all) = self.waiting.remove(&fd) else { return };
        let before = events_of(&all);
        let posted = &mut self.posted;
        all.retain(|waiting| {
            let ended = match events & (waiting.events | ENDS) {
                0 => None,
                _ => waiting.go_on(events),
            };
            posted.extend(ended);
            ended.is_none()
        });
        self.keep(fd, before, all);
    }

    /// Has epoll look for the events of a descriptor's operations that are left. `before`: those that it looks for.
    fn keep(&mut self, fd: RawFd, before: u32, all: Vec<Waiting>) {
        let now = events_of(&all);
        let watched = if now == before { Ok(()) } else { self.watch(fd, before, now) };
        if let Err(why) = watched {
            self.posted.extend(all.iter().map(|waiting| waiting.refused(why)));
        } else if !all.is_empty() {
            self.waiting.insert(fd, all);
        }
    }

    /// Has epoll look for events of a descriptor, instead of those before.
    fn watch(&self, fd: RawFd, before: u32, now: u32) -> rustix::io::Result<()> {
        // SAFETY: the slot of an operation keeps it open until its completion is harvested.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        if before != 0 {
            // One that is exclusive cannot be changed.
            epoll::delete(&self.epoll, fd)?;
        }
        if now != 0 {
            let data = epoll::EventData::new_u64(fd.as_raw_fd() as u64);
            epoll::add(&self.epoll, fd, data, epoll::EventFlags::from_bits_retain(now))?;
        }
        Ok(())
    }

    fn cancel(&mut self, user_data: u64) {
        let is_it = |waiting: &Waiting| waiting.sqe.user_data == user_data;
        if let Some(place) = self.retried.iter().position(|(_, waiting)| is_it(waiting)) {
            self.retried.remove(place);
            return self.post(user_data, -libc::ECANCELED);
        }
        let found = self.waiting.iter().find(|(_, all)| all.iter().any(is_it)).map(|(fd, _)| *fd);
        if let Some((fd, mut all)) = found.and_then(|fd| Some((fd, self.waiting.remove(&fd)?))) {
            let before = events_of(&all);
            all.retain(|waiting| !is_it(waiting));
            self.keep(fd, before, all);
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
        let mut limit = wait.unwrap_or(Some(Duration::ZERO));
        if !self.retried.is_empty() {
            self.retry();
            limit = Some(limit.map_or(RETRY, |limit| limit.min(RETRY)));
        }
        self.inbox.set_sleeps(limit != Some(Duration::ZERO));
        if !self.posted.is_empty() || !self.inbox.is_empty() {
            limit = Some(Duration::ZERO);
        }
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let waited = self.wait(&mut events, limit);
        self.inbox.set_sleeps(false);
        for event in &events {
            let (data, flags) = (event.data.u64(), event.flags);
            if data != INBOX {
                self.ready(data as RawFd, flags.bits());
            }
        }
        self.events = events;
        match waited {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Tries again to connect to Unix sockets.
    fn retry(&mut self) {
        let now = Instant::now();
        let posted = &mut self.posted;
        self.retried.retain_mut(|(at, waiting)| {
            if now < *at {
                return true;
            }
            *at = now + RETRY;
            let ended = waiting.go_on(0);
            posted.extend(ended);
            ended.is_none()
        });
    }

    /// Waits for events, at most so long; up to a millisecond less if that is long.
    fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        limit: Option<Duration>,
    ) -> rustix::io::Result<usize> {
        // epoll_wait(2) counts milliseconds, and filters of containers may not know epoll_pwait2(2); ppoll(2) is exact, but is one
        // call more, since it takes no event.
        const UNIT: Duration = Duration::from_millis(1);
        let timespec = |limit: Duration| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let limit = match limit {
            Some(limit) if limit < UNIT => {
                if !limit.is_zero() {
                    let epoll = PollFd::new(&self.epoll, PollFlags::IN);
                    poll(&mut [epoll], Some(&timespec(limit)))?;
                }
                Some(Duration::ZERO)
            }
            limit => limit.map(|limit| {
                limit
                    - Duration::from_nanos(u64::from(limit.subsec_nanos()) % UNIT.as_nanos() as u64)
            }),
        };
        epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(events),
            limit.map(timespec).as_ref(),
        )
    }

    /// Whether entering would do anything.
    pub(super) fn has_work(&self) -> bool {
        !(self.queue.is_empty() && self.waiting.is_empty() && self.retried.is_empty())
    }

    pub(super) fn has_completions(&self) -> bool {
        !self.posted.is_empty() || !self.inbox.is_empty()
    }

    pub(super) fn harvest(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.posted);
        self.inbox.harvest(into);
    }
}

/// The events for which all these operations wait.
fn events_of(all: &[Waiting]) -> u32 {
    const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
    let events = all.iter().fold(0, |events, waiting| events | waiting.events);
    // Of several reactors, one is woken, unless this one waits for something else, too.
    if all.len() > 1 { events & !EXCLUSIVE } else { events }
}

/// The events that end a poll. The kernel's ring always adds that the peer has ended its side; epoll has no such exclusive poll,
/// but then there is something to read, too.
const fn poll_events(asked: u32) -> u32 {
    if asked & libc::EPOLLEXCLUSIVE as u32 != 0 { asked } else { asked | libc::EPOLLRDHUP as u32 }
}

fn is_for_pool(sqe: &Sqe) -> bool {
    match sqe.opcode {
        opcode::Read::CODE => sqe.offset != STREAM,
        opcode::Readv::CODE
        | opcode::Write::CODE
        | opcode::Writev::CODE
        | opcode::Fsync::CODE
        | opcode::Fallocate::CODE => true,
        _ => false,
    }
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
    fn go_on(&self, events: u32) -> Option<Completion> {
        let Sqe { opcode: operation, fd, len, flags, user_data, .. } = self.sqe;
        let flags = (flags as i32 & !libc::MSG_WAITALL) | libc::MSG_DONTWAIT;
        let is_message =
            matches!(operation, opcode::Recv::CODE | opcode::Send::CODE | opcode::SendMsg::CODE);
        let waits = !is_message || self.sqe.flags & libc::MSG_DONTWAIT as u32 == 0;
        let result = match operation {
            opcode::PollAdd::CODE => {
                let seen = events & (self.events | ENDS) & !(libc::EPOLLEXCLUSIVE as u32);
                return Some(Completion::new(user_data, seen as i32));
            }
            opcode::Read::CODE => {
                let memory = self.sqe.memory();
                // Another operation may just have read all of it.
                is_readable(fd).and_then(|()| {
                    // SAFETY: the promise given to push(). There is something to read, so it does not block.
                    uninterrupted(|| unsafe { libc::read(fd, memory, len as usize) })
                })
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
                let accepted = set_non_blocking(fd, true).and_then(|()| {
                    // SAFETY: no memory is named.
                    uninterrupted(|| unsafe { libc::accept4(fd, null, size, flags) })
                });
                accepted.map(|fd| fd as isize)
            }
            opcode::Connect::CODE => self.connect().map(|()| 0),
            _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        };
        match result {
            Err(error) if waits && error.kind() == io::ErrorKind::WouldBlock => None,
            result => Some(Completion::new(user_data, returned(result.map(|count| count as i64)))),
        }
    }

    /// Begins a connection, or learns what has become of it.
    fn connect(&self) -> io::Result<()> {
        let Sqe { fd, offset: size, .. } = self.sqe;
        // SAFETY: the operation is in flight.
        let flags = rustix::fs::fcntl_getfl(unsafe { self.sqe.fd() })?;
        set_non_blocking(fd, true)?;
        // SAFETY: the promise given to push() for the address.
        let connected =
            checked(unsafe { libc::connect(fd, self.sqe.memory(), size as libc::socklen_t) });
        set_non_blocking(fd, flags.contains(OFlags::NONBLOCK))?;
        match connected.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) => Ok(()),
            Err((Some(libc::EINPROGRESS | libc::EALREADY), _)) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err((_, error)) => Err(error),
        }
    }

    /// Ends an operation whose descriptor epoll does not watch.
    fn refused(&self, why: rustix::io::Errno) -> Completion {
        // Such as a regular file, which is always ready.
        let ended = match why {
            rustix::io::Errno::PERM => self.go_on(self.events & !(libc::EPOLLRDHUP as u32)),
            _ => None,
        };
        ended.unwrap_or(Completion::new(self.sqe.user_data, -why.raw_os_error()))
    }
}

/// `WouldBlock` if there is nothing to read.
fn is_readable(fd: RawFd) -> io::Result<()> {
    // SAFETY: an operation in flight keeps it open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut polled, Some(&now))? {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(()),
    }
}

/// Makes calls on a descriptor fail that would wait.
fn set_non_blocking(fd: RawFd, value: bool) -> io::Result<()> {
    // SAFETY: an operation in flight keeps it open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(rustix::io::ioctl_fionbio(fd, value)?)
}
