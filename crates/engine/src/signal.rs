//! Signals as futures, through signalfd(2).

use std::io;
use std::mem;
use std::os::fd::{FromRawFd, OwnedFd};

pub use rustix::process::Signal;

use crate::fd::Fd;

fn set_of(signals: &[Signal]) -> libc::sigset_t {
    // SAFETY: a sigset_t is plain memory, initialised by sigemptyset.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, signal.as_raw());
        }
        set
    }
}

/// Keeps `signals` from their usual effect, so that [`Signals`] can wait for them. To be called by
/// the main thread before it starts others, which inherit it.
///
/// # Errors
/// Those of pthread_sigmask(3).
pub fn block(signals: &[Signal]) -> io::Result<()> {
    let set = set_of(signals);
    // SAFETY: `set` is a valid signal set; the former mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// The arrivals of some signals.
pub struct Signals {
    fd: Fd,
}

impl Signals {
    /// Listens for `signals`, which must be [blocked](block) in all threads.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn new(signals: &[Signal]) -> io::Result<Self> {
        let set = set_of(signals);
        // SAFETY: `set` is a valid signal set.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours.
        Ok(Self { fd: Fd::new(unsafe { OwnedFd::from_raw_fd(fd) }) })
    }

    /// The number of the next signal that arrives (compare with [`Signal::as_raw`]).
    ///
    /// # Errors
    /// Those of reading a signalfd.
    pub async fn next(&self) -> io::Result<i32> {
        let info = vec![0; mem::size_of::<libc::signalfd_siginfo>()];
        let (got, info) = self.fd.read(info, None).await;
        got?;
        // ssi_signo is the first field, a u32 of the machine's order.
        let number = info.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
        number.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Waits for the first of `signals`.
///
/// # Errors
/// As [`Signals`].
pub async fn wait(signals: &[Signal]) -> io::Result<i32> {
    Signals::new(signals)?.next().await
}
