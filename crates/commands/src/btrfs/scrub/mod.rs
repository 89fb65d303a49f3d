//! Scrubs of file systems that are not mounted, each in the process that was started for it.
//!
//! ```text
//! directory of status files, for each file system:
//!   scrub.status.UUID     the last record: written every 5 s, and at the end
//!   scrub.lock.UUID       held by the process that scrubs
//!   scrub.control.UUID    its socket: status, cancel, limit
//! ```
//!
//! A [`ScrubHandle`] stands for the scrub of one file system, in this process or another: it asks the process that scrubs, or
//! reads the record of the last one. [`ScrubDirectory::prepare`] makes this process the one that scrubs: a [`ScrubRun`].

mod background;
mod control;
mod handle;
mod origin;
mod owners;
mod records;
mod report;
mod run;
mod served;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ashlar_btrfs::volume::FileSystem;
use ashlar_disks::sandbox::Sandbox;
use uuid::Uuid;

pub use self::background::{
    BackgroundProcess, BackgroundScrub, is_background, leave_terminal, start_in_background,
};
pub use self::control::{Controls, ScrubStatus};
pub use self::handle::{ScrubHandle, ScrubOptions, ScrubStart};
pub use self::owners::BlockOwner;
use self::records::RecordStore;
pub use self::records::{DeviceRecord, DeviceState, EarlierRuns, ScrubRecord};
pub use self::report::{Occasion, ReportForm};
pub use self::run::{ReportedProblem, ScrubObserver, ScrubReport, ScrubRun};
pub use self::served::ServedScrub;
use crate::error::Result;

/// How many groups of 512 KiB may be in flight on each device.
pub const DEPTHS: RangeInclusive<usize> = 1..=256;

/// Parses such a number.
///
/// # Errors
/// It is not a number in this range.
pub fn depth(text: &str) -> std::result::Result<usize, String> {
    let depth = text.parse().ok().filter(|depth| DEPTHS.contains(depth));
    depth.ok_or_else(|| {
        format!("`{text}` is not a number from {} to {}", DEPTHS.start(), DEPTHS.end())
    })
}

/// The directory of the status files.
#[derive(Clone, Debug)]
pub struct ScrubDirectory {
    store: RecordStore,
}

impl ScrubDirectory {
    /// The directory `path`; by default `/var/lib/ashlar`, or an ordinary user's `~/.local/state/ashlar`.
    ///
    /// # Errors
    /// There is no default.
    pub fn new(path: Option<&Path>) -> Result<Self> {
        Ok(Self { store: RecordStore::new(path)? })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.store.path()
    }

    /// Makes the directory, if it is not there.
    ///
    /// # Errors
    /// That of the system call.
    pub fn create(&self) -> Result<()> {
        self.store.create()
    }

    /// The sandbox of a process that scrubs a file system on these devices. The directory exists.
    pub fn sandbox(&self, devices: &[PathBuf]) -> Sandbox {
        Sandbox::of(devices).answering_in(self.path())
    }

    /// The scrub of the file system with this UUID.
    pub fn scrub_of(&self, fsid: Uuid) -> ScrubHandle {
        ScrubHandle { store: self.store.clone(), fsid }
    }

    /// Makes this process the one that scrubs `fs`. The directory exists.
    ///
    /// # Errors
    /// It is scrubbed already, there is nothing to resume (exit code 2), or the status file cannot be read or written.
    pub fn prepare(&self, fs: &Arc<FileSystem>, options: &ScrubOptions) -> Result<ScrubRun> {
        ScrubRun::new(fs, self.scrub_of(fs.superblock().fsid()), options)
    }
}
