//! The bad blocks of one member: ranges whose data the member lacks, because they could not be
//! written or read. The data are only on the other members.
//!
//! # Positions
//!
//! As in the log on disk and in sysfs, positions count from the start of the **device**, not of its
//! data area. The log counts in units of 2^shift sectors: ranges to set are extended to whole units,
//! ranges to clear are reduced to them, so that a good block may count as bad, but never the
//! other way round.
//!
//! # Listed and acknowledged
//!
//! A range is listed as soon as [`BadBlocks::set`] returns: no read goes there from then on. It is
//! **acknowledged** once it is on disk. Until then no write to the range may be
//! acknowledged: after a crash the member would count as holding it. So the caller that sets a range
//!
//! 1. takes a [`LogImage`] and writes it, durably, to the member's log;
//! 2. then writes superblocks whose feature bit `BAD_BLOCKS` says that the log is not empty
//!    (it is if [`LogImage::is_empty`]);
//! 3. returns the image to [`BadBlocks::acknowledge`];
//!
//! and repeats this while [`BadBlocks::changed`]. Ranges set meanwhile stay unacknowledged, because every
//! entry has the generation in which it was set, and an image the one in which it was taken. A failed write
//! of the image changes nothing here; the next image is equivalent. The order of steps 1 and 2 matters:
//! before the first image, the log's place does not hold a log.
//!
//! # Torn writes of the log
//!
//! A log of several sectors is not written atomically. [`layout`] explains why every state that a crash leaves
//! lists at least the blocks that both images list.
//!
//! # New members
//!
//! Upstream once copied bad block lists to disks newly added to an array. Here a list comes
//! from [`BadBlocks::none`], [`BadBlocks::empty`] or the bytes of the member's own log, and
//! cannot be copied.

mod layout;
mod text;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ashlar_block::sync::lock;
use ashlar_block::{Sector, Sectors};

pub use layout::BadBlocksError;
pub use text::{Change, InvalidChange};

use crate::ondisk::BadBlockLogPlace;
use crate::ondisk::bad_block_log::{self, BadBlockLogError, BadRange};
use layout::Layout;

/// What [`BadBlocks::check`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPart {
    /// The first bad sector of the checked range.
    pub start: Sector,
    /// Bad sectors from there on, within the checked range. Sectors after them may be bad as well:
    /// check the rest separately.
    pub len: Sectors,
    /// Whether all bad blocks of the checked range are on disk.
    pub acknowledged: bool,
}

/// The log as it should be written now.
#[derive(Debug)]
pub struct LogImage {
    bytes: Vec<u8>,
    empty: bool,
    generation: u64,
}

impl LogImage {
    /// The bytes, exactly as many sectors as the log has.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether it lists nothing, so that the superblock must not have the feature bit.
    pub fn is_empty(&self) -> bool {
        self.empty
    }
}

/// A bad range. `since` is the generation that set it.
#[derive(Clone, Copy, Debug)]
struct ListedRange {
    start: Sector,
    end: Sector,
    since: u64,
}

#[derive(Debug)]
struct State {
    layout: Layout,
    /// The ranges of the layout in sectors: ascending, not overlapping.
    listed: Vec<ListedRange>,
    /// Counts changes.
    generation: u64,
    /// The generation that is on disk.
    durable: u64,
}

/// See the module text. It cannot be copied:
///
/// ```compile_fail
/// let list = ashlar_md::internals::badblocks::BadBlocks::none();
/// let other = list.clone();
/// ```
#[derive(Debug)]
pub struct BadBlocks {
    /// Whether nothing is listed: most reads check only this. Written under the lock.
    none_listed: AtomicBool,
    /// Whether the log on disk is out of date. Written under the lock.
    changed: AtomicBool,
    shift: u8,
    /// `None` without a log.
    state: Option<Mutex<State>>,
}

impl BadBlocks {
    /// The list of a member without a log: always empty.
    pub fn none() -> Self {
        Self {
            none_listed: AtomicBool::new(true),
            changed: AtomicBool::new(false),
            shift: 0,
            state: None,
        }
    }

