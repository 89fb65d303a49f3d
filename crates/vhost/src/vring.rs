//! A virtqueue: one task on a reactor.
//!
//! The task takes all requests that the driver has made available, starts them, and completes each as it ends. After it has done
//! something it looks at the ring again. When it finds nothing it looks for a while longer, unless the driver lets it wait for long
//! (`Idle`); only then does it ask the driver for a signal, and sleeps. One change of the used ring, and one signal, covers all requests
//! that have ended together.
//!
//! States: running; stopping (nothing is taken, requests in flight end and are completed); broken (the ring lies: nothing is taken, and
//! requests in flight end without being completed).

use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use std::vec;

use ashlar_block::byte_volume::OpenVolume;
use ashlar_block::sync::lock;
use ashlar_block::{clock, plug};
use ashlar_engine::{Receiver, timeout};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use futures_util::task::AtomicWaker;
use smallvec::SmallVec;

use crate::chain::walk;
use crate::event::{Call, Kick};
use crate::fault::Fault;
use crate::inflight::{Inflight, InflightQueue};
use crate::memory::{GuestMap, View};
use crate::request::{Begun, Done, Request, Terms};
pub(crate) use crate::ring::Addresses;
use crate::ring::Split;

/// Rounds, and requests, after which a busy queue lets other tasks run.
const ROUNDS: usize = 16;
const REQUESTS: usize = 256;
/// Requests that have ended become visible to the driver in groups of so many: it can continue while the others end.
const GROUP: usize = 16;
/// How long the last signal may wait for its driver.
const LAST_SIGNAL: Duration = Duration::from_secs(1);

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
    /// How long an empty ring is looked at before the task sleeps.
    pub(crate) spin: Duration,
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
    let placed = Placed {
        index: setup.index,
        addresses: setup.addresses,
        size: setup.size,
        has_indirect: setup.has_indirect,
        has_event_idx: setup.has_event_idx,
    };
    let ring = Ring::new(placed, setup.base, setup.map, setup.inflight);
    let mut ring = match ring {
        Ok(ring) => ring,
        Err(fault) => return Ended { base: setup.base, fault: Some(fault) },
    };
    let (mut kick, mut call, mut seen) = (Kick::new(kick), Call::default(), 0);
    // Also if the driver waits for requests that a former process has completed.
    call.replace(call_fd);
    let mut running = FuturesUnordered::new();
    let mut is_stopping = false;
    let mut idle = Idle::new(setup.spin);
    let served = poll_fn(|cx: &mut Context<'_>| {
        changes.waker.register(cx.waker());
        let mut room = REQUESTS;
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
            while room > 0
                && !is_stopping
                && let Some(request) = ring.take()?
            {
                room -= 1;
                match request.begin(&volume, &terms) {
                    Begun::Ended(done) => ring.complete(done, &mut call)?,
                    Begun::Runs(running_on) => running.push(running_on),
                }
                is_busy = true;
            }
            while let Poll::Ready(Some(done)) = running.poll_next_unpin(cx) {
                ring.complete(done, &mut call)?;
                is_busy = true;
            }
            ring.publish(&mut call)?;
            let (Poll::Ready(()) | Poll::Pending) = call.poll(cx);
            if is_busy {
                idle.ends();
                if room == 0 {
                    break;
                }
                continue;
            }
            if is_stopping {
                return if running.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            if idle.looks_on() {
                break;
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
        // The reactor does it only when no task is runnable.
        plug::flush_current();
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    let served: Result<(), Fault> = served.await;
    while running.next().await.is_some() {}
    if served.is_ok() && timeout(LAST_SIGNAL, poll_fn(|cx| call.poll(cx))).await.is_none() {
        tracing::debug!("a vhost-user driver does not take its last signal");
    }
    Ended { base: ring.next_available, fault: served.err() }
}

/// Whether an empty ring is worth looking at: only as long as requests come soon, because it takes a processor.
struct Idle {
    spin_ns: u64,
    /// Since when the ring is empty.
    since_ns: Option<u64>,
    /// How long it was empty the last time.
    last_ns: u64,
}

impl Idle {
    fn new(spin: Duration) -> Self {
        let spin_ns = u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX);
        Self { spin_ns, since_ns: None, last_ns: 0 }
    }

    /// There are requests.
    fn ends(&mut self) {
        if let Some(since) = self.since_ns.take() {
            self.last_ns = clock::now_ns().saturating_sub(since);
        }
    }

    /// There are no requests; whether to look again instead of sleeping.
    fn looks_on(&mut self) -> bool {
        /// As the reactor does.
        const WORTH: u64 = 4;
        let now = clock::now_ns();
        let since = *self.since_ns.get_or_insert(now);
        self.last_ns <= self.spin_ns.saturating_mul(WORTH) && now - since < self.spin_ns
    }
}

/// What stays of a ring when its memory changes.
#[derive(Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) index: u16,
    pub(crate) addresses: Addresses,
    pub(crate) size: u16,
    pub(crate) has_indirect: bool,
    pub(crate) has_event_idx: bool,
}

