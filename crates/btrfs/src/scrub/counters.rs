//! What a scrub counts, and how far it is.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::problem::Repair;
use crate::units::DevId;

/// What a scrub counted: the fields of the kernel's `struct btrfs_scrub_progress`, with its
/// meanings, which docs/internals/btrfs-scrub.md lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Data extents, once for each stripe of 64 KiB that has a part of one.
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
    /// Sectors of tree blocks that are not what they should be, in their checksum or otherwise.
    pub verify_errors: u64,
    /// Sectors of data for which there is no checksum.
    pub no_csum: u64,
    /// Always zero, as in Linux since 3.15.
    pub csum_discards: u64,
    /// Superblocks that are damaged or outdated.
    pub super_errors: u64,
    /// Always zero: memory that is not there ends the program.
    pub malloc_errors: u64,
    /// Sectors that were found bad and are bad still.
    pub uncorrectable_errors: u64,
    /// Sectors that were found bad and of which a good copy was found. As in the kernel they count
    /// when nothing may be written, too: [`Problem::repair`](super::Problem::repair) says what was done.
    pub corrected_errors: u64,
    /// Up to here the device has been scrubbed.
    pub last_physical: u64,
    /// Sectors of data whose checksums could not be read, and parts of the extent tree that could
    /// not be: what these are for was not verified.
    pub unverified_errors: u64,
}

impl Counters {
    /// The sum of two devices' counters; the position is the higher one.
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

    /// Counts sectors that were found bad by what became of them.
    pub(super) fn count_repair(&mut self, repair: Repair, sectors: u64) {
        match repair {
            Repair::Done | Repair::NotTried => self.corrected_errors += sectors,
            Repair::Impossible | Repair::Failed(_) => self.uncorrectable_errors += sectors,
        }
    }

    /// Whether anything at all was found.
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

/// How far the scrub of a device is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum State {
    /// It has not begun.
    #[default]
    Waiting,
    /// It is under way.
    Running,
    /// All of the device has been scrubbed.
    Finished,
    /// It was told to stop.
    Cancelled,
    /// It could not go on.
    Failed,
}

/// The scrub of a device, as it is at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceProgress {
    /// Which device.
    pub devid: DevId,
    /// What was counted.
    pub counters: Counters,
    /// Bytes of the device's extents that have been passed, used or not: of [`Self::bytes_total`].
    pub bytes_scanned: u64,
    /// Bytes of the device that belong to chunks (`bytes_used` of its item), used or not. When a
    /// scrub is resumed, what was passed before counts as scanned.
    pub bytes_total: u64,
    /// Bytes that were read of the device, for a rate. Reads for repairs are not in it.
    pub bytes_read: u64,
    /// How far it is.
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

/// What became of the scrub of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceReport {
    /// Which device.
    pub devid: DevId,
    /// What was counted. `last_physical` is where a scrub that was cancelled is to be resumed.
    pub counters: Counters,
    /// Finished, cancelled or failed.
    pub state: State,
    /// Bytes that were read of the device. Reads for repairs are not in it.
    pub bytes_read: u64,
}

/// The progress of a device, which any thread may read. The lock is held for a few instructions.
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

    /// Counts something.
    pub(super) fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.lock().counters);
    }
}
