//! The requests that a thread has with a driver, and their deadlines.
//!
//! A queue with a deadline ([`Disk::io_timeout_ms`]) keeps, for each request that it issues, a **flight**: the completions of
//! its submitters, and their memory. The driver has only the [`Request`]. So both can end a request, in any order:
//!
//! | first           | submitters get    | then                                                                |
//! |-----------------|-------------------|---------------------------------------------------------------------|
//! | the driver      | its status        | the flight is over                                                  |
//! | the deadline    | [`Status::Timeout`] | the driver keeps the request and its memory until it completes it: bookkeeping only |
//!
//! The deadline of a read into memory that its submitters have lent counts only once the driver has let go of that.
//!
//! # The timer
//!
//! As with the kernel's `blk_timeout`, requests have no timers of their own. A thread has one for each queue, while it has
//! requests there: a task that sleeps until the earliest deadline and then looks at all of them. Later requests have
//! later deadlines, so a new one concerns the timer only if there is none, or if the deadline was shortened: a request costs
//! a comparison. When the timer ends, its thread may have been stopped (by a debugger, or with the
//! machine) while completions arrived. So the timer gives the runtime [`GRACE`] to handle them first. Deadlines close to each other
//! share a wake-up: one is noticed up to a 32nd of its length late.
//!
//! [`Disk::io_timeout_ms`]: crate::disk::Disk::io_timeout_ms
//! [`Status::Timeout`]: crate::status::Status::Timeout

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use smallvec::SmallVec;

use crate::bio::Op;
use crate::bounce::Memory;
use crate::cache::Risk;
use crate::device::Completion;
use crate::plug;
use crate::presence::Footprint;
use crate::request::{ReadTarget, Request};
use crate::runtime::Runtime;
use crate::units::Sectors;

/// How long completions that have arrived are waited for before a deadline counts as missed.
const GRACE: Duration = Duration::from_millis(1);
/// The part of a deadline by which it may be noticed late.
const SLACK: u64 = 32;
/// The maximum of a queue's own memory that the reads of a thread use; a single read may use more. A fast device, whose requests
/// take less than a millisecond, needs no more. Without the bound, clients with long reads would double the process's memory.
const MAX_READS: Sectors = Sectors(8 << 11);
/// When a driver that could not let go of a read's memory is asked again.
const AGAIN_NS: u64 = 10_000_000;
/// No timer.
const NEVER_NS: u64 = u64::MAX;

/// A request in time.
pub(crate) struct Flight {
    pub(crate) deadline_ns: u64,
    pub(crate) footprint: Footprint,
    /// The submitters' completions.
    pub(crate) owners: SmallVec<[Rc<Completion>; 1]>,
    /// The submitters' memory: of reads, to be filled; of writes, the same as the driver's.
    pub(crate) memory: Memory,
    pub(crate) risk: Option<Risk>,
    /// Where the data of a read go.
    pub(crate) target: ReadTarget,
    /// Whether its driver did not let go of that at the deadline.
    pub(crate) is_kept: bool,
}

impl Flight {
    /// Whether it uses memory of the queue.
    fn is_bounced(&self) -> bool {
        self.footprint.op == Op::Read && self.target == ReadTarget::Bounce
    }
}

/// A request that the driver has.
pub(crate) enum Slot {
    InTime(Flight),
    /// By its number at the disk.
    Overdue(u64),
}

/// The requests that one thread has with the driver of one queue.
#[derive(Default)]
pub(crate) struct Flights {
    slots: Slab<Slot>,
    overdue: usize,
    /// The length of the reads, and of the overdue ones.
    reads: Sectors,
    reads_overdue: Sectors,
    timer: Timer,
}

struct Timer {
    /// Distinguishes the timer from earlier ones.
    number: u64,
    /// When it ends, or should.
    at_ns: u64,
    /// It is to be set.
    wanted: bool,
    /// How late it may notice a deadline.
    slack_ns: u64,
}

impl Default for Timer {
    fn default() -> Self {
        Self { number: 0, at_ns: NEVER_NS, wanted: false, slack_ns: 0 }
    }
}

impl Flights {
    /// Takes a request into account that is issued with `timeout_ns` until its deadline; returns its tag.
    pub(crate) fn begin(&mut self, flight: Flight, timeout_ns: u64) -> u32 {
        if flight.deadline_ns < self.timer.at_ns {
            self.timer.at_ns = flight.deadline_ns;
            self.timer.wanted = true;
            self.timer.slack_ns = timeout_ns / SLACK;
        }
        if flight.is_bounced() {
            self.reads += flight.footprint.len();
        }
        // As many as `nr_requests`, which is 32 bits.
        self.slots.insert(Slot::InTime(flight)) as u32
    }

    /// Whether a read must wait for the end of others.
    pub(crate) fn is_full(&self, rq: &Request) -> bool {
        rq.op() == Op::Read && !self.reads.is_zero() && self.reads + rq.len() > MAX_READS
    }

    /// Whether all reads are overdue: their memory need not come back.
    pub(crate) fn are_reads_overdue(&self) -> bool {
        self.reads == self.reads_overdue
    }