/// A ring with the requests that were taken from it.
pub(crate) struct Ring {
    placed: Placed,
    split: Split,
    map: Arc<GuestMap>,
    view: View,
    /// The index of the next request to take.
    next_available: u16,
    /// The index of the first one that is not available yet, as of the last look.
    seen_available: u16,
    /// The index of the used ring, and of the next request that is completed.
    used: u16,
    next_used: u16,
    /// Completed requests that the driver does not see yet.
    group: SmallVec<[u16; GROUP]>,
    /// Which descriptors are heads of requests that the driver has not got back.
    busy: Box<[bool]>,
    inflight: Option<InflightQueue>,
    /// Heads that a former process has taken.
    again: vec::IntoIter<u16>,
    /// The driver was not asked for a signal since the ring was last found to have requests.
    is_awake: bool,
}

impl Ring {
    /// The ring at its place, with what a former process has left.
    ///
    /// # Errors
    /// It is not in the guest's memory, or its inflight region is not its own.
    pub(crate) fn new(
        placed: Placed,
        base: u16,
        map: Arc<GuestMap>,
        inflight: Option<Arc<Inflight>>,
    ) -> Result<Self, Fault> {
        let split = Split::new(&map, placed.addresses, placed.size, placed.has_event_idx)?;
        let used = split.used_index()?;
        let mut ring = Self {
            placed,
            split,
            view: map.view(),
            map,
            next_available: base,
            seen_available: base,
            used,
            next_used: used,
            group: SmallVec::new(),
            busy: vec![false; usize::from(placed.size)].into(),
            inflight: None,
            again: Vec::new().into_iter(),
            is_awake: false,
        };
        if let Some(inflight) = inflight {
            let mut inflight = inflight.queue(placed.index, placed.size).ok_or(Fault::Inflight)?;
            let again = inflight.recover(used);
            // What the former process has taken is in flight or used.
            ring.next_available = used.wrapping_add(again.len() as u16);
            ring.seen_available = ring.next_available;
            (ring.again, ring.inflight) = (again.into_iter(), Some(inflight));
        }
        Ok(ring)
    }

    /// Continues in another table of the guest's memory.
    fn place(&mut self, map: Arc<GuestMap>) -> Result<(), Fault> {
        let Placed { addresses, size, has_event_idx, .. } = self.placed;
        self.split = Split::new(&map, addresses, size, has_event_idx)?;
        (self.view, self.map) = (map.view(), map);
        Ok(())
    }

    /// The next request, if there is one.
    ///
    /// # Errors
    /// The ring lies.
    pub(crate) fn take(&mut self) -> Result<Option<Request>, Fault> {
        let (head, is_new) = match self.again.next() {
            Some(head) => (head, false),
            None => match self.next_available()? {
                Some(head) => (head, true),
                None => return Ok(None),
            },
        };
        let chain = walk(&self.map, &self.view, &self.split, self.placed.has_indirect, head)?;
        let request = Request::parse(head, chain, &self.view)?;
        // The walk has checked the head.
        let busy =
            self.busy.get_mut(usize::from(head)).ok_or(Fault::Head(head, self.placed.size))?;
        if std::mem::replace(busy, true) {
            return Err(Fault::Busy(head));
        }
        if let Some(inflight) = self.inflight.as_mut().filter(|_| is_new) {
            inflight.take(head);
        }
        Ok(Some(request))
    }

    fn next_available(&mut self) -> Result<Option<u16>, Fault> {
        if self.next_available == self.seen_available {
            self.seen_available = self.split.available_index()?;
            let ahead = self.seen_available.wrapping_sub(self.next_available);
            if ahead > self.placed.size {
                return Err(Fault::Available);
            }
            if ahead == 0 {
                return Ok(None);
            }
            if !std::mem::replace(&mut self.is_awake, true) {
                self.split.refuse_signals()?;
            }
        }
        let head = self.split.available(self.next_available)?;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(head))
    }

    /// Notes a request that has ended, which the driver sees soon.
    ///
    /// # Errors
    /// The ring cannot be written.
    pub(crate) fn complete(
        &mut self,
        Done { head, written }: Done,
        call: &mut Call,
    ) -> Result<(), Fault> {
        if let Some(inflight) = &mut self.inflight {
            inflight.executed(head);
        }
        self.split.put_used(self.next_used, head, written)?;
        self.next_used = self.next_used.wrapping_add(1);
        self.group.push(head);
        if self.group.len() == GROUP { self.publish(call) } else { Ok(()) }
    }

    /// Shows the driver what was completed, and signals if it wants that.
    ///
    /// # Errors
    /// The ring cannot be written.
    pub(crate) fn publish(&mut self, call: &mut Call) -> Result<(), Fault> {
        if self.group.is_empty() {
            return Ok(());
        }
        self.split.set_used_index(self.next_used)?;
        if let Some(inflight) = &mut self.inflight {
            inflight.noted(&self.group, self.next_used);
        }
        for head in self.group.drain(..) {
            if let Some(busy) = self.busy.get_mut(usize::from(head)) {
                *busy = false;
            }
        }
        let from = std::mem::replace(&mut self.used, self.next_used);
        if self.split.wants_signal(from, self.used)? {
            call.signal();
        }
        Ok(())
    }

    /// Asks the driver for a signal; whether it has made requests available meanwhile.
    ///
    /// # Errors
    /// The ring cannot be written.
    pub(crate) fn wants_signal(&mut self) -> Result<bool, Fault> {
        self.is_awake = false;
        self.split.ask_signal(self.next_available)
    }
}
