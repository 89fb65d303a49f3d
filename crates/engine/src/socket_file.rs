//! Unix sockets in the file system: created with their mode, replaced when no process listens, and removed
//! only by their owner.
//!
//! Several daemons may be given one path. A file is removed only by the identity (device and inode) that was checked,
//! never by its name alone: a file that another process has put there meanwhile stays. So does its mode and its group: in a
//! directory that others may write to, a link may have taken the socket's place right after bind(2).

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, chownat};
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
    /// The file that another process has made at `path`, and removes by `remover`.
    pub fn of_other(
        path: PathBuf,
        identity: Identity,
        remover: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self { path, identity, remover: Some(remover) }
    }

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
        Ok(identity) if identity == of => {
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
    // From here on all is done to the file that was looked at, whatever takes its place. No client can connect before listen(2).
    let (own, stat) = new_socket(path)?;
    let identity = (stat.st_dev, stat.st_ino);
    let file = SocketFile { path: path.to_owned(), identity, remover: None };
    if let Some(group) = group {
        chownat(&own, c"", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    }
    if stat.st_mode & 0o7777 != mode {
        // Restore the bits that the umask removed. fchmod(2) takes no such descriptor (O_PATH), but this name leads to its file alone.
        let name = format!("/proc/self/fd/{}", own.as_raw_fd());
        fs::set_permissions(name, Permissions::from_mode(mode))?;
    }
    rustix::net::listen(&fd, BACKLOG)?;
    Ok((fd, file))
}

/// The file of the socket that this process has just made at `path`.
///
/// # Errors
/// Something else is there now.
fn new_socket(path: &Path) -> io::Result<(OwnedFd, Stat)> {
    let file = open_path(path)?;
    let stat = rustix::fs::fstat(&file)?;
    let is_ours = FileType::from_raw_mode(stat.st_mode).is_socket()
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1;
    match is_ours {
        true => Ok((file, stat)),
        false => Err(io::Error::other("another file has taken the place of the new socket")),
    }
}

/// The file at a path itself, be it a link; it is not opened.
fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn identity(path: &Path) -> io::Result<Identity> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
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
        let file = open_path(path).ok()?;
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
        let is_it = identity(&aside).is_ok_and(|identity| identity == self.identity);
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
    use std::sync::atomic::{AtomicBool, Ordering};

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

    /// In a directory that others may write to, between bind(2) and the rest.
    #[test]
    fn what_has_taken_the_place_of_a_new_socket_is_not_taken_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("secret"), "root's").unwrap();
        let _other = UnixListener::bind(at("other")).unwrap();
        new_socket(&at("other")).unwrap();
        let swaps: [fn(PathBuf, PathBuf) -> io::Result<()>; 2] =
            [|from, to| std::os::unix::fs::symlink(from, to), |from, to| fs::hard_link(from, to)];
        for swap in swaps {
            for target in ["secret", "other"] {
                swap(at(target), at("s")).unwrap();
                let why = new_socket(&at("s")).unwrap_err().to_string();
                assert!(why.contains("taken the place"), "{target}: {why}");
                fs::remove_file(at("s")).unwrap();
            }
        }
    }

    /// A thread that swaps the new socket for a link to a secret, as fast as it can.
    #[test]
    fn no_link_gets_the_mode_of_a_socket_that_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("secret"), "root's").unwrap();
        fs::set_permissions(at("secret"), Permissions::from_mode(0o600)).unwrap();
        let (path, link, ends) = (at("s"), at("link"), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    // The rename fails as long as there is no socket, or replaces it.
                    let made = std::os::unix::fs::symlink("secret", &link);
                    if path.exists() && made.and_then(|()| fs::rename(&link, &path)).is_ok() {
                        thread::yield_now();
                    }
                    for leftover in [&link, &path] {
                        let (Ok(()) | Err(_)) = fs::remove_file(leftover);
                    }
                }
            });
            for _ in 0..300 {
                // With a umask that takes bits away.
                let (Ok(_) | Err(_)) = listen_at(&path, 0o666, None);
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::metadata(at("secret")).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_socket_has_exactly_the_mode_that_was_wanted() {
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in [("a", 0o600), ("b", 0o666), ("c", 0o660), ("d", 0o777)] {
            let (_fd, file) = listen_at(&dir.path().join(name), mode, None).unwrap();
            let found = fs::symlink_metadata(file.path()).unwrap();
            assert_eq!(found.mode() & 0o7777, mode);
            assert_eq!((found.dev(), found.ino()), file.identity());
        }
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
