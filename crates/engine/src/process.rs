//! The process at the other end of a socket, and what a child process inherits.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::sys::checked;

/// Whom a process acted for when it connected a unix socket, or listened on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The process's number; 0 if the process is in another PID namespace.
    pub pid: i32,
    /// The effective user.
    pub user: u32,
    /// The effective group.
    pub group: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Whether the process acted for this group.
    pub fn has_group(&self, group: u32) -> bool {
        self.group == group || self.groups.contains(&group)
    }
}

/// The credentials of the other end of a connected unix socket, as of the time when it connected or listened: what the
/// process becomes later does not count.
///
/// # Errors
/// Those of getsockopt(2), with SO_PEERCRED and SO_PEERGROUPS (unix(7)).
pub fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let libc::ucred { pid, uid, gid } = ucred(&socket)?;
    Ok(Credentials { pid, user: uid, group: gid, groups: groups(&socket)? })
}

/// The process at the other end of a connected unix socket, as of the time when it connected; 0 if it is in another PID namespace.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer_pid(socket: impl AsFd) -> io::Result<i32> {
    Ok(ucred(&socket)?.pid)
}

fn ucred(socket: &impl AsFd) -> io::Result<libc::ucred> {
    let mut len = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a ucred is plain memory, into which the call writes at most `len` bytes.
    unsafe {
        let mut cred: libc::ucred = mem::zeroed();
        let (fd, at) = (socket.as_fd().as_raw_fd(), (&raw mut cred).cast());
        checked(libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut len))?;
        Ok(cred)
    }
}

fn groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    const SIZE: usize = mem::size_of::<libc::gid_t>();
    let fd = socket.as_fd().as_raw_fd();
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut len = libc::socklen_t::try_from(groups.len() * SIZE).map_err(io::Error::other)?;
        let at = groups.as_mut_ptr().cast();
        // SAFETY: the vector has `len` bytes, and the call writes at most as many.
        let done = unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERGROUPS, at, &raw mut len)
        };
        let count = len as usize / SIZE;
        if done == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel says how much room they need; they no longer change.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// The process that listens at the other end of a connected unix socket, as a pidfd, which becomes readable once the
/// process is gone (pidfd_open(2)). `None` if it is not visible to this process: it is in another PID namespace, or has
/// ended. The number was not reused meanwhile if the process still answers on the socket afterwards.
///
/// # Errors
/// Those of getsockopt(2) and pidfd_open(2).
pub fn peer(socket: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let pid = ucred(&socket)?.pid;
    let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => Ok(Some(process)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Keeps programs that are started from now on from inheriting the descriptors that are open now, except standard
/// input, output and error: those that this process has itself inherited, such as the lock file of a script.
///
/// # Errors
/// Those of close_range(2).
pub fn pass_on_nothing() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call closes nothing now; it changes only what happens at an exec.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC as libc::c_uint,
        )
    };
    checked(done).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_credentials_of_this_process_are_its_own() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let found = credentials(&ours).unwrap();
        assert_eq!(found.pid, i32::try_from(std::process::id()).unwrap());
        assert_eq!(found.user, rustix::process::geteuid().as_raw());
        assert_eq!(found.group, rustix::process::getegid().as_raw());
        let groups = rustix::process::getgroups().unwrap();
        assert_eq!(found.groups, groups.iter().map(|group| group.as_raw()).collect::<Vec<_>>());
        assert!(found.has_group(found.group));
    }

    #[test]
    fn supplementary_groups_count_and_others_do_not() {
        let peer = Credentials { pid: 0, user: 5, group: 6, groups: vec![7, 8] };
        let has: Vec<u32> = (0..10).filter(|group| peer.has_group(*group)).collect();
        assert_eq!(has, [6, 7, 8]);
    }
}
