//! The advisory lock on a disk: one writer, or readers.
//!
//! # Theory
//!
//! A lock of fcntl(2) on the whole file, for the open file description: a reader's is shared, a writer's exclusive, and
//! the kernel enforces this. But any process that may read a file may take a shared lock on it, and could keep the
//! file's owner from writing. So a writer whose lock is refused looks at the locks that are held. If all are shared
//! locks of processes that could not write to the file themselves, the writer takes a shared lock instead. That lock
//! still excludes other writers and readers of ours:
//!
//! - A process that asks for an exclusive lock is refused because of the shared one, and looks at the locks in turn. It
//!   finds one held through a descriptor that is open for writing: such a lock always counts.
//! - A process that gets a shared lock, as a reader or as above, looks at the other locks if there are any. Both
//!   processes look only after they hold their own lock. So at least one of two finds the other, and releases its lock.
//!
//! To look is to read `/proc`. A lock that is listed there but whose holder is not visible counts as a writer's: either
//! the holder has ended and the kernel still does its I/O, or it is in another namespace. (A reader that is not root
//! cannot see processes of other users, and ignores such locks: it may read what is being written.) On file systems
//! whose files other machines may lock, all locks count.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::Stat;

use super::holders::{self, Lock, OpenDescriptor, Process, lock_holder};
use super::open::OpenError;
use crate::sys::checked;

/// Sets, changes or removes the lock on the whole file.
fn set(fd: &OwnedFd, kind: i32) -> io::Result<()> {
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: F_OFD_SETLK reads a flock.
    checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }).map(drop)
}

/// Releases the lock.
pub(super) fn release(fd: &OwnedFd) -> io::Result<()> {
    set(fd, libc::F_UNLCK)
}

fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// Takes the lock. False where the file system has no locks.
///
/// # Errors
/// Another process holds it: [`OpenError::InUse`].
pub(super) fn take(
    fd: &OwnedFd,
    path: &Path,
    stat: &Stat,
    is_reader: bool,
) -> Result<bool, OpenError> {
    let in_use = |holder| Err(OpenError::InUse { path: path.to_owned(), holder });
    let wanted = if is_reader { libc::F_RDLCK } else { libc::F_WRLCK };
    let mut got = set(fd, wanted);
    if !is_reader && got.as_ref().is_err_and(is_held) {
        got = set(fd, libc::F_RDLCK);
    } else if !is_reader && got.is_ok() {
        return Ok(true);
    }
    match got {
        Ok(()) => {}
        Err(error) if is_held(&error) => return in_use(lock_holder(stat)),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "not locked");
            return Ok(false);
        }
    }
    let obstacle = match OtherLocks::of(fd) {
        Ok(others) if is_reader => others.writer(),
        Ok(others) => others.equal(fd, stat),
        // Without /proc a reader relies on its shared lock alone; for a writer that is not enough.
        Err(_) if is_reader => None,
        Err(_) => Some(None),
    };
    if let Some(holder) = obstacle {
        release(fd).map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        return in_use(holder);
    }
    if !is_reader {
        let path = path.display();
        tracing::warn!(%path, "the lock of a process that may only read the file is ignored");
    }
    Ok(true)
}

/// The locks on a file, without our own.
struct OtherLocks {
    /// How many `/proc/locks` lists.
    listed: usize,
    /// The descriptors that hold them, if visible, one for each open file description.
    seen: Vec<OpenDescriptor>,
    /// The file, as a [`Lock`] names it.
    file: String,
}

/// What keeps a file from being used, if anything: the process, if it is known and alive.
type Obstacle = Option<Option<Process>>;

impl OtherLocks {
    /// All locks on the file except the one that `fd` holds.
    fn of(fd: &OwnedFd) -> io::Result<Self> {
        let own = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
        let own = own.lines().find_map(|line| Lock::parse(line.strip_prefix("lock:")?));
        let file = own.ok_or(io::ErrorKind::NotFound)?.file.to_owned();
        let count = || -> io::Result<usize> {
            let locks = fs::read_to_string("/proc/locks")?;
            let locks = locks.lines().filter_map(Lock::parse).filter(|lock| lock.file == file);
            Ok(locks.count().saturating_sub(1))
        };
        // A list that changes while it is read may have gaps.
        let listed = count()?.max(count()?);
        let mut this = Self { listed, seen: Vec::new(), file };
        if listed > 0 {
            let own = (std::process::id(), fd.as_raw_fd() as u32);
            for opening in holders::openings() {
                let holds = opening.locks().any(|lock| lock.file == this.file);
                if holds && (opening.pid, opening.fd) != own && this.is_new(&opening)? {
                    this.seen.push(opening);
                }
            }
        }
        Ok(this)
    }

