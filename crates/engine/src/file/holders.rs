//! Which processes keep a file or device from being used, as far as `/proc` shows them (proc(5)).

use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;

/// The name of a process that shares a daemon's open disks, and finishes its work on them also when the daemon has died.
pub const FINISHER: &CStr = c"ashlar-zfs";

/// A process, as a message names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its process ID.
    pub pid: u32,
    /// The name of its program, truncated to 15 bytes by the kernel.
    pub command: String,
}

impl Process {
    /// The process with this ID.
    pub fn of(pid: u32) -> Self {
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Self { pid, command: command.trim_end().to_owned() }
    }

    /// Whether it may only be finishing the work of a daemon that has died.
    pub fn is_finisher(&self) -> bool {
        self.command.as_bytes() == FINISHER.to_bytes()
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.command, self.pid)
    }
}

/// A descriptor of a process, from `/proc/PID/fdinfo/FD`.
pub(super) struct OpenDescriptor {
    pub(super) pid: u32,
    pub(super) fd: u32,
    info: String,
}

/// All descriptors of all processes that this user may see.
pub(super) fn openings() -> impl Iterator<Item = OpenDescriptor> {
    let numbers = |directory: PathBuf| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    };
    numbers("/proc".into()).flat_map(move |pid| {
        let directory = process(pid).join("fdinfo");
        numbers(directory.clone()).filter_map(move |fd| {
            let info = fs::read_to_string(directory.join(fd.to_string())).ok()?;
            Some(OpenDescriptor { pid, fd, info })
        })
    })
}

fn process(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

impl OpenDescriptor {
    /// The locks held through this descriptor.
    pub(super) fn locks(&self) -> impl Iterator<Item = Lock<'_>> {
        let lines = self.info.lines().filter_map(|line| line.strip_prefix("lock:"));
        lines.filter_map(Lock::parse)
    }

    /// Whether the descriptor is open for writing. In doubt it is.
    pub(super) fn is_for_writing(&self) -> bool {
        let flags = self.info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        flags.is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
    }

    /// The process, unless it is ending.
    pub(super) fn living(&self) -> Option<Process> {
        (!is_ending(&process(self.pid))).then(|| Process::of(self.pid))
    }

    fn link(&self) -> PathBuf {
        process(self.pid).join(format!("fd/{}", self.fd))
    }
}

/// A lock of fcntl(2) on a file. Locks of flock(2) and leases do not conflict with these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lock<'a> {
    /// Whether it may be shared with other readers.
    pub(super) is_read: bool,
    /// The file, by its file system's device and its inode: `fe:00:9994311`.
    pub(super) file: &'a str,
}

impl<'a> Lock<'a> {
    /// Parses `1: OFDLCK ADVISORY  WRITE -1 fe:00:9994311 0 EOF`; `None` for a lock that a process still waits for.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace().skip(1);
        let kind = words.next()?;
        let mode = words.nth(1)?;
        let file = words.nth(1)?;
        matches!(kind, "OFDLCK" | "POSIX").then_some(Self { is_read: mode == "READ", file })
    }

    fn inode(&self) -> Option<u64> {
        self.file.rsplit(':').next()?.parse().ok()
    }
}

/// A living process that holds a lock on the file of `stat`. `None` if this user may see no such process.
pub(super) fn lock_holder(stat: &Stat) -> Option<Process> {
    let is_holder = |opening: &OpenDescriptor| {
        let has_lock = opening.locks().any(|lock| lock.inode() == Some(stat.st_ino));
        // The link is followed last: stat on a file may wait for its file system.
        let is_it = |it: fs::Metadata| (it.dev(), it.ino()) == (stat.st_dev, stat.st_ino);
        has_lock && fs::metadata(opening.link()).is_ok_and(is_it)
    };
    living(is_holder)
}

/// A living process that has the device with this number (`st_rdev` of stat(2)) open for writing. `None` if there is
/// none that this user may see.
pub fn device_writer(number: u64) -> Option<Process> {
    living(|opening| {
        let is_device = |path: PathBuf| path.starts_with("/dev");
        opening.is_for_writing()
            && fs::read_link(opening.link()).is_ok_and(is_device)
            && fs::metadata(opening.link()).is_ok_and(|it| it.rdev() == number)
    })
}

/// Any such process; one that is only finishing if there is no other.
fn living(has: impl Fn(&OpenDescriptor) -> bool) -> Option<Process> {
    let mut finisher = None;
    for process in openings().filter(|opening| has(opening)).filter_map(|it| it.living()) {
        if !process.is_finisher() {
            return Some(process);
        }
        finisher = Some(process);
    }
    finisher
}

/// Whether a process has ended or is about to: a zombie, exiting, or killed.
fn is_ending(process: &Path) -> bool {
    const EXITING: u64 = 0x4;
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let Ok(stat) = fs::read_to_string(process.join("stat")) else { return true };
    // The program's name, in parentheses, may contain any bytes.
    let Some((_, rest)) = stat.rsplit_once(')') else { return true };
    let words: Vec<&str> = rest.split_whitespace().collect();
    let flags = words.get(6).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    if matches!(words.first(), Some(&("Z" | "X"))) || flags & EXITING != 0 {
        return true;
    }
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    status.lines().any(|line| {
        let pending = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"));
        let pending = pending.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        pending.is_some_and(|bits| bits & KILLED != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_read_from_its_line() {
        let write = Lock { is_read: false, file: "fe:00:9994311" };
        let line = "\t1: OFDLCK ADVISORY  WRITE -1 fe:00:9994311 0 EOF";
        assert_eq!(Lock::parse(line), Some(write));
        assert_eq!(write.inode(), Some(9_994_311));
        let line = "2: POSIX  ADVISORY  READ 17 08:01:5 100 203";
        assert_eq!(Lock::parse(line), Some(Lock { is_read: true, file: "08:01:5" }));
        assert_eq!(Lock::parse("2: FLOCK  ADVISORY  WRITE 31491 fe:00:5646670 0 EOF"), None);
        assert_eq!(Lock::parse("2: -> OFDLCK ADVISORY  WRITE -1 fe:00:5646670 0 EOF"), None);
        assert_eq!(Lock::parse(""), None);
        assert_eq!(Lock::parse("1: OFDLCK ADVISORY"), None);
    }

    #[test]
    fn a_killed_process_that_was_not_waited_for_is_ending() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Path::new("/proc").join(child.id().to_string());
        assert!(!is_ending(&process));
        child.kill().unwrap();
        assert!(is_ending(&process));
        child.wait().unwrap();
        assert!(is_ending(&process));
    }
}
