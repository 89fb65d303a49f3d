//! Signals: as futures, through signalfd(2), or for a thread that only waits for them.

use std::io;
use std::mem;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

pub use rustix::process::Signal;

use crate::fd::Fd;
use crate::sys::{checked, uninterrupted};

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

/// Blocks the default action of `signals`, so that [`Signals`] can wait for them. Call it on the main thread before it
/// starts others, which inherit the mask.
///
/// # Errors
/// Those of pthread_sigmask(3).
pub fn block(signals: &[Signal]) -> io::Result<()> {
    let set = set_of(signals);
    // SAFETY: `set` is a valid signal set; the old mask is not requested.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Waits, blocking this thread, for one of `signals`, which must be [blocked](block) in all threads, and returns its
/// number (compare with [`Signal::as_raw`]). For a dedicated thread, which a busy reactor cannot delay.
///
/// # Errors
/// Those of sigwaitinfo(2), except EINTR.
pub fn receive(signals: &[Signal]) -> io::Result<i32> {
    let set = set_of(signals);
    // SAFETY: `set` is a valid signal set; the siginfo is not requested.
    uninterrupted(|| unsafe { libc::sigwaitinfo(&raw const set, ptr::null_mut()) })
}

/// As [`receive`], for at most `time`; `None` if none of them arrives. One that is already pending is received in any case.
///
/// # Errors
/// Those of sigtimedwait(2), except EINTR and EAGAIN.
pub fn receive_within(signals: &[Signal], time: Duration) -> io::Result<Option<i32>> {
    let set = set_of(signals);
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = libc::timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        // SAFETY: `set` is a valid signal set and `left` a valid time; the siginfo is not requested.
        let got = unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const left) };
        match checked(got) {
            Ok(number) => return Ok(Some(number)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether this process was started with `signal` ignored, as nohup(1) does with SIGHUP.
///
/// # Errors
/// Those of sigaction(2).
pub fn is_ignored(signal: Signal) -> io::Result<bool> {
    // SAFETY: a sigaction is plain memory; with a null pointer for the new action the call only fills it in.
    unsafe {
        let mut now: libc::sigaction = mem::zeroed();
        checked(libc::sigaction(signal.as_raw(), ptr::null(), &raw mut now))?;
        Ok(now.sa_sigaction == libc::SIG_IGN)
    }
}

/// Makes the kernel ignore `signal`, for this process and those that it starts: the call that caused it fails with an
/// error instead (SIGXFSZ: a write beyond the file size limit, with EFBIG).
///
/// # Errors
/// Those of signal(2).
pub fn ignore(signal: Signal) -> io::Result<()> {
    // SAFETY: no handler is involved.
    if unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
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
        let fd = checked(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) })?;
        // SAFETY: the descriptor is new and ours.
        Ok(Self { fd: Fd::new(unsafe { OwnedFd::from_raw_fd(fd) }) })
    }

    /// Waits for the next signal; returns its number (compare with [`Signal::as_raw`]).
    ///
    /// # Errors
    /// Those of reading a signalfd.
    pub async fn next(&self) -> io::Result<i32> {
        let info = vec![0; mem::size_of::<libc::signalfd_siginfo>()];
        let (got, info) = self.fd.read(info, None).await;
        got?;
        // ssi_signo is the first field, a u32 in native byte order.
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
