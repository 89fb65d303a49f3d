//! Bitmaps from bytes, and new ones.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use ashlar_block::{Sector, Sectors};
use event_listener::Event;
use thiserror::Error;

use super::counters::Counters;
use super::image::{Image, bytes_of};
use super::lockless::{Action, State};
use super::transactions::Transactions;
use super::{Bitmap, Kind, Place};
use crate::ondisk::bitmap_super::{BitmapSuper, BitmapSuperError, VERSION_CLUSTERED, state};

/// Most chunks, regardless of room: 64 MiB of counters. With chunks of 64 KiB that is an array of
/// 1 TiB, with chunks of 64 MiB one of 1 PiB; `mdadm` stays below a sixteenth of it.
const MOST_CHUNKS: u64 = 1 << 24;
/// Smallest chunk of a lockless bitmap: 64 KiB, as in Linux.
const LOCKLESS_CHUNK: Sectors = Sectors(128);
/// Seconds between the daemon's passes over a lockless bitmap, as in Linux.
const LOCKLESS_SLEEP: u32 = 30;

/// What the members' superblocks say about the array whose bitmap is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArrayFacts {
    /// The array's identity, as in its superblock.
    pub uuid: [u8; 16],
    /// The highest event count.
    pub events: u64,
    /// Array sectors that are known to be in sync; all ones if the array is clean.
    pub synced_to: Sector,
    /// Whether all members are present and in sync.
    pub complete: bool,
}

/// State of the data that a new bitmap, or its new part, covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// The copies are the same.
    InSync,
    /// The copies may differ, and hold data.
    NeedsSync,
    /// The copies may differ, and hold no data. Needs no sync with a lockless bitmap; with a classic
    /// one, as [`Self::NeedsSync`].
    NeverWritten,
}

impl Contents {
    pub(super) fn state(self, kind: Kind) -> State {
        match (self, kind) {
            (Self::InSync, _) => State::Clean,
            (Self::NeverWritten, Kind::Lockless) => State::Unwritten,
            (Self::NeverWritten, Kind::Classic) | (Self::NeedsSync, _) => State::NeedSync,
        }
    }
}

/// Why a bitmap cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BitmapError {
    /// Its superblock is refused.
    #[error(transparent)]
    Superblock(#[from] BitmapSuperError),
    /// It belongs to a cluster.
    #[error("bitmap of a cluster")]
    Clustered,
    /// It belongs to another array.
    #[error("bitmap of another array")]
    Uuid,
    /// It covers more sectors than the array has.
    #[error("bitmap covers {} sectors of an array of {}", covered.0, size.0)]
    SyncSize {
        /// Sectors covered.
        covered: Sectors,
        /// Sectors of the array.
        size: Sectors,
    },
    /// It does not fit in its area.
    #[error("bitmap of {needed} bytes in an area of {room}")]
    Room {
        /// Bytes it has, in whole blocks.
        needed: u64,
        /// Bytes of the area.
        room: u64,
    },
    /// It has too many chunks.
    #[error("bitmap of {found} chunks; at most {MOST_CHUNKS} are supported")]
    Chunks {
        /// Number of chunks.
        found: u64,
    },
    /// Some of its bytes are missing.
    #[error("{found} bytes of a bitmap of {needed}")]
    Truncated {
        /// Bytes given.
        found: usize,
        /// Bytes it has, in whole blocks.
        needed: usize,
    },
    /// No bitmap fits these parameters.
    #[error("bitmap for {} sectors in blocks of {block} bytes", size.0)]
    Place {
        /// Sectors to be covered.
        size: Sectors,
        /// Bytes of a block.
        block: u32,
    },
    /// Writes are in flight.
    #[error("bitmap in use")]
    Busy,
}

/// Format, chunk size and number of chunks.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) kind: Kind,
    pub(super) chunk: Sectors,
    pub(super) chunks: u32,
    /// Bytes of superblock and marks, in whole blocks.
    pub(super) bytes: usize,
}

