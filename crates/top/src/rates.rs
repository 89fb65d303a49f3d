//! What happened between two samples.

use std::collections::HashMap;

use ashlar_client::interface::front_ends::VolumeClients;
use ashlar_client::interface::{
    ArraySample, DeviceSample, Job, LimitSample, OperationSample, PoolStatus, Sample,
    SnapshotSample,
};
use serde::Serialize;

/// What a daemon did between two samples, and its state at the second one.
#[derive(Serialize, Debug)]
pub struct Interval {
    /// The daemon's version.
    pub version: String,
    /// The kernel interface that the daemon uses for I/O.
    pub io: String,
    /// How long it has been serving.
    pub uptime_seconds: f64,
    /// The time between the samples.
    pub seconds: f64,
    /// The devices.
    pub devices: Vec<DeviceRates>,
    /// The md arrays.
    pub arrays: Vec<ArraySample>,
    /// The ZFS pools.
    pub pools: Vec<PoolStatus>,
    /// Jobs; `None` if the daemon could not list them in time.
    pub jobs: Option<Vec<Job>>,
}

/// The activity of a device.
#[derive(Serialize, Debug)]
pub struct DeviceRates {
    /// Its name below `sys/block`.
    pub name: String,
    /// Its name for clients, if that is another one.
    pub alias: Option<String>,
    /// Its type.
    pub kind: String,
    /// What it is used for.
    #[serde(rename = "use")]
    pub usage: String,
    /// The devices that it is made of.
    pub below: Vec<String>,
    /// Whether it responds.
    pub state: String,
    /// Its state as a snapshot, or the snapshot that is being merged into it.
    pub snapshot: Option<SnapshotSample>,
    /// The rate limits of its clients, if it has some, and the requests that had to wait since the daemon started.
    pub limits: Option<LimitSample>,
    /// Its clients.
    #[serde(flatten)]
    pub clients: VolumeClients,
    /// The connections of NBD clients; `None` if it is not a volume.
    pub nbd_connections: Option<u64>,
    /// The virtual machines that have it; `None` if it is not a volume.
    pub vhost_user_connections: Option<u64>,
    /// Requests in flight at the second sample.
    pub queue: u64,
    /// Reads.
    pub read: OperationRates,
    /// Writes.
    pub write: OperationRates,
    /// Discards.
    pub discard: OperationRates,
    /// Flushes.
    pub flush: OperationRates,
    /// The share of reads, writes and discards that were merged into others, if there were any.
    pub merged_percent: Option<f64>,
    /// The share of the time in which requests were in flight, added up over the daemon's threads.
    pub busy_percent: f64,
}

/// The rates and times of one kind of operation.
#[derive(Clone, Copy, Serialize, Default, Debug)]
pub struct OperationRates {
    /// Operations completed per second, without those that were merged into others.
    pub ios_per_second: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// The time that half of them did not exceed, if there were any.
    pub p50: Option<Latency>,
    /// The time that 99 of 100 did not exceed, if there were any.
    pub p99: Option<Latency>,
}

/// How long an operation took.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
pub struct Latency {
    /// Microseconds.
    pub us: f64,
    /// Whether it took longer than that: it is in the last range, which has no bound.
    pub is_over: bool,
}

impl Interval {
    /// What happened between two samples of a daemon.
    pub fn between(before: &Sample, after: &Sample) -> Self {
        // A nanosecond, so that nothing is divided by zero.
        let ns = after.now_ns.saturating_sub(before.now_ns).max(1);
        let seconds = ns as f64 / 1e9;
        let earlier: HashMap<&str, &DeviceSample> =
            before.devices.iter().map(|device| (device.name.as_str(), device)).collect();
        let bounds = &after.latency_bounds_us;
        let devices = after.devices.iter().map(|device| {
            device_rates(earlier.get(device.name.as_str()).copied(), device, bounds, seconds)
        });
        Self {
            version: after.version.clone(),
            io: after.io.clone(),
            uptime_seconds: after.uptime_ns as f64 / 1e9,
            seconds,
            devices: devices.collect(),
            arrays: after.arrays.clone(),
            pools: after.pools.iter().map(copy_of_pool).collect(),
            jobs: after.jobs.clone(),
        }
    }
}

