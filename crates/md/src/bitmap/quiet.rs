//! The end of a bitmap's use.

use std::sync::atomic::Ordering;

use async_lock::MutexGuard;
use event_listener::listener;

use super::Bitmap;

/// No daemon pass is under way, and none begins until this is dropped.
#[must_use = "the daemon goes on when it is dropped"]
pub struct Quiet<'a> {
    bitmap: &'a Bitmap,
    _alone: MutexGuard<'a, ()>,
}

impl Bitmap {
    /// Stops the daemon, and waits for the flight in the air. No writes may be in flight, and the
    /// caller must not write the superblock meanwhile.
    pub async fn quiet(&self) -> Quiet<'_> {
        let alone = self.alone.lock().await;
        loop {
            listener!(self.landed => landed);
            if !self.board().is_flying() {
                return Quiet { bitmap: self, _alone: alone };
            }
            landed.await;
        }
    }
}

impl Quiet<'_> {
    /// Ends the use of the bitmap: it is no longer written to the members.
    pub fn retire(self) {
        self.bitmap.settled.store(false, Ordering::Release);
    }
}
