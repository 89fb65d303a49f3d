//! A virtqueue: one task on a reactor.
//!
//! The task takes all requests that the driver has made available, starts them, and completes each as it ends. After it has done
//! something it looks at the ring again; only when it finds nothing does it ask the driver for a signal, and sleeps. One signal to the
//! driver covers all requests that have ended together.
//!
//! States: running; stopping (nothing is taken, requests in flight end and are completed); broken (the ring lies: nothing is taken, and
//! requests in flight end without being completed).

use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use std::vec;

use ashlar_block::byte_volume::OpenVolume;
use ashlar_block::sync::lock;
use ashlar_engine::{Receiver, timeout};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use futures_util::task::AtomicWaker;
use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use crate::chain::{Fault, MAX_DESCRIPTORS, Table, walk};
use crate::event::{Call, Kick};
use crate::inflight::{Inflight, InflightQueue};
use crate::memory::{GuestMap, View};
use crate::request::{Done, Request, Terms};

/// Rounds after which a busy queue lets other tasks run.
const ROUNDS: usize = 16;
/// How long the last signal may wait for its driver.
const LAST_SIGNAL: Duration = Duration::from_secs(1);

/// Where a ring is, in the front end's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Addresses {
    pub(crate) descriptors: u64,
    pub(crate) used: u64,
    pub(crate) available: u64,
}

/// What the front end changes while a queue runs.
#[derive(Default)]
pub(crate) struct Changes {
    version: AtomicU64,
    pending: Mutex<Pending>,
    /// The queue's task.
    waker: AtomicWaker,
}

#[derive(Default)]
struct Pending {
    map: Option<Arc<GuestMap>>,
    call: Option<Option<OwnedFd>>,
}

impl Changes {
    /// Another table of the guest's memory.
    pub(crate) fn set_map(&self, map: Arc<GuestMap>) {
        lock(&self.pending).map = Some(map);
        self.tell();
    }

    /// Another descriptor that signals the driver, or none.
    pub(crate) fn set_call(&self, call: Option<OwnedFd>) {
        lock(&self.pending).call = Some(call);
        self.tell();
    }

    fn tell(&self) {
        self.version.fetch_add(1, AcqRel);
        self.waker.wake();
    }
}

/// What a queue needs.
pub(crate) struct Setup {
    pub(crate) index: u16,
    pub(crate) size: u16,
    pub(crate) addresses: Addresses,
    /// The index of the available ring from which on requests are taken, unless an inflight region says it.
    pub(crate) base: u16,
    pub(crate) has_indirect: bool,
    pub(crate) has_event_idx: bool,
    pub(crate) map: Arc<GuestMap>,
    pub(crate) inflight: Option<Arc<Inflight>>,
    pub(crate) kick: OwnedFd,
    pub(crate) call: Option<OwnedFd>,
    pub(crate) changes: Arc<Changes>,
    pub(crate) volume: Arc<OpenVolume>,
    pub(crate) terms: Arc<Terms>,
}

/// How a queue has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The index of the available ring from which on nothing was taken.
    pub(crate) base: u16,
    /// The ring lied.
    pub(crate) fault: Option<Fault>,
}

