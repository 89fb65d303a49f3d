//! The sandbox of a daemon: its rights once its disks, sockets and mount are open.
//!
//! The threats and limits: docs/internals/sandbox.md. The daemon confines its main thread before it starts another, and seals all
//! of them once it has its rings. Work that needs more rights after that, others do: the cleanup helper ends the mount, clients
//! pass disks.
//!
//! The configuration alone decides whether there is a sandbox, never a byte of a disk: an image must not choose where it is
//! parsed.

use std::fs::DirBuilder;
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use ashlar_commands::btrfs::scrub::ScrubDirectory;
use ashlar_commands::lvm::archive::Archives;
use ashlar_disks as disks;
use ashlar_disks::sandbox::{LEAST_MEMORY, is_switched_off};
use ashlar_engine::memory::{address_space_bytes, available_bytes};
use ashlar_sandbox::{CapabilitySet, MemoryLimit, Policy, Sockets};

use crate::config::Config;
use crate::error::{Error, Result};

/// Files that the daemon reads later: the host's name and kernel for descriptions of volume groups, the limits of devices that
/// clients pass to it.
const READS: [&str; 6] = [
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/ostype",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/version",
    "/sys/dev/block",
    "/sys/devices",
];
/// The address space that threads may reserve without using it, bytes: the allocator takes 64 MiB for each of up to a hundred.
const RESERVED_BYTES: u64 = 8 << 30;
/// The addresses for the memory of virtual machines, bytes: no host has as much, and more would not fit beside the process itself on
/// machines with 47 bits of addresses.
const FOREIGN_BYTES: u64 = 1 << 46;
/// The permissions of our directory for states.
const STATE_MODE: u32 = 0o700;

/// See the module text.
pub(crate) struct Confinement(std::result::Result<Policy, String>);

impl Confinement {
    /// The sandbox of a daemon, or why it has none. Made before the first reactor.
    pub(crate) fn of(config: &Config) -> Self {
        let is_far = |path: &&PathBuf| disks::is_on_network(path);
        let why = if config.no_sandbox || is_switched_off() {
            Some("--no-sandbox".to_owned())
        } else {
            let disk = config.disks.iter().find(is_far);
            disk.map(|disk| format!("{} may have to be connected to again", disk.display()))
        };
        if let Some(why) = why {
            tracing::info!(why, "no sandbox");
            return Self(Err(why));
        }
        ashlar_engine::restrict_rings();
        Self(Ok(policy()))
    }

    /// None.
    #[cfg(test)]
    pub(crate) fn off() -> Self {
        Self(Err("a test".to_owned()))
    }

    /// Lets the daemon read these files later, and what is below these directories.
    pub(crate) fn show(&mut self, places: Vec<PathBuf>) {
        if let Ok(policy) = &mut self.0 {
            *policy = places.into_iter().fold(policy.clone(), Policy::read_below);
        }
    }

    /// Whether there is one.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_ok()
    }

    /// `on`, or why not, for users.
    pub(crate) fn status(&self) -> String {
        self.0.as_ref().map_or_else(|why| format!("off: {why}"), |_| "on".to_owned())
    }

    /// Drops the rights of this thread, and of those that it starts, to files that the daemon does not need, and to memory beyond
    /// what is available now and what clients may take; `maps_foreign`: besides memory of theirs, whose pages are not this process's.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn confine_files(&self, client_bytes: u64, maps_foreign: bool) -> Result<()> {
        let Ok(policy) = &self.0 else { return Ok(()) };
        let limit = memory_limit(client_bytes, maps_foreign);
        policy.clone().memory(limit).confine_files().map_err(failed)
    }

    /// Refuses the system calls that the daemon does not need, in all threads.
    ///
    /// # Errors
    /// The kernel refused, or allows what it should refuse.
    pub(crate) fn seal(&self) -> Result<()> {
        let Ok(policy) = &self.0 else { return Ok(()) };
        policy.seal().map_err(failed)?;
        ashlar_engine::end_rings();
        match TcpListener::bind("127.0.0.1:0") {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error()) => {
                tracing::debug!("in the sandbox");
                Ok(())
            }
            Err(error) => Err(failed(format!("a socket was refused for another reason: {error}"))),
            Ok(_) => Err(failed("the kernel still lets the daemon make sockets")),
        }
    }
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::plain("cannot enter the sandbox", why).hint(
        "use --no-sandbox to run outside; the parsers of disks and requests then keep all rights",
    )
}

/// The memory that the daemon may take; `None` if the kernel does not say how much there is.
fn memory_limit(client_bytes: u64, maps_foreign: bool) -> Option<MemoryLimit> {
    // RAM disks have theirs already.
    let own = available_bytes()?.max(LEAST_MEMORY).checked_add(address_space_bytes()?)?;
    let own_bytes = own.checked_add(client_bytes)?;
    let foreign_bytes = if maps_foreign { FOREIGN_BYTES } else { 0 };
    let address_space_bytes = own_bytes.checked_add(RESERVED_BYTES)?.checked_add(foreign_bytes)?;
    Some(MemoryLimit { own_bytes, address_space_bytes })
}

/// The policy of a daemon.
fn policy() -> Policy {
    // The memory that a ring registers counts against a low limit otherwise. A scrub answers on a socket beside its record.
    let policy = Policy::new().keep(CapabilitySet::IPC_LOCK).sockets(Sockets::Listen);
    states().into_iter().fold(policy.read_present(&READS), Policy::write_below)
}

/// The directories of archives of volume groups, and of records of scrubs, as far as they can be made: a daemon without one
/// refuses what needs it when it is asked for.
fn states() -> Vec<PathBuf> {
    let archives = Archives::directory().ok();
    let scrubs = ScrubDirectory::new(None).ok().map(|scrubs| scrubs.path().to_owned());
    let mut all: Vec<PathBuf> = archives.into_iter().chain(scrubs).collect();
    all.retain(|directory| {
        let made = DirBuilder::new().recursive(true).mode(STATE_MODE).create(directory);
        if let Err(error) = &made {
            tracing::debug!(directory = %directory.display(), %error, "no state is kept");
        }
        made.is_ok()
    });
    all
}
