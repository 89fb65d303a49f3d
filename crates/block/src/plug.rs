//! The plug: bios gather on the submitting thread before they go to the driver (the kernel's
//! `current->plug` and the software queues of blk-mq).
//!
//! Each thread has, for each queue that it uses, a context: the **plug list** of requests that may
//! still grow, the list of requests **waiting** because `nr_requests` are in flight already, and the
//! number in flight. The context belongs to the thread: no lock, no shared cache line.
//!
//! The plug list is flushed
//! - when the reactor has no runnable task left (it calls [`flush_current`]): the kernel's flush on
//!   schedule; waiting longer gains nothing, because no task is left to submit more. It also does so after a bounded number
//!   of polls, so that tasks that wake themselves do not hold back the I/O of others;
//! - before a request is added to a list that holds [`MAX_PLUGGED`], or whose last request has
//!   [`FLUSH_BYTES`] (the kernel's bounds);
//! - when [`MAX_MISSES`] bios in a row found nothing to merge with: random I/O gains nothing from
//!   waiting for the turn's end and loses a tenth of its rate (`ashlar-benches nomerges`, docs/figures.md).
//!
//! A flush bypasses the plug: it covers acknowledged I/O, and no I/O in a
//! plug is acknowledged.
//!
//! On a queue with a deadline, the thread keeps a *flight* for each request with the driver, so that the request ends for its
//! submitters even if the driver does not respond (`flight.rs`). An overdue request counts as in flight until the driver
//! completes it: a device that does not respond must not get more and more memory. When all requests that a thread may have
//! with a driver are overdue, those that wait fail too, and later ones fail at once. Reads, which have memory of the queue,
//! also wait while others have much of it.
//!
//! Lock order: a context is borrowed only for its own bookkeeping, never while a driver or a waker
//! is called, since both may reenter this module.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use tracing::{info, warn};

use crate::bio::{Bio, Flags, Op};
use crate::bounce::{self, Memory};
use crate::buffer::Segment;
use crate::cache::{self, CacheLossGuard};
use crate::clock;
use crate::device::Completion;
use crate::disk::{Disk, DiskEvent, Nomerges};
use crate::flight::{self, Flight, Flights, Slot};
use crate::limits::Features;
use crate::merge::{Merge, merge, try_merge};
use crate::presence::is_absence;
use crate::queue::ReadMemory;
use crate::request::{QueuedBio, ReadTarget, Request, RequestId};
use crate::runtime::Runtime;
use crate::status::{BioResult, Status};
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

/// The plug's interface to a queue.
pub(crate) trait Dispatch: Send + Sync {
    fn disk(&self) -> &Disk;
    fn issue(&self, rq: Request);
    fn commit(&self);
    fn abort(&self, id: RequestId);
    fn read_memory(&self, len: usize) -> ReadMemory;
    fn let_go(&self, id: RequestId) -> bool;
    /// How long a request may take; `None` on a queue without a deadline.
    fn timeout_ns(&self, op: Op) -> Option<u64>;
    /// What runs the timers of the deadlines.
    fn runtime(&self) -> Option<&Arc<dyn Runtime>>;
}

#[derive(Default)]
struct Context {
    /// The queue, held while the context has requests of it.
    queue: Option<Arc<dyn Dispatch>>,
    plugged: VecDeque<Request>,
    waiting: VecDeque<Request>,
    in_flight: usize,
    flights: Flights,
    misses: usize,
    /// A loop that issues waiting requests is already on the stack.
    draining: bool,
}

#[derive(Default)]
struct Contexts {
    by_queue: Vec<Context>,
    /// Queues with requests on the plug list.
    plugged: Vec<usize>,
}

thread_local! {
    static CONTEXTS: RefCell<Contexts> = RefCell::new(Contexts::default());
}

impl Contexts {
    fn get(&mut self, queue: usize) -> &mut Context {
        if self.by_queue.len() <= queue {
            self.by_queue.resize_with(queue + 1, Context::default);
        }
        &mut self.by_queue[queue]
    }
}

/// A request that waits, and whether it is issued.
enum NextRequest {
    Issue(Request),
    /// It fails because of overdue requests that the driver has not completed.
    Refuse(Request),
}

