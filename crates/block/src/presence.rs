//! Whether a device answers, and what it may still do with requests that it did not answer in time.
//!
//! A request that reached its deadline has ended for its submitter, but the driver still has it: nothing proves that
//! the device will not execute it later. Such a request is **overdue** until the driver completes it. Meanwhile:
//!
//! - A change of sectors that an overdue change covers fails at once. Otherwise the device could execute the older one
//!   after the newer one was acknowledged, and acknowledged data would be lost.
//! - A flush fails at once while an overdue command may still lose the cache (an overdue flush, or write with FUA): the
//!   data could be lost before the flush, and the report of it arrive after its success.
//!
//! If the driver completes an overdue request with a failure that may have lost the cache, that counts as a loss of
//! its own: it may have lost what was written since the deadline.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use crate::bio::{Flags, Op};
use crate::cache;
use crate::status::Status;
use crate::sync::lock;
use crate::units::Sector;

/// Whether a device answers its requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// It answers, or has no requests.
    Answering,
    /// It has not answered some requests within their deadlines.
    Silent,
    /// It failed its last request because it is offline ([`Status::Offline`], [`Status::Transport`]).
    Gone,
}

/// What a request does to its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Footprint {
    pub(crate) op: Op,
    pub(crate) flags: Flags,
    pub(crate) start: Sector,
    pub(crate) end: Sector,
}

impl Footprint {
    /// Whether this request must not be issued while the driver has `overdue`.
    fn must_not_overtake(&self, overdue: &Self) -> bool {
        let overlap = self.start < overdue.end && overdue.start < self.end;
        let changes = self.op.is_write() && overdue.op.is_write() && overlap;
        changes || self.op == Op::Flush && cache::is_at_risk(overdue.op, overdue.flags)
    }
}

/// The presence of one device; on a cache line that seldom changes, because each request looks at it.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Life {
    /// The number of overdue requests, of all threads.
    overdue: AtomicUsize,
    gone: AtomicBool,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    next: u64,
    overdue: Vec<(u64, Footprint)>,
}

impl Life {
    pub(crate) fn presence(&self) -> Presence {
        if self.overdue.load(SeqCst) > 0 {
            Presence::Silent
        } else if self.gone.load(SeqCst) {
            Presence::Gone
        } else {
            Presence::Answering
        }
    }

    /// Notes an overdue request, before its submitter gets the timeout. Returns its number, and whether it is the only one.
    pub(crate) fn hold(&self, footprint: Footprint) -> (u64, bool) {
        let mut list = lock(&self.list);
        let number = list.next;
        list.next += 1;
        list.overdue.push((number, footprint));
        (number, self.overdue.fetch_add(1, SeqCst) == 0)
    }

    /// Whether an overdue request changes data.
    pub(crate) fn holds_changes(&self) -> bool {
        let held = || lock(&self.list).overdue.iter().any(|(_, overdue)| overdue.op.is_write());
        self.overdue.load(SeqCst) > 0 && held()
    }

    /// The driver has completed an overdue request. Returns whether it was the last one.
    pub(crate) fn give_up(&self, number: u64) -> bool {
        let mut list = lock(&self.list);
        list.overdue.retain(|(other, _)| *other != number);
        self.overdue.fetch_sub(1, SeqCst) == 1
    }

    /// Whether a request must fail now because of one that the driver still has. A request that became overdue on
    /// another thread is seen here if this one was submitted because of its status.
    #[inline]
    pub(crate) fn refuses(&self, footprint: impl FnOnce() -> Footprint) -> bool {
        self.overdue.load(Relaxed) > 0 && self.refuses_now(&footprint())
    }

    #[cold]
    fn refuses_now(&self, footprint: &Footprint) -> bool {
        lock(&self.list).overdue.iter().any(|(_, overdue)| footprint.must_not_overtake(overdue))
    }

    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// Notes that the device is offline or that it answers; returns whether that is new.
    pub(crate) fn set_gone(&self, gone: bool) -> bool {
        self.is_gone() != gone && self.gone.swap(gone, SeqCst) != gone
    }
}

/// Whether a status says that the device cannot be reached.
pub(crate) const fn is_absence(status: Status) -> bool {
    matches!(status, Status::Offline | Status::Transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footprint(op: Op, start: u64, end: u64) -> Footprint {
        let flags = Flags::empty();
        Footprint { op, flags, start: Sector(start), end: Sector(end) }
    }

    #[test]
    fn only_overlapping_changes_and_flushes_wait_for_what_is_overdue() {
        let life = Life::default();
        assert!(!life.refuses(|| footprint(Op::Write, 0, 8)));
        let (read, first) = life.hold(footprint(Op::Read, 0, 64));
        assert!(first && life.presence() == Presence::Silent && !life.holds_changes());
        let (write, first) = life.hold(footprint(Op::WriteZeroes, 8, 16));
        assert!(!first && life.holds_changes() && !life.give_up(read));
        for (op, start, end, refused) in [
            (Op::Write, 0, 8, false),
            (Op::Write, 0, 9, true),
            (Op::Discard, 15, 24, true),
            (Op::WriteZeroes, 16, 24, false),
            (Op::Read, 8, 16, false),
            (Op::Flush, 0, 0, false),
        ] {
            let refuses = life.refuses(|| footprint(op, start, end));
            assert_eq!(refuses, refused, "{op:?} {start}..{end}");
        }
        let fua = Footprint { flags: Flags::FUA, ..footprint(Op::Write, 32, 40) };
        let (fua, first) = life.hold(fua);
        assert!(!first && life.refuses(|| footprint(Op::Flush, 0, 0)));
        assert!(!life.give_up(write) && !life.refuses(|| footprint(Op::Write, 8, 16)));
        assert!(life.holds_changes());
        assert!(life.give_up(fua) && !life.refuses(|| footprint(Op::Flush, 0, 0)));
        assert!(!life.holds_changes());
        assert_eq!(life.presence(), Presence::Answering);
        assert!(life.set_gone(true) && !life.set_gone(true));
        assert_eq!(life.presence(), Presence::Gone);
    }
}
