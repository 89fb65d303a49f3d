//! The memory of the process: how much is available, and returning unused memory.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// Memory that the process may still allocate, bytes: the minimum of the machine's available memory, what its control
/// groups (version 2) leave, and what its address space limit leaves. `None` if the kernel does not report it.
///
/// Sources: proc(5), setrlimit(2), the kernel's cgroup-v2 document.
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

/// What the process's control groups leave, bytes.
fn left_in_groups() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let groups = Path::new(path).ancestors().map(|group| root.join(group));
    groups.filter_map(|group| left_in(&group)).min()
}

fn left_in(group: &Path) -> Option<u64> {
    let read = |name: &str| -> Option<u64> {
        fs::read_to_string(group.join(name)).ok()?.trim().parse().ok()
    };
    // "max" does not parse: no limit.
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
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
    fn lines_are_read_as_the_kernel_writes_them() {
        let text = "MemFree:  1 kB\nMemAvailable:      12 kB\n";
        assert_eq!(kib_of(text, "MemAvailable:"), Some(12 << 10));
        assert_eq!(kib_of(text, "Mem:"), None);
        assert_eq!(kib_of("MemAvailable: x kB", "MemAvailable:"), None);
    }
}
