//! md arrays for a command: creation, the members of an array on disks, and the arrays on disks or of a daemon.

mod assemble;
mod create;
mod details;
mod erase;
mod examine;
mod query;
mod served;

pub use self::assemble::{MemberFilter, UpdateOptions, find_members, try_to_assemble, update};
pub use self::create::{
    ArrayPlan, BitmapChoice, ConsistencyPolicy, CreateOptions, MISSING, MemberPath, NewArray,
    PlannedMember,
};
pub use self::details::{ArraysOnDisks, UnusableArray, arrays_on};
pub use self::erase::{ErasedDisk, erase_superblocks};
pub use self::examine::{Examination, ExamineForm, examine};
pub use self::query::{query_array, query_disk};
pub use self::served::{
    ServedArrayName, await_action, running_arrays, served_arrays, set_array_state, start_action,
    stop_array, suspects,
};

/// This host's name.
pub fn hostname() -> Option<String> {
    // A system call: in the sandbox there is no /proc.
    let system = rustix::system::uname();
    let name = system.nodename().to_str().ok()?;
    (!name.is_empty() && name != "(none)").then(|| name.to_owned())
}

/// The host that a user names, or this one; none for `any`.
fn homehost(name: Option<&str>) -> Option<String> {
    match name {
        Some("any" | "none" | "<none>" | "") => None,
        Some(host) => Some(host.to_owned()),
        None => hostname(),
    }
}
