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
mod origin;
mod owners;
mod records;
mod report;
mod run;
mod served;

use std::fs::File;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ashlar_btrfs::readahead::Reada;
use ashlar_btrfs::volume::FileSystem;
use serde_json::{Value, json};
use uuid::Uuid;

pub use self::background::{
    BackgroundProcess, BackgroundScrub, is_background, leave_terminal, start_in_background,
};
pub(crate) use self::control::Controls;
pub use self::control::ScrubStatus;
pub use self::owners::BlockOwner;
use self::records::RecordStore;
pub use self::records::{DeviceRecord, DeviceState, EarlierRuns, ScrubRecord};
pub use self::report::{Occasion, ReportForm};
pub use self::run::{ReportedProblem, ScrubObserver, ScrubReport, ScrubRun};
pub use self::served::ServedScrub;
use crate::error::{Error, Result};
use crate::sandbox::Sandbox;

/// How often a scrub that is being cancelled is asked whether it has ended.
const POLL: Duration = Duration::from_millis(50);
/// How long a scrub that has ended may take to release its lock.
const END: Duration = Duration::from_secs(2);

/// How many groups of 512 KiB may be in flight on each device.
pub(crate) const DEPTHS: RangeInclusive<usize> = 1..=256;

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

/// How a scrub begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScrubStart {
    /// From the beginning.
    New {
        /// Even if the status file is damaged.
        force: bool,
    },
    /// Where the last one was interrupted.
    Resumed,
}

/// How a file system is scrubbed.
#[derive(Clone, Copy, Debug)]
pub struct ScrubOptions {
    /// How it begins.
    pub start: ScrubStart,
    /// Only report errors, and write nothing.
    pub read_only: bool,
    /// Bytes read per second of each device; zero means no limit.
    pub limit: u64,
    /// Groups of 512 KiB in flight on each device, 1 to 256.
    pub depth: usize,
    /// How the extent and checksum trees are read ahead.
    pub readahead: Reada,
}

/// The directory of the status files.
#[derive(Clone, Debug)]
pub struct ScrubDirectory {
    store: RecordStore,
}

/// The scrub of one file system.
#[derive(Clone, Debug)]
pub struct ScrubHandle {
    store: RecordStore,
    fsid: Uuid,
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
    pub(crate) fn path(&self) -> &Path {
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

impl ScrubHandle {
    /// The UUID of the file system.
    pub fn fsid(&self) -> Uuid {
        self.fsid
    }

    /// The state of the scrub; `None` if no process runs it.
    ///
    /// # Errors
    /// The process does not answer.
    pub fn status(&self) -> Result<Option<ScrubStatus>> {
        let Some(value) = self.ask("Status", json!({}))? else {
            return Ok(None);
        };
        let reply = serde_json::from_value(value);
        reply
            .map(Some)
            .map_err(|error| Error::plain("the scrub that runs is another ashlar's", error))
    }

    /// The record of the last scrub, if there was one.
    ///
    /// # Errors
    /// The status file cannot be read or is damaged.
    pub fn last(&self) -> Result<Option<ScrubRecord>> {
        self.store.load(self.fsid)
    }

    /// Ends the scrub, and waits until it has ended: it may be resumed then.
    ///
    /// # Errors
    /// No process runs it (exit code 2), or it does not answer.
    pub fn cancel(&self) -> Result<()> {
        self.ask("Cancel", json!({}))?.ok_or_else(|| self.not_running("cancel"))?;
        // I/O in flight is finished first.
        while self.status()?.is_some() {
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Changes the bytes that are read per second of each device; zero means no limit.
    ///
    /// # Errors
    /// No process runs the scrub (exit code 2), or it does not answer.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        let asked = self.ask("Limit", json!({ "bytes": bytes }))?;
        asked.map(|_| ()).ok_or_else(|| self.not_running("limit"))
    }

    fn ask(&self, method: &str, parameters: Value) -> Result<Option<Value>> {
        control::ask(&self.socket(), method, parameters)
    }

    fn socket(&self) -> PathBuf {
        self.store.socket(self.fsid)
    }

    fn not_running(&self, what: &str) -> Error {
        Error::new(format_args!("scrub {what} failed"), self.fsid, "not running").code(2)
    }

    /// The lock of the process that scrubs.
    fn lock(&self) -> Result<File> {
        let since = Instant::now();
        let other = loop {
            if let Some(lock) = self.store.lock(self.fsid)? {
                return Ok(lock);
            }
            let other = self.status()?.map(|other| format!("process {}", other.record.pid));
            // One that no longer answers is about to end.
            if other.is_some() || since.elapsed() > END {
                break other;
            }
            std::thread::sleep(POLL);
        };
        let why = format!("{} does already", other.as_deref().unwrap_or("another process"));
        let error = Error::new("cannot scrub", self.fsid, why);
        Err(error.hint("ashlar btrfs scrub cancel ends it"))
    }

    /// The record of a scrub that can be resumed.
    fn resumable(&self, read_only: bool) -> Result<ScrubRecord> {
        let nothing = |why| Error::new("nothing to resume", self.fsid, why).code(2);
        let last = self.last()?.ok_or_else(|| nothing("it was never scrubbed"))?;
        if last.is_finished() {
            return Err(nothing("the last scrub finished"));
        }
        // Areas that were passed without repair must not count as repaired.
        if last.read_only != read_only {
            let (was, is) = if read_only { ("without", "with") } else { ("with", "without") };
            let why = format!("it was started {was} --readonly, not {is}");
            let error = Error::new("cannot resume the scrub", self.fsid, why);
            return Err(error.hint("resume it in the same way, or start a new one"));
        }
        Ok(last)
    }
}
