//! The array's bitmap: which one is in use, and how it reaches the members.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use ashlar_block::{
    Bio, BioResult, Buffer, Flags, LocalFuture, Sector, Sectors, Status, rate_limited,
};
use futures_util::future::join_all;

use crate::array::Array;
use crate::bitmap::{Bitmap, Store};
use crate::canary::{Rule, broken};

const NONE: u32 = u32::MAX;

/// The bitmaps that an array has had since it was started. Like the members they stay until the
/// array is dropped, so that I/O finds the current one with a load, without a lock or a count.
pub(crate) struct Bitmaps {
    table: boxcar::Vec<Bitmap>,
    current: AtomicU32,
}

impl Bitmaps {
    pub(crate) fn new(first: Option<Bitmap>) -> Self {
        let this = Self { table: boxcar::Vec::new(), current: NONE.into() };
        this.set(first);
        this
    }

    /// The bitmap in use.
    #[inline]
    pub(crate) fn current(&self) -> Option<&Bitmap> {
        let index = self.current.load(SeqCst);
        if index == NONE { None } else { self.table.get(index as usize) }
    }

    /// Sets the bitmap in use, or none. No write may be in flight: the array is frozen.
    pub(crate) fn set(&self, bitmap: Option<Bitmap>) {
        let index = bitmap.map_or(NONE, |bitmap| self.table.push(bitmap) as u32);
        self.current.store(index, SeqCst);
    }
}

impl Array {
    /// The write-intent bitmap in use.
    pub fn bitmap(&self) -> Option<&Bitmap> {
        self.bitmaps.current()
    }
}

impl Store for Array {
    fn write<'a>(&'a self, offset: u64, bytes: &'a [u8]) -> LocalFuture<'a, BioResult> {
        let mut buffer = Buffer::from_slice(bytes);
        let bytes = buffer.whole();
        // Never abandoned halfway: a late write must not follow a newer one.
        Box::pin(self.finish(move |array| async move {
            let at = |start: Sector| start + Sectors::from_bytes_floor(offset);
            let durable = !broken(Rule::MarksAreDurable);
            let flags = if durable { Flags::FUA } else { Flags::empty() };
            let flags = flags | Flags::META | Flags::SYNC;
            let writes = array.members.placed().filter(|(_, rdev)| !rdev.is_faulty());
            let writes = writes.filter_map(|(_, rdev)| {
                let bio = Bio::write(at(rdev.bitmap_start()?), [bytes.clone()]).with_flags(flags);
                Some(async move { (rdev, rdev.gateway().submit(bio).await) })
            });
            let mut result = Ok(());
            for (rdev, done) in join_all(writes).await {
                let Err(status) = done else { continue };
                rate_limited!(error, member = rdev.path(), %status, "bitmap write failed");
                // The array's write waits until this is recorded before it is acknowledged.
                if !array.try_fail(rdev, |rdev| array.set_faulty(rdev, status)) {
                    result = Err(status);
                }
            }
            result
        }))
    }

    fn flush_data(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(async move {
            // Members under rebuild and replacements were written, too.
            self.flush_all().await?;
            // Checked after the flush: a member that failed meanwhile may have been left out.
            if !self.is_complete_array() {
                return Err(Status::Offline);
            }
            Ok(())
        })
    }
}
