//! For fuzz targets: a session without a listener, and a queue without a reactor. Both are the code that serves, with its checks.

use std::future::pending;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ashlar_block::byte_volume::OpenVolume;
use ashlar_engine::Handle;
use ashlar_engine::net::Socket;

use crate::config::Config;
use crate::event::Call;
use crate::export::Export;
use crate::inflight::Inflight;
use crate::memory::{GuestMap, Region, Unsealed};
use crate::request::{Begun, Terms};
use crate::ring::Addresses;
use crate::session::Session;
use crate::vring::{Placed, Ring};

/// Serves the front end at the other end of a socket, with its queues on this thread, until it or its guest ends the connection.
///
/// # Errors
/// Why it ended, if the front end did not close it.
pub async fn serve(export: &Export, config: &Config, socket: &Socket) -> Result<(), String> {
    let volume = export.open().ok_or("the volume is withdrawn")?;
    let threads = [Handle::current()];
    let mut session = Session::new(export, volume, config, &threads, 0, 0);
    session.run(socket, pending()).await.map_err(|violation| violation.to_string())
}

/// A queue as its front end sets it up. It is queue 0.
pub struct Setup {
    /// The guest's memory: of each region its address in the guest, that in the front end, its length and its place in the file.
    pub regions: Vec<([u64; 4], OwnedFd)>,
    /// Descriptors.
    pub size: u16,
    /// The index of the available ring from which on requests are taken.
    pub base: u16,
    /// Where descriptors, available ring and used ring are, in the front end.
    pub addresses: [u64; 3],
    /// RING_INDIRECT_DESC was negotiated.
    pub has_indirect: bool,
    /// RING_EVENT_IDX was negotiated.
    pub has_event_idx: bool,
    /// The inflight region of one queue of that size: file and length.
    pub inflight: Option<(OwnedFd, u64)>,
    /// Writes fail.
    pub is_read_only: bool,
    /// Writes are durable when they are answered.
    pub is_write_through: bool,
}

/// See the module text.
pub struct Queue {
    ring: Ring,
    volume: OpenVolume,
    terms: Terms,
    most: usize,
}

impl Queue {
    /// Starts the queue.
    ///
    /// # Errors
    /// What the front end or its guest did wrong.
    pub fn start(setup: Setup, volume: OpenVolume) -> Result<Self, String> {
        let mut map = GuestMap::default();
        for ([guest, user, size, offset], file) in setup.regions {
            let region = Region { guest, user, size, offset };
            let (next, _) =
                map.with(region, file, Unsealed::Serve).map_err(|bad| bad.to_string())?;
            map = next;
        }
        let mut inflight = None;
        if let Some((file, len)) = setup.inflight {
            let mapped = Inflight::map(file, 0, len, 1, setup.size);
            inflight = Some(mapped.map_err(|bad| bad.to_string())?.0);
        }
        let [descriptors, available, used] = setup.addresses;
        let placed = Placed {
            index: 0,
            addresses: Addresses { descriptors, used, available },
            size: setup.size,
            has_indirect: setup.has_indirect,
            has_event_idx: setup.has_event_idx,
        };
        let ring = Ring::new(placed, setup.base, Arc::new(map), inflight);
        let terms = Terms {
            is_read_only: setup.is_read_only,
            is_write_through: setup.is_write_through,
            id: *b"fuzz\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        };
        let most = 4 * usize::from(setup.size);
        Ok(Self { ring: ring.map_err(|fault| fault.to_string())?, volume, terms, most })
    }

    /// Executes all requests that are available, one after the other, and completes them; how many. A guest whose requests write to its
    /// own ring does not keep it busy for ever.
    ///
    /// # Errors
    /// How the ring lies. The requests before it have been executed.
    pub async fn run(&mut self) -> Result<usize, String> {
        let (mut call, mut count) = (Call::default(), 0);
        let fault = |fault: crate::fault::Fault| fault.to_string();
        while count < self.most
            && let Some(request) = self.ring.take().map_err(fault)?
        {
            let done = match request.begin(&self.volume, &self.terms) {
                Begun::Ended(done) => done,
                Begun::Runs(running) => running.await,
            };
            self.ring.complete(done, &mut call).map_err(fault)?;
            count += 1;
        }
        self.ring.publish(&mut call).map_err(fault)?;
        self.ring.wants_signal().map_err(fault)?;
        Ok(count)
    }
}
