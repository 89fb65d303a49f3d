//! Metrics of block devices: `ashlar_device_*`, and of their I/O, `ashlar_disk_*`, named as node_exporter names those of the kernel's.

use ashlar_block::latency::{BOUNDS_US, Ranges};
use ashlar_block::stats::{GroupTotals, Totals};
use ashlar_block::{Op, Presence};
use ashlar_stack::devices::{Device, Role};

use super::page::{Labels, Row, Subject, Value, Values};

/// A block device at one moment.
#[derive(Debug)]
pub(super) struct DeviceSample {
    name: String,
    path: String,
    alias: String,
    kind: &'static str,
    usage: &'static str,
    size_bytes: u64,
    is_read_only: bool,
    presence: Presence,
    totals: Totals,
    reads: Ranges,
    writes: Ranges,
    discards: Ranges,
    flushes: Ranges,
}

impl DeviceSample {
    pub(super) fn of(device: &Device) -> Self {
        let disk = device.gateway().disk();
        let stats = disk.stats();
        Self {
            name: device.name.clone(),
            path: device.path.clone(),
            alias: device.links.last().cloned().unwrap_or_default(),
            kind: device.kind.name(),
            usage: usage(device.role),
            size_bytes: device.bytes.size_bytes(),
            is_read_only: disk.is_read_only(),
            presence: disk.presence(),
            totals: stats.totals(),
            reads: stats.latencies(Op::Read),
            writes: stats.latencies(Op::Write),
            discards: stats.latencies(Op::Discard),
            flushes: stats.latencies(Op::Flush),
        }
    }
}

const fn usage(role: Role) -> &'static str {
    match role {
        Role::Volume => "volume",
        Role::Member => "member",
        Role::Partitioned => "partitioned",
        Role::PhysicalVolume => "physical-volume",
        Role::Component => "component",
        Role::PoolMember => "pool-member",
        Role::Refused => "none",
    }
}

const fn presence(presence: Presence) -> &'static str {
    match presence {
        Presence::Answering => "answering",
        Presence::Silent => "silent",
        Presence::Gone => "gone",
    }
}

const PRESENCES: [Presence; 3] = [Presence::Answering, Presence::Silent, Presence::Gone];

fn seconds(ns: u64) -> Values {
    Values::One((ns as f64 / 1e9).into())
}

fn bytes(group: GroupTotals) -> Values {
    Values::One(group.sectors.saturating_mul(512).into())
}

fn histogram(ranges: &Ranges, group: GroupTotals) -> Values {
    let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
    let buckets = bounds.zip(ranges.iter().copied()).collect();
    Values::One(Value::Histogram { sum: group.ticks_ns as f64 / 1e9, buckets })
}