impl Context {
    /// The next request, if one may leave the list of those that wait.
    fn next(&mut self, disk: &Disk) -> Option<NextRequest> {
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

    fn release_if_idle(&mut self) -> Option<Arc<dyn Dispatch>> {
        let idle = self.in_flight == 0 && self.plugged.is_empty() && self.waiting.is_empty();
        if idle { self.queue.take() } else { None }
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

    fn must_flush(&self) -> bool {
        self.plugged.len() >= MAX_PLUGGED
            || self.plugged.back().is_some_and(|rq| rq.len().bytes() >= FLUSH_BYTES)
    }
}

/// Adds a bio to the current thread's plug for queue number `id`.
pub(crate) fn add(id: usize, queue: &Arc<impl Dispatch + 'static>, bio: Bio) -> Rc<Completion> {
    let completion = Rc::new(Completion::default());
    let queued = QueuedBio { bio, completion: Rc::clone(&completion) };
    let disk = queue.disk();
    let straight = queued.bio.op == Op::Flush;
    // Each step is its own borrow: issuing calls the driver.
    let queued = CONTEXTS.with_borrow_mut(|contexts| {
        let context = contexts.get(id);
        if context.queue.is_none() {
            context.queue = Some(Arc::<_>::clone(queue) as Arc<dyn Dispatch>);
        }
        let full = context.in_flight >= disk.nr_requests() as usize;
        if full && queued.bio.flags.contains(Flags::NOWAIT) {
            queued.completion.complete(Err(Status::Again));
            return None;
        }
        if straight {
            return Some(queued);
        }
        match context.try_merge(disk, queued) {
            Ok(()) => {
                context.misses = 0;
                None
            }
            Err(queued) => {
                context.misses += 1;
                Some(queued)
            }
        }
    });
    let Some(queued) = queued else { return completion };
    trace::bio(disk, Action::GetRequest, &queued.bio);
    let rq = Request::new(id, queued);
    if straight {
        CONTEXTS.with_borrow_mut(|contexts| contexts.get(id).waiting.push_front(rq));
        drain(id);
        return completion;
    }
    if CONTEXTS.with_borrow_mut(|contexts| contexts.get(id).must_flush()) {
        flush(id);
    }
    let flush_now = CONTEXTS.with_borrow_mut(|contexts| {
        if contexts.get(id).plugged.is_empty() {
            contexts.plugged.push(id);
            trace::plug(disk);
        }
        let context = contexts.get(id);
        context.plugged.push_back(rq);
        context.misses >= MAX_MISSES
    });
    if flush_now {
        flush(id);
    }
    completion
}

/// Sends the current thread's plugged requests to the drivers. The runtime calls this when it has no
/// runnable task left, before it waits. True if there were any.
pub fn flush_current() -> bool {
    let queues = CONTEXTS.with_borrow_mut(|contexts| mem::take(&mut contexts.plugged));
    let any = !queues.is_empty();
    for &id in &queues {
        flush(id);
    }
    // Put back the emptied list to reuse its memory, unless a bio was plugged meanwhile.
    CONTEXTS.with_borrow_mut(|contexts| {
        if contexts.plugged.is_empty() {
            let mut queues = queues;
            queues.clear();
            contexts.plugged = queues;
        }
    });
    any
}

fn flush(id: usize) {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.plugged.retain(|&plugged| plugged != id);
        let context = contexts.get(id);
        context.misses = 0;
        let Some(queue) = &context.queue else { return };
        let disk = queue.disk();
        if !context.plugged.is_empty() {
            trace::unplug(disk, context.plugged.len());
        }
        for rq in context.plugged.drain(..) {
            trace::range(disk, Action::Insert, rq.op(), rq.flags(), rq.sector(), rq.len());
            context.waiting.push_back(rq);
        }
    });
    drain(id);
}

/// Issues waiting requests as far as `nr_requests` allows.
fn drain(id: usize) {
    let queue = CONTEXTS.with_borrow_mut(|contexts| {
        let context = contexts.get(id);
        if context.draining || context.waiting.is_empty() {
            return None;
        }
        context.draining = true;
        context.queue.clone()
    });
    let Some(queue) = queue else { return };
    let mut issued = false;
    loop {
        let next = CONTEXTS.with_borrow_mut(|contexts| {
            let context = contexts.get(id);
            let next = context.next(queue.disk());
            context.draining = next.is_some();
            next
        });
        let rq = match next {
            None => break,
            Some(NextRequest::Issue(rq)) => rq,
            Some(NextRequest::Refuse(mut rq)) => {
                let (range, late) =
                    ((rq.op(), rq.flags(), rq.sector(), rq.len()), Err(Status::Timeout));
                trace::end(queue.disk(), Action::Complete, range, late);
                end_bios(mem::take(&mut rq.0.bios), late);
                continue;
            }
        };
        if let Some(rq) = prepare(&queue, rq) {
            trace::range(queue.disk(), Action::Issue, rq.op(), rq.flags(), rq.sector(), rq.len());
            queue.issue(rq);
            issued = true;
        }
    }
    if issued {
        queue.commit();
    }
    // If the last request completed while we were issuing, the context releases the queue only now.
    // Dropping a queue may close files, so it happens outside of the borrow.
    let (timer, released) = CONTEXTS.with_borrow_mut(|contexts| {
        let context = contexts.get(id);
        (context.flights.wanted_timer(), context.release_if_idle())
    });
    if let (Some(timer), Some(runtime)) = (timer, queue.runtime()) {
        flight::set_timer(id, timer, runtime);
    }
    drop(released);
}

