//! What stands between a disk and its users because a user asked for it.

use std::path::{Path, PathBuf};

use ashlar_control::error::Result;
use ashlar_stack::assemble::Disk;

/// A kind of device between a disk and its users, with the user's options for single disks.
pub(crate) trait Decorator {
    /// Checks that each disk which the user has named is one of `disks`.
    ///
    /// # Errors
    /// One is not.
    fn check(&self, disks: &[PathBuf]) -> Result<()>;

    /// The disk as its users see it. May wait for file systems.
    ///
    /// # Errors
    /// What the user asked for is not possible with this disk.
    fn over(&self, disk: Disk) -> Result<Disk>;

    /// As [`Self::over`], for a disk that another process has opened and lends.
    ///
    /// # Errors
    /// As there.
    fn over_lent(&self, disk: Disk) -> Result<Disk> {
        self.over(disk)
    }

    /// Whether there may be anything for lent disks.
    fn is_for_lent(&self) -> bool;

    /// Whether this process may lend the disk at `path` to a daemon, which uses it without this.
    ///
    /// # Errors
    /// It may not: what the daemon read or wrote would be wrong.
    fn may_lend(&self, path: &Path) -> Result<()>;

    /// Whether this process may be the client of a daemon, which opens the disks that it is asked about.
    ///
    /// # Errors
    /// It may not: the user asked for something that the daemon does not know.
    fn may_call(&self) -> Result<()>;
}