impl Subject for DeviceSample {
    const ROWS: &'static [Row<Self>] = &[
        Row::gauge("ashlar_device_size_bytes", "Size of the device.", |d| {
            Values::One(d.size_bytes.into())
        }),
        Row::gauge("ashlar_device_read_only", "Whether the device refuses writes.", |d| {
            Values::One(d.is_read_only.into())
        }),
        Row::gauge(
            "ashlar_device_state",
            "1 for the state of the device: whether it answers its requests in time, and is there at all.",
            |d| Values::states("state", &PRESENCES, d.presence, presence),
        ),
        Row::counter(
            "ashlar_disk_reads_completed_total",
            "Reads that ended, except those that were merged into others.",
            |d| Values::One(d.totals.read.ios.into()),
        ),
        Row::counter(
            "ashlar_disk_reads_merged_total",
            "Reads that were merged into others.",
            |d| Values::One(d.totals.read.merges.into()),
        ),
        Row::counter("ashlar_disk_read_bytes_total", "Bytes read.", |d| bytes(d.totals.read)),
        Row::counter("ashlar_disk_read_time_seconds_total", "Time of all reads, added up.", |d| {
            seconds(d.totals.read.ticks_ns)
        }),
        Row::histogram(
            "ashlar_disk_read_duration_seconds",
            "How long reads took, also those that were merged into others.",
            |d| histogram(&d.reads, d.totals.read),
        ),
        Row::counter(
            "ashlar_disk_writes_completed_total",
            "Writes that ended, also those of zeroes, except those that were merged into others.",
            |d| Values::One(d.totals.write.ios.into()),
        ),
        Row::counter(
            "ashlar_disk_writes_merged_total",
            "Writes that were merged into others.",
            |d| Values::One(d.totals.write.merges.into()),
        ),
        Row::counter("ashlar_disk_written_bytes_total", "Bytes written.", |d| {
            bytes(d.totals.write)
        }),
        Row::counter(
            "ashlar_disk_write_time_seconds_total",
            "Time of all writes, added up.",
            |d| seconds(d.totals.write.ticks_ns),
        ),
        Row::histogram(
            "ashlar_disk_write_duration_seconds",
            "How long writes took, also those that were merged into others.",
            |d| histogram(&d.writes, d.totals.write),
        ),
        Row::counter(
            "ashlar_disk_discards_completed_total",
            "Discards that ended, except those that were merged into others.",
            |d| Values::One(d.totals.discard.ios.into()),
        ),
        Row::counter(
            "ashlar_disk_discards_merged_total",
            "Discards that were merged into others.",
            |d| Values::One(d.totals.discard.merges.into()),
        ),
        Row::counter("ashlar_disk_discarded_bytes_total", "Bytes discarded.", |d| {
            bytes(d.totals.discard)
        }),
        Row::counter(
            "ashlar_disk_discard_time_seconds_total",
            "Time of all discards, added up.",
            |d| seconds(d.totals.discard.ticks_ns),
        ),
        Row::histogram(
            "ashlar_disk_discard_duration_seconds",
            "How long discards took, also those that were merged into others.",
            |d| histogram(&d.discards, d.totals.discard),
        ),
        Row::counter("ashlar_disk_flush_requests_total", "Flushes that ended.", |d| {
            Values::One(d.totals.flush.ios.into())
        }),
        Row::counter(
            "ashlar_disk_flush_requests_time_seconds_total",
            "Time of all flushes, added up.",
            |d| seconds(d.totals.flush.ticks_ns),
        ),
        Row::histogram("ashlar_disk_flush_duration_seconds", "How long flushes took.", |d| {
            histogram(&d.flushes, d.totals.flush)
        }),
        Row::gauge("ashlar_disk_io_now", "Requests of any kind under way.", |d| {
            Values::One(d.totals.in_flight().into())
        }),
        Row::counter(
            "ashlar_disk_io_time_seconds_total",
            "Time in which a thread of the daemon had a request under way, added up over its threads.",
            |d| seconds(d.totals.io_ticks_ns),
        ),
    ];

    fn labels(&self) -> Labels {
        vec![("device", self.name.clone())]
    }
}

/// The names and the use of a device: what joins its metrics with what a user knows of it.
#[derive(Debug)]
pub(super) struct DeviceInfo(Labels);

impl From<&DeviceSample> for DeviceInfo {
    fn from(sample: &DeviceSample) -> Self {
        Self(vec![
            ("device", sample.name.clone()),
            ("path", sample.path.clone()),
            ("alias", sample.alias.clone()),
            ("type", sample.kind.to_owned()),
            ("use", sample.usage.to_owned()),
        ])
    }
}

impl Subject for DeviceInfo {
    const ROWS: &'static [Row<Self>] = &[Row::gauge(
        "ashlar_device_info",
        "1 for each device, with its path, its name for clients, its type and what it is used for.",
        |_| Values::One(1_u64.into()),
    )];

    fn labels(&self) -> Labels {
        self.0.clone()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A device with different numbers in all fields.
    pub(in crate::metrics) fn sample(name: &str) -> DeviceSample {
        let group = |n: u64| GroupTotals {
            ios: n,
            merges: n + 1,
            sectors: n + 2,
            ticks_ns: (n + 3) * 250_000_000,
            in_flight: 1,
        };
        let ranges = |n: u64| {
            let mut ranges = [0; _];
            (ranges[0], ranges[14], ranges[15]) = (n, n + 1, n + 2);
            ranges
        };
        DeviceSample {
            name: name.to_owned(),
            path: format!("/dev/{name}"),
            alias: "md/data".to_owned(),
            kind: "md",
            usage: "volume",
            size_bytes: 1 << 40,
            is_read_only: false,
            presence: Presence::Silent,
            totals: Totals {
                read: group(10),
                write: group(20),
                discard: group(30),
                flush: group(40),
                io_ticks_ns: 1_500_000_000,
            },
            reads: ranges(1),
            writes: ranges(4),
            discards: ranges(7),
            flushes: ranges(10),
        }
    }
}
