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

mod context;

use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use crate::bio::{Bio, Flags, Segments};
use crate::bounce;
use crate::cache::{self, CacheLossGuard};
use crate::clock;
use crate::device::{Completion, QueuedBio};
use crate::disk::DiskEvent;
use crate::dispatch::Dispatch;
use crate::flight::{Flight, Slot};
use crate::limits::Features;
use crate::presence::is_absence;
use crate::request::{Request, RequestId};
use crate::runtime::Runtime;
use crate::status::{BioResult, Status};
use crate::trace::{self, Action};

use context::{CONTEXTS, NextRequest, with_flights};
pub use context::{FLUSH_BYTES, MAX_MISSES, MAX_PLUGGED};

/// Adds a bio to the current thread's plug for queue number `id`.
pub(crate) fn add(id: usize, queue: &Arc<impl Dispatch + 'static>, bio: Bio) -> Rc<Completion> {
    let completion = Completion::take();
    let queued = QueuedBio { bio, completion: Rc::clone(&completion) };
    if CONTEXTS.with_borrow_mut(|contexts| contexts.add(id, queue, queued)) {
        drain(id);
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
    CONTEXTS.with_borrow_mut(|contexts| contexts.flush(id));
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
        match next {
            None => break,
            Some(NextRequest::Issue(flight)) => issued |= issue(id, &queue, flight),
            Some(NextRequest::Refuse(flight)) => refuse(&queue, flight, Status::Timeout),
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
        set_timer(id, timer, runtime);
    }
    drop(released);
}

/// Ends a request that the driver does not get.
fn refuse(queue: &Arc<dyn Dispatch>, flight: Flight, status: Status) {
    trace::end(queue.disk(), Action::Complete, flight.range(), Err(status));
    end_bios(flight.bios, Err(status));
}

/// Passes a request to the driver, with what it may lose, and its deadline. False: there is no memory for it.
fn issue(id: usize, queue: &Arc<dyn Dispatch>, mut flight: Flight) -> bool {
    let (op, disk) = (flight.op(), queue.disk());
    let timeout_ns = queue.timeout_ns(op);
    let lent = match timeout_ns {
        None => Ok(bounce::lend(&mut flight.bios)),
        Some(_) => bounce::share(&mut flight.bios, |len| queue.read_memory(len)),
    };
    let segments = match lent {
        Ok((memory, segments)) => {
            flight.memory = memory;
            segments
        }
        Err(status) => {
            refuse(queue, flight, status);
            return false;
        }
    };
    let at_risk = cache::is_at_risk(op, flight.flags());
    if at_risk && disk.limits().features.contains(Features::WRITE_CACHE) {
        flight.loss_guard = Some(CacheLossGuard::new(disk.cache()));
    }
    let rq = CONTEXTS.with_borrow_mut(|contexts| {
        contexts.get(id).flights.begin(id, flight, segments, timeout_ns)
    });
    trace::range(disk, Action::Issue, op, rq.flags(), rq.sector(), rq.len());
    queue.issue(rq);
    true
}

/// Ends bios for their submitters.
fn end_bios(bios: impl IntoIterator<Item = QueuedBio>, result: BioResult) {
    for QueuedBio { bio, completion } in bios {
        // Release the driver's reference to the buffer before the submitter sees the completion.
        drop(bio);
        completion.complete(result);
    }
}

/// The timer of a thread for a queue.
struct Watch {
    queue: usize,
    number: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        with_flights(self.queue, |flights| flights.stopped(self.number));
    }
}

/// Sets the timer of the current thread for a queue. It does not keep the queue.
fn set_timer(queue: usize, (number, at_ns): (u64, u64), runtime: &Arc<dyn Runtime>) {
    let (watch, sleeper) = (Watch { queue, number }, Arc::clone(runtime));
    runtime.spawn(Box::pin(async move {
        // The task owns the whole value, and drops it.
        let watch = watch;
        let (queue, number) = (watch.queue, watch.number);
        let sleep = |ns| sleeper.sleep(Duration::from_nanos(ns));
        let mut next = Some(at_ns.saturating_sub(clock::now_ns()));
        while let Some(ns) = next {
            sleep(ns).await;
            let now_ns = clock::now_ns();
            let woken = with_flights(queue, |it| it.wake(number, now_ns)).flatten();
            let Some((due_ns, grace_ns)) = woken else { return };
            if let Some(ns) = grace_ns {
                sleep(ns).await;
                expire(queue, due_ns);
            }
            let now_ns = clock::now_ns();
            next = with_flights(queue, |it| it.next_step(number, now_ns)).flatten();
        }
    }));
}

