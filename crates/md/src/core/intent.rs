//! Which bitmap is in use.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use crate::bitmap::Bitmap;

const NONE: u32 = u32::MAX;

/// The bitmaps that an array has had since it was started. Like the members they stay until the
/// array is dropped, so that I/O finds the current one with a load, without a lock or a count.
pub(super) struct Intents {
    table: boxcar::Vec<Bitmap>,
    current: AtomicU32,
    /// A task that clears marks is running.
    tended: AtomicBool,
}

impl Intents {
    pub(super) fn new(first: Option<Bitmap>) -> Self {
        let this = Self { table: boxcar::Vec::new(), current: NONE.into(), tended: false.into() };
        this.set(first);
        this
    }

    /// The bitmap in use.
    #[inline]
    pub(super) fn current(&self) -> Option<&Bitmap> {
        let index = self.current.load(SeqCst);
        if index == NONE { None } else { self.table.get(index as usize) }
    }

    /// Sets the bitmap in use, or none. No write may be in flight: the array is frozen.
    pub(super) fn set(&self, bitmap: Option<Bitmap>) {
        let index = bitmap.map_or(NONE, |bitmap| self.table.push(bitmap) as u32);
        self.current.store(index, SeqCst);
    }

    /// Notes whether a task that clears marks is running; returns whether one was.
    pub(super) fn set_tended(&self, tended: bool) -> bool {
        self.tended.swap(tended, SeqCst)
    }
}
