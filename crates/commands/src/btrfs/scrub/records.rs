//! The state of a scrub, kept while it runs and afterwards: a file for each file system.
//!
//! btrfs-progs keep the state of scrubs on mounted file systems in `/var/lib/btrfs`; the kernel does not know these
//! scrubs, so their state has a separate directory.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ashlar_btrfs::scrub::Counters;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, FAILURE, Result};

/// The directory for root.
const SYSTEM_DIR: &str = "/var/lib/ashlar";

/// A device's part of a scrub.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRecord {
    /// Its number.
    pub devid: u64,
    /// Its identity.
    pub uuid: Uuid,
    /// Its name in messages.
    pub name: String,
    /// The counters.
    pub counters: Counters,
    /// Bytes of the device to scan, used or not.
    pub total_bytes: u64,
    /// Bytes scanned so far.
    pub passed_bytes: u64,
    /// How it ended.
    pub state: DeviceState,
}

/// The state of a device's scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceState {
    /// It is being scrubbed, or was when the program was killed.
    Running,
    /// All of it was scrubbed.
    Finished,
    /// The user ended it.
    Cancelled,
    /// It failed.
    Aborted,
}

/// The totals before this run.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlierRuns {
    /// Seconds.
    pub duration: f64,
    /// Bytes scanned, on all devices.
    pub passed_bytes: u64,
}

/// A scrub.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubRecord {
    /// The file system.
    pub fsid: Uuid,
    /// When it was started, seconds since the epoch.
    pub started: u64,
    /// When it was resumed, if it was.
    pub resumed: Option<u64>,
    /// Seconds that it has run, including those before it was resumed.
    pub duration: f64,
    /// Whether it only reads, and repairs nothing.
    pub read_only: bool,
    /// The process that runs it.
    pub pid: u32,
    /// The totals when it was last resumed.
    pub before: EarlierRuns,
    /// Its devices.
    pub devices: Vec<DeviceRecord>,
    /// Why it ended early, if it failed.
    pub error: Option<String>,
    /// The devices that are smaller than their file system says, in words.
    #[serde(default)]
    pub short: Vec<String>,
    /// Messages about what is lost, with the files it belongs to, or could not be repaired.
    pub lost: Vec<String>,
}

impl ScrubRecord {
    /// The sum over all devices.
    pub fn counters(&self) -> Counters {
        let all = self.devices.iter().map(|device| &device.counters);
        all.fold(Counters::default(), |sum, counters| sum.plus(counters))
    }

    /// Bytes scanned so far, on all devices.
    pub fn passed_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.passed_bytes).sum()
    }

    /// Bytes to scan, on all devices.
    pub fn total_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.total_bytes).sum()
    }

    /// The seconds left, if the rest takes as long per byte as the part since the start or the last resume. `None` if
    /// nothing was scanned since then.
    pub fn seconds_left(&self) -> Option<f64> {
        let since = self.duration - self.before.duration;
        let passed = self.passed_bytes().checked_sub(self.before.passed_bytes)?;
        let left = self.total_bytes().saturating_sub(self.passed_bytes());
        (passed > 0 && since > 0.0).then(|| left as f64 * since / passed as f64)
    }

    /// Bytes scanned per second since the start or the last resume, if that is known.
    pub fn bytes_per_second(&self) -> Option<u64> {
        let since = self.duration - self.before.duration;
        let passed = self.passed_bytes().checked_sub(self.before.passed_bytes)?;
        (passed > 0 && since > 0.0).then(|| (passed as f64 / since) as u64)
    }

    /// The exit code of a command that ran it. As in btrfs-progs, 3 says that the file system still has errors: a read-only scrub
    /// leaves also the errors that it could correct.
    pub fn exit_code(&self) -> u8 {
        let counters = self.counters();
        let is_left = self.read_only && counters.has_errors();
        match counters.uncorrectable_errors + counters.unverified_errors + u64::from(is_left) {
            0 if !self.short.is_empty() => 3,
            0 if self.is_finished() => 0,
            0 => FAILURE,
            _ => 3,
        }
    }

    /// Whether every device was scrubbed to its end.
    pub fn is_finished(&self) -> bool {
        self.devices.iter().all(|device| device.state == DeviceState::Finished)
    }
}

/// The directory of the records.
#[derive(Clone, Debug)]
pub(super) struct RecordStore {
    dir: PathBuf,
}