/// Prepares a request for the driver: what it may lose, and its deadline. `None`: it has ended.
fn prepare(queue: &Arc<dyn Dispatch>, mut rq: Request) -> Option<Request> {
    let op = rq.op();
    let at_risk = cache::is_at_risk(op, rq.flags());
    if at_risk && queue.disk().limits().features.contains(Features::WRITE_CACHE) {
        rq.0.loss_guard = Some(CacheLossGuard::new(Arc::clone(queue)));
    }
    let Some(timeout_ns) = queue.timeout_ns(op) else { return Some(rq) };
    let memory = match op {
        Op::Read => match bounce::divert(&mut rq, |len| queue.read_memory(len)) {
            Ok(memory) => memory,
            Err(status) => {
                rq.complete(Err(status));
                return None;
            }
        },
        Op::Write => bounce::memory(&rq),
        Op::Flush | Op::Discard | Op::WriteZeroes => Memory::new(),
    };
    let flight = Flight {
        timeout_ns,
        deadline_ns: u64::MAX,
        footprint: rq.footprint(queue.disk().limits()),
        owners: rq.0.bios.iter().map(|queued| Rc::clone(&queued.completion)).collect(),
        memory,
        loss_guard: rq.0.loss_guard.take(),
        target: rq.0.target,
        is_kept: false,
    };
    let tag = with_flights(rq.0.queue, |flights| flights.begin(flight, clock::now_ns()));
    rq.0.tag = tag;
    Some(rq)
}

/// The requests of the current thread with the driver of a queue; `None` while the thread ends.
pub(crate) fn with_flights<T>(id: usize, use_them: impl FnOnce(&mut Flights) -> T) -> Option<T> {
    CONTEXTS.try_with(|contexts| use_them(&mut contexts.borrow_mut().get(id).flights)).ok()
}

/// Whether the deadline of a request of the current thread has passed.
pub(crate) fn is_overdue(id: RequestId) -> bool {
    with_flights(id.queue, |flights| flights.is_overdue(id.tag)).unwrap_or(true)
}

/// Ends bios for their submitters.
fn end_bios(bios: impl IntoIterator<Item = QueuedBio>, result: BioResult) {
    for QueuedBio { bio, completion } in bios {
        // Release the driver's reference to the buffer before the submitter sees the completion.
        drop(bio);
        completion.complete(result);
    }
}

/// Ends the current thread's requests whose deadlines have passed at `due_ns`, for their submitters.
pub(crate) fn expire(id: usize, due_ns: u64) {
    let due = CONTEXTS.with_borrow_mut(|contexts| {
        let context = contexts.get(id);
        Some((Arc::clone(context.queue.as_ref()?), context.flights.lent_reads(due_ns)))
    });
    let Some((queue, revocable)) = due else { return };
    let kept =
        revocable.into_iter().filter(|tag| !queue.let_go(RequestId { queue: id, tag: *tag }));
    let kept: Vec<u32> = kept.collect();
    let disk = queue.disk();
    let mut silent = false;
    let expired = CONTEXTS.with_borrow_mut(|contexts| {
        let flights = &mut contexts.get(id).flights;
        flights.delay(&kept, due_ns);
        flights.expire(due_ns, |footprint| {
            let (number, first) = disk.life().hold(footprint);
            silent |= first;
            number
        })
    });
    if silent {
        warn!(device = disk.name(), "not responding: a request has reached its deadline");
        disk.tell(DiskEvent::Presence);
    }
    for (tag, flight) in expired {
        let Flight { footprint, owners, memory, loss_guard, target, .. } = flight;
        match loss_guard {
            Some(loss_guard) => loss_guard.end(footprint.op, Err(Status::Timeout)),
            None => disk.note_loss(),
        }
        let range = (footprint.op, footprint.flags, footprint.start, footprint.len());
        trace::end(disk, Action::Complete, range, Err(Status::Timeout));
        if footprint.op == Op::Write || target == ReadTarget::InPlace {
            memory.iter().flatten().for_each(Segment::leave);
        }
        drop(memory);
        owners.iter().for_each(|owner| owner.complete(Err(Status::Timeout)));
        queue.abort(RequestId { queue: id, tag });
    }
    drain(id);
}

