//! What the daemon does, seen from outside: metrics in the text format of Prometheus, on the control socket and over HTTP.
//!
//! The page is made when a client asks for it, from the statistics that the devices keep anyway; without such a client the daemon
//! does nothing for it. Nothing here waits for a device: what may take long, such as a change of the stack whose lock the list of jobs needs, is
//! left out after a moment, and the page says so. The metrics are described in `docs/metrics.md`.

mod array;
mod device;
mod head;
pub(crate) mod http;
mod page;
mod work;

use std::fmt;
use std::time::Duration;

use ashlar_engine::timeout;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use serde_json::Value;

use self::array::{ArraySample, MemberSample};
use self::device::{DeviceInfo, DeviceSample};
use self::page::encode_all;
use self::work::{Backend, Build, JobsListed};
use crate::interface::{Job, MetricsReply, PoolStatus, refused, reply};
use crate::options::BackEnd;
use crate::service::Service;
use crate::varlink::Reply;

/// How long the list of jobs may take. A pool that does not answer takes 2 s; scrapers wait for 10.
const PATIENCE: Duration = Duration::from_secs(3);

/// All that is exported, at one moment.
#[derive(Debug)]
struct Page {
    backend: Backend,
    devices: Vec<DeviceSample>,
    arrays: Vec<ArraySample>,
    members: Vec<MemberSample>,
    pools: Vec<PoolStatus>,
    /// `None` if they could not be listed in time.
    jobs: Option<Vec<Job>>,
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        encode_all(encoder, &[Build])?;
        encode_all(encoder, std::slice::from_ref(&self.backend))?;
        let infos: Vec<DeviceInfo> = self.devices.iter().map(DeviceInfo::from).collect();
        encode_all(encoder, &infos)?;
        encode_all(encoder, &self.devices)?;
        encode_all(encoder, &self.arrays)?;
        encode_all(encoder, &self.members)?;
        encode_all(encoder, &self.pools)?;
        encode_all(encoder, self.jobs.as_deref().unwrap_or_default())?;
        encode_all(encoder, &[JobsListed(self.jobs.is_some())])
    }
}

impl Service {
    /// The metrics at this moment; `None`, which is logged, only for a defect.
    pub(crate) async fn metrics(&self) -> Option<String> {
        let jobs = timeout(PATIENCE, self.job_list()).await;
        let running = self.stack.arrays.running();
        let (mut arrays, members): (Vec<_>, Vec<_>) = running.iter().map(ArraySample::of).unzip();
        arrays.extend(self.stack.arrays.waiting().iter().map(ArraySample::waiting));
        let page = Page {
            backend: Backend(BackEnd::used().name()),
            devices: self.stack.devices.all().iter().map(DeviceSample::of).collect(),
            arrays,
            members: members.into_iter().flatten().collect(),
            pools: self.pool_statuses(),
            jobs,
        };
        let text = page::text(page);
        text.inspect_err(|error| tracing::error!(%error, "metrics without a text")).ok()
    }

    /// The metrics, for `Metrics`.
    pub(crate) async fn metrics_reply(&self) -> Result<Value, Reply> {
        match self.metrics().await {
            Some(text) => reply(MetricsReply { text }),
            None => Err(refused("the metrics have no text", Some("see the daemon's log"))),
        }
    }
}

#[cfg(test)]
mod tests;
