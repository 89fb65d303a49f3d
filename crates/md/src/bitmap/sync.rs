//! Syncs by the bitmap: the work to do, and its result.

use std::ops::Range;

use ashlar_block::{Sector, Sectors};

use super::lockless::{Action, State};
use super::{Bitmap, Kind};

/// Why data is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Copies may differ since a crash, or because a write failed.
    Resync,
    /// A member is re-added and lacks only what is marked.
    Return,
    /// A new member gets all data, except what was never written.
    Rebuild,
}

/// What a sync does from a given sector on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Whether the data has to be synced.
    pub needed: bool,
    /// Sectors for which this holds: to the end of the chunk or of the array.
    pub run: Sectors,
}

impl Bitmap {
    /// What a sync would do from `sector` on.
    pub fn needs_sync(&self, sector: Sector, purpose: Purpose) -> Step {
        self.step(sector, purpose, |_| {})
    }

    /// A sync continues at `sector`. Unless the array stays `degraded` after the sync, the chunk is
    /// now being synced, and [`Self::end_sync`] or [`Self::close_sync`] must follow. Call it for every
    /// part of a chunk; no write may be in flight there (the barrier ensures that).
    pub fn start_sync(&self, sector: Sector, purpose: Purpose, degraded: bool) -> Step {
        self.step(sector, purpose, |chunk| {
            if degraded {
                return;
            }
            let mut transactions = self.transactions();
            if transactions.image.state(chunk).is_marked() && self.counters.get(chunk).start_sync()
            {
                transactions.image.act(chunk, Action::StartSync);
            }
        })
    }

    fn step(&self, sector: Sector, purpose: Purpose, start: impl Fn(u32)) -> Step {
        if sector >= self.size().as_end() {
            return Step { needed: false, run: Sectors::ZERO };
        }
        let chunk = self.counters.chunk_of(sector) as u32;
        let run = self.counters.end_of(chunk) - sector;
        let state = self.transactions().image.state(chunk);
        let needed = self.counters.get(chunk).is_needed()
            || match purpose {
                Purpose::Resync => false,
                Purpose::Return => state.is_marked(),
                Purpose::Rebuild => self.kind == Kind::Classic || state != State::Unwritten,
            };
        if needed {
            start(chunk);
        }
        Step { needed, run }
    }

    /// The sync of `range` has ended, successfully on all members or not. Success counts for the
    /// chunks that lie entirely in the range, failure for all chunks that it touches.
    ///
    /// Marks stay until the daemon clears them; a chunk in which a write failed meanwhile needs
    /// another sync.
    pub fn end_sync(&self, range: Range<Sector>, well: bool) {
        let unit = self.chunk().0;
        let end = range.end.min(self.size().as_end());
        let (first, last) = match well {
            true if end == self.size().as_end() => {
                (range.start.0.div_ceil(unit), end.0.div_ceil(unit))
            }
            true => (range.start.0.div_ceil(unit), end.0 / unit),
            false => (range.start.0 / unit, end.0.div_ceil(unit)),
        };
        let mut transactions = self.transactions();
        for chunk in first..last {
            let chunk = chunk as u32;
            if self.counters.get(chunk).end_sync(well) {
                transactions
                    .image
                    .act(chunk, if well { Action::EndSync } else { Action::AbortSync });
            }
        }
    }

    /// No sync is under way any more: all chunks that were started and not ended count as failed.
    pub fn close_sync(&self) {
        self.end_sync(Sector::ZERO..self.size().as_end(), false);
    }
}
