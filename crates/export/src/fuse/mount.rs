//! Creating and ending a mount.
//!
//! With the privilege, a mount is made by mount(2). For an ordinary user the set-uid helper `fusermount3` makes it: it
//! gets one end of a socket as its standard input and sends the open `/dev/fuse` back through it (the `_FUSE_COMMFD`
//! protocol of libfuse's `util/fusermount.c`).
//!
//! A mount is only ended if the file system mounted at its path is still ours: the connection is alive, and
//! `/proc/self/mountinfo` shows its device number there (numbers of dead file systems are reused, that of a live one is
//! not). The file system itself is not accessed, since that would wait for the very server that is about to stop.

use std::ffi::{CString, OsStr};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ashlar_engine::net::receive_with_files;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use thiserror::Error;

use super::abi::MAX_WRITE;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// The table of mounts.
const MOUNTS: &str = "/proc/self/mountinfo";
/// Shown as the mount's source, and as the suffix of its type (`fuse.ashlar`).
const NAME: &str = "ashlar";

/// How to mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountOptions {
    /// Whether other users may access the mount, as far as the file modes allow.
    pub allow_other: bool,
}

/// Why a mount could not be made or ended. The message says what to do.
#[derive(Debug, Error)]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("{path}: {source}")]
    MountPoint {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The kernel has no FUSE.
    #[error(
        "{DEVICE} does not exist: load the kernel module (modprobe fuse) or give the container the device"
    )]
    NoDevice,
    /// The device cannot be opened.
    #[error("{DEVICE} cannot be opened ({0}): this user needs read and write access to it")]
    DeviceDenied(io::Error),
    /// An ordinary user, but no helper.
    #[error(
        "{HELPER} was not found, which mounts for users other than root: install the package fuse3"
    )]
    NoHelper,
    /// An ordinary user without an entry in the user database, which the helper needs.
    #[error(
        "user {0} has no entry in the user database (/etc/passwd), which {HELPER} asks for: add one, or run as root"
    )]
    NoUser(u32),
    /// The helper failed.
    #[error("{HELPER} failed: {0}")]
    Helper(String),
    /// `allow_other` as an ordinary user.
    #[error(
        "only root may let other users in, unless /etc/fuse.conf has the line user_allow_other"
    )]
    OtherUsersDenied,
    /// mount(2) failed.
    #[error("mounting on {path} failed: {source}")]
    Mount {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The process that was to end the mount failed.
    #[error("ending the mount on {path} failed: {why}")]
    Ending {
        /// The path.
        path: PathBuf,
        /// What it said.
        why: String,
    },
    /// A file of the mount is open, or a loop device uses one.
    #[error(
        "{path} is in use: close its files (fuser -m {path}), detach loop devices on them (losetup -d) and try again"
    )]
    Busy {
        /// The path.
        path: PathBuf,
    },
}

/// What it takes to end a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountPlace {
    /// Where it is mounted, a canonical path.
    pub path: PathBuf,
    /// `major:minor` of the file system, as in mountinfo.
    pub device: String,
    /// Whether the helper ends it, and not umount2(2).
    pub by_helper: bool,
}

impl MountPlace {
    /// Ends the mount, with `lazy` even when it is in use; unless another file system is mounted there.
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn end(&self, lazy: bool) -> Result<(), MountError> {
        let path = &self.path;
        let table = std::fs::read_to_string(MOUNTS).map_err(|error| MountError::Ending {
            path: path.clone(),
            why: format!("{MOUNTS}: {error}"),
        })?;
        if find_device(&table, path).as_ref() == Some(&self.device) {
            end_at(path, lazy, self.by_helper)?;
        }
        Ok(())
    }
}

/// Ends a mount for a process that cannot; the argument says whether even when it is in use.
pub type MountEnder = Box<dyn Fn(bool) -> Result<(), MountError> + Send + Sync>;

/// A mount. Dropping it detaches it: it is gone for new users, present users keep it until they close their files.
///
/// It keeps the connection open. Drop it when its server has ended: requests that no server will answer then fail
/// instead of waiting.
pub struct Mount {
    path: PathBuf,
    /// `None` once the mount has ended, or if it is not known what is mounted there.
    place: Option<MountPlace>,
    connection: OwnedFd,
    ender: Option<MountEnder>,
}

/// Checks in advance, as far as possible, that a mount can be made on the directory `path`: the directory, the kernel's
/// FUSE, and for an ordinary user the helper and the user's name.
///
/// # Errors
/// See [`MountError`].
pub fn check(path: &Path) -> Result<(), MountError> {
    let failed = |source| MountError::MountPoint { path: path.to_owned(), source };
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(failed(io::ErrorKind::NotADirectory.into())),
        // A mount that a dead server left there; mount() clears it away.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {}
        Err(error) => return Err(failed(error)),
    }
    match std::fs::metadata(DEVICE) {
        Ok(metadata) if metadata.file_type().is_char_device() => {}
        Ok(_) => return Err(MountError::NoDevice),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(MountError::NoDevice),
        Err(error) => return Err(MountError::DeviceDenied(error)),
    }
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return Ok(());
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&paths).any(|directory| directory.join(HELPER).is_file()) {
        return Err(MountError::NoHelper);
    }
    // Exit status 2: no such key (getent(1)). Without that program the helper reports it.
    let known = Command::new("getent").arg("passwd").arg(uid.to_string()).output();
    if known.is_ok_and(|output| output.status.code() == Some(2)) {
        return Err(MountError::NoUser(uid.as_raw()));
    }
    Ok(())
}

