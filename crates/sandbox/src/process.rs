//! Attributes of the process: privileges, dumps, memory.

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use crate::{MemoryLimit, SandboxError};

/// No program that the process might start gets more rights than the process has. Filters of system calls need this, too.
pub(crate) fn no_new_privileges() -> Result<(), SandboxError> {
    set_no_new_privs(true).map_err(|why| SandboxError::step("refuse new privileges", why))
}

/// The memory may hold keys and other users' data: core dumps are off, and no other process of the same user can read it.
/// The files of this process in /proc belong to root from now on, so an ordinary user's process can no longer open some of its own.
pub(crate) fn forbid_dumps() -> Result<(), SandboxError> {
    let failed = |why| SandboxError::step("switch core dumps off", why);
    lower(Resource::Core, 0).map_err(failed)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)
}

pub(crate) fn limit_memory(limit: MemoryLimit) -> Result<(), SandboxError> {
    let failed = |why| SandboxError::step("limit the memory", why);
    lower(Resource::Data, limit.own_bytes).map_err(failed)?;
    lower(Resource::As, limit.address_space_bytes).map_err(failed)
}

/// Lowers a limit permanently.
fn lower(resource: Resource, to: u64) -> rustix::io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(resource);
    let lower = |from: Option<u64>| Some(from.map_or(to, |from| from.min(to)));
    setrlimit(resource, Rlimit { current: lower(current), maximum: lower(maximum) })
}

/// Drops all capabilities but `keep` from all sets of this thread.
pub(crate) fn drop_capabilities(keep: CapabilitySet) -> Result<(), SandboxError> {
    let failed = |why| SandboxError::step("drop capabilities", why);
    let had = capabilities(None).map_err(failed)?;
    // Only a thread with CAP_SETPCAP can shrink the bounding set. In other threads no_new_privs prevents a gain by execve(2).
    if had.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all() - keep {
            match remove_capability_from_bounding_set(capability) {
                // An older kernel does not know the newest capabilities.
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(why) => return Err(failed(why)),
            }
        }
    }
    // The kernel is older than Linux 4.3 if it has no such set.
    let (Ok(()) | Err(_)) = clear_ambient_capability_set();
    let kept = had.permitted & keep;
    let sets = CapabilitySets {
        effective: kept & had.effective,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).map_err(failed)
}
