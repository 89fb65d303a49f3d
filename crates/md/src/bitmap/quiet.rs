//! The end of a bitmap's use.

use std::sync::atomic::Ordering;

use async_lock::MutexGuard;
use event_listener::listener;

use super::Bitmap;

/// No pass of the daemon is under way, and none begins until this is dropped.
#[must_use = "the daemon goes on when it is dropped"]
pub struct Quiet<'a> {
    bitmap: &'a Bitmap,
    _alone: MutexGuard<'a, ()>,
}

impl Bitmap {
    /// Keeps the daemon from changing anything, and waits for what is on its way to the members. No
    /// writes may be in flight, and nobody may write the superblock meanwhile.
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
    /// The bitmap is not used any more: nothing of it goes to the members from now on.
    pub fn retire(self) {
        self.bitmap.settled.store(false, Ordering::Release);
    }
}
