//! The files of a trace, its events as JSON, and the names of what a btrfs has at the traced sectors.

mod files;
mod json;
mod names;

pub use self::files::{TraceFiles, recorded_devices, recorded_items};
pub use self::json::event_json;
pub use self::names::NamesOnDisk;

/// This host's name and its kernel: `nas, Linux 6.12.57 x86_64`.
pub fn host_and_kernel() -> String {
    let system = rustix::system::uname();
    let parts = [system.nodename(), system.sysname(), system.release(), system.machine()];
    let [name, kernel, release, machine] = parts.map(|part| part.to_string_lossy());
    format!("{name}, {kernel} {release} {machine}")
}
