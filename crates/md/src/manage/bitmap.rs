//! Adding and removing a bitmap (`mdadm --grow --bitmap`).

use ashlar_block::{BioResult, Sector, Sectors};
use tracing::info;

use super::ManageError;
use crate::array::Array;
use crate::bitmap::{Bitmap, Contents, Place};
use crate::membership::rdev::{Rdev, State};
use crate::membership::superblocks::Superblocks;
use crate::ondisk::create::{CreateError, NewBitmap};
use crate::ondisk::{Level, Superblock, change};

impl Array {
    /// Adds a bitmap ([`NewBitmap::Auto`]: an internal one) or removes it ([`NewBitmap::None`]).
    ///
    /// # Errors
    /// [`ManageError::BitmapPresent`], [`ManageError::NoBitmap`], and [`ManageError::Metadata`] if some
    /// member has no room for a bitmap.
    pub async fn set_bitmap(&self, wanted: NewBitmap) -> Result<(), ManageError> {
        self.change(move |array| async move {
            array.check_manageable()?;
            let _held = array.sync.hold().await;
            let _frozen = array.core.barrier.freeze().await;
            let mut superblocks = array.superblocks_to_change().await?;
            array.check_recordable(&superblocks)?;
            match wanted {
                NewBitmap::None => array.remove_bitmap(&mut superblocks).await,
                NewBitmap::Auto | NewBitmap::Internal { .. } | NewBitmap::Lockless => {
                    array.add_bitmap(&mut superblocks, wanted).await
                }
            }
        })
        .await
    }

    /// Marks a part of the array, which is then synced; nothing without a bitmap.
    ///
    /// # Errors
    /// The members did not take the marks.
    pub async fn mark(&self, at: Sector, len: Sectors) -> BioResult {
        self.uncancellable(move |array| async move {
            if let Some(bitmap) = array.bitmap() {
                bitmap.begin(at, len, &*array.core).await?.failed();
            }
            Ok(())
        })
        .await
    }

    async fn add_bitmap(
        &self,
        superblocks: &mut Superblocks,
        wanted: NewBitmap,
    ) -> Result<(), ManageError> {
        if self.is_bitmap_named(superblocks) {
            return Err(ManageError::BitmapPresent(self.name()));
        }
        if self.core.ppl().is_some() {
            let (level, what) = (Level::Raid5, "bitmap beside a partial parity log");
            return Err(CreateError::Meaningless { level, what }.into());
        }
        // Unmarked chunks must be the same on all members, also after a crash.
        let flushed = self.core.flush_members(superblocks).await;
        flushed.map_err(|status| self.not_recorded(status))?;
        self.nobody_returns();
        let members: Vec<(&Rdev, &Superblock)> = self
            .core
            .members
            .iter()
            .filter(|(_, rdev)| !rdev.is_faulty())
            .filter_map(|(index, rdev)| Some((rdev, superblocks.of(index)?)))
            .collect();
        let size = self.core.personality().sync_size();
        let alike = !self.is_unsynced();
        let sbs = members.iter().map(|(_, sb)| *sb);
        let mut new = change::place_bitmap(sbs, size, wanted, alike)?;
        // No absent member may be re-added by this bitmap: it does not mark what was written meanwhile.
        new.superblock.set_events(superblocks.events());
        new.superblock.events_cleared = superblocks.events().into();
        let blocks = members.iter().map(|(rdev, _)| rdev.limits().logical_block_bytes);
        let place = Place { size, area: new.area, block: blocks.max().unwrap_or(512) };
        let contents = if alike { Contents::InSync } else { Contents::NeedsSync };
        let bitmap = Bitmap::new(&new.superblock, place, contents)?;
        let mut starts = Vec::new();
        for (rdev, sb) in &members {
            let start = sb.super_offset.0.checked_add_signed(new.offset.into()).map(Sector);
            let fits = |at: &Sector| at.bytes().is_multiple_of(place.block.into());
            starts.push((*rdev, start.filter(fits).ok_or(CreateError::NoRoomForBitmap)?));
        }
        for (rdev, start) in &starts {
            rdev.set_bitmap_start(Some(*start));
        }
        if let Err(status) = bitmap.write_super(superblocks.events(), &*self.core).await {
            starts.iter().for_each(|(rdev, _)| rdev.set_bitmap_start(None));
            return Err(self.not_recorded(status));
        }
        info!(array = self.core.name(), chunk = %bitmap.chunk(), "bitmap added");
        self.core.set_bitmap(Some(bitmap));
        superblocks.change(|sb| sb.bitmap_offset = Some(new.offset));
        self.core.lifecycle.must_record();
        self.core.start_bitmap_daemon();
        self.record(superblocks).await
    }

    async fn remove_bitmap(&self, superblocks: &mut Superblocks) -> Result<(), ManageError> {
        if !self.is_bitmap_named(superblocks) {
            return Err(ManageError::NoBitmap(self.name()));
        }
        self.nobody_returns();
        if let Some(bitmap) = self.bitmap() {
            // Only the bitmap recorded these chunks: resync everything.
            if bitmap.needed_chunks() > 0 && self.core.is_complete() {
                self.core.resync_offset.set(Sectors::ZERO, Sectors::ZERO);
            }
            bitmap.pause().await.retire();
        }
        info!(array = self.core.name(), "bitmap removed");
        self.core.set_bitmap(None);
        superblocks.change(|sb| sb.bitmap_offset = None);
        for (_, rdev) in self.core.members.iter() {
            rdev.set_bitmap_start(None);
        }
        self.core.lifecycle.must_record();
        self.record(superblocks).await
    }

    /// A member being re-added by the old bitmap gets all data from its current position on: no other
    /// bitmap marks what it lacks.
    fn nobody_returns(&self) {
        for (_, rdev) in self.core.members.placed() {
            rdev.clear(State::RETURNS);
        }
    }

    /// Whether the superblocks name a bitmap, in use or not.
    fn is_bitmap_named(&self, superblocks: &Superblocks) -> bool {
        self.bitmap().is_some()
            || self.core.model(superblocks).is_some_and(|sb| sb.bitmap_offset.is_some())
    }
}
