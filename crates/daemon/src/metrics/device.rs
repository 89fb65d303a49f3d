//! Metrics of block devices: `ashlar_device_*`, and of their I/O, `ashlar_disk_*`, named as node_exporter names those of the kernel's.

use ashlar_block::Presence;
use ashlar_block::latency::BOUNDS_US;
use ashlar_client::interface::front_ends::VolumeClients;
use ashlar_client::interface::{DeviceSample, OperationSample};

use super::gather::presence;
use super::page::{Labels, Row, Subject, Value, Values};

const PRESENCES: [Presence; 3] = [Presence::Answering, Presence::Silent, Presence::Gone];

fn seconds(ns: u64) -> Values {
    Values::One((ns as f64 / 1e9).into())
}

fn histogram(operation: &OperationSample) -> Values {
    let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
    let counts = operation.latencies.iter().copied().chain(std::iter::repeat(0));
    let buckets = bounds.zip(counts).collect();
    Values::One(Value::Histogram { sum: operation.time_ns as f64 / 1e9, buckets })
}

impl Subject for DeviceSample {
    const ROWS: &'static [Row<Self>] = &[
        Row::gauge("ashlar_device_size_bytes", "Size of the device.", |d| {
            Values::One(d.size_bytes.into())
        }),
        Row::gauge("ashlar_device_read_only", "Whether the device refuses writes.", |d| {
            Values::One(d.read_only.into())
        }),
        Row::gauge(
            "ashlar_device_state",
            "1 for the state of the device: whether it answers its requests in time, and is there at all.",
            |d| Values::states("state", &PRESENCES, &d.state, presence),
        ),
        Row::gauge(
            "ashlar_nbd_export_connections",
            "Connections of NBD clients to the volume, those in the handshake not counted.",
            |d| Values::some(d.volume_clients().map(VolumeClients::nbd_connections)),
        ),
        Row::gauge(
            "ashlar_vhost_user_connections",
            "Virtual machines that have the volume by vhost-user-blk.",
            |d| Values::some(d.volume_clients().map(VolumeClients::vhost_user_connections)),
        ),
        Row::counter(
            "ashlar_disk_reads_completed_total",
            "Reads that ended, except those that were merged into others.",
            |d| Values::One(d.read.ios.into()),
        ),
        Row::counter(
            "ashlar_disk_reads_merged_total",
            "Reads that were merged into others.",
            |d| Values::One(d.read.merges.into()),
        ),
        Row::counter("ashlar_disk_read_bytes_total", "Bytes read.", |d| {
            Values::One(d.read.bytes.into())
        }),
        Row::counter("ashlar_disk_read_time_seconds_total", "Time of all reads, added up.", |d| {
            seconds(d.read.time_ns)
        }),
        Row::histogram(
            "ashlar_disk_read_duration_seconds",
            "How long reads took, also those that were merged into others.",
            |d| histogram(&d.read),
        ),
        Row::counter(
            "ashlar_disk_writes_completed_total",
            "Writes that ended, also those of zeroes, except those that were merged into others.",
            |d| Values::One(d.write.ios.into()),
        ),
        Row::counter(
            "ashlar_disk_writes_merged_total",
            "Writes that were merged into others.",
            |d| Values::One(d.write.merges.into()),
        ),
        Row::counter("ashlar_disk_written_bytes_total", "Bytes written.", |d| {
            Values::One(d.write.bytes.into())
        }),
        Row::counter(
            "ashlar_disk_write_time_seconds_total",
            "Time of all writes, added up.",
            |d| seconds(d.write.time_ns),
        ),
        Row::histogram(
            "ashlar_disk_write_duration_seconds",
            "How long writes took, also those that were merged into others.",
            |d| histogram(&d.write),
        ),
        Row::counter(
            "ashlar_disk_discards_completed_total",
            "Discards that ended, except those that were merged into others.",
            |d| Values::One(d.discard.ios.into()),
        ),
        Row::counter(
            "ashlar_disk_discards_merged_total",
            "Discards that were merged into others.",
            |d| Values::One(d.discard.merges.into()),
        ),
        Row::counter("ashlar_disk_discarded_bytes_total", "Bytes discarded.", |d| {
            Values::One(d.discard.bytes.into())
        }),
        Row::counter(
            "ashlar_disk_discard_time_seconds_total",
            "Time of all discards, added up.",
            |d| seconds(d.discard.time_ns),
        ),
        Row::histogram(
            "ashlar_disk_discard_duration_seconds",
            "How long discards took, also those that were merged into others.",
            |d| histogram(&d.discard),
        ),
        Row::counter("ashlar_disk_flush_requests_total", "Flushes that ended.", |d| {
            Values::One(d.flush.ios.into())
        }),
        Row::counter(
            "ashlar_disk_flush_requests_time_seconds_total",
            "Time of all flushes, added up.",
            |d| seconds(d.flush.time_ns),
        ),
        Row::histogram("ashlar_disk_flush_duration_seconds", "How long flushes took.", |d| {
            histogram(&d.flush)
        }),
        Row::counter(
            "ashlar_disk_io_errors_total",
            "Requests of any kind that failed, except those that the device does not support.",
            |d| Values::One(d.errors.into()),
        ),
        Row::gauge("ashlar_disk_io_now", "Requests of any kind under way.", |d| {
            Values::One(d.in_flight.into())
        }),
        Row::counter(
            "ashlar_disk_io_time_seconds_total",
            "Time in which a thread of the daemon had a request under way, added up over its threads.",
            |d| seconds(d.busy_ns),
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
            ("alias", sample.alias.clone().unwrap_or_default()),
            ("type", sample.kind.clone()),
            ("use", sample.usage.clone()),
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
    use ashlar_client::interface::front_ends::{NbdClient, VhostUserClient};
    use ashlar_client::interface::{DelaySample, LimitSample};

    /// A device with different numbers in all fields.
    pub(in crate::metrics) fn sample(name: &str) -> DeviceSample {
        let operation = |n: u64, counted: u64| {
            let mut latencies = vec![0; BOUNDS_US.len() + 1];
            (latencies[0], latencies[14], latencies[15]) = (counted, counted + 1, counted + 2);
            OperationSample {
                ios: n,
                merges: n + 1,
                bytes: (n + 2) * 512,
                time_ns: (n + 3) * 250_000_000,
                latencies,
            }
        };
        DeviceSample {
            name: name.to_owned(),
            path: format!("/dev/{name}"),
            alias: Some("md/data".to_owned()),
            kind: "md".to_owned(),
            usage: "volume".to_owned(),
            below: vec!["sda".to_owned()],
            size_bytes: 1 << 40,
            read_only: false,
            state: presence(Presence::Silent).to_owned(),
            snapshot: None,
            in_flight: 4,
            busy_ns: 1_500_000_000,
            read: operation(10, 1),
            write: operation(20, 4),
            discard: operation(30, 7),
            flush: operation(40, 10),
            errors: 9,
            limits: Some(LimitSample {
                rbps: Some(1000),
                wbps: Some(2000),
                riops: Some(30),
                wiops: None,
                burst_ms: 100,
                read: DelaySample { waiting: 5, requests: 6, time_ns: 7_500_000_000 },
                write: DelaySample { waiting: 8, requests: 9, time_ns: 250_000_000 },
            }),
            clients: VolumeClients {
                nbd_clients: [("192.0.2.7", 2), ("process 5", 3)]
                    .map(|(peer, connections)| NbdClient { peer: peer.to_owned(), connections })
                    .into(),
                vhost_user_clients: vec![VhostUserClient { process: 7 }],
            },
        }
    }
}
