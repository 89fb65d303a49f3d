//! Counters and progress of a scrub.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::problem::Repair;
use crate::units::DevId;

/// Scrub counters: the fields of the kernel's `struct btrfs_scrub_progress`, with the same
/// meanings, which docs/internals/btrfs-scrub.md lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Data extents, once for each 64 KiB stripe that has a part of one.
    pub data_extents_scrubbed: u64,
    /// Tree blocks, counted in the same way.
    pub tree_extents_scrubbed: u64,
    /// Bytes of data.
    pub data_bytes_scrubbed: u64,
    /// Bytes of tree blocks.
    pub tree_bytes_scrubbed: u64,
    /// Sectors that could not be read.
    pub read_errors: u64,
    /// Sectors of data whose checksum is wrong.
    pub csum_errors: u64,
    /// Sectors of tree blocks with a wrong checksum or other wrong header fields.
    pub verify_errors: u64,
    /// Data sectors without a checksum.
    pub no_csum: u64,
    /// Always zero, as in Linux since 3.15.
    pub csum_discards: u64,
    /// Superblocks that are damaged or outdated.
    pub super_errors: u64,
    /// Always zero: the program aborts if out of memory.
    pub malloc_errors: u64,
    /// Bad sectors that remain bad.
    pub uncorrectable_errors: u64,
    /// Bad sectors for which a good copy was found. As in the kernel, they also count if nothing
    /// may be written: [`Problem::repair`](super::Problem::repair) says what was done.
    pub corrected_errors: u64,
    /// The device has been scrubbed up to here.
    pub last_physical: u64,
    /// Data sectors whose checksums could not be read, and unreadable parts of the extent tree:
    /// what they cover was not verified.
    pub unverified_errors: u64,
}

impl Counters {
    /// The kernel's names with the values, in the order in which they are printed.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        macro_rules! list { ($($name:ident),*) => { vec![$((stringify!($name), self.$name)),*] }; }
        list!(
            data_extents_scrubbed,
            tree_extents_scrubbed,
            data_bytes_scrubbed,
            tree_bytes_scrubbed,
            read_errors,
            csum_errors,
            verify_errors,
            no_csum,
            csum_discards,
            super_errors,
            malloc_errors,
            uncorrectable_errors,
            unverified_errors,
            corrected_errors,
            last_physical
        )
    }

    /// Bytes that were verified.
    pub fn bytes(&self) -> u64 {
        self.data_bytes_scrubbed.saturating_add(self.tree_bytes_scrubbed)
    }

    /// The sum of two devices' counters; the position is the higher of the two.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self.data_extents_scrubbed += other.data_extents_scrubbed;
        self.tree_extents_scrubbed += other.tree_extents_scrubbed;
        self.data_bytes_scrubbed += other.data_bytes_scrubbed;
        self.tree_bytes_scrubbed += other.tree_bytes_scrubbed;
        self.read_errors += other.read_errors;
        self.csum_errors += other.csum_errors;
        self.verify_errors += other.verify_errors;
        self.no_csum += other.no_csum;
        self.csum_discards += other.csum_discards;
        self.super_errors += other.super_errors;
        self.malloc_errors += other.malloc_errors;
        self.uncorrectable_errors += other.uncorrectable_errors;
        self.corrected_errors += other.corrected_errors;
        self.last_physical = self.last_physical.max(other.last_physical);
        self.unverified_errors += other.unverified_errors;
        self
    }

    /// Counts bad sectors by the outcome of their repair.
    pub(super) fn count_repair(&mut self, repair: Repair, sectors: u64) {
        match repair {
            Repair::Done | Repair::NotTried => self.corrected_errors += sectors,
            Repair::Impossible | Repair::Failed(_) => self.uncorrectable_errors += sectors,
        }
    }

    /// Whether any error was found.
    pub const fn has_errors(&self) -> bool {
        self.read_errors != 0
            || self.csum_errors != 0
            || self.verify_errors != 0
            || self.super_errors != 0
            || self.uncorrectable_errors != 0
            || self.corrected_errors != 0
            || self.unverified_errors != 0
    }
}

/// State of the scrub of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum State {
    /// Not started.
    #[default]
    Waiting,
    /// Running.
    Running,
    /// The whole device has been scrubbed.
    Finished,
    /// Cancelled.
    Cancelled,
    /// It could not continue.
    Failed,
}

/// Current progress of the scrub of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceProgress {
    /// The device.
    pub devid: DevId,
    /// The counters so far.
    pub counters: Counters,
    /// Bytes of the device's extents that have been passed, used or not; out of [`Self::bytes_total`].
    pub bytes_scanned: u64,
    /// Bytes of the device that belong to chunks (`bytes_used` of its item), used or not. When a
    /// scrub is resumed, the part before the resume position counts as scanned.
    pub bytes_total: u64,
    /// Bytes read from the device, to compute a rate. Excludes reads for repairs.
    pub bytes_read: u64,
    /// Its state.
    pub state: State,
}

impl DeviceProgress {
    fn new(devid: DevId) -> Self {
        Self {
            devid,
            counters: Counters::default(),
            bytes_scanned: 0,
            bytes_total: 0,
            bytes_read: 0,
            state: State::Waiting,
        }
    }
}

/// Outcome of the scrub of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceReport {
    /// The device.
    pub devid: DevId,
    /// The counters. `last_physical` is where a cancelled scrub should be resumed.
    pub counters: Counters,
    /// Finished, cancelled or failed.
    pub state: State,
    /// Bytes read from the device. Excludes reads for repairs.
    pub bytes_read: u64,
}

/// The progress of a device, readable by any thread. The lock is held for a few instructions.
pub(super) struct Tally {
    progress: Mutex<DeviceProgress>,
}

impl Tally {
    pub(super) fn new(devid: DevId) -> Self {
        Self { progress: Mutex::new(DeviceProgress::new(devid)) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, DeviceProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the counters.
    pub(super) fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.lock().counters);
    }
}
