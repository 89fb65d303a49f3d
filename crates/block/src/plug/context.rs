//! A thread's requests of each queue that it uses: those that may still grow, those that wait, those in flight.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::disk::{Disk, Nomerges};
use crate::dispatch::Dispatch;
use crate::flight::Flights;
use crate::merge::{Merge, merge, try_merge};
use crate::request::{QueuedBio, Request};
use crate::trace::{self, Action};

/// Most requests on a plug list (the kernel's `BLK_MAX_REQUEST_COUNT`).
pub const MAX_PLUGGED: usize = 32;
/// A last request of this size flushes the plug (the kernel's `BLK_PLUG_FLUSH_SIZE`). Unlike in the kernel, a read or write of this
/// size is a request of its own: the first of several would wait for the last, and a device that works on several at once has one.
pub const FLUSH_BYTES: u64 = 128 << 10;
/// Number of newest requests that a bio is compared with under `nomerges` 0.
const MERGE_SCAN: usize = 8;

#[derive(Default)]
pub(super) struct Context {
    /// The queue, held while the context has its requests.
    pub(super) queue: Option<Arc<dyn Dispatch>>,
    pub(super) plugged: VecDeque<Request>,
    pub(super) waiting: VecDeque<Request>,
    pub(super) in_flight: usize,
    pub(super) flights: Flights,
    pub(super) misses: usize,
    /// A loop that issues waiting requests is already on the stack.
    pub(super) draining: bool,
}

#[derive(Default)]
pub(super) struct Contexts {
    by_queue: Vec<Context>,
    /// Queues with requests on the plug list.
    pub(super) plugged: Vec<usize>,
}

thread_local! {
    pub(super) static CONTEXTS: RefCell<Contexts> = RefCell::new(Contexts::default());
}

impl Contexts {
    pub(super) fn get(&mut self, queue: usize) -> &mut Context {
        if self.by_queue.len() <= queue {
            self.by_queue.resize_with(queue + 1, Context::default);
        }
        &mut self.by_queue[queue]
    }
}

/// A request that waits, and whether it is issued.
pub(super) enum NextRequest {
    Issue(Request),
    /// It fails because of overdue requests that the driver has not completed.
    Refuse(Request),
}

impl Context {
    /// The next request, if one may leave the list of those that wait.
    pub(super) fn next(&mut self, disk: &Disk) -> Option<NextRequest> {
        let rq = self.waiting.front()?;
        let full = self.flights.is_full(rq);
        if full || self.in_flight >= disk.nr_requests() as usize {
            let no_memory = full && self.flights.are_reads_overdue();
            let stuck = no_memory || self.flights.overdue() == self.in_flight;
            return if stuck { self.waiting.pop_front().map(NextRequest::Refuse) } else { None };
        }
        let rq = self.waiting.pop_front()?;
        if disk.life().refuses(|| rq.footprint(disk.limits())) {
            return Some(NextRequest::Refuse(rq));
        }
        self.in_flight += 1;
        Some(NextRequest::Issue(rq))
    }

    pub(super) fn release_if_idle(&mut self) -> Option<Arc<dyn Dispatch>> {
        let idle = self.in_flight == 0 && self.plugged.is_empty() && self.waiting.is_empty();
        if idle { self.queue.take() } else { None }
    }

    /// Merges `queued` into a request on the plug list, or into a waiting one.
    pub(super) fn try_merge(&mut self, disk: &Disk, queued: QueuedBio) -> Result<(), QueuedBio> {
        if queued.bio.op.has_data() && queued.bio.len.bytes() >= FLUSH_BYTES {
            return Err(queued);
        }
        let scan = match disk.nomerges() {
            Nomerges::None => return Err(queued),
            Nomerges::LastOnly => 1,
            Nomerges::All => MERGE_SCAN,
        };
        let (max, max_discard) = (disk.max_merged(), disk.max_discard());
        let newest = self.plugged.iter_mut().rev().take(scan);
        let waiting = self.waiting.iter_mut().rev().take(if scan > 1 { scan } else { 0 });
        for rq in newest.chain(waiting) {
            if let Some(how) = try_merge(rq, &queued.bio, disk.limits(), max, max_discard) {
                let action = match how {
                    Merge::Back | Merge::Discard => Action::BackMerge,
                    Merge::Front => Action::FrontMerge,
                };
                trace::bio(disk, action, &queued.bio);
                disk.stats().merged(queued.bio.op, 1);
                merge(rq, queued, how);
                return Ok(());
            }
        }
        Err(queued)
    }

    pub(super) fn must_flush(&self) -> bool {
        self.plugged.len() >= MAX_PLUGGED
            || self.plugged.back().is_some_and(|rq| rq.len().bytes() >= FLUSH_BYTES)
    }
}

/// The requests of the current thread with the driver of a queue; `None` while the thread ends.
pub(super) fn with_flights<T>(id: usize, use_them: impl FnOnce(&mut Flights) -> T) -> Option<T> {
    CONTEXTS.try_with(|contexts| use_them(&mut contexts.borrow_mut().get(id).flights)).ok()
}
