//! The requests that a thread has with a driver, and their deadlines.
//!
//! A queue keeps, for each request that it issues, a **flight**, which owns its bios: the submitters' completions, and their
//! memory. The driver has a [`Request`]: what to do, the memory to do it with, and the number of the flight, which it ends once.
//! On a queue with a deadline ([`Disk::io_timeout_ms`]) both can end a request, in any order:
//!
//! | first           | submitters get    | then                                                                |
//! |-----------------|-------------------|---------------------------------------------------------------------|
//! | the driver      | its status        | the flight is over                                                  |
//! | the deadline    | [`Status::Timeout`] | the driver keeps the request and its memory until it completes it: bookkeeping only |
//!
//! The deadline of a read into revocable memory of its submitters counts only once the driver has released that memory.
//!
//! # The timer
//!
//! As with the kernel's `blk_timeout`, requests have no timers of their own. A thread has one for each queue, while it has
//! requests there: a task that sleeps for a [step](crate::patience) of the shortest deadline and then looks at all requests.
//! A new request concerns the timer only if no timer runs, or if the deadline was shortened: a request costs a comparison.
//! A deadline is noticed up to one step late.
//!
//! # The time that the thread has lived
//!
//! Deadlines are moments of a clock of their own: the time that the thread has *lived* while it had requests there. It is the
//! clock of the thread's turns ([`clock`]), minus the time by which the timer woke later than planned: between the planned
//! moment and the actual one this clock stands still. So a thread that was stopped, for however long, finds its requests no
//! older than one step. The same holds for a stop in the middle of a turn: no second clock has run in the meantime.
//!
//! When a deadline has passed, the runtime gets [`GRACE_NS`] to handle completions that have come, and after a stop as long as
//! that was, up to a step: a reply may have to be received, passed from thread to thread, or sent again.
//!
//! [`clock`]: crate::clock
//!
//! [`Disk::io_timeout_ms`]: crate::disk::Disk::io_timeout_ms
//! [`Status::Timeout`]: crate::status::Status::Timeout

use std::marker::PhantomData;
use std::mem;

use slab::Slab;
use smallvec::SmallVec;

use crate::bio::{Bio, Flags, Op, Segments};
use crate::bounce::Memory;
use crate::cache::CacheLossGuard;
use crate::clock;
use crate::device::QueuedBio;
use crate::limits::Limits;
use crate::patience::step_ns;
use crate::presence::Footprint;
use crate::request::{Request, RequestId};
use crate::units::{Sector, Sectors};

/// How long the timer waits for completions that have arrived before a deadline counts as missed, in ns.
const GRACE_NS: u64 = 1_000_000;
/// The maximum of a queue's own memory that the reads of a thread use; a single read may use more. A fast device, whose requests
/// take less than a millisecond, needs no more. Without the bound, clients with long reads would double the process's memory.
const MAX_READS: Sectors = Sectors(8 << 11);
/// When a driver that could not release a read's memory is asked again.
const AGAIN_NS: u64 = 10_000_000;
/// No timer.
const NEVER_NS: u64 = u64::MAX;

/// The bios of one request, from the plug list until they end.
pub(crate) struct Flight {
    pub(crate) bios: SmallVec<[QueuedBio; 1]>,
    pub(crate) sector: Sector,
    pub(crate) len: Sectors,
    pub(crate) nr_segments: u32,
    /// What the driver has, from when it is issued.
    pub(crate) memory: Memory,
    /// If it may lose the device's cache, from when it is issued.
    pub(crate) loss_guard: Option<CacheLossGuard>,
    timeout_ns: u64,
    /// By the time that the thread has lived.
    deadline_ns: u64,
    /// Whether its driver did not release its memory at the deadline.
    is_kept: bool,
}

impl Flight {
    pub(crate) fn new(queued: QueuedBio) -> Self {
        let QueuedBio { bio: Bio { sector, len, .. }, .. } = queued;
        Self {
            nr_segments: queued.bio.segments.len() as u32,
            bios: SmallVec::from_buf([queued]),
            sector,
            len,
            memory: Memory::Lent,
            loss_guard: None,
            timeout_ns: NEVER_NS,
            deadline_ns: NEVER_NS,
            is_kept: false,
        }
    }

    pub(crate) fn first(&self) -> &Bio {
        &self.bios[0].bio
    }

    pub(crate) fn op(&self) -> Op {
        self.first().op
    }

    /// The flags of the first bio: flags that matter to a driver are the same in all bios.
    pub(crate) fn flags(&self) -> Flags {
        self.first().flags
    }