    /// The list of a member whose superblock has a place for a log and says that it lists nothing, for
    /// example a new member. The bytes at that place are not read.
    ///
    /// # Errors
    /// [`BadBlockLogError`] if the log's size is invalid.
    pub fn empty(place: &BadBlockLogPlace) -> Result<Self, BadBlockLogError> {
        let max = usize::from(bad_block_log::MAX_LOG_SECTORS) * 512;
        let bytes = usize::try_from(place.len.bytes()).unwrap_or(usize::MAX);
        if bytes == 0 || bytes > max {
            return Err(BadBlockLogError::Size { found: bytes, max });
        }
        Self::from_log(&vec![0xff; bytes], place.shift)
    }

    /// Decodes a member's log that its superblock says is in use. All its ranges are acknowledged.
    ///
    /// # Errors
    /// [`BadBlockLogError`] if the log is invalid, or a sector lists more than fits when cut into
    /// entries as the kernel writes them. Then the bad blocks are unknown, and the member must not be
    /// read.
    pub fn from_log(log: &[u8], shift: u8) -> Result<Self, BadBlockLogError> {
        let ranges = bad_block_log::parse(log, shift)?;
        let layout = Layout::from_entries(
            log.len() / 512,
            ranges.iter().map(|range| (range.start.0 >> shift, range.len.0 >> shift)),
        )?;
        let listed = list(&layout, shift);
        Ok(Self {
            none_listed: AtomicBool::new(listed.is_empty()),
            changed: AtomicBool::new(false),
            shift,
            state: Some(Mutex::new(State { layout, listed, generation: 0, durable: 0 })),
        })
    }

