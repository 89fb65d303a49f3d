//! The process at the other end of a socket.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The process that listens at the other end of a connected unix socket, as a pidfd, which becomes readable once the
/// process is gone (pidfd_open(2)). `None` if it is not visible to this process: it is in another PID namespace, or has
/// ended. The number was not reused meanwhile if the process still answers on the socket afterwards.
///
/// # Errors
/// Those of getsockopt(2) and pidfd_open(2).
pub fn peer(socket: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let mut len = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a ucred is plain memory, into which the call writes at most `len` bytes.
    let pid = unsafe {
        let mut cred: libc::ucred = mem::zeroed();
        let (fd, at) = (socket.as_fd().as_raw_fd(), (&raw mut cred).cast());
        if libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut len) < 0 {
            return Err(io::Error::last_os_error());
        }
        cred.pid
    };
    let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => Ok(Some(process)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