    /// The sector after the last one.
    pub(crate) fn end(&self) -> Sector {
        self.sector + self.len
    }

    /// Operation, flags, first sector and length, as traces show them.
    pub(crate) fn range(&self) -> (Op, Flags, Sector, Sectors) {
        (self.op(), self.flags(), self.sector, self.len)
    }

    pub(crate) fn footprint(&self, limits: &Limits) -> Footprint {
        let (op, flags) = (self.op(), self.flags());
        // The ranges of a discard may lie anywhere.
        let scattered = op == Op::Discard && limits.max_discard_segments > 1 && self.bios.len() > 1;
        let (start, end) = match scattered {
            true => (Sector::ZERO, Sectors::MAX.as_end()),
            false => (self.sector, self.end()),
        };
        Footprint { op, flags, start, end }
    }

    /// The request for the driver, with the memory that it gets.
    fn request(&self, id: RequestId, segments: Segments) -> Request {
        let Bio { op, flags, ioprio, .. } = *self.first();
        let range = |queued: &QueuedBio| (queued.bio.sector, queued.bio.len);
        let has_ranges = op == Op::Discard && self.bios.len() > 1;
        Request {
            id,
            op,
            flags,
            ioprio,
            nr_bios: self.bios.len() as u32,
            sector: self.sector,
            len: self.len,
            ranges: self.bios.iter().filter(|_| has_ranges).map(range).collect(),
            segments,
            is_revocable: self.memory == Memory::Revocable,
            has_ended: false,
            thread: PhantomData,
        }
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
    /// When it wakes, or should.
    at_ns: u64,
    /// It is to be set.
    wanted: bool,
    /// The length of its steps.
    step_ns: u64,
    /// By how much it has woken later than planned, in all.
    still_ns: u64,
    /// The part of the next step that it has waited for late completions.
    grace_ns: u64,
}

impl Default for Timer {
    fn default() -> Self {
        Self {
            number: 0,
            at_ns: NEVER_NS,
            wanted: false,
            step_ns: NEVER_NS,
            still_ns: 0,
            grace_ns: 0,
        }
    }
}

impl Timer {
    /// The time that the thread has lived.
    fn lived_ns(&self, now_ns: u64) -> u64 {
        now_ns.min(self.at_ns).saturating_sub(self.still_ns)
    }

    /// Makes steps that are no longer than this.
    fn require(&mut self, step_ns: u64, now_ns: u64) {
        if step_ns >= self.step_ns {
            return;
        }
        self.step_ns = step_ns;
        let at_ns = now_ns.saturating_add(step_ns);
        if at_ns < self.at_ns {
            self.at_ns = at_ns;
            self.wanted = true;
        }
    }

    /// Counts as not lived by how much it is later than planned; returns that.
    fn take_lateness(&mut self, now_ns: u64) -> u64 {
        let late_ns = now_ns.saturating_sub(self.at_ns);
        self.still_ns += late_ns;
        self.at_ns = now_ns;
        late_ns
    }

    fn stop(&mut self) {
        (self.at_ns, self.step_ns) = (NEVER_NS, NEVER_NS);
    }
}

impl Flights {
    /// Takes a request into account that is issued to the driver of a queue with these segments, and has a deadline after
    /// `timeout_ns`; returns it.
    pub(crate) fn begin(
        &mut self,
        queue: usize,
        mut flight: Flight,
        segments: Segments,
        timeout_ns: Option<u64>,
    ) -> Request {
        if let Some(timeout_ns) = timeout_ns {
            let now_ns = clock::now_ns();
            flight.timeout_ns = timeout_ns;
            flight.deadline_ns = self.timer.lived_ns(now_ns).saturating_add(timeout_ns);
            self.timer.require(step_ns(timeout_ns), now_ns);
        }
        if flight.memory == Memory::Bounced {
            self.reads += flight.len;
        }
        let slot = self.slots.vacant_entry();
        // As many as `nr_requests`, which is 32 bits.
        let rq = flight.request(RequestId { queue, tag: slot.key() as u32 }, segments);
        slot.insert(Slot::InTime(flight));
        rq
    }

    /// How many requests the driver has.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether a read must wait for the end of others.
    pub(crate) fn is_full(&self, flight: &Flight) -> bool {
        flight.op() == Op::Read && !self.reads.is_zero() && self.reads + flight.len > MAX_READS
    }

    /// Whether all reads are overdue: their memory need not come back.
    pub(crate) fn are_reads_overdue(&self) -> bool {
        self.reads == self.reads_overdue
    }

