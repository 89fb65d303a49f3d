//! Metrics of the rate limits of volumes.

use ashlar_client::interface::{DeviceSample, LimitSample};

use super::page::{Labels, Row, Subject, Value, Values};

/// A volume that has rate limits, or had some.
#[derive(Debug)]
pub(super) struct LimitOf {
    device: String,
    limits: LimitSample,
}

impl LimitOf {
    /// That of a device, if it has one.
    pub(super) fn of(device: &DeviceSample) -> Option<Self> {
        Some(Self { device: device.name.clone(), limits: device.limits.clone()? })
    }
}

/// A value for each direction, those left out that do not apply.
fn by_direction<T: Into<Value>>(read: Option<T>, write: Option<T>) -> Values {
    let values = [("read", read), ("write", write)];
    let values = values.into_iter().filter_map(|(word, value)| Some((word, value?.into())));
    Values::By("direction", values.collect())
}

impl Subject for LimitOf {
    const ROWS: &'static [Row<Self>] = &[
        Row::gauge(
            "ashlar_limit_bytes_per_second",
            "The limit of the bytes that the volume's clients read or write.",
            |it| by_direction(it.limits.rbps, it.limits.wbps),
        ),
        Row::gauge(
            "ashlar_limit_requests_per_second",
            "The limit of the requests by which the volume's clients read, or change data.",
            |it| by_direction(it.limits.riops, it.limits.wiops),
        ),
        Row::gauge("ashlar_limit_waiting_requests", "Requests that wait for the limits.", |it| {
            by_direction(Some(it.limits.read.waiting), Some(it.limits.write.waiting))
        }),
        Row::counter(
            "ashlar_limited_requests_total",
            "Requests that had to wait for the limits.",
            |it| by_direction(Some(it.limits.read.requests), Some(it.limits.write.requests)),
        ),
        Row::counter(
            "ashlar_limited_seconds_total",
            "Time for which requests waited for the limits, added up when they pass.",
            |it| {
                let seconds = |ns: u64| Some(ns as f64 / 1e9);
                by_direction(seconds(it.limits.read.time_ns), seconds(it.limits.write.time_ns))
            },
        ),
    ];

    fn labels(&self) -> Labels {
        vec![("device", self.device.clone())]
    }
}
