//! The activity of the daemon: a sample of all counters and states, for `ashlar top`, and metrics made from it in the text
//! format of Prometheus, on the control socket and over HTTP.
//!
//! A sample is made when a client asks for it, from the statistics that the devices keep anyway; without such a client it costs
//! nothing. Nothing here waits for a device: a part that may take long, such as the list of jobs while the stack changes, is left
//! out after a time limit, and the sample says so. The metrics are described in `docs/metrics.md`.

mod array;
mod device;
mod gather;
mod head;
pub(crate) mod http;
mod limit;
mod page;
mod snapshot;
mod work;

use std::{fmt, slice};

use ashlar_client::interface::{MetricsReply, Sample, SampleReply, refused, reply};
use ashlar_control::varlink::Reply;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use serde_json::Value;

use self::array::MemberOf;
use self::device::DeviceInfo;
pub(crate) use self::gather::limits;
use self::limit::LimitOf;
use self::page::encode_all;
use self::snapshot::SnapshotOf;
use self::work::{Backend, Build, JobsListed};
use crate::service::Service;

/// A sample as a page of metrics.
#[derive(Debug)]
struct Page(Sample);

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (Self(sample), encoder) = (self, &mut encoder);
        encode_all(encoder, &[Build])?;
        encode_all(encoder, &[Backend(sample.io.clone())])?;
        encode_all(encoder, &sample.threads)?;
        encode_all(encoder, slice::from_ref(&sample.limits))?;
        let infos: Vec<DeviceInfo> = sample.devices.iter().map(DeviceInfo::from).collect();
        encode_all(encoder, &infos)?;
        encode_all(encoder, &sample.devices)?;
        let limits: Vec<LimitOf> = sample.devices.iter().filter_map(LimitOf::of).collect();
        encode_all(encoder, &limits)?;
        let snapshots: Vec<SnapshotOf> = sample.devices.iter().filter_map(SnapshotOf::of).collect();
        encode_all(encoder, &snapshots)?;
        encode_all(encoder, &sample.arrays)?;
        let members: Vec<MemberOf> = sample.arrays.iter().flat_map(MemberOf::all).collect();
        encode_all(encoder, &members)?;
        encode_all(encoder, &sample.pools)?;
        encode_all(encoder, sample.jobs.as_deref().unwrap_or_default())?;
        encode_all(encoder, &[JobsListed(sample.jobs.is_some())])
    }
}

impl Service {
    /// The metrics at this moment; `None`, which is logged, only for a defect.
    pub(crate) async fn metrics(&self) -> Option<String> {
        let text = page::text(Page(self.sample().await));
        text.inspect_err(|error| tracing::error!(%error, "metrics without a text")).ok()
    }

    /// The metrics, for `Metrics`.
    pub(crate) async fn metrics_reply(&self) -> Result<Value, Reply> {
        match self.metrics().await {
            Some(text) => reply(MetricsReply { text }),
            None => Err(refused("the metrics have no text", Some("see the daemon's log"))),
        }
    }

    /// The sample from which the metrics are made, for `Sample`.
    pub(crate) async fn sample_reply(&self) -> Result<Value, Reply> {
        reply(SampleReply { sample: self.sample().await })
    }
}

#[cfg(test)]
mod tests;
