//! The metrics over HTTP.

use std::io;
use std::net::ToSocketAddrs;
use std::rc::Rc;
use std::sync::Mutex;

use ashlar_block::LocalFuture;
use ashlar_block::sync::lock;
use ashlar_client::interface::front_ends::PlaceStatus;
use ashlar_disks::options::some_parsed;
use ashlar_engine::net::BoundSocket;
use ashlar_engine::{Task, spawn};
use ashlar_stack::devices::Device;

use self::address::MetricsAddress;
use super::{FrontEnd, FrontEndOptions, Page, Parts, Place};
use crate::ending::Ending;
use crate::error::{Error, Result};
use crate::metrics::http::{self, Limits};
use crate::options::options;

mod address;

options! {
    /// The options of metrics over HTTP.
    #[allow(rustdoc::broken_intra_doc_links, rustdoc::bare_urls)]
    pub struct MetricsOptions {
        /// Serve metrics for Prometheus
        ///
        /// At http://ADDRESS:PORT/metrics: counters and states of all devices and arrays. Each client that reaches
        /// ADDRESS can read them; without ADDRESS, only programs on this machine reach it
        #[arg(long, value_name = "tcp:[ADDRESS:]PORT", help_heading = "Daemon")]
        #[serde(deserialize_with = "some_parsed")]
        pub metrics: Option<MetricsAddress>,
    }
}

/// The socket, on which readers wait.
struct WaitingMetrics(BoundSocket);

impl Place for WaitingMetrics {
    fn start(self: Box<Self>, _: &Parts<'_>) -> Result<Box<dyn FrontEnd>> {
        let Self(bound) = *self;
        let address = bound.local_addr().ok().map(|at| format!("tcp:{at}"));
        Ok(Box::new(Metrics { address, socket: Some(bound).into(), server: Mutex::default() }))
    }
}

/// See the module text.
struct Metrics {
    address: Option<String>,
    /// Until it begins.
    socket: Mutex<Option<BoundSocket>>,
    /// From then on, until the end.
    server: Mutex<Option<Task<()>>>,
}

impl FrontEnd for Metrics {
    /// Readers see the volumes of the moment.
    fn offer(&self, _: &Device) -> std::result::Result<(), String> {
        Ok(())
    }

    fn withdraw(&self, _: &str) {}

    fn resized(&self, _: &Device) {}

    fn begin(&self, page: &Page) {
        let Some(bound) = lock(&self.socket).take() else { return };
        let page = Rc::clone(page);
        let page = async move || page().await;
        *lock(&self.server) = Some(spawn(http::serve(bound.into(), Limits::default(), page)));
    }

    fn place(&self, places: &mut PlaceStatus) {
        places.metrics.clone_from(&self.address);
    }

    fn drain<'a>(&'a self, _: &'a Ending) -> LocalFuture<'a, ()> {
        let server = lock(&self.server).take();
        Box::pin(async move {
            if let Some(server) = server {
                server.cancel().await;
            }
        })
    }
}

impl FrontEndOptions for MetricsOptions {
    fn serves(&self) -> bool {
        false
    }

    /// Listens at the address, if there is one. Warns about one that other machines may reach.
    ///
    /// # Errors
    /// Those of bind(2); a host that has no address.
    fn bind(&self, _: bool) -> Result<Option<Box<dyn Place>>> {
        let Some(address) = &self.metrics else { return Ok(None) };
        match bind_at(address) {
            Ok(bound) => Ok(Some(Box::new(WaitingMetrics(bound)))),
            Err(error) => {
                let in_use = error.kind() == io::ErrorKind::AddrInUse;
                let error = Error::new("cannot listen for readers of metrics", address, error);
                Err(if in_use {
                    error.hint("another program listens there: choose another port")
                } else {
                    error
                })
            }
        }
    }
}

fn bind_at(address: &MetricsAddress) -> io::Result<BoundSocket> {
    let first = address.host_and_port().to_socket_addrs()?.next();
    let bound = BoundSocket::tcp(first.ok_or(io::ErrorKind::AddrNotAvailable)?)?;
    let address = bound.local_addr()?;
    if !address.ip().to_canonical().is_loopback() {
        tracing::warn!(%address, "every machine that reaches this address can read the metrics");
    }
    Ok(bound)
}
