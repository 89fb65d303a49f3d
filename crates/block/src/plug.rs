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

use crate::bio::{Bio, Flags, Op};
use crate::bounce::{self, Memory};
use crate::cache::{self, CacheLossGuard};
use crate::clock;
use crate::device::Completion;
use crate::disk::DiskEvent;
use crate::dispatch::Dispatch;
use crate::flight::{Flight, Slot};
use crate::limits::Features;
use crate::presence::is_absence;
use crate::request::{QueuedBio, Request, RequestId};
use crate::runtime::Runtime;
use crate::status::{BioResult, Status};
use crate::trace::{self, Action};

use context::{CONTEXTS, NextRequest, with_flights};
pub use context::{FLUSH_BYTES, MAX_PLUGGED};

/// This many bios in a row without a merge flush the plug.
pub const MAX_MISSES: usize = 4;

/// Adds a bio to the current thread's plug for queue number `id`.
pub(crate) fn add(id: usize, queue: &Arc<impl Dispatch + 'static>, bio: Bio) -> Rc<Completion> {
    let completion = Completion::take();
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
        set_timer(id, timer, runtime);
    }
    drop(released);
}

/// Prepares a request for the driver: what it may lose, and its deadline. `None`: it has ended.
fn prepare(queue: &Arc<dyn Dispatch>, mut rq: Request) -> Option<Request> {
    let op = rq.op();
    let at_risk = cache::is_at_risk(op, rq.flags());
    if at_risk && queue.disk().limits().features.contains(Features::WRITE_CACHE) {
        rq.0.loss_guard = Some(CacheLossGuard::new(queue.disk().cache()));
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
        Op::Write => Memory::written(&rq),
        Op::Flush | Op::Discard | Op::WriteZeroes => Memory::None,
    };
    let flight = Flight {
        timeout_ns,
        deadline_ns: u64::MAX,
        footprint: rq.footprint(queue.disk().limits()),
        owners: rq.0.bios.iter().map(|queued| Rc::clone(&queued.completion)).collect(),
        memory,
        loss_guard: rq.0.loss_guard.take(),
        is_kept: false,
    };
    let tag = with_flights(rq.0.queue, |flights| flights.begin(flight, clock::now_ns()));
    rq.0.tag = tag;
    Some(rq)
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
        let Flight { footprint, owners, memory, loss_guard, .. } = flight;
        match loss_guard {
            Some(loss_guard) => loss_guard.end(footprint.op, Err(Status::Timeout)),
            None => disk.note_loss(),
        }
        let range = (footprint.op, footprint.flags, footprint.start, footprint.len());
        trace::end(disk, Action::Complete, range, Err(Status::Timeout));
        memory.end_in_use();
        owners.iter().for_each(|owner| owner.complete(Err(Status::Timeout)));
        queue.abort(RequestId { queue: id, tag });
    }
    drain(id);
}

/// Ends an issued request.
fn complete(rq: &mut Request, result: BioResult) {
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
        None => (Memory::None, rq.0.loss_guard.take()),
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
    memory.give_back(&mut bios, result.is_ok());
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

impl Request {
    /// Whether its deadline has passed: a driver that would have to try again need not.
    pub fn is_overdue(&self) -> bool {
        let is_overdue =
            |id: RequestId| with_flights(id.queue, |flights| flights.is_overdue(id.tag));
        self.id().is_some_and(|id| is_overdue(id).unwrap_or(true))
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
        if !self.0.bios.is_empty() {
            complete(self, Err(Status::Io));
        }
    }
}