/// Runs a queue on the current reactor until `stop`, or until its ring lies. All requests that it has taken have ended then.
pub(crate) async fn run(setup: Setup, mut stop: Receiver<()>) -> Ended {
    let Setup { kick, call: call_fd, changes, volume, terms, .. } = setup;
    let placed =
        Placed { index: setup.index, addresses: setup.addresses, has_indirect: setup.has_indirect };
    let ring =
        Ring::new(placed, setup.size, setup.has_event_idx, setup.base, setup.map, setup.inflight);
    let mut ring = match ring {
        Ok(ring) => ring,
        Err(fault) => return Ended { base: setup.base, fault: Some(fault) },
    };
    let (mut kick, mut call, mut seen) = (Kick::new(kick), Call::default(), 0);
    // Also if the driver waits for requests that a former process has completed.
    call.replace(call_fd);
    let mut running = FuturesUnordered::new();
    let mut is_stopping = false;
    let served = poll_fn(|cx: &mut Context<'_>| {
        changes.waker.register(cx.waker());
        for _ in 0..ROUNDS {
            is_stopping = is_stopping || pin!(&mut stop).poll(cx).is_ready();
            let version = changes.version.load(Acquire);
            if version != seen {
                seen = version;
                let Pending { map, call: fd } = std::mem::take(&mut *lock(&changes.pending));
                if let Some(map) = map {
                    ring.place(map)?;
                }
                if let Some(fd) = fd {
                    call.replace(fd);
                }
            }
            let mut is_busy = false;
            while !is_stopping && let Some(request) = ring.take()? {
                running.push(request.execute(&volume, &terms));
                is_busy = true;
            }
            while let Poll::Ready(Some(done)) = running.poll_next_unpin(cx) {
                ring.complete(done)?;
                is_busy = true;
            }
            if ring.must_signal()? {
                call.signal();
            }
            let (Poll::Ready(()) | Poll::Pending) = call.poll(cx);
            if is_busy {
                continue;
            }
            if is_stopping {
                return if running.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            if ring.wants_signal()? {
                continue;
            }
            match kick.poll(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(Fault::Kick(error.to_string())));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    let served: Result<(), Fault> = served.await;
    while running.next().await.is_some() {}
    if served.is_ok() && timeout(LAST_SIGNAL, poll_fn(|cx| call.poll(cx))).await.is_none() {
        tracing::debug!("a vhost-user driver does not take its last signal");
    }
    Ended { base: ring.queue.next_avail(), fault: served.err() }
}

/// What stays of a ring when its memory changes.
#[derive(Clone, Copy)]
struct Placed {
    index: u16,
    addresses: Addresses,
    has_indirect: bool,
}

struct Ring {
    placed: Placed,
    queue: Queue,
    map: Arc<GuestMap>,
    view: View,
    /// Which descriptors are heads of requests in flight.
    busy: Box<[bool]>,
    inflight: Option<InflightQueue>,
    /// Heads that a former process has taken.
    again: vec::IntoIter<u16>,
    /// Requests were completed since the driver was last signalled.
    has_completed: bool,
    /// The driver was not asked for a signal since the ring was last found to have requests.
    is_awake: bool,
}

fn access(error: impl ToString) -> Fault {
    Fault::Access(error.to_string())
}

impl Ring {
    fn new(
        placed: Placed,
        size: u16,
        has_event_idx: bool,
        base: u16,
        map: Arc<GuestMap>,
        inflight: Option<Arc<Inflight>>,
    ) -> Result<Self, Fault> {
        let mut queue = Queue::new(MAX_DESCRIPTORS).map_err(access)?;
        queue.try_set_size(size).map_err(access)?;
        queue.set_event_idx(has_event_idx);
        queue.set_next_avail(base);
        let view = map.view();
        let busy = vec![false; usize::from(size)].into();
        let mut ring = Self {
            placed,
            queue,
            map: Arc::clone(&map),
            view,
            busy,
            inflight: None,
            again: Vec::new().into_iter(),
            has_completed: false,
            is_awake: false,
        };
        ring.place(map)?;
        let used = ring.queue.used_idx(ring.map.memory(), Acquire).map_err(access)?.0;
        ring.queue.set_next_used(used);
        if let Some(inflight) = inflight {
            let mut inflight = inflight.queue(placed.index, size).ok_or(Fault::Inflight)?;
            let again = inflight.recover(used);
            // What the former process has taken is in flight or used.
            ring.queue.set_next_avail(used.wrapping_add(again.len() as u16));
            (ring.again, ring.inflight) = (again.into_iter(), Some(inflight));
        }
        Ok(ring)
    }

    /// Continues in another table of the guest's memory.
    fn place(&mut self, map: Arc<GuestMap>) -> Result<(), Fault> {
        let Addresses { descriptors, used, available } = self.placed.addresses;
        let guest = |user| map.guest_address(user).map(GuestAddress).ok_or(Fault::Ring);
        let bad = |_| Fault::Ring;
        self.queue.try_set_desc_table_address(guest(descriptors)?).map_err(bad)?;
        self.queue.try_set_avail_ring_address(guest(available)?).map_err(bad)?;
        self.queue.try_set_used_ring_address(guest(used)?).map_err(bad)?;
        self.queue.set_ready(true);
        if !self.queue.is_valid(map.memory()) {
            return Err(Fault::Ring);
        }
        (self.view, self.map) = (map.view(), map);
        Ok(())
    }

    /// The next request, if there is one.
    fn take(&mut self) -> Result<Option<Request>, Fault> {
        let (head, is_new) = match self.again.next() {
            Some(head) => (head, false),
            None => match self.next_available()? {
                Some(head) => (head, true),
                None => return Ok(None),
            },
        };
        let table = Table {
            address: self.queue.desc_table(),
            size: self.queue.size(),
            has_indirect: self.placed.has_indirect,
        };
        let chain = walk(&self.map, &self.view, table, head)?;
        let request = Request::parse(head, chain, &self.view)?;
        // The walk has checked the head.
        let busy = self.busy.get_mut(usize::from(head)).ok_or(Fault::Head(head, table.size))?;
        if std::mem::replace(busy, true) {
            return Err(Fault::Busy(head));
        }
        if let Some(inflight) = self.inflight.as_mut().filter(|_| is_new) {
            inflight.take(head);
        }
        Ok(Some(request))
    }

    fn next_available(&mut self) -> Result<Option<u16>, Fault> {
        let memory = self.map.memory();
        let is_far = |error: &_| matches!(error, virtio_queue::Error::InvalidAvailRingIndex);
        let fault = |error| if is_far(&error) { Fault::Available } else { access(error) };
        let mut available = self.queue.iter(memory).map_err(fault)?;
        let head = available.next().map(|chain| chain.head_index());
        if head.is_some() && !self.is_awake {
            self.is_awake = true;
            self.queue.disable_notification(memory).map_err(access)?;
        }
        Ok(head)
    }

    fn complete(&mut self, Done { head, written }: Done) -> Result<(), Fault> {
        if let Some(inflight) = &mut self.inflight {
            inflight.executed(head);
        }
        self.queue.add_used(self.map.memory(), head, written).map_err(access)?;
        if let Some(inflight) = &mut self.inflight {
            inflight.noted(head, self.queue.next_used());
        }
        if let Some(busy) = self.busy.get_mut(usize::from(head)) {
            *busy = false;
        }
        self.has_completed = true;
        Ok(())
    }

    /// Whether the driver wants to hear of what was completed since the last call.
    fn must_signal(&mut self) -> Result<bool, Fault> {
        if !std::mem::take(&mut self.has_completed) {
            return Ok(false);
        }
        let memory = self.map.memory();
        if self.queue.event_idx_enabled() {
            return self.queue.needs_notification(memory).map_err(access);
        }
        // The used ring is written before the driver's wish is read.
        fence(SeqCst);
        let flags: u16 =
            memory.load(GuestAddress(self.queue.avail_ring()), Relaxed).map_err(access)?;
        Ok(u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT == 0)
    }

    /// Asks the driver for a signal; whether it has made requests available meanwhile.
    fn wants_signal(&mut self) -> Result<bool, Fault> {
        self.is_awake = false;
        self.queue.enable_notification(self.map.memory()).map_err(access)
    }
}
