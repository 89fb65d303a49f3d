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

use ashlar_block::{Sector, Sectors};
use thiserror::Error;

pub use text::{Change, InvalidChange};

use crate::ondisk::BadBlockLogPlace;
use crate::ondisk::bad_block_log::{self, BadBlockLogError, BadRange};
use layout::{Full, Layout};

/// Why a change was not made. Nothing of it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadBlocksError {
    /// The member has no bad block log. Its superblock has no place for one.
    #[error("the member has no bad block log")]
    NoLog,
    /// The log has no room for the entries that the change needs.
    #[error("the bad block log is full")]
    Full,
    /// The log cannot express such a position, or the range is empty.
    #[error("no range that a bad block log can hold")]
    Range,
}

impl From<Full> for BadBlocksError {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// What [`BadBlocks::check`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bad {
    /// The first sector of the range asked about that is bad.
    pub start: Sector,
    /// How many from there on are, up to the end of the range asked about. What follows may be bad
    /// as well: it is for the next question.
    pub len: Sectors,
    /// Whether everything bad in the range asked about is on disk.
    pub acknowledged: bool,
}

/// The log as it is to be written now.
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

/// A range that is bad. `since` is the generation that set it.
#[derive(Clone, Copy, Debug)]
struct Listed {
    start: Sector,
    end: Sector,
    since: u64,
}

#[derive(Debug)]
struct State {
    layout: Layout,
    /// What the layout lists, in sectors: ascending, none overlapping.
    listed: Vec<Listed>,
    /// Counts changes.
    generation: u64,
    /// The generation that is on disk.
    durable: u64,
}

/// See the module text. There is no copying one:
///
/// ```compile_fail
/// let list = ashlar_md::badblocks::BadBlocks::none();
/// let other = list.clone();
/// ```
#[derive(Debug)]
pub struct BadBlocks {
    /// Whether nothing is listed: all that most reads ever look at. Written under the lock.
    none_listed: AtomicBool,
    /// Whether the log on disk is not what is listed. Written under the lock.
    changed: AtomicBool,
    shift: u8,
    /// `None` without a log.
    state: Option<Mutex<State>>,
}

impl BadBlocks {
    /// Of a member without a log: nothing is bad, and nothing can be.
    pub fn none() -> Self {
        Self {
            none_listed: AtomicBool::new(true),
            changed: AtomicBool::new(false),
            shift: 0,
            state: None,
        }
    }

    /// Of a member whose superblock has a place for a log and says that it lists nothing; so also of
    /// a new one. What is in that place is not looked at.
    ///
    /// # Errors
    /// [`BadBlockLogError`] if there can be no such log.
    pub fn empty(place: &BadBlockLogPlace) -> Result<Self, BadBlockLogError> {
        let max = usize::from(bad_block_log::MAX_LOG_SECTORS) * 512;
        let bytes = usize::try_from(place.len.bytes()).unwrap_or(usize::MAX);
        if bytes == 0 || bytes > max {
            return Err(BadBlockLogError::Size { found: bytes, max });
        }
        Self::from_log(&vec![0xff; bytes], place.shift)
    }

    /// What the bytes of a member's log list, which its superblock says is in use. All of it is
    /// acknowledged.
    ///
    /// # Errors
    /// [`BadBlockLogError`] if the log cannot be understood, or has more in a sector than fits when
    /// cut into entries as the kernel writes them. Then nobody knows what is bad, and the member must
    /// not be read.
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

    /// The first bad part of `[start, start + len)`, if any.
    ///
    /// One load if nothing at all is bad. A reader that meets a `set` of another thread may see the
    /// list before it or after it, as if it had come a moment earlier or later.
    #[inline]
    pub fn check(&self, start: Sector, len: Sectors) -> Option<Bad> {
        if self.is_empty() { None } else { self.look_up(start, len) }
    }

    /// Whether nothing is listed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Acquire, with Release in `update`: who learned of a range by other means (its write was
        // answered) finds it listed.
        self.none_listed.load(Acquire)
    }

    /// Whether the member has a log at all, so that something can be set.
    pub fn has_log(&self) -> bool {
        self.state.is_some()
    }

    /// The log's unit: what [`set`](Self::set) widens ranges to.
    pub fn unit(&self) -> Sectors {
        Sectors(1 << self.shift)
    }

    /// Whether the log on disk is to be written anew.
    pub fn changed(&self) -> bool {
        self.changed.load(Acquire)
    }

    /// Sectors that are bad, and how many of them are not acknowledged.
    pub fn count(&self) -> (Sectors, Sectors) {
        let Some(state) = self.lock() else { return (Sectors::ZERO, Sectors::ZERO) };
        state.listed.iter().fold((Sectors::ZERO, Sectors::ZERO), |(all, new), range| {
            let len = range.end - range.start;
            (all + len, if range.since > state.durable { new + len } else { new })
        })
    }

    /// Adds a range, widened to whole units, unacknowledged. What of it is listed already stays as it
    /// is, unless it is in one entry with something new.
    ///
    /// # Errors
    /// [`BadBlocksError`]; nothing was added then. A member that has missed a write must fail, since
    /// nothing on disk will tell.
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
    /// stays bad then, which harms nobody but readers of this member. Nothing else is an error:
    /// where there is no log, nothing is bad.
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

    /// The log as it is to be written; `None` for a member without one. Only one image may be on its
    /// way to the disk.
    pub fn take_image(&self) -> Option<LogImage> {
        let state = self.lock()?;
        let (bytes, empty) = (state.layout.image(), state.listed.is_empty());
        Some(LogImage { bytes, empty, generation: state.generation })
    }

    /// An image is on disk, and so is a superblock that says so: what it lists is acknowledged.
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
        // A panic cannot happen between two changes that belong together.
        Some(self.state.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cold]
    fn look_up(&self, start: Sector, len: Sectors) -> Option<Bad> {
        let state = self.lock()?;
        let end = Sector(start.0.saturating_add(len.0));
        let first = state.listed.partition_point(|range| range.end <= start);
        let touched = || state.listed[first..].iter().take_while(|range| range.start < end);
        let bad = touched().next()?;
        let from = bad.start.max(start);
        Some(Bad {
            start: from,
            len: bad.end.min(end) - from,
            acknowledged: touched().all(|range| range.since <= state.durable),
        })
    }

    /// The units that a range touches; `None` if it is empty or the log cannot express it.
    fn outward(&self, start: Sector, len: Sectors) -> Option<(u64, u64)> {
        let end = start.checked_add(len)?.0.div_ceil(self.unit().0);
        let fits = end <= layout::UNITS && end <= u64::MAX >> self.shift;
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

/// What a layout lists, in sectors. Overlapping entries become one range, as new as the newest, and
/// so do adjacent ones that are equally new.
fn list(layout: &Layout, shift: u8) -> Vec<Listed> {
    let mut listed: Vec<Listed> = Vec::new();
    for entry in layout.ascending() {
        let (start, end) = (Sector(entry.start << shift), Sector(entry.end << shift));
        match listed.last_mut() {
            Some(last) if start < last.end || (start == last.end && entry.since == last.since) => {
                last.end = last.end.max(end);
                last.since = last.since.max(entry.since);
            }
            Some(_) | None => listed.push(Listed { start, end, since: entry.since }),
        }
    }
    listed
}