    /// Whether both have a log of the same size and unit, or none.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let sectors = |list: &Self| list.lock().map(|state| state.layout.image().len());
        self.shift == other.shift && sectors(self) == sectors(other)
    }

    /// Lists what `next` does, which was read from the log of the same member and is [like](Self::is_like) this one.
    pub(crate) fn renew(&self, next: Self) {
        let Some((mut state, next)) = self.lock().zip(next.state) else { return };
        *state = next.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.none_listed.store(state.listed.is_empty(), Release);
        self.changed.store(state.generation != state.durable, Release);
    }

    /// The first bad part of `[start, start + len)`, if any.
    ///
    /// One load if nothing is listed. During a concurrent `set` the result is from before or after
    /// it.
    #[inline]
    pub fn check(&self, start: Sector, len: Sectors) -> Option<BadPart> {
        if self.is_empty() { None } else { self.look_up(start, len) }
    }

    /// Whether nothing is listed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Acquire, with Release in `update`: a thread that learned of a range in another way (its
        // write was acknowledged) finds it listed.
        self.none_listed.load(Acquire)
    }

    /// Whether the member has a log, so that ranges can be set.
    pub fn has_log(&self) -> bool {
        self.state.is_some()
    }

    /// The log's unit: [`set`](Self::set) widens ranges to multiples of it.
    pub fn unit(&self) -> Sectors {
        Sectors(1 << self.shift)
    }

    /// Whether the log on disk must be written again.
    pub fn changed(&self) -> bool {
        self.changed.load(Acquire)
    }

    /// Number of bad sectors, and how many of them are not acknowledged.
    pub fn count(&self) -> (Sectors, Sectors) {
        let Some(state) = self.lock() else { return (Sectors::ZERO, Sectors::ZERO) };
        state.listed.iter().fold((Sectors::ZERO, Sectors::ZERO), |(all, new), range| {
            let len = range.end - range.start;
            (all + len, if range.since > state.durable { new + len } else { new })
        })
    }

    /// Adds a range, widened to whole units, unacknowledged. Parts that are already listed stay as
    /// they are, unless they get into one entry with a new part.
    ///
    /// # Errors
    /// [`BadBlocksError`]; nothing was added then. A member that has missed a write must fail, since
    /// nothing on disk will record that.
    pub fn set(&self, start: Sector, len: Sectors) -> Result<(), BadBlocksError> {
        let mut state = self.lock().ok_or(BadBlocksError::NoLog)?;
        let (start, end) = self.outward(start, len).ok_or(BadBlocksError::Range)?;
        let generation = state.generation + 1;
        let mut layout = state.layout.clone();
        if layout.insert(start, end, generation)? {
            self.update(&mut state, layout);
        }
        Ok(())
    }

    /// Removes a range, cut down to whole units: it has been written, and holds the data.
    ///
    /// # Errors
    /// [`BadBlocksError::Full`] if entries would have to be split and the log has no room. The range
    /// then stays bad, which only keeps reads off this member. Without a log nothing is bad, which is
    /// not an error.
    pub fn clear(&self, start: Sector, len: Sectors) -> Result<(), BadBlocksError> {
        if self.is_empty() {
            return Ok(());
        }
        let Some(mut state) = self.lock() else { return Ok(()) };
        let end = start.0.saturating_add(len.0) >> self.shift;
        let start = start.0.div_ceil(self.unit().0);
        let mut layout = state.layout.clone();
        if layout.remove(start, end)? {
            self.update(&mut state, layout);
        }
        Ok(())
    }

    /// The log as it should be written; `None` for a member without one. Only one image may be on its
    /// way to the disk at a time.
    pub fn take_image(&self) -> Option<LogImage> {
        let state = self.lock()?;
        let (bytes, empty) = (state.layout.image(), state.listed.is_empty());
        Some(LogImage { bytes, empty, generation: state.generation })
    }

    /// Acknowledges the ranges of an image, once the image and a superblock that declares it are on
    /// disk.
    pub fn acknowledge(&self, image: LogImage) {
        let Some(mut state) = self.lock() else { return };
        state.durable = state.durable.max(image.generation);
        self.changed.store(state.generation != state.durable, Release);
    }

    /// All ranges and whether each is acknowledged, ascending, cut as the kernel cuts its entries.
    pub fn ranges(&self) -> Vec<(BadRange, bool)> {
        let Some(state) = self.lock() else { return Vec::new() };
        let most = bad_block_log::MAX_ENTRY_LEN << self.shift;
        let mut ranges = Vec::new();
        for range in &state.listed {
            let mut start = range.start;
            while start < range.end {
                let len = (range.end - start).min(Sectors(most));
                ranges.push((BadRange { start, len }, range.since <= state.durable));
                start += len;
            }
        }
        ranges
    }

    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.as_ref().map(lock)
    }

    #[cold]
    fn look_up(&self, start: Sector, len: Sectors) -> Option<BadPart> {
        let state = self.lock()?;
        let end = Sector(start.0.saturating_add(len.0));
        let first = state.listed.partition_point(|range| range.end <= start);
        let touched = || state.listed[first..].iter().take_while(|range| range.start < end);
        let bad = touched().next()?;
        let from = bad.start.max(start);
        Some(BadPart {
            start: from,
            len: bad.end.min(end) - from,
            acknowledged: touched().all(|range| range.since <= state.durable),
        })
    }

    /// The units that a range touches; `None` if it is empty or the log cannot express it.
    fn outward(&self, start: Sector, len: Sectors) -> Option<(u64, u64)> {
        let end = start.checked_add(len)?.0.div_ceil(self.unit().0);
        let fits = end <= bad_block_log::UNITS && end <= u64::MAX >> self.shift;
        (fits && !len.is_zero()).then_some((start.0 >> self.shift, end))
    }

    fn update(&self, state: &mut State, layout: Layout) {
        state.listed = list(&layout, self.shift);
        state.layout = layout;
        state.generation += 1;
        self.none_listed.store(state.listed.is_empty(), Release);
        self.changed.store(true, Release);
    }
}

/// The ranges of a layout, in sectors. Overlapping entries are merged and get the newest generation;
/// adjacent entries are merged if their generations are equal.
fn list(layout: &Layout, shift: u8) -> Vec<ListedRange> {
    let mut listed: Vec<ListedRange> = Vec::new();
    for entry in layout.ascending() {
        let (start, end) = (Sector(entry.start << shift), Sector(entry.end << shift));
        match listed.last_mut() {
            Some(last) if start < last.end || (start == last.end && entry.since == last.since) => {
                last.end = last.end.max(end);
                last.since = last.since.max(entry.since);
            }
            Some(_) | None => listed.push(ListedRange { start, end, since: entry.since }),
        }
    }
    listed
}
