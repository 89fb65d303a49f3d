//! The event descriptors of a ring, used through the reactor: a front end may fill or empty them as it likes, and no thread waits.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ashlar_engine::Op;
use ashlar_engine::fd::Fd;
use rustix::fs::{AtFlags, StatxFlags, statx};

const EVENT_BYTES: usize = 8;

/// Whether a descriptor may be an event descriptor: a file of the kernel's own, without a file system that could let a reader wait; or a
/// socket, which user-mode Linux has in its place.
pub(crate) fn is_event(fd: &OwnedFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(fd, c"", flags, StatxFlags::TYPE);
    found.is_ok_and(|found| matches!(u32::from(found.stx_mode) & libc::S_IFMT, 0 | libc::S_IFSOCK))
}

/// The descriptor by which a driver signals that requests are available.
pub(crate) struct Kick {
    fd: Fd,
    state: State,
    /// The descriptor does not wait (O_NONBLOCK), so the reactor asks first.
    asks: bool,
}

enum State {
    Idle,
    Asking(Op<()>),
    Reading(Op<Vec<u8>>),
}

impl Kick {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd: Fd::new(fd), state: State::Idle, asks: false }
    }

    /// Ends when the driver has signalled.
    ///
    /// # Errors
    /// Those of read(2), or it is not an event descriptor.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.state = match &mut self.state {
                State::Idle if self.asks => State::Asking(self.fd.poll(libc::POLLIN)),
                State::Idle => State::Reading(self.fd.read(vec![0; EVENT_BYTES], None)),
                State::Asking(asking) => {
                    let (asked, ()) = ready!(Pin::new(asking).poll(cx));
                    self.state = State::Idle;
                    asked?;
                    State::Reading(self.fd.read(vec![0; EVENT_BYTES], None))
                }
                State::Reading(reading) => {
                    let (read, _) = ready!(Pin::new(reading).poll(cx));
                    self.state = State::Idle;
                    match read {
                        Ok(EVENT_BYTES) => return Poll::Ready(Ok(())),
                        Ok(_) => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            self.asks = true;
                            State::Idle
                        }
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
            };
        }
    }
}

/// Signals a driver.
#[derive(Default)]
pub(crate) struct Call {
    fd: Option<Fd>,
    writing: Option<Op<Vec<u8>>>,
    /// Another signal follows the one that is being written.
    again: bool,
}

impl Call {
    /// Signals by another descriptor, if any, from now on; once, since a signal by the former one may be lost.
    pub(crate) fn replace(&mut self, fd: Option<OwnedFd>) {
        *self = Self { fd: fd.map(Fd::new), writing: None, again: false };
        self.signal();
    }

    pub(crate) fn signal(&mut self) {
        let Some(fd) = &self.fd else { return };
        if self.writing.is_some() {
            self.again = true;
        } else {
            self.writing = Some(fd.write(1u64.to_ne_bytes().to_vec(), None));
        }
    }

    /// Ends when all signals were written. A driver that does not read them has one already.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(writing) = &mut self.writing {
            let (written, _) = ready!(Pin::new(writing).poll(cx));
            self.writing = None;
            if let Err(error) = written {
                tracing::debug!(%error, "signalling a vhost-user driver");
            }
            if std::mem::take(&mut self.again) {
                self.signal();
            }
        }
        Poll::Ready(())
    }
}
