//! Rows in use: who may change one, and the writes that wait for it.
//!
//! A write holds its row alone from its first read to its last write. A read that recovers a block holds the row with other
//! such reads: otherwise it would mix new data with old parity. A plain read of a member needs nothing. A window of a sync holds the row with
//! the other windows: no two of them have a sector in common, and the barrier keeps writes out. So windows that are shorter than a chunk begin
//! in their order, which a disk with a head needs.
//!
//! Writes gather. The first write of a row *leads*: it lets the other tasks of the reactor's turn run, waits for the row, takes all writes
//! that have come for it until then, performs them as one, and appoints the next leader. So writes that fill a row
//! together read nothing, and the more writes wait for a row, the more it gets at a time.
//!
//! Rows share a fixed number of entries by their number modulo that: no allocation, no lock that all writes take. Two rows of an entry only
//! wait for one another. No deadlock: a holder of an entry waits for members' I/O and for superblocks, and never for the barrier, which it has passed
//! before; one that holds several takes them in ascending order.

use std::sync::Arc;

use ashlar_block::sync::rwlock::{Acquisition, RwLock};
use ashlar_block::sync::yield_now;
use ashlar_block::{Bio, Status};
use smallvec::SmallVec;

use crate::canary::{Rule, broken};
use crate::gather::{Gather, Request};

/// The group of windows among the holders of an entry.
const WINDOWS: u8 = 1;
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
    writes: Gather<RowWrite, bool>,
}

/// A write within one row.
pub(super) struct RowWrite {
    /// The row's number.
    pub(super) row: u64,
    /// The write, at its sectors of the array.
    pub(super) bio: Bio,
}

/// A write that waits, or is performed.
pub(super) type Waiting = Arc<Request<RowWrite, bool>>;

impl Entry {
    /// Takes the rows with others that only read them.
    pub(super) fn shared(&self) -> Acquisition<'_> {
        self.holders.read()
    }

    /// Takes the rows for a window of a sync, with other windows.
    pub(super) fn windows(&self) -> Acquisition<'_> {
        self.holders.share(WINDOWS)
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
        perform: impl AsyncFn(&[Waiting]) -> SmallVec<[RowResult; 1]>,
    ) -> RowResult {
        let mut lead = match self.writes.join(RowWrite { row, bio }).await {
            Ok(lead) => lead,
            Err(result) => return result,
        };
        // The other tasks of this turn may have more of the row.
        yield_now().await;
        let held = match broken(Rule::RowsAreHeld) {
            false => Some(self.alone().await),
            true => None,
        };
        let results = perform(lead.take(|_| true)).await;
        drop(held);
        lead.end(results)
    }
}
