//! The machine under a daemon, as its control plane uses it: time, tasks, disks by their paths, and the directory of archives.
//!
//! The daemon uses [`ThisMachine`]. The tests of the control plane use one with the simulator's time and disks: so handlers of
//! calls, and the tasks beside them, must not use another clock or open disks in another way.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{LocalFuture, Runtime};
use ashlar_commands::lvm::archive::Archives;
use ashlar_disks::{self as disks, Identity, Opener};
use ashlar_stack::assemble::Disk;

use crate::error::Result;

/// See the module text.
pub(crate) trait Machine {
    /// Its time, and the tasks of the main thread.
    fn runtime(&self) -> &Arc<dyn Runtime>;

    /// The identity of the disk at `path`; `None` if it cannot be determined, or nothing is there.
    ///
    /// # Errors
    /// Its file system does not respond.
    fn identity<'a>(&'a self, path: &'a Path) -> LocalFuture<'a, Result<Option<Identity>>>;

    /// Opens the disk at `path`.
    ///
    /// # Errors
    /// It cannot be opened.
    fn open<'a>(&'a self, path: &'a Path, opener: &'a Opener) -> LocalFuture<'a, Result<Disk>>;

    /// The archives of groups' descriptions for a change that `command` makes; with `keep` false, it leaves none.
    ///
    /// # Errors
    /// Their directory cannot be determined.
    fn archives(&self, keep: bool, command: &str) -> Result<Archives>;
}

/// The machine that this process runs on.
pub(crate) struct ThisMachine(Arc<dyn Runtime>);

impl Default for ThisMachine {
    fn default() -> Self {
        Self(disks::runtime())
    }
}

impl Machine for ThisMachine {
    fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.0
    }

    fn identity<'a>(&'a self, path: &'a Path) -> LocalFuture<'a, Result<Option<Identity>>> {
        Box::pin(disks::identity_in_task(path))
    }

    fn open<'a>(&'a self, path: &'a Path, opener: &'a Opener) -> LocalFuture<'a, Result<Disk>> {
        Box::pin(opener.in_task(path))
    }

    fn archives(&self, keep: bool, command: &str) -> Result<Archives> {
        Archives::new(keep, command)
    }
}

/// The time of a machine since its clock began.
pub(crate) fn now(runtime: &Arc<dyn Runtime>) -> Duration {
    Duration::from_nanos(runtime.now_ns())
}
