//! Scrub: reads and verifies everything that the file system has on its devices, and rewrites what
//! is bad from a good copy.
//!
//! A [`Scrub`] processes all devices at the same time, each in the order of its addresses. It never
//! overwrites verified data. It only writes bytes that a checksum proves to be right or, for
//! unreadable data without one, those of another copy; with [`Options::read_only`] it writes nothing.
//!
//! | module | what it does |
//! |---|---|
//! | `device` | the pipeline of one device: groups of stripes are planned, read, verified, repaired |
//! | `plan` | what to scrub, from the chunk map and the extent and checksum trees |
//! | `stripe`, `places`, `verify`, `repair` | one stripe: its contents and their locations, bad units, good copies |
//! | `legs` | every copy of a stripe, where the device has several below the file system |
//! | `parity` | parity stripes of RAID5 and RAID6 |
//! | `supers` | superblocks |
//! | `throttle` | bytes per second |
//! | `counters`, `problem` | what is reported to users |
//!
//! Memory: [`Options::depth`] groups of eight stripes of 64 KiB per device (8 MiB by default; the
//! last job of a group may be a parity row with all its stripes), copies of bad blocks while they
//! are handled, and the tree block cache. Nothing grows with the file system.
//!
//! The device statistics that the kernel keeps in the device tree (`btrfs device stats`) are not
//! updated: that would take a transaction. Errors are only counted and reported.
//!
//! See docs/internals/btrfs-scrub.md for the order of writes, all bounds, and differences from the kernel.

mod counters;
mod device;
mod legs;
mod parity;
mod places;
mod plan;
mod problem;
mod repair;
mod sectors;
mod stripe;
mod supers;
mod throttle;
mod verify;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use thiserror::Error;

pub use counters::{Counters, DeviceProgress, DeviceReport, State};
pub use problem::{Problem, ProblemKind, Repair, Sink, SuperError, TreeBlock};

use crate::chunk_map::MapError;
use crate::error::TreeError;
use crate::ondisk::key::objectid;
use crate::readahead::Reada;
use crate::sweep::Sweep;
use crate::units::{DevId, Physical};
use crate::volume::FileSystem;
use counters::Tally;

/// Default number of groups in flight per device.
pub const DEPTH: usize = 16;

/// Options of a scrub.
#[derive(Clone, Debug)]
pub struct Options {
    /// Write nothing.
    pub read_only: bool,
    /// Maximum bytes per second read from a device; zero means no limit. A change takes effect within
    /// a second. Devices that are not listed have no limit.
    pub limits: BTreeMap<DevId, Arc<AtomicU64>>,
    /// Groups of eight stripes in flight per device, at least one: 512 KiB of memory each.
    pub depth: usize,
    /// Readahead in the extent tree.
    pub extent_reada: Reada,
    /// Readahead in the checksum tree.
    pub csum_reada: Reada,
    /// Where to resume: `last_physical` of an interrupted scrub; superblocks are then skipped.
    /// Devices that are not listed are scrubbed from the beginning.
    pub resume_at: BTreeMap<DevId, Physical>,
    /// The devices to scrub; empty for all available ones.
    pub devices: Vec<DevId>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_only: false,
            limits: BTreeMap::new(),
            depth: DEPTH,
            extent_reada: Reada::Scan,
            csum_reada: Reada::Scan,
            resume_at: BTreeMap::new(),
            devices: Vec::new(),
        }
    }
}

/// Why a scrub cannot run.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ScrubError {
    /// The device was not given.
    #[error("there is no device {0}")]
    NoDevice(DevId),
    /// Chunks overlap on a device.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The extent tree, which lists what to scrub, cannot be found.
    #[error("the extent tree: {0}")]
    Tree(#[from] TreeError),
}

/// A scrub of a file system. Other threads can query and cancel it.
pub struct Scrub {
    fs: Arc<FileSystem>,
    options: Options,
    cancelled: AtomicBool,
    tallies: Vec<Tally>,
}

impl Scrub {
    /// A scrub of the available devices. Nothing happens until [`Self::run`].
    pub fn new(fs: Arc<FileSystem>, options: Options) -> Arc<Self> {
        let all = fs.devices().iter().map(|device| device.devid);
        let chosen = all.filter(|id| options.devices.is_empty() || options.devices.contains(id));
        let tallies = chosen.map(Tally::new).collect();
        Arc::new(Self { fs, options, cancelled: AtomicBool::new(false), tallies })
    }

    /// Makes the scrub stop soon; what is in flight is finished.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Creates the readahead for the scrub of `devid`; `None` if neither tree uses [`Reada::Scan`].
    async fn sweep(&self, devid: DevId) -> Result<Option<Sweep<'_>>, TreeError> {
        let Options { extent_reada, csum_reada, .. } = self.options;
        let (mut extents, mut sums) = (None, None);
        if extent_reada == Reada::Scan {
            extents = self.fs.root(objectid::EXTENT_TREE).await?;
        }
        if csum_reada == Reada::Scan {
            // If the tree is lost, the walk over it reports that.
            sums = self.fs.root(objectid::CSUM_TREE).await.ok().flatten();
        }
        let is_any = extents.is_some() || sums.is_some();
        Ok(is_any.then(|| Sweep::new(&self.fs, devid, extents, sums)))
    }

    /// Whether to cache blocks of the walked trees when the scrub reads them.
    fn keeps_tree_blocks(&self) -> bool {
        self.options.extent_reada == Reada::Scan || self.options.csum_reada == Reada::Scan
    }

    /// Progress of each device, ordered by number.
    pub fn progress(&self) -> Vec<DeviceProgress> {
        self.tallies.iter().map(|tally| *tally.lock()).collect()
    }

    /// Scrubs the devices, all at the same time, on the current reactor. Call it once.
    ///
    /// Problems go to `sink`, in the order in which their outcome is known.
    ///
    /// # Errors
    /// Nothing can be scrubbed. Once devices are being scrubbed, failures are reported as problems,
    /// not as errors.
    pub async fn run(&self, sink: &dyn Sink) -> Result<Vec<DeviceReport>, ScrubError> {
        let has = |devid: &DevId| self.fs.device(*devid).is_some();
        if let Some(devid) = self.options.devices.iter().find(|devid| !has(devid)) {
            return Err(ScrubError::NoDevice(*devid));
        }
        let mut devices: FuturesUnordered<_> =
            self.tallies.iter().map(|tally| self.device(tally, sink)).collect();
        while let Some(ended) = devices.next().await {
            ended?;
        }
        let report = |progress: DeviceProgress| DeviceReport {
            devid: progress.devid,
            counters: progress.counters,
            state: progress.state,
            bytes_read: progress.bytes_read,
        };
        Ok(self.progress().into_iter().map(report).collect())
    }
}

/// Verifies the superblocks of all available devices; unless `read_only`, rewrites bad ones from the newest
/// good one of the same device. Returns the bad ones.
pub async fn superblocks(fs: &FileSystem, read_only: bool) -> Vec<Problem> {
    let found = Mutex::new(Vec::new());
    for device in fs.devices() {
        supers::scrub(fs, device, read_only, &Tally::new(device.devid), &found).await;
    }
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Sink for Mutex<Vec<Problem>> {
    fn problem(&self, problem: &Problem) {
        self.lock().unwrap_or_else(PoisonError::into_inner).push(problem.clone());
    }
}
