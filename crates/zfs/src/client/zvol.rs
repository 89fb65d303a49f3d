//! A volume as a block device, with the settings of its queue.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use ashlar_block::bio::Bio;
use ashlar_block::device::{BlockDevice, IoFuture};
use ashlar_block::disk::{DeviceNumber, Disk, SettingError};
use ashlar_block::queue::Queue;
use ashlar_block::units::Sectors;

use super::driver::{self, ZvolDriver};
use super::parameters::Parameters;
use super::worker::Worker;
use crate::protocol::OpenedVolume;

/// The major number of volumes (`ZVOL_MAJOR`, `include/sys/zvol.h`).
const MAJOR: u32 = 230;
/// Minor numbers per volume: one for itself, the others for partitions that the kernel would make
/// (`ZVOL_MINORS`).
pub const MINORS: u32 = 1 << 4;
/// Default number of requests in flight (`BLKDEV_DEFAULT_RQ`).
const DEFAULT_QUEUE_DEPTH: u64 = 128;

/// An open volume, or a snapshot of one.
pub struct Zvol {
    dataset: RwLock<String>,
    volblocksize_bytes: u32,
    guid: u64,
    /// Whether it is opened read-only, whatever its properties say.
    is_for_reading: bool,
    queue: Queue<ZvolDriver>,
    use_blk_mq: AtomicBool,
    blocks_per_thread: AtomicU64,
}

impl Zvol {
    /// The volume that `worker` has opened, read-only if `is_for_reading`, as `device` with minor
    /// number `minor`.
    pub(super) fn new(
        worker: Arc<Worker>,
        dataset: &str,
        opened: OpenedVolume,
        is_for_reading: bool,
        (device, minor): (&str, u32),
        parameters: &Parameters,
    ) -> Self {
        let limits = driver::limits(&opened, parameters.max_discard_blocks());
        let disk = Disk::new(device, Sectors::from_bytes_floor(opened.volsize_bytes), limits);
        disk.set_number(DeviceNumber { major: MAJOR, minor: minor % DeviceNumber::MINORS });
        disk.set_read_only(opened.read_only);
        let depth = match parameters.queue_depth() {
            0 => DEFAULT_QUEUE_DEPTH,
            depth => depth.clamp(4, 65536),
        };
        let driver = ZvolDriver::new(worker, opened.volume, device);
        let this = Self {
            dataset: RwLock::new(dataset.to_owned()),
            volblocksize_bytes: opened.volblocksize_bytes,
            guid: opened.guid,
            is_for_reading,
            queue: Queue::new(disk, driver),
            use_blk_mq: AtomicBool::new(false),
            blocks_per_thread: AtomicU64::new(parameters.blocks_per_thread()),
        };
        if let Err(error) = this.disk().set_nr_requests(depth) {
            tracing::warn!(device, %error, "queue depth not set");
        }
        this.set_use_blk_mq(parameters.use_blk_mq());
        this
    }

    /// The full name of its dataset.
    pub fn dataset(&self) -> String {
        self.dataset.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the name of its dataset.
    pub(super) fn rename(&self, dataset: &str) {
        dataset.clone_into(&mut self.dataset.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// What distinguishes its dataset from all others, whatever its name is.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Its block size.
    pub fn volblocksize_bytes(&self) -> u32 {
        self.volblocksize_bytes
    }

    /// Whether it is opened read-only, whatever its properties say.
    pub(super) fn is_for_reading(&self) -> bool {
        self.is_for_reading
    }

    /// Whether its worker has ended.
    pub fn is_dead(&self) -> bool {
        self.queue.driver().is_dead()
    }

    /// Its number in its worker; `None` while shut.
    pub(super) fn number(&self) -> Option<u32> {
        self.queue.driver().number()
    }

    /// Whether it refuses requests.
    pub fn is_shut(&self) -> bool {
        self.number().is_none()
    }

    /// Stops taking requests. Returns its number in its worker, if it was open.
    pub(super) fn shut(&self) -> Option<u32> {
        self.queue.driver().shut()
    }

    /// Takes requests again: the worker did not close it, or has opened it again as `number`.
    pub(super) fn reopen(&self, number: u32) {
        self.queue.driver().reopen(number);
    }

    /// Takes the size and the read-only state from the worker.
    pub(super) fn follow(&self, opened: &OpenedVolume) {
        self.disk().set_capacity(Sectors::from_bytes_floor(opened.volsize_bytes));
        self.disk().set_read_only(opened.read_only);
    }

    /// Whether bios are merged into requests.
    pub fn use_blk_mq(&self) -> bool {
        self.use_blk_mq.load(Relaxed)
    }

    /// With `on`, merges bios into requests of up to [`Self::blocks_per_thread`] blocks; otherwise
    /// each bio is a request. A larger bio stays whole either way. Sets `nomerges`.
    pub fn set_use_blk_mq(&self, on: bool) {
        self.use_blk_mq.store(on, Relaxed);
        self.apply();
    }

    /// The maximum of blocks per request; 0 for no limit.
    pub fn blocks_per_thread(&self) -> u64 {
        self.blocks_per_thread.load(Relaxed)
    }

    /// Sets the maximum of blocks per request.
    ///
    /// # Errors
    /// The value needs more than 16 bits.
    pub fn set_blocks_per_thread(&self, blocks: u64) -> Result<(), SettingError> {
        let max = u64::from(u16::MAX);
        if blocks > max {
            return Err(SettingError::OutOfRange { value: blocks, min: 0, max });
        }
        self.blocks_per_thread.store(blocks, Relaxed);
        self.apply();
        Ok(())
    }

    fn apply(&self) {
        let (disk, on) = (self.disk(), self.use_blk_mq());
        let blocks = if on { self.blocks_per_thread() } else { 0 };
        disk.set_max_merged(driver::max_merged(self.volblocksize_bytes, blocks));
        if let Err(error) = disk.set_nomerges(if on { 0 } else { 2 }) {
            tracing::warn!(device = disk.name(), %error, "queue not set");
        }
    }
}

impl BlockDevice for Zvol {
    fn disk(&self) -> &Disk {
        self.queue.disk()
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        self.queue.submit_bio(bio)
    }

    fn is_queue(&self) -> bool {
        true
    }
}
