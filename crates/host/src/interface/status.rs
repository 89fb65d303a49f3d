//! The answer of `Status`.

use serde::{Deserialize, Serialize};

use super::SnapshotSample;

/// A daemon's state.
#[derive(Serialize, Deserialize, Debug)]
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
    /// The mount point, if any.
    pub mount: Option<String>,
    /// The addresses of the NBD servers.
    pub nbd: Vec<String>,
    /// The address of the metrics, if they are served over HTTP.
    pub metrics: Option<String>,
    /// The disks with the timing of a device model.
    pub models: Vec<ModelStatus>,
    /// The ZFS pools.
    pub pools: Vec<PoolStatus>,
    /// The volumes that are served, and the arrays.
    pub volumes: Vec<VolumeStatus>,
    /// What the shutdown waits for, once it has begun.
    pub stopping: Option<Vec<String>>,
}

/// A pool's process.
#[derive(Serialize, Deserialize, Debug)]
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
#[derive(Serialize, Deserialize, Debug)]
pub struct ModelStatus {
    /// The disk's path.
    pub disk: String,
    /// The model, as in `gp2:3000iops`.
    pub model: String,
}

/// A volume's state.
#[derive(Serialize, Deserialize, Debug)]
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
    /// The NBD clients that have chosen it; none from an older daemon, which does not list them.
    #[serde(default)]
    pub nbd_clients: Vec<NbdClient>,
}

/// An NBD client of a volume.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct NbdClient {
    /// Who it is: an IP address, or `process` and a number.
    pub peer: String,
    /// Its connections to the volume.
    pub connections: u64,
}

impl VolumeStatus {
    /// Whether it is an array of md, running or not.
    pub fn is_array(&self) -> bool {
        // The level of other volumes is their kind: disk, part, lvm, zvol.
        self.level.starts_with("raid") || self.level == "linear"
    }
}