    /// Whether a descriptor is not a duplicate of one already seen: a duplicate would show the same lock again.
    fn is_new(&self, opening: &OpenDescriptor) -> io::Result<bool> {
        for other in &self.seen {
            if is_same_description(opening, other)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// How many locks the descriptors in `seen` hold.
    fn seen_locks(&self) -> usize {
        let of = |opening: &OpenDescriptor| {
            opening.locks().filter(|lock| lock.file == self.file).count()
        };
        self.seen.iter().map(of).sum()
    }

    /// The obstacle for a reader: a process that may be writing.
    fn writer(&self) -> Obstacle {
        let writer = self.seen.iter().find(|opening| opening.is_for_writing());
        match writer {
            Some(opening) => Some(opening.living()),
            None if self.seen_locks() == self.listed => None,
            None => rustix::process::geteuid().is_root().then_some(None),
        }
    }

    /// The obstacle for a writer: another process that could write to the file.
    fn equal(&self, fd: &OwnedFd, stat: &Stat) -> Obstacle {
        let is_powerless = |opening: &OpenDescriptor| {
            let is_shared =
                opening.locks().filter(|lock| lock.file == self.file).all(|lock| lock.is_read);
            is_shared && !opening.is_for_writing() && !may_write(opening.pid, fd, stat)
        };
        match self.seen.iter().find(|opening| !is_powerless(opening)) {
            Some(opening) => Some(opening.living()),
            None if !is_local(fd) => Some(self.seen.first().and_then(OpenDescriptor::living)),
            None if self.listed > 0 && self.seen_locks() == self.listed => None,
            None => Some(None),
        }
    }
}

/// Whether two descriptors share one open file description (kcmp(2)).
fn is_same_description(one: &OpenDescriptor, other: &OpenDescriptor) -> io::Result<bool> {
    const KCMP_FILE: libc::c_int = 0;
    // SAFETY: kcmp only compares, and its arguments are numbers.
    let order = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            one.pid,
            other.pid,
            KCMP_FILE,
            u64::from(one.fd),
            u64::from(other.fd),
        )
    };
    checked(order).map(|order| order == 0)
}

/// Whether the file system is local: no other machine locks its files.
fn is_local(fd: &OwnedFd) -> bool {
    const EXT: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    const F2FS: i64 = 0xf2f5_2010;
    const TMPFS: i64 = 0x0102_1994;
    rustix::fs::fstatfs(fd).is_ok_and(|fs| matches!(fs.f_type, EXT | XFS | BTRFS | F2FS | TMPFS))
}

/// Whether a process could open the file for writing, or change its permissions to do so. In doubt it could.
fn may_write(pid: u32, fd: &OwnedFd, stat: &Stat) -> bool {
    let has_acl = rustix::fs::fgetxattr(fd, "system.posix_acl_access", &mut [0_u8; 0][..])
        .is_ok_and(|len| len > 0);
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let Ok(map) = fs::read_to_string(format!("/proc/{pid}/uid_map")) else { return true };
    has_acl || Rights::of(&status, &map).is_none_or(|rights| rights.may_write(stat))
}

/// What a process may do to files, from `/proc/PID/status` and `uid_map` (proc(5), user_namespaces(7)).
struct Rights {
    users: HashSet<u32>,
    groups: HashSet<u32>,
    /// Whether it has any capability in its user namespace.
    is_capable: bool,
    /// The ranges of users over whose files it has its capabilities: first user, and how many.
    mapped: Vec<(u64, u64)>,
}

impl Rights {
    fn of(status: &str, map: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let ids = |name| -> Option<HashSet<u32>> {
            field(name)?.split_whitespace().map(|id| id.parse().ok()).collect()
        };
        let users = ids("Uid:")?;
        let mut groups = ids("Gid:")?;
        groups.extend(ids("Groups:")?);
        let capabilities = u64::from_str_radix(field("CapPrm:")?.trim(), 16).ok()?;
        let range = |line: &str| {
            let mut words = line.split_whitespace().skip(1);
            Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        };
        let mapped: Option<Vec<(u64, u64)>> = map.lines().map(range).collect();
        Some(Self { users, groups, is_capable: capabilities != 0, mapped: mapped? })
    }

    fn may_write(&self, stat: &Stat) -> bool {
        let owner = u64::from(stat.st_uid);
        let is_mapped =
            self.mapped.iter().any(|(from, count)| (*from..from + count).contains(&owner));
        let is_mode = |bit| stat.st_mode & bit != 0;
        self.users.contains(&0)
            || self.users.contains(&stat.st_uid)
            || (self.is_capable && is_mapped)
            || (self.groups.contains(&stat.st_gid) && is_mode(0o020))
            || is_mode(0o002)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tcat\nUid:\t1000\t1000\t1000\t1000\nGid:\t100\t100\t100\t100\n\
                          Groups:\t100 6 \nCapPrm:\t0000000000000000\n";
    const ALL: &str = "         0          0 4294967295\n";

    /// Whether a process with this status could write to a file of this owner, group and mode.
    fn may(status: &str, map: &str, owner: u32, group: u32, mode: u32) -> bool {
        let mut stat = rustix::fs::stat("/").unwrap();
        (stat.st_uid, stat.st_gid, stat.st_mode) = (owner, group, 0o100_000 | mode);
        Rights::of(status, map).unwrap().may_write(&stat)
    }

    #[test]
    fn a_process_without_rights_is_told_from_one_that_may_write() {
        assert!(!may(STATUS, ALL, 0, 0, 0o644));
        assert!(!may(STATUS, ALL, 0, 6, 0o644));
        assert!(may(STATUS, ALL, 0, 6, 0o664), "by its group");
        assert!(may(STATUS, ALL, 0, 0, 0o646), "as anybody");
        assert!(may(STATUS, ALL, 1000, 0, 0o444), "as the owner, who may change the mode");
        let root = STATUS.replace("1000\t1000\n", "0\t0\n");
        assert!(may(&root, ALL, 7, 7, 0o600));
        // All capabilities, but only over files of users of its namespace.
        let capable = STATUS.replace("CapPrm:\t0000", "CapPrm:\t0001");
        assert!(may(&capable, ALL, 0, 0, 0o644));
        assert!(!may(&capable, "         0       1000          1\n", 0, 0, 0o644));
        assert!(Rights::of("Uid:\tx\n", ALL).is_none());
    }
}
