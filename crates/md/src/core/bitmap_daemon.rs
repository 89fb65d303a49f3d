//! The task that clears marks of the bitmap.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use ashlar_block::{BioResult, LocalFuture, rate_limited};
use futures_util::future::select;
use tracing::warn;

use super::Core;
use super::lifecycle::SAFE_MODE_DELAY;
use crate::membership::superblocks::{Change, Superblocks};

impl Core {
    /// Sleeps, at most until the array has stopped: a task that holds the array also holds its members' devices.
    pub(super) async fn sleep_until_stop(&self, time: Duration) {
        self.until_stop(self.runtime.sleep(time)).await;
    }

    async fn until_stop(&self, wait: impl Future<Output = ()>) {
        select(pin!(wait), pin!(self.lifecycle.ended())).await;
    }

    /// Starts the task that clears bitmap marks, if it is not running.
    pub(crate) fn start_bitmap_daemon(&self) {
        if let Some(core) = self.me()
            && !self.bitmap_daemon_runs.swap(true, SeqCst)
        {
            self.runtime.spawn(Box::pin(core.run_bitmap_daemon()));
        }
    }

    /// Clears bitmap marks until the array is clean and no mark is left that may be cleared.
    async fn run_bitmap_daemon(self: Arc<Self>) {
        loop {
            match self.bitmap() {
                Some(bitmap) => self.until_stop(bitmap.sleep(&*self.runtime)).await,
                None => self.sleep_until_stop(SAFE_MODE_DELAY).await,
            }
            // So a stop either waits for this bitmap write, or this task sees the stop and ends.
            let _open = self.lifecycle.hold_open();
            let Some(bitmap) = self.bitmap().filter(|_| !self.lifecycle.is_stopped()) else {
                break;
            };
            // Another host may have marked chunks.
            if self.members.are_shared()
                && let Err(status) = self.renew().await
            {
                rate_limited!(warn, array = self.name(), %status, "marks stay in the bitmap");
                break;
            }
            let may_clear = self.is_complete();
            if let Err(status) = bitmap.clean(may_clear, &*self).await {
                rate_limited!(warn, array = self.name(), %status, "marks stay in the bitmap");
            }
            // A member may have failed in this pass, and perhaps no write follows that records it.
            if let Err(status) = self.recorded().await {
                rate_limited!(warn, array = self.name(), %status, "cannot record what failed");
            }
            if !self.lifecycle.activity.is_active() && (!may_clear || bitmap.marked_chunks() == 0) {
                break;
            }
        }
        self.bitmap_daemon_runs.store(false, SeqCst);
        // A write that saw the task running a moment ago relies on it.
        if self.lifecycle.activity.is_active()
            && !self.lifecycle.is_stopped()
            && !self.bitmap_daemon_runs.swap(true, SeqCst)
        {
            self.runtime.spawn(self.clone().run_bitmap_daemon_again());
        }
    }

    fn run_bitmap_daemon_again(self: Arc<Self>) -> LocalFuture<'static, ()> {
        Box::pin(self.run_bitmap_daemon())
    }

    /// Clears marks of the bitmap while nothing is written, and records the members that fail meanwhile. Marks that stay only cost a
    /// sync: they are no error.
    ///
    /// # Errors
    /// The superblocks cannot be written.
    pub(super) async fn clear_marks(&self, superblocks: &mut Superblocks) -> BioResult {
        if let Some(bitmap) = self.bitmap() {
            let may_clear = || self.is_complete() && !self.resync_offset.is_unsynced();
            // Another host may have marked chunks.
            if self.members.are_shared() && may_clear() && bitmap.marked_chunks() > 0 {
                self.record(superblocks, Change::Members).await?;
            }
            if let Err(status) = bitmap.clean_now(may_clear(), self).await {
                warn!(array = self.name(), %status, "marks stay in the bitmap");
            }
        }
        // Perhaps nothing follows that would record a failure.
        self.record_what_is_left(superblocks).await
    }
}
