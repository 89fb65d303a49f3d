//! The memory of the process: how much is available, returning unused memory, and what the kernel does when memory runs out.

use std::path::Path;
use std::{fs, io};

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, configure_io_flusher_behavior, getrlimit};

/// Memory that the process may still allocate, bytes: the minimum of the machine's available memory, what its control
/// groups (of either version) leave, and what its address space limit leaves. `None` if the kernel does not report it.
///
/// Sources: proc(5), setrlimit(2), the kernel's documents on control groups (cgroup-v2, cgroup-v1/memory).
pub fn available_bytes() -> Option<u64> {
    let machine = kib_of(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    let address_space = getrlimit(Resource::As)
        .current
        .and_then(|most| Some(most.saturating_sub(address_space_bytes()?)));
    [address_space, left_in_groups()].into_iter().flatten().chain([machine]).min()
}

/// The address space that the process has, bytes. `None` if the kernel does not report it.
pub fn address_space_bytes() -> Option<u64> {
    kib_of(&fs::read_to_string("/proc/self/status").ok()?, "VmSize:")
}

/// The value of a line `NAME   123 kB`, in bytes.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Where a version of control groups is mounted, and its files with a group's limit and use.
struct Version {
    root: &'static str,
    limit: &'static str,
    used: &'static str,
}

const V1: Version = Version {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
};
const V2: Version = Version { root: "/sys/fs/cgroup", limit: "memory.max", used: "memory.current" };

/// What the process's control groups leave, bytes; `None` without a limit.
pub fn left_in_groups() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let left = own.lines().filter_map(group_of).filter_map(|(version, path)| {
        // In a container the path may be that outside, of which only the root is seen.
        let groups = Path::new(path).ancestors().map(|group| Path::new(version.root).join(group));
        groups.filter_map(|group| left_in(&group, version)).min()
    });
    left.min()
}

/// The group that a line of /proc/self/cgroup names, below its mount, if it is one that limits memory.
fn group_of(line: &str) -> Option<(&'static Version, &str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?.strip_prefix('/')?);
    let is_memory = || controllers.split(',').any(|name| name == "memory");
    match controllers {
        "" => Some((&V2, path)),
        _ if is_memory() => Some((&V1, path)),
        _ => None,
    }
}

fn left_in(group: &Path, version: &Version) -> Option<u64> {
    /// The limit of a group of version 1 without one: the largest number of pages, whatever their size.
    const NONE: u64 = i64::MAX as u64 - (1 << 20);
    let read = |name: &str| -> Option<u64> {
        fs::read_to_string(group.join(name)).ok()?.trim().parse().ok()
    };
    // "max" does not parse: no limit.
    let limit = read(version.limit).filter(|limit| *limit < NONE)?;
    Some(limit.saturating_sub(read(version.used)?))
}

/// Tells the kernel that other processes wait for this one when they write. When this thread, or one that it starts, needs memory,
/// the kernel then writes nothing back for it, and waits for no file system: that could wait for this process. Programs that it
/// executes are treated so, too.
///
/// # Errors
/// The process has not the right CAP_SYS_RESOURCE, or the kernel is older than Linux 5.6 (prctl(2), PR_SET_IO_FLUSHER).
pub fn serve_writers() -> io::Result<()> {
    Ok(configure_io_flusher_behavior(true)?)
}

/// Keeps the program and its libraries in memory from their first use on, and the memory that the process has now. Otherwise the
/// kernel drops the program's pages when memory is short, and reading them again needs memory.
///
/// # Errors
/// The process may not lock so much memory (mlockall(2)).
pub fn keep_program() -> io::Result<()> {
    Ok(mlockall(MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT)?)
}

/// Returns freed memory that the allocator keeps to the kernel. This can take as long as faulting the pages in did: not
/// for a reactor's thread.
pub fn trim() {
    // Other C libraries return memory by themselves.
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_some_memory_and_not_more_than_the_machine_has() {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
        let total = kib_of(&meminfo, "MemTotal:").unwrap();
        assert!((1..total).contains(&available_bytes().unwrap()));
    }

    #[test]
    fn the_groups_of_both_versions_count() {
        let found = |line| group_of(line).map(|(version, path)| (version.limit, path));
        assert_eq!(found("0::/a/b"), Some(("memory.max", "a/b")));
        assert_eq!(found("4:memory:/a:b"), Some(("memory.limit_in_bytes", "a:b")));
        assert_eq!(found("4:cpu,memory:/"), Some(("memory.limit_in_bytes", "")));
        assert_eq!((found("8:pids:/a"), found("1:name=memory:/a"), found("x")), (None, None, None));
    }

    #[test]
    fn a_group_leaves_its_limit_without_what_is_used() {
        let dir = std::env::temp_dir().join(format!("ashlar-groups-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let mut seen = Vec::new();
        for limit in ["300\n", "100\n", "max\n", "9223372036854771712\n"] {
            for version in [&V1, &V2] {
                fs::write(dir.join(version.limit), limit).unwrap();
                fs::write(dir.join(version.used), "200\n").unwrap();
                seen.push(left_in(&dir, version));
            }
        }
        fs::remove_dir_all(&dir).unwrap();
        let expected = [Some(100), Some(0), None, None];
        assert_eq!(seen, expected.map(|left| [left; 2]).concat());
        assert_eq!(left_in(&dir, &V1), None);
    }

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let text = "MemFree:  1 kB\nMemAvailable:      12 kB\n";
        assert_eq!(kib_of(text, "MemAvailable:"), Some(12 << 10));
        assert_eq!(kib_of(text, "Mem:"), None);
        assert_eq!(kib_of("MemAvailable: x kB", "MemAvailable:"), None);
    }
}
