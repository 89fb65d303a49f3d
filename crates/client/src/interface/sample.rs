//! The answer of `Sample`, from which the metrics are made, too.

use ashlar_block::latency::BOUNDS_US;
use serde::{Deserialize, Serialize};

use super::front_ends::{ConnectionLimits, ThreadConnections, VolumeClients};
use super::{Job, LimitSample, PoolStatus, SnapshotSample};

/// Counters and states of everything in a daemon, at one moment.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct Sample {
    /// The daemon's version.
    pub version: String,
    /// The kernel interface that the daemon uses for I/O: `io_uring` or `threads`.
    pub io: String,
    /// The moment, on a clock that never goes back, in nanoseconds.
    pub now_ns: u64,
    /// How long the daemon serves, in nanoseconds.
    pub uptime_ns: u64,
    /// The upper bounds of the ranges of latencies in microseconds, inclusive; a last range has no bound.
    pub latency_bounds_us: Vec<u64>,
    /// The threads that serve clients.
    pub threads: Vec<ThreadSample>,
    /// The most connections that are served.
    #[serde(flatten)]
    pub limits: ConnectionLimits,
    /// All block devices, those below others before them.
    pub devices: Vec<DeviceSample>,
    /// The md arrays, also those that wait for members.
    pub arrays: Vec<ArraySample>,
    /// The ZFS pools.
    pub pools: Vec<PoolStatus>,
    /// The jobs; `None` if they could not be listed in time.
    pub jobs: Option<Vec<Job>>,
}

impl Sample {
    /// The bounds that this program counts by.
    pub fn bounds_us() -> Vec<u64> {
        BOUNDS_US.to_vec()
    }
}

/// A thread that serves clients, at one moment.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub struct ThreadSample {
    /// Its name.
    pub name: String,
    /// The connections that it serves.
    #[serde(flatten)]
    pub connections: ThreadConnections,
}

/// A block device at one moment.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub struct DeviceSample {
    /// Its name below `sys/block`.
    pub name: String,
    /// The path that the user gave, or its path in `/dev`.
    pub path: String,
    /// Its name for clients, if that is another one: `md/data`, `vg/lv`.
    pub alias: Option<String>,
    /// Its type, in the words of `lsblk`.
    pub kind: String,
    /// What it is used for: `volume`, `member` and so on.
    #[serde(rename = "use")]
    pub usage: String,
    /// The names of the devices that it is made of.
    pub below: Vec<String>,
    /// Bytes.
    pub size_bytes: u64,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether it responds in time, and still exists: `answering`, `silent` or `gone`.
    pub state: String,
    /// The snapshot that it is, or that is being merged into it.
    pub snapshot: Option<SnapshotSample>,
    /// Requests of any kind in flight.
    pub in_flight: u64,
    /// Time in which a thread of the daemon had a request in flight, added up over its threads, in nanoseconds.
    pub busy_ns: u64,
    /// Reads.
    pub read: OperationSample,
    /// Writes, also those of zeroes.
    pub write: OperationSample,
    /// Discards.
    pub discard: OperationSample,
    /// Flushes.
    pub flush: OperationSample,
    /// Operations of any kind that failed; 0 from an older daemon, which does not count them.
    #[serde(default)]
    pub errors: u64,
    /// The rate limits of its clients; `None` if it has none, and had none that a request waited for.
    #[serde(default)]
    pub limits: Option<LimitSample>,
    /// As in [`VolumeStatus`](super::VolumeStatus).
    #[serde(flatten)]
    pub clients: VolumeClients,
}

impl DeviceSample {
    /// Its clients; `None` if it is not a volume: no client can choose it.
    pub fn volume_clients(&self) -> Option<&VolumeClients> {
        (self.usage == "volume").then_some(&self.clients)
    }
}

/// The completed operations of one kind on a device since the daemon started.
#[derive(Clone, Default, Serialize, Deserialize, Debug)]
pub struct OperationSample {
    /// Completed operations, except those that were merged into others.
    pub ios: u64,
    /// Those that were merged into others.
    pub merges: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// The time of all, added up, in nanoseconds.
    pub time_ns: u64,
    /// How many took a time within each range, also those that were merged into others; without the zeroes of the last
    /// ranges.
    pub latencies: Vec<u64>,
}

/// An md array at one moment.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub struct ArraySample {
    /// The name of its device.
    pub device: String,
    /// Its level, as in `raid1`.
    pub level: String,
    /// Its state, in the words of `array_state`.
    pub state: String,
    /// Members of the complete array.
    pub required: u64,
    /// Members in sync.
    pub active: u64,
    /// Members that failed.
    pub failed: u64,
    /// Other members, which may be under recovery.
    pub spare: u64,
    /// Places without a working member.
    pub degraded: u64,
    /// Whether copies may differ.
    pub unsynced: bool,
    /// What only a running array with redundancy has.
    pub sync: Option<SyncSample>,
    /// Its present members.
    pub members: Vec<MemberSample>,
}

/// The internal I/O of an array at one moment.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub struct SyncSample {
    /// Its current action, in the words of `sync_action`.
    pub action: String,
    /// Where the last check or repair found copies to differ, in bytes.
    pub mismatched_bytes: u64,
    /// How often I/O of clients waited at the array's barrier.
    pub barrier_waits: u64,
    /// Windows of syncs, and corrections, that raised it.
    pub barrier_raises: u64,
    /// Changes of the array that closed it for all I/O.
    pub barrier_freezes: u64,
    /// The progress of the action that runs, or that is paused.
    pub run: Option<RunSample>,
}

/// The progress of a sync.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub struct RunSample {
    /// What is done.
    pub done_bytes: u64,
    /// The total.
    pub total_bytes: u64,
    /// Its recent speed.
    pub bytes_per_second: u64,
    /// The remaining time at this speed, if that is known.
    pub seconds_left: Option<u64>,
}

/// A member of an array at one moment.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub struct MemberSample {
    /// Its name below `sys/block`.
    pub name: String,
    /// `active`, `failed` or `spare`.
    pub state: String,
    /// Reads that failed.
    pub read_errors: u64,
    /// Bytes that could not be read and were rewritten from other copies.
    pub corrected_bytes: u64,
}

/// The answer of `Sample`.
#[derive(Serialize, Deserialize, Debug)]
pub struct SampleReply {
    /// The sample.
    pub sample: Sample,
}
