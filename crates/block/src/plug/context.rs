//! A thread's requests of each queue that it uses: those that may still grow, those that wait, those in flight.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::bio::{Flags, Op};
use crate::device::QueuedBio;
use crate::disk::{Disk, Nomerges};
use crate::dispatch::Dispatch;
use crate::flight::{Flight, Flights};
use crate::merge::{Merge, merge, try_merge};
use crate::status::Status;
use crate::trace::{self, Action};

/// Most requests on a plug list (the kernel's `BLK_MAX_REQUEST_COUNT`).
pub const MAX_PLUGGED: usize = 32;
/// A last request of this size flushes the plug (the kernel's `BLK_PLUG_FLUSH_SIZE`). Unlike in the kernel, a read or write of this
/// size is a request of its own: the first of several would wait for the last, and a device that works on several at once has one.
pub const FLUSH_BYTES: u64 = 128 << 10;
/// This many bios in a row without a merge flush the plug.
pub const MAX_MISSES: usize = 4;
/// Number of newest requests that a bio is compared with under `nomerges` 0.
const MERGE_SCAN: usize = 8;

#[derive(Default)]
pub(super) struct Context {
    /// The queue, held while the context has its requests.
    pub(super) queue: Option<Arc<dyn Dispatch>>,
    plugged: VecDeque<Flight>,
    pub(super) waiting: VecDeque<Flight>,
    pub(super) flights: Flights,
    misses: usize,
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

    /// Adds a bio for queue number `id`; returns whether waiting requests are to be issued.
    pub(super) fn add(
        &mut self,
        id: usize,
        queue: &Arc<impl Dispatch + 'static>,
        queued: QueuedBio,
    ) -> bool {
        let (disk, context) = (queue.disk(), self.get(id));
        context.queue.get_or_insert_with(|| Arc::<_>::clone(queue) as Arc<dyn Dispatch>);
        let full = context.flights.len() >= disk.nr_requests() as usize;
        if full && queued.bio.flags.contains(Flags::NOWAIT) {
            // Nothing waits for it yet.
            queued.completion.complete(Err(Status::Again));
            return false;
        }
        if queued.bio.op == Op::Flush {
            trace::bio(disk, Action::GetRequest, &queued.bio);
            context.waiting.push_front(Flight::new(queued));
            return true;
        }
        let queued = match context.try_merge(disk, queued) {
            Ok(()) => {
                context.misses = 0;
                return false;
            }
            Err(queued) => queued,
        };
        context.misses += 1;
        trace::bio(disk, Action::GetRequest, &queued.bio);
        let was_full = context.must_flush();
        if was_full {
            self.flush(id);
        }
        let context = self.get(id);
        let is_first = context.plugged.is_empty();
        context.plugged.push_back(Flight::new(queued));
        let has_missed = context.misses >= MAX_MISSES;
        if is_first {
            self.plugged.push(id);
            trace::plug(disk);
        }
        if has_missed {
            self.flush(id);
        }
        was_full || has_missed
    }

    /// Adds the requests on the plug list to those that wait.
    pub(super) fn flush(&mut self, id: usize) {
        self.plugged.retain(|&plugged| plugged != id);
        let Context { queue, plugged, waiting, misses, .. } = self.get(id);
        *misses = 0;
        let Some(queue) = queue else { return };
        let disk = queue.disk();
        if !plugged.is_empty() {
            trace::unplug(disk, plugged.len());
        }
        for flight in &*plugged {
            let (op, flags, sector, len) = flight.range();
            trace::range(disk, Action::Insert, op, flags, sector, len);
        }
        waiting.append(plugged);
    }
}

/// A request that waits, and whether it is issued.
pub(super) enum NextRequest {
    Issue(Flight),
    /// It fails because of overdue requests that the driver has not completed.
    Refuse(Flight),
}

impl Context {
    /// The next request, if one may leave the list of those that wait.
    pub(super) fn next(&mut self, disk: &Disk) -> Option<NextRequest> {
        let first = self.waiting.front()?;
        let full = self.flights.is_full(first);
        if full || self.flights.len() >= disk.nr_requests() as usize {
            let no_memory = full && self.flights.are_reads_overdue();
            let stuck = no_memory || self.flights.overdue() == self.flights.len();
            return if stuck { self.waiting.pop_front().map(NextRequest::Refuse) } else { None };
        }
        let flight = self.waiting.pop_front()?;
        let refused = disk.life().refuses(|| flight.footprint(disk.limits()));
        Some(if refused { NextRequest::Refuse(flight) } else { NextRequest::Issue(flight) })
    }

    pub(super) fn release_if_idle(&mut self) -> Option<Arc<dyn Dispatch>> {
        let is_idle = self.flights.len() == 0 && self.plugged.is_empty() && self.waiting.is_empty();
        if self.draining || !is_idle {
            return None;
        }
        // The list of a crowd.
        self.waiting.shrink_to(MAX_PLUGGED);
        self.queue.take()
    }

    /// Merges `queued` into a request on the plug list, or into a waiting one.
    fn try_merge(&mut self, disk: &Disk, queued: QueuedBio) -> Result<(), QueuedBio> {
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
        for flight in newest.chain(waiting) {
            if let Some(how) = try_merge(flight, &queued.bio, disk.limits(), max, max_discard) {
                let action = match how {
                    Merge::Back | Merge::Discard => Action::BackMerge,
                    Merge::Front => Action::FrontMerge,
                };
                trace::bio(disk, action, &queued.bio);
                disk.stats().merged(queued.bio.op, 1);
                merge(flight, queued, how);
                return Ok(());
            }
        }
        Err(queued)
    }

    fn must_flush(&self) -> bool {
        self.plugged.len() >= MAX_PLUGGED
            || self.plugged.back().is_some_and(|last| last.len.bytes() >= FLUSH_BYTES)
    }
}

/// The requests of the current thread with the driver of a queue; `None` while the thread ends.
pub(super) fn with_flights<T>(id: usize, use_them: impl FnOnce(&mut Flights) -> T) -> Option<T> {
    CONTEXTS.try_with(|contexts| use_them(&mut contexts.borrow_mut().get(id).flights)).ok()
}
