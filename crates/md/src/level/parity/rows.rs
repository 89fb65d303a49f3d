//! Rows in use: who may change one, and the writes that wait for it.
//!
//! A write holds its row alone from its first read to its last write. A read that recovers a block holds the row with other
//! such reads: otherwise it would mix new data with old parity. A plain read of a member needs nothing.
//!
//! Writes gather. The first write of a row *leads*: it lets the other tasks of the reactor's turn run, waits for the row, takes all writes
//! that have come for it until then, performs them as one, and appoints the next leader. So writes that fill a row
//! together read nothing, and the more writes wait for a row, the more it gets at a time.
//!
//! Rows share a fixed number of entries by their number modulo that: no allocation, no lock that all writes take. Two rows of an entry only
//! wait for one another. No deadlock: a holder of an entry waits for members' I/O and for superblocks, and never for the barrier, which it has passed
//! before; one that holds several takes them in ascending order.

use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use ashlar_block::sync::rwlock::{Acquisition, RwLock};
use ashlar_block::sync::{lock, yield_now};
use ashlar_block::{Bio, Status};
use smallvec::SmallVec;

use crate::canary::{Rule, broken};

/// Entries: enough that few writes in flight share one by chance.
const ENTRIES: usize = 1024;

/// What a write of part of a row has achieved: whether every member that should hold it does.
pub(super) type RowResult = Result<bool, Status>;

/// See the module text.
pub(super) struct Rows(Box<[Entry]>);

impl Default for Rows {
    fn default() -> Self {
        Self(std::iter::repeat_with(Entry::default).take(ENTRIES).collect())
    }
}

impl Rows {
    /// The entry of the row with this number.
    pub(super) fn entry(&self, number: u64) -> &Entry {
        self.at(place(number))
    }

    /// The entry at a place.
    pub(super) fn at(&self, place: usize) -> &Entry {
        &self.0[place]
    }
}

/// The place of the entry of the row with this number.
pub(super) fn place(number: u64) -> usize {
    (number % ENTRIES as u64) as usize
}

/// The rows of a residue class.
#[derive(Default)]
pub(super) struct Entry {
    holders: RwLock,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    writes: Batch,
    /// One of them, or one that is being performed, leads.
    led: bool,
}

/// A write within one row.
pub(super) struct RowWrite {
    /// The row's number.
    pub(super) row: u64,
    /// The write, at its sectors of the array.
    pub(super) bio: Bio,
    turn: Mutex<Turn>,
}

enum Turn {
    Waits(Option<Waker>),
    Leads,
    Ended(RowResult),
}

impl RowWrite {
    fn new(row: u64, bio: Bio) -> Arc<Self> {
        Arc::new(Self { row, bio, turn: Mutex::new(Turn::Waits(None)) })
    }

    fn turn(&self, next: Turn) {
        if let Turn::Waits(Some(waker)) = mem::replace(&mut *lock(&self.turn), next) {
            waker.wake();
        }
    }

    /// Waits until it has been performed (its result), or leads (`None`).
    async fn its_turn(&self) -> Option<RowResult> {
        poll_fn(|cx| match &mut *lock(&self.turn) {
            Turn::Waits(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Turn::Leads => Poll::Ready(None),
            Turn::Ended(result) => Poll::Ready(Some(*result)),
        })
        .await
    }
}

/// The writes that a leader performs.
struct Lead<'a> {
    entry: &'a Entry,
    batch: Batch,
}

/// Writes of an entry.
type Batch = SmallVec<[Arc<RowWrite>; 1]>;

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        // None is left, unless the leader was dropped halfway, as the reactor ended.
        for write in self.batch.drain(..) {
            write.turn(Turn::Ended(Err(Status::Offline)));
        }
        let next = {
            let mut waiting = lock(&self.entry.waiting);
            waiting.led = !waiting.writes.is_empty();
            waiting.writes.first().cloned()
        };
        if let Some(next) = next {
            next.turn(Turn::Leads);
        }
    }
}

impl Entry {
    /// Takes the rows with others that only read them.
    pub(super) fn shared(&self) -> Acquisition<'_> {
        self.holders.read()
    }

    /// Takes the rows alone.
    pub(super) fn alone(&self) -> Acquisition<'_> {
        self.holders.write()
    }

    /// Performs a write of the row with others that come for it. `perform` returns a result for each of those that it gets.
    pub(super) async fn write(
        &self,
        row: u64,
        bio: Bio,
        perform: impl AsyncFn(&[Arc<RowWrite>]) -> SmallVec<[RowResult; 1]>,
    ) -> RowResult {
        let own = RowWrite::new(row, bio);
        let leads = {
            let mut waiting = lock(&self.waiting);
            waiting.writes.push(Arc::clone(&own));
            !mem::replace(&mut waiting.led, true)
        };
        if !leads && let Some(result) = own.its_turn().await {
            return result;
        }
        let mut lead = Lead { entry: self, batch: Batch::new() };
        // The other tasks of this turn may have more of the row.
        yield_now().await;
        let held = match broken(Rule::RowsAreHeld) {
            false => Some(self.alone().await),
            true => None,
        };
        lead.batch = mem::take(&mut lock(&self.waiting).writes);
        let results = perform(&lead.batch).await;
        drop(held);
        let mut own_result = Err(Status::Io);
        for (write, result) in lead.batch.drain(..).zip(results) {
            if Arc::ptr_eq(&write, &own) {
                own_result = result;
            } else {
                write.turn(Turn::Ended(result));
            }
        }
        own_result
    }
}