/// Mounts on the directory `path`. Returns the mount and the device to serve it with, on which the kernel's first
/// request already waits.
///
/// A mount that a dead server left there is cleared away first.
///
/// # Errors
/// See [`MountError`].
pub fn mount(path: &Path, options: MountOptions) -> Result<(Mount, OwnedFd), MountError> {
    let failed = |source| MountError::MountPoint { path: path.to_owned(), source };
    let mut metadata = std::fs::metadata(path);
    if let Err(error) = &metadata
        && Errno::from_io_error(error) == Some(Errno::NOTCONN)
    {
        clear_stale(path)?;
        metadata = std::fs::metadata(path);
    }
    let metadata = metadata.map_err(failed)?;
    if !metadata.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    let path = path.canonicalize().map_err(failed)?;
    let (fd, by_helper) = match by_syscall(&path, metadata.mode(), options)? {
        Some(fd) => (fd, false),
        None => (by_helper(&path, options)?, true),
    };
    let connection = fd.try_clone().map_err(failed)?;
    let place = mounted_at(&path);
    let place = place.map(|device| MountPlace { path: path.clone(), device, by_helper });
    Ok((Mount { path, place, connection, ender: None }, fd))
}

/// Mounts with mount(2); `None` without the privilege.
fn by_syscall(
    path: &Path,
    mode: u32,
    options: MountOptions,
) -> Result<Option<OwnedFd>, MountError> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if !uid.is_root() {
        return Ok(None);
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoDevice,
        other => MountError::DeviceDenied(other.into()),
    })?;
    let data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},{}",
        fd.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw(),
        common_options(options)
    );
    let failed = |source| MountError::Mount { path: path.to_owned(), source };
    let data = CString::new(data).map_err(|error| failed(error.into()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    match rustix::mount::mount(NAME, path, "fuse.ashlar", flags, data.as_c_str()) {
        Ok(()) => Ok(Some(fd)),
        // Root without CAP_SYS_ADMIN, as in a container: the helper may have the privilege.
        Err(Errno::PERM) => Ok(None),
        Err(Errno::NODEV) => Err(MountError::NoDevice),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// The kernel checks the file modes itself, and never asks for more data than it would write.
fn common_options(options: MountOptions) -> String {
    let others = if options.allow_other { ",allow_other" } else { "" };
    format!("default_permissions,max_read={MAX_WRITE}{others}")
}

fn by_helper(path: &Path, options: MountOptions) -> Result<OwnedFd, MountError> {
    let broken = |error: io::Error| MountError::Helper(error.to_string());
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| broken(errno.into()))?;
    let mut helper = Command::new(HELPER);
    helper.arg("-o").arg(format!("fsname={NAME},subtype={NAME},{}", common_options(options)));
    helper.arg("--").arg(path);
    // As its standard input the socket reaches the helper, and no other process started meanwhile.
    helper.env("_FUSE_COMMFD", "0").stdin(Stdio::from(theirs));
    run_helper(&mut helper)?;
    // `Command` keeps the standard input open; once it is dropped, a helper that sent nothing shows as end of file.
    drop(helper);
    let mut files = Vec::new();
    receive_with_files(&ours, &mut [0], &mut files).map_err(broken)?;
    files
        .pop()
        .ok_or_else(|| MountError::Helper("it succeeded, but did not send the device".to_owned()))
}

fn run_helper(helper: &mut Command) -> Result<(), MountError> {
    let output = helper.output().map_err(|error| {
        let missing = error.kind() == io::ErrorKind::NotFound;
        if missing { MountError::NoHelper } else { MountError::Helper(error.to_string()) }
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().trim_start_matches(HELPER).trim_start_matches(':').trim();
    Err(if said.contains("user_allow_other") {
        MountError::OtherUsersDenied
    } else if said.contains("device not found") {
        MountError::NoDevice
    } else if said.contains("could not determine username") {
        MountError::NoUser(rustix::process::geteuid().as_raw())
    } else if said.is_empty() {
        MountError::Helper(output.status.to_string())
    } else {
        MountError::Helper(said.to_owned())
    })
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mount").field("path", &self.path).field("place", &self.place).finish()
    }
}

impl Mount {
    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it takes to end it; `None` once it has ended.
    pub fn place(&self) -> Option<&MountPlace> {
        self.place.as_ref()
    }

    /// From now on another process ends it, because this one may lose the rights to do so.
    pub fn ended_by(&mut self, ender: MountEnder) {
        self.ender = Some(ender);
    }

    /// Ends the mount, unless it is in use. Its server, which must be running, ends by itself, or when the last copy of
    /// the mount in another mount namespace is gone (a container started meanwhile has one):
    /// [`Session::retire`](super::session::Session::retire) says whether a copy is in use. A mount that the user has already ended is not an error.
    ///
    /// # Errors
    /// [`MountError::Busy`] when in use; the caller may try again. See the others.
    pub fn unmount(&mut self) -> Result<(), MountError> {
        self.end(false)
    }

    /// Detaches the mount even when it is in use. Its server ends when the last user has closed its files.
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn detach(&mut self) -> Result<(), MountError> {
        self.end(true)
    }

    fn end(&mut self, lazy: bool) -> Result<(), MountError> {
        if let Some(place) = &self.place
            && self.is_connected()
        {
            match &self.ender {
                Some(end) => end(lazy)?,
                None => place.end(lazy)?,
            }
        }
        self.place = None;
        Ok(())
    }

    /// Whether the kernel still uses the connection: if the mount has ended, a copy of it in another mount namespace has not.
    pub fn is_connected(&self) -> bool {
        let mut polled = [PollFd::new(&self.connection, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut polled, Some(&now)) {
            Ok(_) => !polled[0].revents().contains(PollFlags::ERR),
            Err(_) => true,
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            tracing::warn!(%error, path = %self.path.display(), "a mount could not be detached");
        }
    }
}

fn end_at(path: &Path, lazy: bool, by_helper: bool) -> Result<(), MountError> {
    if !by_helper {
        let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        return match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(()),
            Err(Errno::BUSY) => Err(MountError::Busy { path: path.to_owned() }),
            Err(errno) => Err(MountError::Mount { path: path.to_owned(), source: errno.into() }),
        };
    }
    let mut helper = Command::new(HELPER);
    helper.arg("-u").args(lazy.then_some("-z")).arg("--").arg(path).stdin(Stdio::null());
    match run_helper(&mut helper) {
        Err(MountError::Helper(said)) if said.contains("busy") => {
            Err(MountError::Busy { path: path.to_owned() })
        }
        result => result,
    }
}

/// Unmounts the mount that a dead server left at `path`.
fn clear_stale(path: &Path) -> Result<(), MountError> {
    tracing::warn!(path = %path.display(), "detaching the mount of a server that has died");
    end_at(path, true, !rustix::process::geteuid().is_root())
}

/// `major:minor` of the topmost file system at `path`, which must be canonical.
fn mounted_at(path: &Path) -> Option<String> {
    // Without the table no mount is known to be ours, and nothing is unmounted.
    find_device(&std::fs::read_to_string(MOUNTS).ok()?, path)
}

/// Looks `path` up in the text of mountinfo (proc_pid_mountinfo(5)): the last line is the topmost mount.
fn find_device(mountinfo: &str, path: &Path) -> Option<String> {
    let mut found = None;
    for line in mountinfo.lines() {
        let mut fields = line.split(' ').skip(2);
        if let (Some(device), Some(_root), Some(place)) =
            (fields.next(), fields.next(), fields.next())
            && OsStr::from_bytes(&unescape(place)) == path.as_os_str()
        {
            found = Some(device.to_owned());
        }
    }
    found
}

/// Decodes the kernel's escapes (`\040`) of white space and backslashes.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    while let [first, rest @ ..] = bytes {
        let octal = rest
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                bytes = &rest[3..];
            }
            None => {
                out.push(*first);
                bytes = rest;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
61 22 0:44 / /mnt/a\\040b rw,nosuid,nodev - fuse.ashlar ashlar rw
62 22 0:45 / /mnt/x rw - tmpfs none rw
63 62 0:46 / /mnt/x rw - fuse.ashlar ashlar rw
";

    #[test]
    fn the_topmost_mount_of_a_place_is_found() {
        let device = |path: &str| find_device(MOUNTINFO, Path::new(path));
        assert_eq!(device("/mnt/x").as_deref(), Some("0:46"));
        assert_eq!(device("/mnt/a b").as_deref(), Some("0:44"));
        assert_eq!(device("/mnt"), None);
        assert_eq!(find_device("no such\nlines\n\n", Path::new("/")), None);
    }

    #[test]
    fn escapes_of_mountinfo_are_undone() {
        assert_eq!(unescape("a\\134b\\040\\011"), b"a\\b \t");
        assert_eq!(unescape("end\\04"), b"end\\04");
        assert_eq!(unescape("\\999"), b"\\999");
    }

    #[test]
    fn a_mount_point_that_is_missing_or_a_file_is_refused() {
        let missing = mount(Path::new("/nonexistent/dir"), MountOptions::default());
        assert!(matches!(missing, Err(MountError::MountPoint { .. })));
        let file = mount(Path::new("/proc/self/mountinfo"), MountOptions::default());
        assert!(matches!(file, Err(MountError::MountPoint { .. })));
    }
}
