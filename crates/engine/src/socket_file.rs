//! Unix sockets in the file system: created with their mode, replaced when no process listens any more, and removed
//! only by their owner.
//!
//! Several daemons may be given one path. A file is removed only by the identity (device and inode) that was checked,
//! never by its name alone: a file that another process has put there meanwhile stays.

use std::fmt;
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, chownat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// The most connections that wait to be accepted; the kernel has its own bound too.
const BACKLOG: i32 = 4096;
/// How long a process may take from bind(2) to listen(2). Until then its socket refuses connections, as a stale one
/// does.
const SETTLE: Duration = Duration::from_millis(50);

/// The file of a socket that this process listens on. Dropping it removes the file, if it is still there.
pub struct SocketFile {
    path: PathBuf,
    identity: Identity,
    /// Removes it, if this process does not.
    remover: Option<Box<dyn Fn() + Send + Sync>>,
}

/// Which file it is: device and inode.
pub type Identity = (u64, u64);

impl SocketFile {
    /// Its path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Has the file be removed by `remover`, because this process may lose the rights to do so.
    pub fn removed_by(&mut self, remover: Box<dyn Fn() + Send + Sync>) {
        self.remover = Some(remover);
    }
}

impl fmt::Debug for SocketFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        match &self.remover {
            Some(remove) => remove(),
            None => remove(&self.path, self.identity),
        }
    }
}

/// Removes the file of a socket at `path`, unless another file has taken its place. While the socket still listens no other process
/// takes the file for a stale one.
pub fn remove(path: &Path, of: Identity) {
    let shown = path.display();
    match identity(path) {
        Ok((identity, _)) if identity == of => {
            if let Err(error) = fs::remove_file(path) {
                tracing::debug!(path = %shown, %error, "removing a socket");
            }
        }
        Ok(_) => tracing::warn!(path = %shown, "another socket has taken this place, and stays"),
        Err(error) => tracing::debug!(path = %shown, %error, "a socket is gone"),
    }
}

/// Listens at `path` with a file of exactly `mode`, which belongs to `group` if there is one. A socket on which no
/// process listens is replaced.
///
/// # Errors
/// `AddrInUse` if a process listens there or the path is not a socket; others of bind(2).
pub fn listen(path: &Path, mode: u32, group: Option<u32>) -> io::Result<(OwnedFd, SocketFile)> {
    let in_use = match listen_at(path, mode, group) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        other => return other,
    };
    let Some(left_behind) = StaleSocket::find(path) else { return Err(in_use) };
    thread::sleep(SETTLE);
    match StaleSocket::find(path) {
        Some(again) if again.identity == left_behind.identity => again.take_away(path)?,
        Some(_) | None => return Err(in_use),
    }
    listen_at(path, mode, group)
}

fn listen_at(path: &Path, mode: u32, group: Option<u32>) -> io::Result<(OwnedFd, SocketFile)> {
    let address = SocketAddrUnix::new(path)?;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The kernel gives the file the mode of the socket, less the umask: it is never open to more users than intended.
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&fd, &address)?;
    let (identity, metadata) = identity(path)?;
    let file = SocketFile { path: path.to_owned(), identity, remover: None };
    // No client can connect before listen(2).
    if let Some(group) = group {
        let group = Some(Gid::from_raw(group));
        chownat(CWD, path, None, group, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if metadata.permissions().mode() & 0o7777 != mode {
        // Restore the bits that the umask removed.
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    rustix::net::listen(&fd, BACKLOG)?;
    Ok((fd, file))
}

fn identity(path: &Path) -> io::Result<(Identity, Metadata)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok(((metadata.dev(), metadata.ino()), metadata))
}

/// A stale socket: it refuses connections.
struct StaleSocket {
    identity: Identity,
    /// Keeps the inode's number from being used again.
    _file: OwnedFd,
}

impl StaleSocket {
    /// The socket at `path`, if it is stale.
    fn find(path: &Path) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        // Connecting must not wait for a process that does not accept.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        let connected = rustix::net::connect(&fd, &SocketAddrUnix::new(path).ok()?);
        let refused = connected == Err(Errno::CONNREFUSED);
        let is_socket = FileType::from_raw_mode(stat.st_mode).is_socket();
        (is_socket && refused).then_some(Self { identity: (stat.st_dev, stat.st_ino), _file: file })
    }

    /// Removes it from `path`. No system call removes a file by its identity: the file at `path` is moved aside first,
    /// checked again, and put back if it is another.
    fn take_away(&self, path: &Path) -> io::Result<()> {
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}.stale", std::process::id()));
        let aside = path.with_file_name(name);
        fs::rename(path, &aside)?;
        let is_it = identity(&aside).is_ok_and(|(identity, _)| identity == self.identity);
        if !is_it {
            // Unlike rename(2), this does not replace an existing file.
            fs::hard_link(&aside, path)?;
        }
        fs::remove_file(&aside)?;
        if is_it { Ok(()) } else { Err(io::ErrorKind::AddrInUse.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_socket_that_took_the_place_of_a_stale_one_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let left_behind = StaleSocket::find(&path).unwrap();
        // Another daemon took the path first.
        fs::remove_file(&path).unwrap();
        let _live = UnixListener::bind(&path).unwrap();
        let refused = left_behind.take_away(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_full_queue_is_not_taken_for_a_dead_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (fd, _file) = listen_at(&path, 0o600, None).unwrap();
        rustix::net::listen(&fd, 0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        assert!(StaleSocket::find(&path).is_none());
    }
}
