//! Which processes keep a file or device from being used, as far as `/proc` shows them (proc(5)).

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::Stat;

/// A process, as a message names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// The name of its program, of which the kernel keeps 15 bytes.
    pub command: String,
}

impl Process {
    /// The process with this number.
    pub fn of(pid: u32) -> Self {
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Self { pid, command: command.trim_end().to_owned() }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.command, self.pid)
    }
}

/// A living process that holds a lock on the file of `stat` which others feel: one of fcntl(2), not of
/// flock(2). `None` if there is none, or none that this user may see.
pub(super) fn lock_holder(stat: &Stat) -> Option<Process> {
    find(|info, link| {
        let held = info.lines().filter_map(|line| line.strip_prefix("lock:"));
        let is_on_it = held.filter_map(inode).any(|inode| inode == stat.st_ino);
        // Followed last: looking at a file may wait for its file system.
        is_on_it
            && fs::metadata(link).is_ok_and(|it| (it.dev(), it.ino()) == (stat.st_dev, stat.st_ino))
    })
}

/// A living process that has the device with this number (`st_rdev` of stat(2)) open for writing. `None` if
/// there is none, or none that this user may see.
pub fn device_writer(number: u64) -> Option<Process> {
    find(|info, link| {
        let is_device = fs::read_link(link).is_ok_and(|path| path.starts_with("/dev"));
        is_device && is_for_writing(info) && fs::metadata(link).is_ok_and(|it| it.rdev() == number)
    })
}

/// Whether a descriptor may be written to.
fn is_for_writing(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// The first living process with an open file of which `wanted` holds: called with what is known of the
/// descriptor (`/proc/PID/fdinfo/FD`) and the link to the file.
fn find(wanted: impl Fn(&str, &Path) -> bool) -> Option<Process> {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    };
    let proc = Path::new("/proc");
    let pid = names(proc).find(|pid| {
        let process = proc.join(pid.to_string());
        let has = names(&process.join("fdinfo")).any(|fd| {
            let info = fs::read_to_string(process.join(format!("fdinfo/{fd}")));
            info.is_ok_and(|info| wanted(&info, &process.join(format!("fd/{fd}"))))
        });
        has && !is_ending(&process)
    })?;
    Some(Process::of(pid))
}

/// The inode of a lock: the end of the sixth word of `1: OFDLCK ADVISORY  WRITE -1 fe:00:9994311 0 EOF`.
fn inode(lock: &str) -> Option<u64> {
    let mut words = lock.split_whitespace();
    let kind = words.nth(1)?;
    let id = words.nth(3)?;
    matches!(kind, "OFDLCK" | "POSIX").then(|| id.rsplit(':').next()?.parse().ok()).flatten()
}

/// Whether a process has ended or is about to: a zombie, on its way out, or killed.
fn is_ending(process: &Path) -> bool {
    const EXITING: u64 = 0x4;
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let Ok(stat) = fs::read_to_string(process.join("stat")) else { return true };
    // The program's name, in parentheses, may have any bytes.
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
    fn the_inode_of_a_lock_is_read_from_its_line() {
        let of = |line| inode(line);
        assert_eq!(of("\t1: OFDLCK ADVISORY  WRITE -1 fe:00:9994311 0 EOF"), Some(9_994_311));
        assert_eq!(of("\t2: POSIX  ADVISORY  READ 17 08:01:5 100 203"), Some(5));
        // flock(2) and leases exclude nothing here.
        assert_eq!(of("\t2: FLOCK  ADVISORY  WRITE 31491 fe:00:5646670 0 EOF"), None);
        assert_eq!(of(""), None);
        assert_eq!(of("\t1: OFDLCK ADVISORY"), None);
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
