//! Sockets that the service manager has made for this process (socket activation, sd_listen_fds(3)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::FdFlags;
use rustix::net::{SocketType, sockopt};

use crate::net::BoundSocket;

/// The first descriptor.
const FIRST: RawFd = 3;
/// The most descriptors: more are a mistake.
const MOST: RawFd = 1024;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The sockets that listen for this process, in the order of its socket units; none if the service manager has made none. They are handed out
/// once, and no program that this process starts inherits them. The manager keeps them open: clients that connect while the process restarts wait.
///
/// # Errors
/// A descriptor is not a stream socket that listens.
pub fn sockets() -> io::Result<Vec<BoundSocket>> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<RawFd>().ok();
    let is_for_us = number("LISTEN_PID") == Some(std::process::id().cast_signed());
    let count = number("LISTEN_FDS").filter(|_| is_for_us).unwrap_or_default();
    if count <= 0 || TAKEN.swap(true, Relaxed) {
        return Ok(Vec::new());
    }
    let wrong = |fd: RawFd, why: &str| io::Error::other(format!("descriptor {fd}: {why}"));
    if count > MOST {
        return Err(wrong(FIRST + count, "too many descriptors were passed"));
    }
    let take = |fd| {
        // SAFETY: only looked at, and that fails if it is not open. This process has none there but what it was started with.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        if !listens(borrowed).map_err(|error| wrong(fd, &error.to_string()))? {
            return Err(wrong(fd, "not a stream socket that listens"));
        }
        rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
        // SAFETY: it is open, the manager has given it to this process, and no other code takes it: this is the first call.
        BoundSocket::listening(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    (FIRST..FIRST + count).map(take).collect()
}

fn listens(fd: impl AsFd) -> io::Result<bool> {
    Ok(sockopt::socket_type(&fd)? == SocketType::STREAM && sockopt::socket_acceptconn(&fd)?)
}