/// Ends the current thread's requests whose deadlines have passed at `due_ns`, for their submitters.
fn expire(id: usize, due_ns: u64) {
    let due = CONTEXTS.with_borrow_mut(|contexts| {
        let context = contexts.get(id);
        Some((Arc::clone(context.queue.as_ref()?), context.flights.revocable_reads(due_ns)))
    });
    let Some((queue, revocable)) = due else { return };
    let kept =
        revocable.into_iter().filter(|tag| !queue.revoke(RequestId { queue: id, tag: *tag }));
    let kept: Vec<u32> = kept.collect();
    let disk = queue.disk();
    let mut silent = false;
    let expired = CONTEXTS.with_borrow_mut(|contexts| {
        let flights = &mut contexts.get(id).flights;
        flights.delay(&kept, due_ns);
        flights.expire(due_ns, |flight| {
            let (number, first) = disk.life().hold(flight.footprint(disk.limits()));
            silent |= first;
            number
        })
    });
    if silent {
        warn!(device = disk.name(), "not responding: a request has reached its deadline");
        disk.tell(DiskEvent::Presence);
    }
    for (tag, flight) in expired {
        let range = flight.range();
        match flight.loss_guard {
            Some(loss_guard) => loss_guard.end(range.0, Err(Status::Timeout)),
            None => disk.note_loss(),
        }
        trace::end(disk, Action::Complete, range, Err(Status::Timeout));
        flight.memory.end_in_use(&flight.bios);
        end_bios(flight.bios, Err(Status::Timeout));
        queue.abort(RequestId { queue: id, tag });
    }
    drain(id);
}

/// Ends an issued request: its flight, or what is left of it after the deadline.
fn complete(rq: &mut Request, result: BioResult) {
    if mem::replace(&mut rq.has_ended, true) {
        return;
    }
    let id = rq.id.queue;
    let lent = mem::take(&mut rq.segments);
    let is_absent = result.is_err_and(is_absence);
    let landed = CONTEXTS.try_with(|contexts| {
        let mut contexts = contexts.borrow_mut();
        let context = contexts.get(id);
        let slot = context.flights.end(rq);
        let is_late = matches!(slot, Some(Slot::Overdue(_)));
        let is_unreported = |queue: &&Arc<dyn Dispatch>| {
            result.is_err() || is_late || trace::is_active() || queue.disk().life().is_gone()
        };
        let queue = context.queue.as_ref().filter(is_unreported).cloned();
        // Of a request that failed some bios may be tried again.
        let goes_on = result.is_err() || !context.draining && !context.waiting.is_empty();
        let released = if goes_on { None } else { context.release_if_idle() };
        (slot, queue, goes_on, released)
    });
    // The thread is ending, and this is one of its last requests: its submitters, which live on the
    // same thread, were dropped too.
    let Ok((slot, queue, goes_on, released)) = landed else { return };
    if let Some(queue) = &queue
        && queue.disk().life().set_gone(is_absent)
    {
        let device = queue.disk().name();
        if is_absent {
            warn!(device, "offline")
        } else {
            info!(device, "online again")
        }
        queue.disk().tell(DiskEvent::Presence);
    }
    match slot {
        Some(Slot::InTime(flight)) => land(id, queue.as_ref(), flight, lent, result),
        Some(Slot::Overdue(number)) => {
            drop(lent);
            if let Some(queue) = &queue {
                give_up(queue, number, rq, result);
            }
        }
        None => {}
    }
    if goes_on {
        after(id);
    }
    drop(released);
}

/// Ends the bios of a request that the driver has ended in time.
fn land(
    id: usize,
    queue: Option<&Arc<dyn Dispatch>>,
    mut flight: Flight,
    lent: Segments,
    result: BioResult,
) {
    let range = flight.range();
    // A command at risk counts its own loss.
    let gone = flight.loss_guard.is_none() && result.is_err_and(Status::is_gone);
    if let Some(loss_guard) = flight.loss_guard {
        loss_guard.end(range.0, result);
    }
    let one_by_one = flight.bios.len() > 1 && result.is_err_and(Status::is_of_medium);
    if let Some(queue) = queue {
        if gone {
            queue.disk().note_loss();
        }
        let action = if one_by_one { Action::Requeue } else { Action::Complete };
        trace::end(queue.disk(), action, range, result);
    }
    if !one_by_one {
        if result.is_ok() {
            flight.memory.deliver(&lent, &flight.bios);
        }
        drop(lent);
        return end_bios(flight.bios, result);
    }
    flight.memory.give_back(lent, &mut flight.bios);
    CONTEXTS.with_borrow_mut(|contexts| {
        let context = contexts.get(id);
        for mut queued in flight.bios {
            queued.bio.flags |= Flags::NOMERGE;
            if let Some(queue) = queue {
                trace::bio(queue.disk(), Action::Insert, &queued.bio);
            }
            context.waiting.push_back(Flight::new(queued));
        }
    });
}

/// The driver has ended a request that was overdue.
fn give_up(queue: &Arc<dyn Dispatch>, number: u64, rq: &Request, result: BioResult) {
    let (disk, op) = (queue.disk(), rq.op());
    // Before its number is released, because a flush is refused until then.
    let at_risk = cache::is_at_risk(op, rq.flags());
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
    let released = CONTEXTS.try_with(|contexts| contexts.borrow_mut().get(id).release_if_idle());
    drop(released);
}

impl Request {
    /// Whether its deadline has passed: a driver that would have to try again need not.
    pub fn is_overdue(&self) -> bool {
        let RequestId { queue, tag } = self.id;
        with_flights(queue, |flights| flights.is_overdue(tag)).unwrap_or(true)
    }

    /// Ends the request. If its deadline has passed, its submitters already got the timeout: this only returns the memory.
    ///
    /// When a request of several bios fails, its bios are retried one by one, so that a bad sector
    /// fails only the bio that contains it, not its neighbours.
    pub fn complete(mut self, result: BioResult) {
        complete(&mut self, result);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        complete(self, Err(Status::Io));
    }
}