    /// The driver has ended a request.
    pub(crate) fn end(&mut self, tag: u32, (op, len): (Op, Sectors)) -> Option<Slot> {
        let slot = self.slots.try_remove(tag as usize);
        match &slot {
            Some(Slot::InTime(flight)) if flight.is_bounced() => self.reads -= len,
            Some(Slot::InTime(_)) | None => {}
            Some(Slot::Overdue(_)) => {
                self.overdue -= 1;
                if op == Op::Read {
                    self.reads -= len;
                    self.reads_overdue -= len;
                }
            }
        }
        slot
    }

    /// Whether the deadline of a request has passed.
    pub(crate) fn is_overdue(&self, tag: u32) -> bool {
        matches!(self.slots.get(tag as usize), Some(Slot::Overdue(_)))
    }

    /// How many requests are overdue.
    pub(crate) fn overdue(&self) -> usize {
        self.overdue
    }

    /// The tags of the reads into lent memory that are still in time and have a deadline of `due_ns` or earlier.
    pub(crate) fn lent_reads(&self, due_ns: u64) -> Vec<u32> {
        let is_due = |slot: &Slot| match slot {
            Slot::InTime(it) => it.target == ReadTarget::Lent && it.deadline_ns <= due_ns,
            Slot::Overdue(_) => false,
        };
        self.slots.iter().filter(|(_, slot)| is_due(slot)).map(|(tag, _)| tag as u32).collect()
    }

    /// Puts off the deadline of reads that the driver has not let go of.
    pub(crate) fn delay(&mut self, tags: &[u32], due_ns: u64) {
        for tag in tags {
            if let Some(Slot::InTime(flight)) = self.slots.get_mut(*tag as usize) {
                flight.deadline_ns = due_ns.saturating_add(AGAIN_NS);
                flight.is_kept = true;
            }
        }
    }

    /// Marks the requests whose deadlines have passed at `due_ns` as overdue, and returns their flights, for the caller to tell
    /// the submitters. `hold` registers a request at the disk and returns its number there.
    pub(crate) fn expire(
        &mut self,
        due_ns: u64,
        mut hold: impl FnMut(Footprint) -> u64,
    ) -> Vec<(u32, Flight)> {
        let mut expired = Vec::new();
        for (tag, slot) in &mut self.slots {
            let (footprint, target) = match slot {
                Slot::InTime(flight) if flight.deadline_ns <= due_ns => {
                    (flight.footprint, flight.target)
                }
                Slot::InTime(_) | Slot::Overdue(_) => continue,
            };
            if footprint.op == Op::Read {
                self.reads_overdue += footprint.len();
                // The driver goes on with other memory, or with that which its submitters have given up.
                if target != ReadTarget::Bounce {
                    self.reads += footprint.len();
                }
            }
            let number = hold(footprint);
            if let Slot::InTime(flight) = std::mem::replace(slot, Slot::Overdue(number)) {
                expired.push((tag as u32, flight));
            }
        }
        self.overdue += expired.len();
        expired
    }

    /// The number of the timer to set, and when it ends, if one is wanted.
    pub(crate) fn wanted_timer(&mut self) -> Option<(u64, u64)> {
        if !std::mem::take(&mut self.timer.wanted) {
            return None;
        }
        self.timer.number += 1;
        if self.slots.is_empty() {
            // The driver has ended them at once.
            self.timer.at_ns = NEVER_NS;
            return None;
        }
        Some((self.timer.number, self.timer.at_ns))
    }

    /// When the timer with that number, which has ended at `due_ns`, ends next; `None` if it is needed no longer.
    fn next_ns(&mut self, number: u64, due_ns: u64) -> Option<u64> {
        if self.timer.number != number {
            return None;
        }
        let earliest_ns = due_ns.saturating_add(self.timer.slack_ns);
        let deadlines = self.slots.iter().filter_map(|(_, slot)| match slot {
            Slot::InTime(flight) if flight.is_kept => Some(flight.deadline_ns),
            Slot::InTime(flight) => Some(flight.deadline_ns.max(earliest_ns)),
            Slot::Overdue(_) => None,
        });
        let next = deadlines.min();
        self.timer.at_ns = next.unwrap_or(NEVER_NS);
        next
    }

    /// The timer with that number does not run any more.
    fn stopped(&mut self, number: u64) {
        if self.timer.number == number {
            self.timer.at_ns = NEVER_NS;
        }
    }
}

/// The timer of a thread for a queue.
struct Watch {
    queue: usize,
    number: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        plug::with_flights(self.queue, |flights| flights.stopped(self.number));
    }
}

/// Sets the timer of the current thread for a queue. It does not keep the queue.
pub(crate) fn set_timer(queue: usize, (number, at_ns): (u64, u64), runtime: &Arc<dyn Runtime>) {
    let (watch, clock) = (Watch { queue, number }, Arc::clone(runtime));
    runtime.spawn(Box::pin(async move {
        let (watch, runtime) = (watch, clock);
        let mut next = Some(at_ns);
        while let Some(at_ns) = next {
            let left_ns = at_ns.saturating_sub(runtime.now_ns());
            runtime.sleep(Duration::from_nanos(left_ns)).await;
            let due_ns = runtime.now_ns();
            runtime.sleep(GRACE).await;
            plug::expire(watch.queue, due_ns);
            next = plug::with_flights(watch.queue, |it| it.next_ns(watch.number, due_ns)).flatten();
        }
    }));
}