    /// The driver has ended a request.
    pub(crate) fn end(&mut self, rq: &Request) -> Option<Slot> {
        let (op, len) = (rq.op, rq.len);
        let slot = self.slots.try_remove(rq.id.tag as usize);
        match &slot {
            Some(Slot::InTime(flight)) if flight.memory == Memory::Bounced => self.reads -= len,
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

    /// The tags of the reads into revocable memory that are still in time and have a deadline of `due_ns` or earlier.
    pub(crate) fn revocable_reads(&self, due_ns: u64) -> Vec<u32> {
        let is_due = |slot: &Slot| match slot {
            Slot::InTime(flight) => {
                flight.memory == Memory::Revocable && flight.deadline_ns <= due_ns
            }
            Slot::Overdue(_) => false,
        };
        self.slots.iter().filter(|(_, slot)| is_due(slot)).map(|(tag, _)| tag as u32).collect()
    }

    /// Postpones the deadline of reads whose memory the driver has not released.
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
        mut hold: impl FnMut(&Flight) -> u64,
    ) -> Vec<(u32, Flight)> {
        let mut expired = Vec::new();
        for (tag, slot) in &mut self.slots {
            let flight = match slot {
                Slot::InTime(flight) if flight.deadline_ns <= due_ns => flight,
                Slot::InTime(_) | Slot::Overdue(_) => continue,
            };
            if flight.op() == Op::Read {
                self.reads_overdue += flight.len;
                // The driver continues with other memory, or with memory that its submitters have abandoned.
                if flight.memory != Memory::Bounced {
                    self.reads += flight.len;
                }
            }
            let number = hold(flight);
            if let Slot::InTime(flight) = mem::replace(slot, Slot::Overdue(number)) {
                expired.push((tag as u32, flight));
            }
        }
        self.overdue += expired.len();
        expired
    }

    /// The number of the timer to set, and when it wakes, if one is wanted.
    pub(crate) fn wanted_timer(&mut self) -> Option<(u64, u64)> {
        if !mem::take(&mut self.timer.wanted) {
            return None;
        }
        self.timer.number += 1;
        if self.slots.is_empty() {
            // The driver has ended them at once.
            self.timer.stop();
            return None;
        }
        Some((self.timer.number, self.timer.at_ns))
    }

    /// The requests that have a deadline ahead.
    fn in_time(&self) -> impl Iterator<Item = &Flight> {
        self.slots.iter().filter_map(|(_, slot)| match slot {
            Slot::InTime(flight) if flight.timeout_ns != NEVER_NS => Some(flight),
            Slot::InTime(_) | Slot::Overdue(_) => None,
        })
    }

    /// The timer with that number has woken. Returns what the thread has lived, and how long to wait before the deadlines until then
    /// count as missed, if there are any; `None` if another timer has taken its place.
    pub(crate) fn wake(&mut self, number: u64, now_ns: u64) -> Option<(u64, Option<u64>)> {
        if self.timer.number != number {
            return None;
        }
        let step_ns = self.timer.step_ns;
        let late_ns = self.timer.take_lateness(now_ns);
        let due_ns = self.timer.lived_ns(now_ns);
        if self.in_time().all(|flight| flight.deadline_ns > due_ns) {
            return Some((due_ns, None));
        }
        let grace_ns = late_ns.min(step_ns).max(GRACE_NS);
        self.timer.at_ns = now_ns.saturating_add(grace_ns);
        self.timer.grace_ns = grace_ns;
        Some((due_ns, Some(grace_ns)))
    }

    /// How long the timer with that number sleeps next; `None` if it is needed no longer.
    pub(crate) fn next_step(&mut self, number: u64, now_ns: u64) -> Option<u64> {
        if self.timer.number != number {
            return None;
        }
        self.timer.take_lateness(now_ns);
        let Some(timeout_ns) = self.in_time().map(|flight| flight.timeout_ns).min() else {
            self.timer.stop();
            return None;
        };
        let kept = self.in_time().filter(|flight| flight.is_kept).map(|flight| flight.deadline_ns);
        let until_kept = kept.min().map(|at_ns| at_ns.saturating_sub(self.timer.lived_ns(now_ns)));
        self.timer.step_ns = step_ns(timeout_ns);
        let left_ns = self.timer.step_ns.saturating_sub(mem::take(&mut self.timer.grace_ns));
        let sleep_ns = left_ns.min(until_kept.unwrap_or(NEVER_NS));
        self.timer.at_ns = now_ns.saturating_add(sleep_ns);
        Some(sleep_ns)
    }

    /// The timer with that number does not run any more.
    pub(crate) fn stopped(&mut self, number: u64) {
        if self.timer.number == number {
            self.timer.stop();
        }
    }
}
