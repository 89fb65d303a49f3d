//! The scrub of one file system, in this process or another, and how it begins.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ashlar_btrfs::readahead::Reada;
use serde_json::{Value, json};
use uuid::Uuid;

use super::control::{self, ScrubStatus};
use super::records::{RecordStore, ScrubRecord};
use crate::error::{Error, Result};

/// How often a scrub that is being cancelled is asked whether it has ended.
const POLL: Duration = Duration::from_millis(50);
/// How long a scrub that has ended may take to release its lock.
const END: Duration = Duration::from_secs(2);

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

/// The scrub of one file system.
#[derive(Clone, Debug)]
pub struct ScrubHandle {
    pub(super) store: RecordStore,
    pub(super) fsid: Uuid,
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

    /// Where the process that scrubs answers.
    pub(super) fn socket(&self) -> PathBuf {
        self.store.socket(self.fsid)
    }

    fn not_running(&self, what: &str) -> Error {
        Error::new(format_args!("scrub {what} failed"), self.fsid, "not running").code(2)
    }

    /// The lock of the process that scrubs.
    pub(super) fn lock(&self) -> Result<File> {
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
    pub(super) fn resumable(&self, read_only: bool) -> Result<ScrubRecord> {
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
