//! The daemon, which clears the marks of idle chunks, and its end.

use std::sync::atomic::Ordering;

use ashlar_block::BioResult;
use async_lock::MutexGuard;
use event_listener::listener;

use super::lockless::Action;
use super::{Bitmap, Store};
use crate::canary::{Rule, broken};

/// Chunks whose marks are about to be cleared. The marks stay if this is dropped.
struct HeldChunks<'a> {
    bitmap: &'a Bitmap,
    chunks: Vec<u32>,
}

/// No daemon pass is under way, and none begins until this is dropped.
#[must_use = "the daemon continues when it is dropped"]
pub struct Pause<'a> {
    bitmap: &'a Bitmap,
    _alone: MutexGuard<'a, ()>,
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

    /// Stops the daemon, and waits for the commit that runs. No writes may be in flight, and the
    /// caller must not write the superblock meanwhile.
    pub async fn pause(&self) -> Pause<'_> {
        let alone = self.alone.lock().await;
        loop {
            listener!(self.commit_ended => commit_ended);
            if !self.transactions().is_committing() {
                return Pause { bitmap: self, _alone: alone };
            }
            commit_ended.await;
        }
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
        self.write_pending(store).await
    }

    fn hold(&self, now: bool) -> HeldChunks<'_> {
        let mut held = HeldChunks { bitmap: self, chunks: Vec::new() };
        let transactions = self.transactions();
        for chunk in transactions.image.marked() {
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
        let tid = {
            let mut transactions = self.transactions();
            if transactions.next.events_cleared == transactions.next.events {
                return Ok(());
            }
            transactions.next.events_cleared = transactions.next.events;
            let next = transactions.next.clone();
            transactions.image.set_superblock(&next);
            transactions.running()
        };
        self.wait_commit(tid, store).await
    }
}

impl HeldChunks<'_> {
    /// Clears the marks of chunks that are still idle, in the image.
    fn clear(mut self) {
        let mut transactions = self.bitmap.transactions();
        for chunk in std::mem::take(&mut self.chunks) {
            let counter = self.bitmap.counters.get(chunk);
            if counter.clear() || counter.is_unused() {
                transactions.image.act(chunk, Action::Daemon);
            }
        }
    }
}

impl Drop for HeldChunks<'_> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            self.bitmap.counters.get(*chunk).release();
        }
    }
}

impl Pause<'_> {
    /// Ends the use of the bitmap: it is no longer written to the members.
    pub fn retire(self) {
        self.bitmap.settled.store(false, Ordering::Release);
    }
}
