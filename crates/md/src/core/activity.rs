//! From clean to active with the first write, and back.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use ashlar_block::{BioResult, LocalFuture, Status, rate_limited};
use tracing::info;

use super::Core;
use super::lifecycle::SAFE_MODE_DELAY;
use crate::assemble::elsewhere::RENEWAL;
use crate::canary::{Rule, broken};
use crate::membership::superblocks::{Change, Superblocks};

/// The longest pause before a failed attempt to mark the array clean is repeated.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Core {
    /// For a write that found the array not active.
    #[cold]
    pub(super) async fn go_active(&self) -> BioResult {
        let mut superblocks = self.superblocks().await;
        // Another write may have done it while this one waited for the lock.
        if !self.lifecycle.activity.is_active() {
            self.lifecycle.set_dirty(true);
            // Also if that cannot be recorded now: some superblocks may say active then.
            self.watch();
            if self.is_to_be_cleaned(&superblocks) {
                self.record_clean(&mut superblocks).await?;
            }
            if !broken(Rule::ActiveIsRecorded) {
                self.record(&mut superblocks, Change::Active).await?;
            }
            self.lifecycle.activity.activate();
            // Only now, so that no sync writes before the superblocks say active.
            self.end_auto_read_only();
            self.start_bitmap_daemon();
        }
        Ok(())
    }

    /// Ends the auto-read-only state, if the array is in it.
    pub(crate) fn end_auto_read_only(&self) {
        if self.lifecycle.set_auto_read_only(false) {
            info!(array = self.name(), "not auto-read-only any more");
            self.sync_wakeup.wake();
        }
    }

    /// Starts the task that marks the array clean once it is idle, if it is not running.
    pub(crate) fn watch(&self) {
        if let Some(core) = self.me()
            && !self.watched.swap(true, SeqCst)
        {
            self.runtime.spawn(core.watch_idle());
        }
    }

    fn watch_idle(self: Arc<Self>) -> LocalFuture<'static, ()> {
        Box::pin(async move {
            self.mark_clean_when_idle().await;
            self.watched.store(false, SeqCst);
            // A write that saw the task running a moment ago relies on it.
            let lifecycle = &self.lifecycle;
            if (lifecycle.activity.is_active() || lifecycle.is_dirty()) && !lifecycle.is_stopped() {
                self.watch();
            }
        })
    }

    /// Marks the array clean once it has been idle for [`SAFE_MODE_DELAY`], then ends.
    async fn mark_clean_when_idle(&self) {
        let mut seen = self.lifecycle.writes_begun();
        let mut renewed_ns = self.runtime.now_ns();
        let mut pause = SAFE_MODE_DELAY;
        loop {
            self.sleep_until_stop(pause).await;
            if self.lifecycle.is_stopped() {
                return;
            }
            let now = self.lifecycle.writes_begun();
            if now == seen && self.lifecycle.activity.is_idle() {
                match self.go_clean().await {
                    Ok(true) => return,
                    Ok(false) => pause = SAFE_MODE_DELAY,
                    // A member that must stay did not answer: it may answer later, and no write may follow that begins
                    // another watch.
                    Err(status) => {
                        rate_limited!(error, array = self.name(), %status, "cannot mark the array clean");
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
            }
            seen = now;
            let now_ns = self.runtime.now_ns();
            if Duration::from_nanos(now_ns - renewed_ns) >= RENEWAL && self.members.are_shared() {
                renewed_ns = now_ns;
                if let Err(status) = self.renew().await {
                    rate_limited!(error, array = self.name(), %status, "cannot renew the superblocks");
                }
            }
        }
    }

    /// Shows other hosts that this one uses the array, and notices if another one does.
    pub(super) async fn renew(&self) -> BioResult {
        self.record(&mut *self.superblocks().await, Change::Members).await
    }

    /// Marks the array clean if no write is under way; true if it is then clean.
    pub(crate) async fn go_clean(&self) -> Result<bool, Status> {
        self.go_clean_with(&mut *self.superblocks().await).await
    }

    /// As [`Self::go_clean`]; an array that is then clean becomes auto-read-only, without a mark in its bitmap that
    /// could be cleared later.
    pub(crate) async fn go_auto_read_only(&self) -> Result<bool, Status> {
        // Locked to the end: a write that begins meanwhile waits for the lock, and finds the array auto-read-only.
        let mut superblocks = self.superblocks().await;
        if self.is_redundant() {
            if !self.go_clean_with(&mut superblocks).await? {
                return Ok(false);
            }
            self.clear_marks(&mut superblocks).await?;
        }
        self.lifecycle.set_auto_read_only(true);
        Ok(true)
    }

    async fn go_clean_with(&self, superblocks: &mut Superblocks) -> Result<bool, Status> {
        if superblocks.is_clean() {
            if self.lifecycle.is_stopped() {
                // Marks that a returned member needed.
                self.clear_marks(superblocks).await?;
                self.record_good_blocks(superblocks).await?;
            }
            // A write could not even begin to record the active state.
            if !self.lifecycle.activity.is_active() {
                self.lifecycle.set_dirty(false);
            }
            return Ok(true);
        }
        if !self.lifecycle.activity.try_deactivate() {
            return Ok(false);
        }
        // No write is under way: a new one waits for our lock.
        self.record_clean(superblocks).await?;
        self.lifecycle.set_dirty(false);
        Ok(true)
    }

    /// Flushes the members, and has the superblocks say clean. No write is under way.
    async fn record_clean(&self, superblocks: &mut Superblocks) -> BioResult {
        // A member that cannot be flushed may hold less than the others, so it fails.
        let in_sync_to = self.resync_offset.get();
        if !broken(Rule::CleanIsFlushed) {
            self.flush_members(superblocks).await?;
        }
        self.resync_offset.set_durable(in_sync_to);
        if self.lifecycle.is_stopped() {
            self.clear_marks(superblocks).await?;
        }
        self.record(superblocks, Change::Clean).await
    }

    /// Waits until no I/O is in flight on the stopped array, flushes the members and marks the superblocks clean. The
    /// caller holds syncs.
    pub(crate) async fn wind_up(&self) -> BioResult {
        const LOOK_AGAIN: Duration = Duration::from_millis(1);
        // The gateway counted an I/O as started before the I/O asked whether the array is stopped.
        while !self.disk.stats().is_idle() || !self.lifecycle.activity.is_idle() {
            self.runtime.sleep(LOOK_AGAIN).await;
        }
        if !self.is_writable() {
            return Ok(());
        }
        if !self.is_redundant() {
            return self.flush_members(&mut *self.superblocks().await).await;
        }
        // Writes that arrive after the stop are counted for a moment before they fail.
        while !self.go_clean().await? {
            self.runtime.sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }
}
