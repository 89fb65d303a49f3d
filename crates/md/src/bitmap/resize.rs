//! The bitmap of an array whose size has changed.

use ashlar_block::Sectors;

use super::image::Image;
use super::load::Layout;
use super::lockless::Action;
use super::{Bitmap, BitmapError, Contents, Kind, Place, State};

impl Bitmap {
    /// The bitmap for another size, with the same chunk size, or doubled as often as needed to fit.
    /// A chunk that replaces several promises only what all of them do; `contents` describes the new
    /// part.
    ///
    /// No writes may be in flight. This bitmap must not be used after [`Self::write_super`] of the
    /// new one has begun, which replaces it on the members.
    ///
    /// # Errors
    /// [`BitmapError`]: it does not fit, or is in use.
    pub fn resized(&self, size: Sectors, contents: Contents) -> Result<Self, BitmapError> {
        let place = Place { size, ..self.place };
        if !self.counters.iter().all(|counter| counter.is_idle()) {
            return Err(BitmapError::Busy);
        }
        let layout = Layout::fitting(self.kind, self.chunk(), place)?;
        let transactions = self.transactions();
        if transactions.is_committing() {
            return Err(BitmapError::Busy);
        }
        let mut image = Image::new(layout.kind, layout.chunks, place.block as usize);
        let mut needed = Vec::new();
        let ratio = layout.chunk.0 / self.chunk().0;
        for chunk in 0..layout.chunks {
            let first = u64::from(chunk) * ratio;
            let end = (u64::from(chunk) + 1) * layout.chunk.0;
            // First the part of this chunk beyond the old bitmap, then the old chunks.
            let mut state = match end.min(size.0) > self.size().0 {
                true => contents.state(self.kind),
                false => State::Unwritten,
            };
            let mut need = state == State::NeedSync;
            for old in first..(first + ratio).min(self.chunks().into()) {
                let old = old as u32;
                let found = transactions.image.state(old);
                state = state.merge(found.after(Action::AbortSync).unwrap_or(found));
                need |= self.counters.get(old).is_needed();
            }
            if need {
                needed.push(chunk);
            }
            image.set(chunk, state);
        }
        let mut next = transactions.next.clone();
        next.sync_size = size.0.into();
        next.chunksize = match self.kind {
            Kind::Classic => (layout.chunk.bytes() as u32).into(),
            Kind::Lockless => (layout.chunk.0 as u32).into(),
        };
        image.set_superblock(&next);
        let bitmap = Self::assemble(layout, place, image, next);
        bitmap.transactions().old_layout = Some(transactions.image.superblock());
        needed.iter().for_each(|chunk| bitmap.counters.get(*chunk).need());
        Ok(bitmap)
    }
}
