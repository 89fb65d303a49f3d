//! Asynchronous operations on a file descriptor.
//!
//! An operation takes ownership of its buffers and returns them with its result. The kernel may use them until then,
//! even if the future is dropped.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use ashlar_block::buffer::Segment;
use io_uring::{opcode, types};

use crate::chunk_list::ChunkList;
use crate::op::{Op, Payload};
use crate::reactor::{self, ReactorCore};
use crate::ring::STREAM;
use crate::sys::uninterrupted;

/// Bytes that an operation reads or writes.
pub trait Bytes: Payload {
    /// Address and length. The address stays valid while `self` exists, even when `self` is moved. (Implemented in this
    /// crate only.)
    fn span(&mut self) -> (*mut u8, usize);
}

impl Bytes for Vec<u8> {
    fn span(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}

impl Bytes for Segment {
    fn span(&mut self) -> (*mut u8, usize) {
        (self.as_ptr(), self.len())
    }
}

/// A span without its first `skip` bytes, shortened to what an entry can carry.
fn rest(span: (*mut u8, usize), skip: usize) -> (*mut u8, u32) {
    let skip = skip.min(span.1);
    let len = u32::try_from(span.1 - skip).unwrap_or(u32::MAX);
    (span.0.wrapping_add(skip), len)
}

/// A descriptor used through the current thread's reactor. Clones refer to the same descriptor; it is closed when the
/// last clone and the last operation are gone.
#[derive(Clone)]
pub struct Fd {
    core: Rc<ReactorCore>,
    fd: Rc<OwnedFd>,
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Fd {
    /// Takes ownership of a descriptor.
    ///
    /// # Panics
    /// On a thread without a reactor.
    pub fn new(fd: OwnedFd) -> Self {
        Self { core: reactor::current(), fd: Rc::new(fd) }
    }

    /// Gives the descriptor away, for instance to another reactor.
    ///
    /// # Errors
    /// There is a clone, or an operation in flight: this one.
    pub fn into_fd(self) -> Result<OwnedFd, Self> {
        let Self { core, fd } = self;
        Rc::try_unwrap(fd).map_err(|fd| Self { core, fd })
    }

    fn number(&self) -> types::Fd {
        types::Fd(self.fd.as_raw_fd())
    }

    /// Submits any entry for this descriptor, for operations without a method here (`uring_cmd`). The payload may be
    /// `()`, a `Vec<u8>`, a [`Segment`] or a `Box`; `cancellable` entries are cancelled when the future is dropped,
    /// others run to their end.
    ///
    /// # Safety
    /// `payload` must own the memory that `entry` names, at addresses that stay the same when the payload moves; the
    /// entry's descriptor must be this one; the entry must complete exactly once (no multishot).
    pub unsafe fn submit<T: Payload>(
        &self,
        entry: io_uring::squeue::Entry,
        payload: T,
        cancellable: bool,
    ) -> Op<T> {
        // SAFETY: the caller's promise; the operation keeps the descriptor open.
        unsafe { self.core.submit(entry, payload, Some(Rc::clone(&self.fd)), cancellable) }
    }

    /// Reads up to `buf.len()` bytes at `offset`, or from a stream.
    pub fn read<B: Bytes>(&self, mut buf: B, offset: Option<u64>) -> Op<B> {
        let (at, len) = rest(buf.span(), 0);
        let entry = opcode::Read::new(self.number(), at, len).offset(offset.unwrap_or(STREAM));
        // SAFETY: span() is memory that `buf` owns.
        unsafe { self.submit(entry.build(), buf, offset.is_none()) }
    }

    /// Writes up to `buf.len()` bytes at `offset`, or to a stream.
    pub fn write<B: Bytes>(&self, mut buf: B, offset: Option<u64>) -> Op<B> {
        let (at, len) = rest(buf.span(), 0);
        let entry = opcode::Write::new(self.number(), at, len).offset(offset.unwrap_or(STREAM));
        // SAFETY: span() is memory that `buf` owns.
        unsafe { self.submit(entry.build(), buf, offset.is_none()) }
    }

    /// Receives from a socket into `buf`, after its first `skip` bytes. `all`: until it is full.
    pub(crate) fn recv<B: Bytes>(&self, mut buf: B, skip: usize, all: bool) -> Op<B> {
        let (at, len) = rest(buf.span(), skip);
        let flags = if all { libc::MSG_WAITALL } else { 0 };
        let entry = opcode::Recv::new(self.number(), at, len).flags(flags).build();
        // SAFETY: span() is memory that `buf` owns.
        unsafe { self.submit(entry, buf, true) }
    }

    /// Receives from a socket into `buf` what has arrived, by a direct system call. Entries queued for the ring are submitted
    /// first, as in [`Self::try_send`].
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing; others of recv(2).
    pub(crate) fn try_recv<B: Bytes>(&self, buf: &mut B) -> io::Result<usize> {
        let (at, len) = rest(buf.span(), 0);
        self.core.submit_queued();
        // SAFETY: span() is memory that `buf` owns; the call does not keep it.
        let call = || unsafe {
            libc::recv(self.fd.as_raw_fd(), at.cast(), len as usize, libc::MSG_DONTWAIT)
        };
        uninterrupted(call).map(isize::unsigned_abs)
    }

    /// Sends to a socket, after the first `skip` bytes of `buf`.
    pub(crate) fn send<B: Bytes>(&self, mut buf: B, skip: usize) -> Op<B> {
        let (at, len) = rest(buf.span(), skip);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let entry = opcode::Send::new(self.number(), at, len).flags(flags).build();
        // SAFETY: span() is memory that `buf` owns.
        unsafe { self.submit(entry, buf, true) }
    }

    /// Sends chunks to a socket, after their first `skip` bytes.
    pub(crate) fn sendmsg(&self, mut from: Box<ChunkList>, skip: usize) -> Op<Box<ChunkList>> {
        let message = from.message(skip);
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let entry = opcode::SendMsg::new(self.number(), message).flags(flags).build();
        // SAFETY: header, array and chunks are on the heap, owned by the box.
        unsafe { self.submit(entry, from, true) }
    }

    /// Sends to a socket as much as it accepts of `buf` beyond the first `skip` bytes, by a direct system call. Entries
    /// queued for the ring are submitted first: the copy may take long, and other operations need not wait for it.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room; others of send(2).
    pub(crate) fn try_send<B: Bytes>(&self, buf: &mut B, skip: usize) -> io::Result<usize> {
        let (at, len) = rest(buf.span(), skip);
        self.core.submit_queued();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: span() is memory that `buf` owns; the call does not keep it.
        let call = || unsafe { libc::send(self.fd.as_raw_fd(), at.cast(), len as usize, flags) };
        uninterrupted(call).map(isize::unsigned_abs)
    }

    /// As [`Self::try_send`], for chunks.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room; others of sendmsg(2).
    pub(crate) fn try_sendmsg(&self, from: &mut ChunkList) -> io::Result<usize> {
        self.core.submit_queued();
        let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
        let sent = if let Some((at, len)) = from.only() {
            // SAFETY: the chunk belongs to `from`; the call does not keep it.
            uninterrupted(|| unsafe { libc::send(fd, at.cast(), len, flags) })
        } else {
            let message = from.message(0);
            // SAFETY: header, array and chunks belong to `from`; the call keeps none.
            uninterrupted(|| unsafe { libc::sendmsg(fd, message, flags) })
        };
        sent.map(isize::unsigned_abs)
    }

    /// Ends when one of `events` (`libc::POLLIN`, ...) occurs; returns those that occurred.
    pub fn poll(&self, events: i16) -> Op<()> {
        self.poll_mask(u32::from(events as u16))
    }

    fn poll_mask(&self, mask: u32) -> Op<()> {
        let entry = opcode::PollAdd::new(self.number(), mask).build();
        // SAFETY: a poll names no memory.
        unsafe { self.submit(entry, (), true) }
    }

    /// Ends when there is data to read.
    ///
    /// # Errors
    /// Those of poll(2).
    pub async fn readable(&self) -> io::Result<()> {
        self.poll(libc::POLLIN).await.0.map(|_| ())
    }

    /// Ends when there is data to read, for descriptors that several reactors wait on: about one of them is woken for
    /// each event (`EPOLLEXCLUSIVE`, epoll_ctl(2)). The woken reactor must read until nothing is left.
    ///
    /// # Errors
    /// Those of poll(2).
    pub async fn readable_alone(&self) -> io::Result<()> {
        let mask = (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32;
        self.poll_mask(mask).await.0.map(|_| ())
    }

    /// Ends when there is room for writing.
    ///
    /// # Errors
    /// Those of poll(2).
    pub async fn writable(&self) -> io::Result<()> {
        self.poll(libc::POLLOUT).await.0.map(|_| ())
    }

    /// shutdown(2).
    pub fn shutdown(&self, how: std::net::Shutdown) -> Op<()> {
        let how = match how {
            std::net::Shutdown::Read => libc::SHUT_RD,
            std::net::Shutdown::Write => libc::SHUT_WR,
            std::net::Shutdown::Both => libc::SHUT_RDWR,
        };
        let entry = opcode::Shutdown::new(self.number(), how).build();
        // SAFETY: names no memory.
        unsafe { self.submit(entry, (), false) }
    }
}
