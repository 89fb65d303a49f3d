//! Disks: how options name them, how they are opened, and what stands between them and their users; and the sandbox in which a command
//! reads them.
//!
//! # Theory
//!
//! An [`Opener`] opens image files, block devices, disks on the network and RAM disks, and puts over each what the user asked for
//! ([`Decorators`]): a map of unread areas, a device model. [`options`] has the values of options and of `stack.toml`, [`size`] their sizes.
//! A [`sandbox::Sandbox`] is made before the disks are opened, and entered before their first byte is read.
//!
//! States of a disk: not open; open and locked, unless it is only looked at; lent, with its lock, to a daemon, which adopts it.
//!
//! Invariants: a disk is opened at most once by a command, and not while the kernel or another program uses it. Whoever reads it sees all that
//! decorates it, and a disk that would lose this is not lent.
//!
//! Ordering: the program sets the decorators of the process before it opens a disk. A disk that its last process still holds is waited for.
//!
//! Assumed: the engine locks and claims what it opens. What waits for a file system runs on a thread of the pool when a reactor calls it.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::fmt::Display;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ashlar_block::{Runtime, Status};
use ashlar_control::error::{Error, Result};
use ashlar_engine::{EngineRuntime, Reactor};
use ashlar_stack::assemble::Disk;
use ashlar_stack::outsiders::{DeviceClass, Outsider};
use ashlar_stack::owners;
use ashlar_stack::probe::Contents;
use rustix::io::Errno;

mod asking;
mod decorator;
mod decorators;
mod failure;
mod kernel_use;
mod lending;
mod maps;
mod models;
mod network;
mod opener;
pub mod options;
pub mod sandbox;
pub mod size;

pub use ashlar_client::disk_path::{
    Access, Identity, absolute, device_number, identity, identity_of, in_directory, is_no_file,
    is_on_network, is_ram, is_same, may_exist,
};
pub use asking::{asked, identity_in_task};
pub use decorators::Decorators;
pub use lending::lending_client;
pub use maps::{BadMapFile, MapFile, MappedDisk, Maps};
pub use models::{Assignment, Models};
pub use opener::{Opened, Opener};

/// Refuses a disk with two owners for writing: see [`owners`].
///
/// # Errors
/// It has two, or cannot be read.
pub async fn refuse_rivals(
    disk: &Disk,
    contents: std::result::Result<&Contents, &Status>,
) -> Result<()> {
    // Unreadable disks are reported by the code that needs them.
    let Ok(contents) = contents else { return Ok(()) };
    let path = disk.path.display();
    match owners::rivals(&disk.gateway, contents).await {
        Ok(None) => Ok(()),
        Ok(Some(rivals)) => Err(Error::new("cannot use", path, &rivals).hint(rivals.way_out())),
        Err(status) => Err(Error::new("cannot read", path, status)),
    }
}

/// The refusal to write to a device that another program writes to.
pub fn written_elsewhere(device: impl Display, outsider: &Outsider) -> Error {
    Error::new("cannot write to", device, format!("it {outsider}"))
}

/// Refuses to write to a disk that another program writes to: see [`ashlar_stack::outsiders`].
///
/// # Errors
/// Another program writes to it.
pub fn refuse_outsider(
    disk: &Disk,
    contents: std::result::Result<&Contents, &Status>,
) -> Result<()> {
    let Ok(contents) = contents else { return Ok(()) };
    match Outsider::of(contents, DeviceClass::Disk, false) {
        None => Ok(()),
        Some(outsider) => {
            Err(written_elsewhere(disk.path.display(), &outsider).hint(outsider.removal()))
        }
    }
}

/// Whether the file at `path` is one hole, so that it reads as zeroes.
pub fn is_all_hole(path: &Path) -> bool {
    let file = match File::open(path) {
        Ok(file) if file.metadata().is_ok_and(|metadata| metadata.is_file()) => file,
        Ok(_) | Err(_) => return false,
    };
    // ENXIO: no data at or after this position (lseek(2), SEEK_DATA).
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)) == Err(Errno::NXIO)
}

/// A reactor for this thread.
///
/// # Errors
/// io_uring was asked for and is not allowed, or there are no descriptors or memory left.
pub fn reactor() -> Result<Reactor> {
    Reactor::new(Default::default()).map_err(no_io_uring)
}

/// The error when no reactor can be created.
pub fn no_io_uring(error: std::io::Error) -> Error {
    Error::plain("cannot set up io_uring", error).hint(
        "io_uring needs Linux 5.11 or newer, and must be allowed (sysctl kernel.io_uring_disabled, \
         the seccomp profile of a container). Threads need no io_uring: set ASHLAR_IO=threads, or \
         run ashlar serve --io=threads",
    )
}

/// The runtime of the layers.
pub fn runtime() -> Arc<dyn Runtime> {
    Arc::new(EngineRuntime)
}