impl Layout {
    pub(super) fn new(kind: Kind, chunk: Sectors, place: Place) -> Result<Self, BitmapError> {
        let Place { size, area, block } = place;
        if size.is_zero() || !(512..=1 << 16).contains(&block) || !block.is_power_of_two() {
            return Err(BitmapError::Place { size, block });
        }
        let found = size.0.div_ceil(chunk.0);
        let (needed, room) = (bytes_of(kind, found, block.into()), area.bytes());
        if needed > room {
            return Err(BitmapError::Room { needed, room });
        }
        if found > MOST_CHUNKS {
            return Err(BitmapError::Chunks { found });
        }
        Ok(Self { kind, chunk, chunks: found as u32, bytes: needed as usize })
    }

    /// With the smallest chunk that fits the place: `least`, doubled as often as needed.
    pub(super) fn fitting(kind: Kind, least: Sectors, place: Place) -> Result<Self, BitmapError> {
        let mut chunk = least;
        loop {
            match Self::new(kind, chunk, place) {
                // A classic superblock has 32 bits for the bytes of a chunk.
                Err(BitmapError::Room { .. } | BitmapError::Chunks { .. }) if chunk.0 < 1 << 22 => {
                    chunk = Sectors(chunk.0 * 2);
                }
                result => return result,
            }
        }
    }

    /// The layout that a superblock states. One of an uninitialised lockless bitmap states none.
    fn of(sb: &BitmapSuper, place: Place) -> Result<Self, BitmapError> {
        if sb.version.get() == VERSION_CLUSTERED {
            return Err(BitmapError::Clustered);
        }
        if !sb.is_lockless() {
            return Self::new(Kind::Classic, sb.chunk(), place);
        }
        if sb.state.get() & state::FIRST_USE == 0 {
            return Self::new(Kind::Lockless, sb.chunk(), place);
        }
        let reserved = match sb.sectors_reserved.get() {
            0 => place.area,
            reserved => place.area.min(Sectors(reserved.into())),
        };
        Self::fitting(Kind::Lockless, LOCKLESS_CHUNK, Place { area: reserved, ..place })
    }
}

impl Bitmap {
    /// The length to read for [`Self::load`] from the start of the superblock on, given the first
    /// block (or 256 bytes).
    ///
    /// # Errors
    /// [`BitmapError`], as [`Self::load`].
    pub fn length(first_block: &[u8], place: Place) -> Result<Sectors, BitmapError> {
        let layout = Layout::of(&BitmapSuper::parse(first_block)?, place)?;
        Ok(Sectors::from_bytes_floor(layout.bytes as u64))
    }

    /// Decodes a member's bitmap. Before writes, [`Self::write_super`] must succeed.
    ///
    /// If the bitmap is out of date (it says so, a write of it failed once, or its event count is
    /// behind the array's), all chunks are marked.
    ///
    /// A marked chunk needs a sync if it is not below [`ArrayFacts::synced_to`]; in an incomplete
    /// array, wherever it is, for the absent members. In a lockless bitmap every marked chunk needs a
    /// sync. The daemon clears the marks of other chunks later.
    ///
    /// # Errors
    /// [`BitmapError`]: not a bitmap, not this array's, or not a possible one.
    pub fn load(bytes: &[u8], place: Place, array: ArrayFacts) -> Result<Self, BitmapError> {
        let found = BitmapSuper::parse(bytes)?;
        if found.uuid != array.uuid {
            return Err(BitmapError::Uuid);
        }
        let layout = Layout::of(&found, place)?;
        let covered = match Sectors(found.sync_size.get()) {
            Sectors::ZERO => place.size,
            covered => covered,
        };
        let mut image = Image::new(layout.kind, layout.chunks, place.block as usize);
        let mut next = found.clone();
        next.sync_size = place.size.0.into();
        next.state = (found.state.get() & state::HOST_ENDIAN).into();
        let mut stale = false;
        if layout.kind == Kind::Lockless && found.state.get() & state::FIRST_USE != 0 {
            next.chunksize = (layout.chunk.0 as u32).into();
            next.daemon_sleep = LOCKLESS_SLEEP.into();
            if found.state.get() & state::CLEAN != 0 {
                (0..layout.chunks).for_each(|chunk| image.set(chunk, State::Clean));
            }
        } else {
            if layout.kind == Kind::Lockless && covered > place.size {
                return Err(BitmapError::SyncSize { covered, size: place.size });
            }
            if bytes.len() < layout.bytes {
                return Err(BitmapError::Truncated { found: bytes.len(), needed: layout.bytes });
            }
            image.fill_from(bytes);
            stale = found.state.get() & (state::STALE | state::WRITE_ERROR) != 0
                || found.events.get() < array.events;
            let known = match stale {
                true => 0,
                false if covered >= place.size => u64::from(layout.chunks),
                false => covered.0 / layout.chunk.0,
            };
            for chunk in 0..layout.chunks {
                match u64::from(chunk) < known {
                    // Also replaces bytes that are no states by the state they decode to.
                    true => image.set(chunk, image.state(chunk)),
                    false => image.set(chunk, State::NeedSync),
                }
                if layout.kind == Kind::Lockless {
                    image.act(chunk, Action::Reload);
                }
            }
        }
        if stale {
            next.events_cleared = array.events.into();
        }
        image.set_superblock(&found);
        let mut bitmap = Self::assemble(layout, place, image, next);
        bitmap.stale = stale;
        let in_sync = array.complete || found.events_cleared.get() == array.events || stale;
        bitmap.need_marked(match layout.kind {
            Kind::Classic if in_sync => array.synced_to,
            Kind::Classic | Kind::Lockless => Sector::ZERO,
        });
        Ok(bitmap)
    }