/// Ends an issued request.
pub(crate) fn complete(rq: &mut Request, result: BioResult) {
    let id = rq.0.queue;
    let mut bios = mem::take(&mut rq.0.bios);
    let Some((op, flags)) = bios.first().map(|b| (b.bio.op, b.bio.flags)) else { return };
    let absent = result.is_err_and(is_absence);
    let failed = result.is_err();
    let landed = CONTEXTS.try_with(|contexts| {
        let mut contexts = contexts.borrow_mut();
        let context = contexts.get(id);
        context.in_flight = context.in_flight.saturating_sub(1);
        let slot = rq.0.tag.take().and_then(|tag| context.flights.end(tag, (op, rq.0.len)));
        let is_unreported = |queue: &&Arc<dyn Dispatch>| {
            let late = matches!(slot, Some(Slot::Overdue(_)));
            failed || late || trace::is_active() || queue.disk().life().is_gone()
        };
        let queue = context.queue.as_ref().filter(is_unreported).cloned();
        (slot, queue)
    });
    // The thread is ending, and this is one of its last requests: its submitters, which live on the
    // same thread, were dropped too.
    let Ok((slot, queue)) = landed else { return };
    if let Some(queue) = &queue
        && queue.disk().life().set_gone(absent)
    {
        let device = queue.disk().name();
        if absent {
            warn!(device, "offline")
        } else {
            info!(device, "online again")
        }
        queue.disk().tell(DiskEvent::Presence);
    }
    let (memory, loss_guard) = match slot {
        Some(Slot::Overdue(number)) => {
            drop(bios);
            if let Some(queue) = queue {
                give_up(&queue, number, (op, flags), result);
            }
            return after(id);
        }
        Some(Slot::InTime(flight)) => (flight.memory, flight.loss_guard),
        None => (Memory::new(), rq.0.loss_guard.take()),
    };
    // A command at risk counts its own loss.
    let gone = loss_guard.is_none() && result.is_err_and(Status::is_gone);
    if let Some(loss_guard) = loss_guard {
        loss_guard.end(op, result);
    }
    let one_by_one = bios.len() > 1 && result.is_err_and(Status::is_of_medium);
    if let Some(queue) = &queue {
        if gone {
            queue.disk().note_loss();
        }
        let action = if one_by_one { Action::Requeue } else { Action::Complete };
        trace::end(queue.disk(), action, (op, flags, rq.0.sector, rq.0.len), result);
    }
    // Of a write it is the bios' memory, which its submitters expect back.
    if op == Op::Read {
        for (queued, memory) in bios.iter_mut().zip(memory) {
            if result.is_ok() && rq.0.target == ReadTarget::Bounce {
                bounce::deliver(queued, &memory);
            }
            queued.bio.segments = memory;
        }
    } else {
        drop(memory);
    }
    if one_by_one {
        CONTEXTS.with_borrow_mut(|contexts| {
            let context = contexts.get(id);
            for mut queued in bios {
                queued.bio.flags |= Flags::NOMERGE;
                if let Some(queue) = &queue {
                    trace::bio(queue.disk(), Action::Insert, &queued.bio);
                }
                context.waiting.push_back(Request::new(id, queued));
            }
        });
    } else {
        end_bios(bios, result);
    }
    after(id);
}

/// The driver has ended a request that was overdue.
fn give_up(queue: &Arc<dyn Dispatch>, number: u64, (op, flags): (Op, Flags), result: BioResult) {
    let disk = queue.disk();
    // Before its number is released, because a flush is refused until then.
    let at_risk = cache::is_at_risk(op, flags);
    let loses = |status: Status| at_risk && cache::loses(op, status) || status.is_gone();
    if result.is_err_and(loses) {
        disk.note_loss();
    }
    if disk.life().give_up(number) {
        info!(device = disk.name(), "all overdue requests have completed");
        disk.tell(DiskEvent::Presence);
    }
}

/// Continues after the end of a request.
fn after(id: usize) {
    drain(id);
    let released = CONTEXTS.try_with(|contexts| {
        let mut contexts = contexts.borrow_mut();
        let context = contexts.get(id);
        if context.draining { None } else { context.release_if_idle() }
    });
    drop(released);
}
