//! The list of what may stand between a disk and its users. A new kind is a file that implements [`Decorator`], a field and its place
//! in the list here, and an option that fills the field.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ashlar_control::error::Result;
use ashlar_stack::assemble::Disk;

use crate::decorator::Decorator;
use crate::maps::Maps;
use crate::models::Models;

/// Those of this process. They are not handed from `main` to the places that open disks, since all signatures on the way of every verb
/// would have them as an argument, and a verb that forgot it would silently read an image as if all of the disk were in it.
static OF_PROCESS: OnceLock<Arc<Decorators>> = OnceLock::new();

/// All kinds, with what the user asked for.
#[derive(Debug, Default)]
pub struct Decorators {
    /// Maps of unread areas.
    pub maps: Maps,
    /// Device models.
    pub models: Models,
}

impl Decorators {
    /// Has all openers of this process use these. The program calls this once, before it opens a disk.
    ///
    /// # Panics
    /// It was called before, or a disk was opened.
    pub fn use_in_process(self) {
        let set = OF_PROCESS.set(Arc::new(self));
        assert!(set.is_ok(), "decorators are set once, before any disk is opened");
    }

    /// Those of this process; by default with what is found beside disks.
    pub fn of_process() -> Arc<Self> {
        Arc::clone(OF_PROCESS.get_or_init(Arc::default))
    }

    /// In the order in which they are applied: what a model delays are also the errors of a map.
    fn list(&self) -> [&dyn Decorator; 2] {
        let Self { maps, models } = self;
        [maps, models]
    }

    /// Checks that all disks which the user has named are among `disks`.
    ///
    /// # Errors
    /// One is not.
    pub fn check(&self, disks: &[PathBuf]) -> Result<()> {
        self.list().into_iter().try_for_each(|decorator| decorator.check(disks))
    }

    /// The disk as its users see it.
    ///
    /// # Errors
    /// What the user asked for is not possible with this disk.
    pub(crate) fn over(&self, disk: Disk) -> Result<Disk> {
        self.list().into_iter().try_fold(disk, |disk, decorator| decorator.over(disk))
    }

    /// Whether there is anything for disks that another process lends.
    pub(crate) fn are_for_lent(&self) -> bool {
        self.list().into_iter().any(Decorator::is_for_lent)
    }

    /// As [`Self::over`], for a disk that another process lends.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn over_lent(&self, disk: Disk) -> Result<Disk> {
        let mut list = self.list().into_iter().filter(|decorator| decorator.is_for_lent());
        list.try_fold(disk, |disk, decorator| decorator.over_lent(disk))
    }

    /// Whether this process may lend the disk at `path`.
    ///
    /// # Errors
    /// The daemon would use it without what is between the disk and its users here.
    pub(crate) fn may_lend(&self, path: &Path) -> Result<()> {
        self.list().into_iter().try_for_each(|decorator| decorator.may_lend(path))
    }

    /// Whether this process may be the client of a daemon.
    ///
    /// # Errors
    /// The user asked for something that the daemon does not know.
    pub(crate) fn may_call(&self) -> Result<()> {
        self.list().into_iter().try_for_each(Decorator::may_call)
    }
}