    /// Adds the marks of another member's loaded bitmap that this one lacks: a mark counts if any
    /// member has it. (A crash may come before a member that could not take a mark is recorded as
    /// failed.) Call it before [`Self::write_super`]. An `other` that is out of date or has another
    /// layout changes nothing.
    pub fn absorb(&mut self, other: &Self) {
        let like = |bitmap: &Self| (bitmap.kind, bitmap.chunk(), bitmap.place);
        if self.is_settled() || other.stale || like(self) != like(other) {
            return;
        }
        let theirs = other.transactions();
        let mut transactions = self.transactions();
        for chunk in 0..self.chunks() {
            let state = transactions.image.state(chunk);
            transactions.image.set(chunk, state.merge(theirs.image.state(chunk)));
            if other.counters.get(chunk).is_needed() {
                self.counters.get(chunk).need();
            }
        }
        // Marks were cleared at the higher of the two event counts.
        let cleared = theirs.next.events_cleared.get().max(transactions.next.events_cleared.get());
        transactions.next.events_cleared = cleared.into();
    }

    /// A new bitmap with the identity and chunk size of this superblock. It is on no member until
    /// [`Self::write_super`], or until the caller writes [`Self::encode`].
    ///
    /// # Errors
    /// [`BitmapError`]: the superblock is invalid, or the bitmap does not fit.
    pub fn new(sb: &BitmapSuper, place: Place, contents: Contents) -> Result<Self, BitmapError> {
        let layout = Layout::of(&BitmapSuper::parse(zerocopy::IntoBytes::as_bytes(sb))?, place)?;
        let mut next = sb.clone();
        next.sync_size = place.size.0.into();
        if layout.kind == Kind::Lockless && sb.state.get() & state::FIRST_USE != 0 {
            next.chunksize = (layout.chunk.0 as u32).into();
            next.daemon_sleep = LOCKLESS_SLEEP.into();
        }
        next.state = (sb.state.get() & state::HOST_ENDIAN).into();
        let mut image = Image::new(layout.kind, layout.chunks, place.block as usize);
        for chunk in 0..layout.chunks {
            image.set(chunk, contents.state(layout.kind));
        }
        let mut unfinished = next.clone();
        unfinished.state = (next.state.get() | state::STALE).into();
        image.set_superblock(&unfinished);
        let bitmap = Self::assemble(layout, place, image, next);
        bitmap.need_marked(Sector::ZERO);
        Ok(bitmap)
    }

    pub(super) fn assemble(layout: Layout, place: Place, image: Image, next: BitmapSuper) -> Self {
        Self {
            kind: layout.kind,
            place,
            stale: false,
            counters: Counters::new(layout.chunk, place.size),
            settled: AtomicBool::new(false),
            transactions: Mutex::new(Transactions::new(image, next)),
            commit_ended: Event::new(),
            sleep_changed: Event::new(),
            alone: async_lock::Mutex::new(()),
        }
    }

    /// Makes all marked chunks that end beyond `from` need a sync.
    pub(crate) fn need_marked(&self, from: Sector) {
        for chunk in self.transactions().image.marked() {
            if self.counters.end_of(chunk) > from {
                self.counters.get(chunk).need();
            }
        }
    }
}