fn copy_of_pool(pool: &PoolStatus) -> PoolStatus {
    PoolStatus {
        name: pool.name.clone(),
        pid: pool.pid,
        release: pool.release.clone(),
        ended: pool.ended.clone(),
    }
}

impl DeviceRates {
    /// Whether it did nothing, and does nothing.
    pub(crate) fn is_idle(&self) -> bool {
        let all = [self.read, self.write, self.discard, self.flush];
        self.queue == 0 && all.iter().all(|operation| operation.ios_per_second == 0.0)
    }

    /// The name that the user knows it by.
    pub(crate) fn title(&self) -> &str {
        self.alias.as_deref().unwrap_or(&self.name)
    }
}

/// How much a counter has grown. A counter that is smaller than before belongs to another device, and began at zero.
fn growth(before: u64, after: u64) -> u64 {
    after.checked_sub(before).unwrap_or(after)
}

fn device_rates(
    before: Option<&DeviceSample>,
    after: &DeviceSample,
    bounds: &[u64],
    seconds: f64,
) -> DeviceRates {
    let none = OperationSample::default();
    // A device that was not there before began at zero.
    let of = |operation: fn(&DeviceSample) -> &OperationSample| {
        let before = before.map_or(&none, operation);
        operation_rates(before, operation(after), bounds, seconds)
    };
    let groups: [fn(&DeviceSample) -> &OperationSample; 3] =
        [|device| &device.read, |device| &device.write, |device| &device.discard];
    let (mut merged, mut all) = (0, 0);
    for group in groups {
        let (earlier, later) = (before.map_or(&none, group), group(after));
        let merges = growth(earlier.merges, later.merges);
        merged += merges;
        all += merges + growth(earlier.ios, later.ios);
    }
    let busy_ns = growth(before.map_or(0, |before| before.busy_ns), after.busy_ns);
    DeviceRates {
        name: after.name.clone(),
        alias: after.alias.clone(),
        kind: after.kind.clone(),
        usage: after.usage.clone(),
        below: after.below.clone(),
        state: after.state.clone(),
        snapshot: after.snapshot.clone(),
        limits: after.limits.clone(),
        clients: after.clients.clone(),
        nbd_connections: after.volume_clients().map(VolumeClients::nbd_connections),
        vhost_user_connections: after.volume_clients().map(VolumeClients::vhost_user_connections),
        queue: after.in_flight,
        read: of(|device| &device.read),
        write: of(|device| &device.write),
        discard: of(|device| &device.discard),
        flush: of(|device| &device.flush),
        merged_percent: (all > 0).then(|| merged as f64 * 100.0 / all as f64),
        busy_percent: busy_ns as f64 / 1e7 / seconds,
    }
}

fn operation_rates(
    before: &OperationSample,
    after: &OperationSample,
    bounds: &[u64],
    seconds: f64,
) -> OperationRates {
    let earlier = before.latencies.iter().copied().chain(std::iter::repeat(0));
    let counts = after.latencies.iter().zip(earlier).map(|(after, before)| growth(before, *after));
    let counts: Vec<u64> = counts.collect();
    OperationRates {
        ios_per_second: growth(before.ios, after.ios) as f64 / seconds,
        bytes_per_second: growth(before.bytes, after.bytes) as f64 / seconds,
        p50: percentile(&counts, bounds, 0.5),
        p99: percentile(&counts, bounds, 0.99),
    }
}

/// The time that this share of all operations did not exceed, if they were spread evenly over their range. `counts` has how many were
/// within each range.
pub(crate) fn percentile(counts: &[u64], bounds_us: &[u64], share: f64) -> Option<Latency> {
    let all: u64 = counts.iter().sum();
    let rank = all as f64 * share;
    let (mut below, mut lower) = (0, 0);
    for (index, count) in counts.iter().enumerate() {
        let upper = bounds_us.get(index);
        let within = below + count;
        if *count > 0 && within as f64 >= rank {
            return Some(match upper {
                Some(upper) => {
                    let part = (rank - below as f64) / *count as f64;
                    let width = upper.saturating_sub(lower) as f64;
                    Latency { us: lower as f64 + width * part, is_over: false }
                }
                None => Latency { us: lower as f64, is_over: true },
            });
        }
        (below, lower) = (within, upper.copied().unwrap_or(lower));
    }
    None
}
