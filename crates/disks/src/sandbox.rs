//! The sandbox of a command that looks at disks: it opens them, enters, and only then reads their first byte.
//!
//! The threats and limits: docs/internals/sandbox.md.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ashlar_client::disk_path::is_on_network;
use ashlar_control::error::{Error, Result};
use ashlar_engine::memory::available_bytes;
use ashlar_sandbox::{CapabilitySet, MemoryLimit, Policy, Sockets};

/// The least memory in the sandbox, bytes: less is not enough to start in, since threads reserve address space.
pub const LEAST_MEMORY: u64 = 1 << 30;

/// What libzpool opens when it starts: random numbers, the host's ID, the numbers of processors and pages of memory.
const WORKER_READS: [&str; 6] = [
    "/dev/random",
    "/dev/urandom",
    "/etc/hostid",
    "/proc/sys/kernel/spl/hostid",
    "/proc/meminfo",
    "/sys/devices/system/cpu",
];
/// The address space that a worker may reserve without using it, bytes: its slabs take 64 GiB for each of some fifty sizes.
const WORKER_RESERVED: u64 = 8 << 40;

static SWITCHED_OFF: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicBool = AtomicBool::new(false);

/// Has this process stay outside of the sandbox, as `--no-sandbox` says.
pub fn switch_off() {
    SWITCHED_OFF.store(true, Relaxed);
}

/// Whether the user wants no sandbox.
pub fn is_switched_off() -> bool {
    SWITCHED_OFF.load(Relaxed)
}

/// Adds advice to the error of a command if the sandbox may be its cause.
pub fn explained(error: Error) -> Error {
    let text = error.to_string();
    let is_refusal = ["(os error 1)", "(os error 13)"].iter().any(|end| text.contains(end));
    if is_refusal && error.advice().is_none() && INSIDE.load(Relaxed) {
        return error.hint("the sandbox may have refused this: try --no-sandbox");
    }
    error
}

/// The sandbox that a command will enter once its disks are open. It is made before the first reactor.
#[derive(Debug)]
#[must_use]
pub struct Sandbox(Option<Policy>);

impl Sandbox {
    /// The sandbox of a command that works on these disks; none with `--no-sandbox`, or for a disk on another machine, to which the
    /// process may have to connect again.
    pub fn of(paths: &[PathBuf]) -> Self {
        if is_switched_off() {
            tracing::debug!("no sandbox: --no-sandbox");
            return Self::none();
        }
        if let Some(disk) = paths.iter().find(|path| is_on_network(path)) {
            let disk = disk.display();
            tracing::debug!(%disk, "no sandbox: the disk may have to be connected to again");
            return Self::none();
        }
        ashlar_engine::restrict_rings();
        // The memory that a ring registers counts against a low limit otherwise.
        Self(Some(Policy::new().keep(CapabilitySet::IPC_LOCK)))
    }

    /// No sandbox: for a process that has another one, or has more to do.
    pub const fn none() -> Self {
        Self(None)
    }

    /// The same for a command that copies files to `dest`, which becomes a file or a directory unless it is one: all in the
    /// directory in which it will be, or below itself, may be written.
    pub fn writing_to(self, dest: &Path) -> Self {
        let Self(Some(policy)) = self else { return self };
        let directory = match dest.parent() {
            _ if dest.is_dir() => dest,
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            Some(_) | None => Path::new("."),
        };
        // The target may be another user's. If it is missing, the copy says so.
        let policy = policy.keep(CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER);
        // Those of symbolic links.
        let policy = policy.times(true);
        Self(Some(match directory.is_dir() {
            true => policy.write_below(directory),
            false => policy.changes(true),
        }))
    }

    /// The same for a command that sets owners, and with `attributes` those extended attributes that only root may set.
    pub fn setting_owners(self, owners: bool, attributes: bool) -> Self {
        let Self(Some(mut policy)) = self else { return self };
        if owners {
            policy = policy.owners(true).keep(CapabilitySet::CHOWN | CapabilitySet::FSETID);
        }
        if owners && attributes {
            policy = policy.keep(CapabilitySet::SETFCAP | CapabilitySet::SYS_ADMIN);
        }
        Self(Some(policy))
    }

    /// The same for a command that keeps its state in a directory and answers on a socket there.
    pub fn answering_in(self, directory: &Path) -> Self {
        let Self(Some(policy)) = self else { return self };
        let policy = policy.keep(CapabilitySet::DAC_OVERRIDE).sockets(Sockets::Listen);
        Self(Some(policy.write_below(directory)))
    }

    /// Enters it, permanently. The process has one thread, and all rings that it will have.
    ///
    /// # Errors
    /// The kernel refused a step: the command must not continue outside of the sandbox.
    pub fn enter(self) -> Result<()> {
        let Self(Some(policy)) = self else { return Ok(()) };
        let limit = available_bytes().map(|bytes| {
            let most = (bytes / 2).max(LEAST_MEMORY);
            MemoryLimit { own_bytes: most, address_space_bytes: most }
        });
        policy.memory(limit).enter().map_err(|why| {
            let error = Error::plain("cannot enter the sandbox", why);
            error.hint("use --no-sandbox to run outside; the parsers of disks then keep all rights")
        })?;
        ashlar_engine::end_rings();
        INSIDE.store(true, Relaxed);
        tracing::debug!("in the sandbox");
        Ok(())
    }
}

/// Puts a worker of a ZFS pool into its sandbox, permanently: it has loaded its library, and reads what this needs later. Its
/// disks, and memory for data, come to it as open files.
///
/// # Errors
/// The kernel refused a step, as text: the worker must not continue.
pub fn enter_as_worker() -> std::result::Result<(), String> {
    let policy = Policy::new().sockets(Sockets::Served).read_present(&WORKER_READS);
    let limit = available_bytes().map(|bytes| {
        let most = bytes.max(LEAST_MEMORY).saturating_add(WORKER_RESERVED);
        MemoryLimit { own_bytes: most, address_space_bytes: most }
    });
    policy
        .memory(limit)
        .enter()
        .map_err(|why| format!("cannot enter the sandbox of a worker: {why}"))
}
