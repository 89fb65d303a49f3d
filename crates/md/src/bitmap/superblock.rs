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
        let flight = {
            let mut board = self.board();
            board.next.events = events.into();
            // The array may continue from older superblocks.
            let cleared = board.next.events_cleared.get().min(events);
            board.next.events_cleared = cleared.into();
            let next = board.next.clone();
            board.image.set_superblock(&next);
            board.loading()
        };
        self.arrival(flight, store).await?;
        let board = self.board();
        if !self.is_settled() {
            board.image.marked().for_each(|chunk| self.counters.get(chunk).found());
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
        let flight = {
            let mut board = self.board();
            board.image.rewrite_all();
            board.loading()
        };
        self.arrival(flight, store).await
    }

    /// Writes all marks, before the superblock on the members declares them valid.
    async fn lay_out(&self, store: &dyn Store) -> BioResult {
        let _alone = self.alone.lock().await;
        let old = self.board().old_layout.clone();
        if let Some(old) = old {
            // Between the two layouts, write a bitmap with all chunks marked: it reads the same in both.
            let mut bytes = self.board().image.bytes().to_vec();
            let new = bytes[..SIZE].to_vec();
            bytes[self.kind.start()..].fill(match self.kind {
                Kind::Classic => 0xff,
                Kind::Lockless => State::NeedSync.byte(),
            });
            bytes[..SIZE].copy_from_slice(old.as_bytes());
            store.write(0, &bytes).await?;
            bytes[..SIZE].copy_from_slice(&new);
            store.write(0, &bytes[..self.place.block as usize]).await?;
            let mut board = self.board();
            board.old_layout = None;
            board.image.rewrite_all();
        }
        self.write_pending(store).await
    }

    /// Writes what has changed in the image and is in no flight yet, if anything.
    pub(super) async fn write_pending(&self, store: &dyn Store) -> BioResult {
        let flight = {
            let board = self.board();
            if !board.image.is_dirty() {
                return Ok(());
            }
            board.loading()
        };
        self.arrival(flight, store).await
    }
}
