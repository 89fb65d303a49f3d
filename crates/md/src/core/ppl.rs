//! The partial parity log of a RAID 5: what closes the write hole.
//!
//! Before a row is written, the member with its parity gets, durably, what the parity is made of besides the data to be written. After a
//! crash that and the data that are there give a parity that fits, so a member that is missing then can be recovered.
//!
//! Each slot has a *ring*, the log of the rows whose parity it holds. A ring writes one log at a time, with all that waits for it. The next
//! log begins when the rows of the last one are written, and the members that took them flushed: so only the newest
//! log of each ring counts, and may take the place of older ones.
//!
//! ```text
//!                                       first write
//!   replayed: reads see the parity  --------------------> on: rows are logged
//!             of the last run's logs                      | ^
//!                    a member that must stay lacks data   | | the array is synced, and becomes active
//!                                                         v |
//!                                                         off: the members have no log
//! ```
//!
//! Where parity may be wrong a log says nothing, and Linux would take an array with one for synced. So members whose array is not synced
//! have no log at all, not even an empty one.
//!
//! **What a crash finds.** A chain of logs begins at the start of the area with a *base*; the others are behind it. A log that is torn is not
//! there: the chain ends before it, and the rows of all earlier logs were flushed. Where logs begin again behind the base, it first
//! gets a higher number than they have: otherwise a torn log would leave the beginning of the earlier chain to be followed. The number is in one sector,
//! which is old or new. The area is overwritten as a whole only while the superblocks say clean; without its base no chain is followed.

mod logging;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use ashlar_block::sync::lock;
use ashlar_block::{Buffer, Sector, Sectors, Segment};
use event_listener::Event;
use smallvec::SmallVec;
use uuid::Uuid;

use crate::assemble::ParityBlock;
use crate::gather::Gather;
use crate::membership::rdev::Rdev;
use crate::ondisk::ppl::{Entry, HEADER, MAX_PARITY, SEVERAL_LOGS, signature};

/// See the module text.
pub(crate) struct Ppl {
    signature: u32,
    /// The length of the area of each member.
    area: Sectors,
    /// The logs written since the array was started.
    generation: AtomicU64,
    rings: Box<[Arc<Ring>]>,
    /// Rows are logged.
    on: AtomicBool,
    /// The parity that the logs of the last run gave, until it is on the members.
    replayed: Mutex<Arc<Vec<ParityBlock>>>,
    /// Whether the members have all of `replayed`.
    settled: AtomicBool,
    /// Whether the logs of the last run were emptied.
    was_emptied: AtomicBool,
    /// Locked by who changes whether rows are logged.
    changing: futures_util::lock::Mutex<()>,
}

/// The log of a slot.
#[derive(Default)]
struct Ring {
    updates: Gather<Update, Logged>,
    /// Updates of the newest log whose rows are being written.
    in_flight: AtomicU64,
    written: Event,
    /// The slots that were written and not flushed since, as bits.
    touched: AtomicU64,
    /// Where the next log of a member begins in its area, by the number of its membership.
    next: Mutex<SmallVec<[(u64, Sectors); 2]>>,
}

/// Ranges of rows that are to be written.
pub(crate) struct Update {
    pub(crate) entries: SmallVec<[Entry; 1]>,
    /// The partial parity of an entry that is not whole. There is one entry then.
    pub(crate) parity: Option<Segment>,
    /// The slots that are written, as bits.
    pub(crate) slots: u64,
}

/// Keeps the log until the row is written.
#[must_use = "the row is written when this is dropped"]
pub(crate) struct Logged(Arc<Ring>);

impl Drop for Logged {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, SeqCst) == 1 {
            self.0.written.notify(usize::MAX);
        }
    }
}

impl Ppl {
    /// Of an array whose members have areas of this length, after a run whose logs gave `replayed`.
    pub(crate) fn new(
        set_uuid: Uuid,
        slots: usize,
        area: Sectors,
        replayed: Vec<ParityBlock>,
    ) -> Self {
        Self {
            signature: signature(set_uuid),
            area,
            generation: AtomicU64::new(0),
            rings: std::iter::repeat_with(Arc::default).take(slots).collect(),
            on: AtomicBool::new(false),
            settled: AtomicBool::new(replayed.is_empty()),
            was_emptied: AtomicBool::new(false),
            changing: futures_util::lock::Mutex::new(()),
            replayed: Mutex::new(Arc::new(replayed)),
        }
    }

    /// Whether rows are logged.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(SeqCst)
    }

    /// The most partial parity of an update. A log that ends at the end of its area is one that Linux does not find.
    pub(crate) fn max_parity(&self) -> Sectors {
        let room = Sectors(self.area.0.saturating_sub(self.first().0 + 2 * HEADER.0 + 1));
        let room = room.round_down(HEADER);
        room.min(MAX_PARITY).max(HEADER)
    }

    /// Whether all parity that the logs of the last run gave, if any, is on the members.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.load(SeqCst)
    }

    /// The parity that the logs of the last run gave. To be taken before the member is read, and laid over what it returns.
    pub(crate) fn replayed(&self) -> Option<Arc<Vec<ParityBlock>>> {
        if self.is_settled() {
            return None;
        }
        Some(Arc::clone(&*lock(&self.replayed)))
    }

    /// Whether an area has room for several logs.
    fn has_several(&self) -> bool {
        self.area >= SEVERAL_LOGS
    }

    /// Where the logs begin: behind the base, if there is room for one.
    fn first(&self) -> Sectors {
        if self.has_several() { HEADER } else { Sectors::ZERO }
    }

    /// Where in its area a member stores a log of this length, and whether logs begin again behind the base.
    fn place(&self, ring: &Ring, rdev: &Rdev, len: Sectors) -> (Sectors, bool) {
        let mut next = lock(&ring.next);
        let own = next.iter().position(|(began, _)| *began == rdev.began());
        let own = own.unwrap_or_else(|| {
            next.push((rdev.began(), self.first()));
            next.len() - 1
        });
        let next = &mut next[own].1;
        // Linux does not find a newest log with no room for a header behind it.
        let fits = *next + len + HEADER < self.area;
        let at = if fits { *next } else { self.first() };
        *next = if self.has_several() { at + len } else { Sectors::ZERO };
        (at, !fits && self.has_several())
    }
}

/// Lays parity of logs over a block that was read from the member of a slot.
pub(crate) fn lay_over(replayed: &[ParityBlock], slot: usize, at: Sector, block: &mut Buffer) {
    let end = at + Sectors::from_bytes_floor(block.len() as u64);
    for new in replayed.iter().filter(|new| new.slot == slot) {
        let (from, to) = (at.max(new.at), end.min(new.at + new.len()));
        if from < to {
            let len = (to - from).bytes() as usize;
            let source = &new.data[(from - new.at).bytes() as usize..][..len];
            block.as_mut_slice()[(from - at).bytes() as usize..][..len].copy_from_slice(source);
        }
    }
}
