//! The daemon: clears the marks of idle chunks.

use ashlar_block::BioResult;

use super::lockless::Action;
use super::{Bitmap, Store};
use crate::canary::{Rule, broken};

/// Chunks whose marks are about to be cleared. The marks stay if this is dropped.
struct Held<'a> {
    bitmap: &'a Bitmap,
    chunks: Vec<u32>,
}

impl Bitmap {
    /// One daemon pass; call it every [`Self::daemon_sleep`]. Clears the marks of chunks in which no
    /// write is in flight, none began since the previous pass, and no sync is running or needed. Also
    /// writes all other pending changes.
    ///
    /// `may_clear`: the array is complete, all members in sync. If not, marks stay for the absent
    /// members.
    ///
    /// # Errors
    /// The store's error. Marks stay, or are cleared by the next pass.
    pub async fn clean(&self, may_clear: bool, store: &dyn Store) -> BioResult {
        self.pass(may_clear, false, store).await
    }

    /// As [`Self::clean`], but regardless of recent writes: for an array that stops.
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
            let counter = self.counters.get(chunk);
            // A mark that is not known to be durable, in an unused chunk: its write was abandoned.
            if counter.hold(now) || counter.is_unused() {
                held.chunks.push(chunk);
            }
        }
        held
    }

    /// Records in the superblock that marks are cleared at the current event count, so that a member
    /// that left before is not re-added by the marks.
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
    /// Clears the marks of chunks that are still idle, in the image.
    fn clear(mut self) {
        let mut board = self.bitmap.board();
        for chunk in std::mem::take(&mut self.chunks) {
            let counter = self.bitmap.counters.get(chunk);
            if counter.clear() || counter.is_unused() {
                board.image.act(chunk, Action::Daemon);
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            self.bitmap.counters.get(*chunk).release();
        }
    }
}
