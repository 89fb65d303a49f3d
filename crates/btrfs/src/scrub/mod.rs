//! Scrub: everything that the file system has on its devices is read and verified, and what is bad
//! is written anew from a good copy.
//!
//! A [`Scrub`] goes over all devices at the same time, each in the order of its own addresses. It
//! never writes what verified as good, nor anything but the bytes that a checksum proves to be
//! those that belong there, and nothing at all when [`Options::read_only`] says so.
//!
//! | module | what it does |
//! |---|---|
//! | `device` | the pipeline of one device: groups of stripes are planned, read, verified, repaired |
//! | `plan` | what there is to scrub, from the chunk map and the extent and checksum trees |
//! | `stripe`, `places`, `verify`, `repair` | one stripe: what is in it and where, what of that is bad, good copies |
//! | `parity` | parity stripes of RAID5 and RAID6 |
//! | `supers` | superblocks |
//! | `throttle` | bytes per second |
//! | `counters`, `problem` | what users are told |
//!
//! Memory: [`Options::depth`] groups of eight stripes of 64 KiB for each device (8 MiB by default; the
//! last of a group may be a row with parity, as wide as it is), while blocks are bad their copies, and
//! the cache of tree blocks. Nothing grows with the file system.
//!
//! The statistics of devices that the kernel keeps in the device tree (`btrfs device stats`) are not
//! written: that would take a transaction. What was found is counted and told, and no more.
//!
//! docs/internals/btrfs-scrub.md has the order of writes, all bounds, and what differs from the kernel.

mod counters;
mod device;
mod parity;
mod places;
mod plan;
mod problem;
mod repair;
mod stripe;
mod supers;
mod throttle;
mod verify;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

/// Groups of stripes in flight on each device, unless told otherwise.
pub const DEPTH: usize = 16;

/// How a scrub goes about it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nothing is written.
    pub read_only: bool,
    /// Bytes per second that are read of a device; zero is no limit. A change is felt within a second.
    /// Devices that are not listed have no limit.
    pub limits: BTreeMap<DevId, Arc<AtomicU64>>,
    /// Groups of eight stripes in flight on each device, one at least: 512 KiB of memory each.
    pub depth: usize,
    /// How the extent tree is read ahead.
    pub extent_reada: Reada,
    /// How the checksum tree is read ahead.
    pub csum_reada: Reada,
    /// Where to go on, as `last_physical` of a scrub that was cut off says; superblocks are passed
    /// over then. Devices that are not listed are scrubbed from the beginning.
    pub resume_at: BTreeMap<DevId, Physical>,
    /// The devices to be scrubbed; empty for all that are there.
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

/// Why there is no scrub.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ScrubError {
    /// The device is not one of those given.
    #[error("there is no device {0}")]
    NoDevice(DevId),
    /// Chunks share bytes of a device.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The extent tree, which says what there is to scrub, cannot be found.
    #[error("the extent tree: {0}")]
    Tree(#[from] TreeError),
}

/// A scrub of a file system. It may be looked at, and cancelled, from other threads.
pub struct Scrub {
    fs: Arc<FileSystem>,
    options: Options,
    cancelled: AtomicBool,
    tallies: Vec<Tally>,
}

impl Scrub {
    /// A scrub of the devices that are there. Nothing happens until [`Self::run`].
    pub fn new(fs: Arc<FileSystem>, options: Options) -> Arc<Self> {
        let all = fs.devices().iter().map(|device| device.devid);
        let chosen = all.filter(|id| options.devices.is_empty() || options.devices.contains(id));
        let tallies = chosen.map(Tally::new).collect();
        Arc::new(Self { fs, options, cancelled: AtomicBool::new(false), tallies })
    }

    /// Has the scrub stop soon; what is in flight is finished.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// What reads the trees ahead for the scrub of `devid`; `None` if neither is read in that way.
    async fn sweep(&self, devid: DevId) -> Result<Option<Sweep<'_>>, TreeError> {
        let Options { extent_reada, csum_reada, .. } = self.options;
        let (mut extents, mut sums) = (None, None);
        if extent_reada == Reada::Scan {
            extents = self.fs.root(objectid::EXTENT_TREE).await?;
        }
        if csum_reada == Reada::Scan {
            // The walk over a tree that is lost tells of that.
            sums = self.fs.root(objectid::CSUM_TREE).await.ok().flatten();
        }
        let is_any = extents.is_some() || sums.is_some();
        Ok(is_any.then(|| Sweep::new(&self.fs, devid, extents, sums)))
    }

    /// Whether blocks of the trees that are walked over are kept when the scrub comes by them.
    fn keeps_tree_blocks(&self) -> bool {
        self.options.extent_reada == Reada::Scan || self.options.csum_reada == Reada::Scan
    }

    /// How far it is, device by device, in the order of their numbers.
    pub fn progress(&self) -> Vec<DeviceProgress> {
        self.tallies.iter().map(|tally| *tally.lock()).collect()
    }

    /// Scrubs the devices, all at the same time, on the current reactor. To be called once.
    ///
    /// What is found goes to `sink`, in the order in which it is known what became of it.
    ///
    /// # Errors
    /// Nothing can be scrubbed. Once devices are being scrubbed there are no errors, but problems.
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