impl RecordStore {
    /// This user's records.
    ///
    /// # Errors
    /// There is no place for them.
    pub(super) fn new(dir: Option<&Path>) -> Result<Self> {
        let set = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            // As systemd.exec(5): a service's directory, or several of them.
            None if let Some(dirs) = set("STATE_DIRECTORY") => {
                std::env::split_paths(&dirs).next().unwrap_or(dirs)
            }
            None if rustix::process::geteuid().is_root() => SYSTEM_DIR.into(),
            None => {
                let home = || set("HOME").map(|home| home.join(".local/state"));
                let state = set("XDG_STATE_HOME").or_else(home);
                let state = state.ok_or_else(|| {
                    Error::plain("no place for the status file", "HOME is not set")
                        .hint("give --status-dir DIR")
                })?;
                state.join("ashlar")
            }
        };
        Ok(Self { dir })
    }

    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    /// Creates the directory.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn create(&self) -> Result<()> {
        let failed = |error| Error::new("cannot make the directory", self.dir.display(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).map_err(failed)
    }

    /// Locks the file system against other scrubs; `None` if another process holds the lock.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub(super) fn lock(&self, fsid: Uuid) -> Result<Option<File>> {
        let path = self.dir.join(format!("scrub.lock.{fsid}"));
        let failed = |error| Error::new("cannot make the lock file", path.display(), error);
        let flags = OFlags::NOFOLLOW.bits() as i32;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .custom_flags(flags)
            .open(&path)
            .map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(failed(error.into())),
        }
    }

    fn file(&self, fsid: Uuid) -> PathBuf {
        self.dir.join(format!("scrub.status.{fsid}"))
    }

    /// The socket of the process that scrubs.
    pub(super) fn socket(&self, fsid: Uuid) -> PathBuf {
        self.dir.join(format!("scrub.control.{fsid}"))
    }

    /// The last scrub of a file system, if there was one.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub(super) fn load(&self, fsid: Uuid) -> Result<Option<ScrubRecord>> {
        let path = self.file(fsid);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(Error::new("cannot read the status file", path.display(), error));
            }
            Ok(text) => text,
        };
        let record: ScrubRecord = serde_json::from_slice(&text).map_err(|error| {
            Error::new("the status file is damaged", path.display(), error)
                .hint("remove it, or start a new scrub with --force")
        })?;
        Ok(Some(record).filter(|record| record.fsid == fsid))
    }

    /// Saves a record atomically: a reader of the file sees this record or the one before.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn save(&self, record: &ScrubRecord) -> Result<()> {
        let path = self.file(record.fsid);
        let failed = |error| Error::new("cannot write the status file", path.display(), error);
        let text = serde_json::to_vec_pretty(record).map_err(|error| failed(error.into()))?;
        // Only the holder of the lock writes; a file left by a killed process is removed first. A link that another
        // user put there is not followed.
        let new = self.dir.join(format!("scrub.status.{}.new", record.fsid));
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        let written = File::create_new(&new).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        });
        written.and_then(|()| fs::rename(&new, &path)).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: DeviceState) -> ScrubRecord {
        let counters = Counters { csum_errors: 3, last_physical: 7, ..Default::default() };
        let device = |devid| DeviceRecord {
            devid,
            uuid: Uuid::from_u128(u128::from(devid)),
            name: format!("{devid}.img"),
            counters,
            total_bytes: 10,
            passed_bytes: 5,
            state,
        };
        ScrubRecord {
            fsid: Uuid::from_u128(1),
            started: 1,
            resumed: None,
            duration: 2.5,
            read_only: false,
            pid: 1,
            before: EarlierRuns { duration: 0.5, passed_bytes: 2 },
            devices: vec![device(1), device(2)],
            error: None,
            short: Vec::new(),
            lost: Vec::new(),
        }
    }

    #[test]
    fn what_was_saved_is_loaded() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = RecordStore::new(Some(dir.path())).expect("a place");
        let record = record(DeviceState::Cancelled);
        assert!(store.load(record.fsid).expect("a missing file is not an error").is_none());
        store.save(&record).expect("saved");
        assert_eq!(store.load(record.fsid).expect("loaded"), Some(record.clone()));
        fs::write(store.file(record.fsid), "{").expect("damaged");
        assert!(store.load(record.fsid).is_err());
    }

    #[test]
    fn a_file_system_is_scrubbed_by_one_at_a_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = RecordStore::new(Some(dir.path())).expect("a place");
        let lock = store.lock(Uuid::nil()).expect("a lock file");
        assert!(lock.is_some() && store.lock(Uuid::nil()).expect("the same").is_none());
        assert!(store.lock(Uuid::from_u128(1)).expect("another").is_some());
        drop(lock);
        assert!(store.lock(Uuid::nil()).expect("again").is_some());
    }

    #[test]
    fn devices_are_added_up() {
        let record = record(DeviceState::Finished);
        let sum = record.counters();
        assert_eq!((sum.csum_errors, sum.last_physical), (6, 7));
        assert!(record.is_finished());
        assert_eq!(sum.named().len(), 15);
    }

    #[test]
    fn what_is_left_takes_as_long_as_what_this_run_did() {
        // 10 of 20 passed, 8 of them in the last two seconds.
        assert_eq!(record(DeviceState::Running).seconds_left(), Some(2.5));
    }
}
