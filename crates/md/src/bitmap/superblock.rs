//! The bitmap's superblock: written before the members' superblocks, and after the marks that it declares valid.

use std::sync::atomic::Ordering;

use ashlar_block::BioResult;
use zerocopy::IntoBytes;

use super::{Bitmap, Kind, State, Store};
use crate::ondisk::bitmap_super::SIZE;

impl Bitmap {
    /// Makes the superblock with this event count durable on all members; the first time, all marks
    /// before it. The array's superblocks with that count may be written only afterwards.
    ///
    /// Must succeed once before writes begin. Calls must not overlap.
    ///
    /// # Errors
    /// The store's error. The superblocks on the members are the old ones or the new ones.
    pub async fn write_super(&self, events: u64, store: &dyn Store) -> BioResult {
        if !self.is_settled() {
            self.lay_out(store).await?;
        }
        let tid = {
            let mut transactions = self.transactions();
            transactions.next.events = events.into();
            // The array may continue from older superblocks.
            let cleared = transactions.next.events_cleared.get().min(events);
            transactions.next.events_cleared = cleared.into();
            let next = transactions.next.clone();
            transactions.image.set_superblock(&next);
            transactions.running()
        };
        self.wait_commit(tid, store).await?;
        let transactions = self.transactions();
        if !self.is_settled() {
            transactions.image.marked().for_each(|chunk| self.counters.get(chunk).found());
            self.settled.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Writes the whole bitmap, for a new member that lacks it. [`Store::write`] must already reach
    /// that member, and its superblock must not name the bitmap yet.
    ///
    /// # Errors
    /// The store's error.
    pub async fn write_all(&self, store: &dyn Store) -> BioResult {
        let tid = {
            let mut transactions = self.transactions();
            transactions.image.rewrite_all();
            transactions.running()
        };
        self.wait_commit(tid, store).await
    }

    /// Writes all marks, before the superblock on the members declares them valid.
    async fn lay_out(&self, store: &dyn Store) -> BioResult {
        let _alone = self.alone.lock().await;
        let old = self.transactions().old_layout.clone();
        if let Some(old) = old {
            // Between the two layouts, write a bitmap with all chunks marked: it reads the same in both.
            let mut bytes = self.transactions().image.bytes().to_vec();
            let new = bytes[..SIZE].to_vec();
            bytes[self.kind.start()..].fill(match self.kind {
                Kind::Classic => 0xff,
                Kind::Lockless => State::NeedSync.byte(),
            });
            bytes[..SIZE].copy_from_slice(old.as_bytes());
            store.write(0, &bytes).await?;
            bytes[..SIZE].copy_from_slice(&new);
            store.write(0, &bytes[..self.place.block as usize]).await?;
            let mut transactions = self.transactions();
            transactions.old_layout = None;
            transactions.image.rewrite_all();
        }
        self.write_pending(store).await
    }

    /// Commits what has changed in the image, if anything.
    pub(super) async fn write_pending(&self, store: &dyn Store) -> BioResult {
        let tid = {
            let transactions = self.transactions();
            if !transactions.image.is_dirty() {
                return Ok(());
            }
            transactions.running()
        };
        self.wait_commit(tid, store).await
    }
}
