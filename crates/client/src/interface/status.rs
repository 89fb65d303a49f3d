//! The answer of `Status`.

use std::fmt;

use ashlar_stack::snapshots::{SnapshotState, SnapshotUse};
use ashlar_view::graph::human_size;
use serde::{Deserialize, Serialize};

use super::LimitedVolume;
use super::front_ends::{PlaceStatus, VolumeClients};

/// A daemon's state.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// The kernel interface for I/O: `io_uring` or `threads`; empty from an older daemon that has only one.
    #[serde(default)]
    pub io: String,
    /// `on` in its sandbox, otherwise `off: ` and the reason; empty from an older daemon without a sandbox.
    #[serde(default)]
    pub sandbox: String,
    /// The places where clients find the volumes.
    #[serde(flatten)]
    pub places: PlaceStatus,
    /// The disks with the timing of a device model.
    pub models: Vec<ModelStatus>,
    /// The volumes with rate limits; none from an older daemon, which does not list them.
    #[serde(default)]
    pub limited: Vec<LimitedVolume>,
    /// The ZFS pools.
    pub pools: Vec<PoolStatus>,
    /// The volumes that are served, and the arrays.
    pub volumes: Vec<VolumeStatus>,
    /// What the shutdown waits for, once it has begun.
    pub stopping: Option<Vec<String>>,
}

/// A pool's process.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct PoolStatus {
    /// The pool's name.
    pub name: String,
    /// The process that has the pool.
    pub pid: u32,
    /// The release of OpenZFS in that process.
    pub release: String,
    /// How that process ended, if it has.
    pub ended: Option<String>,
}

/// A disk's device model.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct ModelStatus {
    /// The disk's path.
    pub disk: String,
    /// The model, as in `gp2:3000iops`.
    pub model: String,
}

/// A volume's state.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct VolumeStatus {
    /// The name: `md0`.
    pub name: String,
    /// Another name: `md/data`.
    pub alias: Option<String>,
    /// The array's level, or the kind of another device: `raid1`, `disk`.
    pub level: String,
    /// Bytes.
    pub size: u64,
    /// The state, in the words of `array_state`; of a snapshot that is lost `invalid` or `overflow`.
    pub state: String,
    /// The slots of the array; 1 for other devices.
    pub raid_devices: usize,
    /// The slots without a working member.
    pub degraded: usize,
    /// The snapshot that it is, or that is being merged into it.
    pub snapshot: Option<SnapshotSample>,
    /// The clients that have it.
    #[serde(flatten)]
    pub clients: VolumeClients,
}

impl VolumeStatus {
    /// Whether it is an array of md, running or not.
    pub fn is_array(&self) -> bool {
        // The level of other volumes is their kind: disk, part, lvm, zvol.
        self.level.starts_with("raid") || self.level == "linear"
    }
}

/// A snapshot at one moment. While it is merged, the origin has it.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug, Default)]
pub struct SnapshotSample {
    /// The name of its origin for clients: `vg/data`.
    pub origin: String,
    /// `active`, `merging`, `merge-failed`, `overflow` or `invalid`.
    pub state: String,
    /// The used part of its space, as the column `Data%` of `lvs` shows it, if it is known.
    pub used_percent: Option<f64>,
    /// Bytes of its space in use with the metadata, if that is known.
    pub used_bytes: Option<u64>,
    /// Bytes of its space.
    pub size_bytes: u64,
}

impl From<SnapshotUse> for SnapshotSample {
    fn from(of: SnapshotUse) -> Self {
        Self {
            origin: of.origin,
            state: of.state.name().to_owned(),
            used_percent: of.percent.and_then(|percent| percent.show().parse().ok()),
            used_bytes: of.used_bytes,
            size_bytes: of.size_bytes,
        }
    }
}

impl SnapshotSample {
    /// Whether it is valid, and is not being merged.
    pub fn is_active(&self) -> bool {
        self.state == SnapshotState::Active.name()
    }

    /// Whether it can no longer be written, or not even be read.
    pub fn is_lost(&self) -> bool {
        let lost = [SnapshotState::Overflow, SnapshotState::Invalid];
        lost.iter().any(|state| state.name() == self.state)
    }
}

impl fmt::Display for SnapshotSample {
    /// The text that describes it to a user.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = |state: SnapshotState| self.state == state.name();
        if is(SnapshotState::MergeFailed) {
            return f.write_str("the merge of a snapshot into it has failed");
        }
        let merging = is(SnapshotState::Merging);
        match merging {
            true => f.write_str("a snapshot is being merged into it")?,
            false => write!(f, "snapshot of {}", self.origin)?,
        }
        if let Some(percent) = self.used_percent {
            let what = if merging { "left" } else { "used" };
            write!(f, ", {percent:.2} % of {} {what}", human_size(self.size_bytes))?;
        }
        Ok(())
    }
}
