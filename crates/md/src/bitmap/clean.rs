//! The daemon: clears the marks of idle chunks.

use ashlar_block::BioResult;

use super::lockless::Action;
use super::{Bitmap, Store};
use crate::canary::{Rule, broken};

/// Chunks whose marks are about to go. They stay if this is dropped.
struct Held<'a> {
    bitmap: &'a Bitmap,
    chunks: Vec<u32>,
}

impl Bitmap {
    /// The daemon's pass, to be made every [`Self::daemon_sleep`]. Takes the marks away of chunks in
    /// which no write is in flight, none began since the pass before, no sync is under way, and none is
    /// needed; and writes what else waits to be written.
    ///
    /// `may_clear`: the array is complete, all members in sync. If not, marks stay, for the members that
    /// are away.
    ///
    /// # Errors
    /// What the store says. Marks stay, or go with the next pass.
    pub async fn clean(&self, may_clear: bool, store: &dyn Store) -> BioResult {
        self.pass(may_clear, false, store).await
    }

    /// As [`Self::clean`], but regardless of when the last write was: for an array that stops.
    ///
    /// # Errors
    /// As [`Self::clean`].
    pub async fn clean_now(&self, may_clear: bool, store: &dyn Store) -> BioResult {
        self.pass(may_clear, true, store).await
    }

    async fn pass(&self, may_clear: bool, now: bool, store: &dyn Store) -> BioResult {
        let _alone = self.alone.lock().await;
        if !self.is_settled() {
            return Ok(());
        }
        if may_clear {
            let held = self.hold(now);
            if !held.chunks.is_empty() {
                if !broken(Rule::MarksGoAfterFlush) {
                    store.flush_data().await?;
                }
                self.advance_cleared(store).await?;
                held.clear();
            }
        }
        let flight = {
            let board = self.board();
            if !board.image.is_dirty() {
                return Ok(());
            }
            board.loading()
        };
        self.arrival(flight, store).await
    }

    fn hold(&self, now: bool) -> Held<'_> {
        let mut held = Held { bitmap: self, chunks: Vec::new() };
        let board = self.board();
        for chunk in board.image.marked() {
            let counter = self.counter(chunk);
            // A mark that is not known to be durable, with nobody there: its write was given up.
            if counter.hold(now) || counter.is_unused() {
                held.chunks.push(chunk);
            }
        }
        held
    }

    /// Says in the superblock that marks are taken away at the present count of updates, so that no
    /// member that left before returns by the marks.
    async fn advance_cleared(&self, store: &dyn Store) -> BioResult {
        let flight = {
            let mut board = self.board();
            if board.next.events_cleared == board.next.events {
                return Ok(());
            }
            board.next.events_cleared = board.next.events;
            let next = board.next.clone();
            board.image.set_superblock(&next);
            board.loading()
        };
        self.arrival(flight, store).await
    }
}

impl Held<'_> {
    /// Takes the marks away in the image, of chunks that are still idle.
    fn clear(mut self) {
        let mut board = self.bitmap.board();
        for chunk in std::mem::take(&mut self.chunks) {
            let counter = self.bitmap.counter(chunk);
            if counter.clear() || counter.is_unused() {
                board.image.act(chunk, Action::Daemon);
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            self.bitmap.counter(*chunk).release();
        }
    }
}
