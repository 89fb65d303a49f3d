//! Levels: how an array maps, sends and judges its clients' I/O.
//!
//! A level has two halves. Its geometry ([`Personality`](crate::personality::Personality)) is pure: places of sectors, and
//! which slots the array can lose. The [`Level`] moves data. It asks the [`Core`](crate::core::Core) whether it may write,
//! which members there are, and which chunks are marked, and reports members that failed to it.
//!
//! | level | is |
//! |---|---|
//! | [`striped`] | linear, RAID 0: each sector on one member |
//! | [`mirrored`] | RAID 1 and RAID 10: each sector on several |
//! | [`parity`] | RAID 4, 5 and 6: each sector on one, and in the sums of its row |
//! | [`reshaped`] | two of these: an array between them, which is only read |

pub(crate) mod mirrored;
pub(crate) mod parity;
pub(crate) mod parts;
pub(crate) mod reshaped;
pub(crate) mod striped;

use std::cell::RefCell;
use std::ops::Range;

use ashlar_block::{Bio, Extents, IoFuture, LocalFuture, Place, Sector, Sectors, Status, extent};

use smallvec::SmallVec;

use crate::core::{Core, Source};
use crate::membership::rdev::Rdev;
use crate::membership::slots::Index;

/// See the module text.
pub(crate) trait Level: Send + Sync + 'static {
    /// Performs a client's I/O of any length and kind; fails it with [`Status::Offline`] if the array was stopped.
    fn submit(&self, bio: Bio) -> IoFuture<'_>;

    /// How many copies of a range a read can name.
    fn copies(&self, at: Sector, len: Sectors) -> u16;

    /// What is known of a range without reading it; see [`BlockDevice::extents`](ashlar_block::BlockDevice::extents). The members are
    /// asked that a read of the range could be sent to; what has to be computed or read from several members is data.
    ///
    /// # Errors
    /// The array was stopped.
    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>>;

    /// Moves the data of one window of the array's own I/O. The caller has raised the barrier over it.
    ///
    /// # Errors
    /// See [`Trouble`].
    fn window<'a>(&'a self, work: Work<'a>) -> LocalFuture<'a, Result<Sectors, Trouble>>;
}

/// What members know of a range of an array with redundancy. `source` finds a member that a read within one chunk can go to.
///
/// # Errors
/// The array was stopped.
async fn extents_of_members<'a>(
    core: &'a Core,
    (at, len): (Sector, Sectors),
    devices: usize,
    source: impl Fn(Sector, Sectors) -> Option<Source<'a>>,
) -> Result<Extents, Status> {
    if core.lifecycle.is_stopped() {
        return Err(Status::Offline);
    }
    let end = at + len;
    let place = |at: Sector| {
        let left = core.personality().chunk_left(at).min(end - at);
        let on = source(at, left).map(|source| (source.index, source.at));
        Place { on, left }
    };
    let asked = RefCell::new(SmallVec::<[Index; 8]>::new());
    let ask = async |index, at, len| {
        asked.borrow_mut().push(index);
        core.members.get(index).ok_or(Status::Offline)?.extents(at, len).await
    };
    let extents = extent::gather(at, len, devices, place, ask).await;
    // What a member says that has failed meanwhile, or has lost writes, may be old.
    for index in asked.into_inner() {
        let current = match core.members.get(index) {
            Some(rdev) => !rdev.is_faulty() && core.is_current(index, rdev).await.is_ok(),
            None => false,
        };
        if !current {
            return Ok(Extents::data(at, extents.end() - at));
        }
    }
    Ok(extents)
}

/// The work of one window. Its future returns the number of sectors moved.
pub(crate) enum Work<'a> {
    /// Make the copies of the pieces, which lie in the range, equal.
    Resync(Range<Sector>, Vec<Piece>),
    /// Copy what the targets lack.
    Rebuild(&'a Rebuild<'a>),
    /// Compare the copies of the pieces; if `repair`, make them equal.
    Check {
        /// The pieces.
        pieces: Vec<Piece>,
        /// Whether copies that differ are made equal.
        repair: bool,
        /// Called for each difference.
        mismatch: &'a dyn Fn(Sectors),
    },
}

/// Why a window was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// The sync must end.
    Interrupted,
    /// Part of the window failed. The sync continues, but this window must be repeated later.
    Incomplete(Status),
    /// The array has changed: the sync must begin again.
    Overtaken,
    /// Continuing makes no sense.
    Failed(Status),
}

/// Unit of retries after a read error, where copies are the same or parity is right: pages, as in md.
pub(crate) const PAGE: Sectors = Sectors(8);

/// A run of sync space within one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) at: Sector,
    pub(crate) len: Sectors,
}

impl Piece {
    /// The unit of comparison (the kernel's `RESYNC_BLOCK_SIZE`): 64 KiB.
    pub(crate) const BLOCK: Sectors = Sectors(128);

    pub(crate) fn end(self) -> Sector {
        self.at + self.len
    }

    /// The range of its bytes in a buffer that begins at the sector `start`.
    pub(crate) fn bytes_from(self, start: Sector) -> Range<usize> {
        let from = (self.at - start).bytes() as usize;
        from..from + self.len.bytes() as usize
    }
}

/// A piece of the array, and the place of its copy on a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MappedPiece {
    pub(crate) piece: Piece,
    pub(crate) on_member: Sector,
}

/// A member that lacks data.
#[derive(Clone, Copy)]
pub(crate) struct RebuildTarget<'a> {
    pub(crate) index: Index,
    pub(crate) rdev: &'a Rdev,
}

/// Targets that lack the same pieces at the same places in a range of their sectors, so that one read serves all.
pub(crate) struct Rebuild<'a> {
    pub(crate) range: Range<Sector>,
    pub(crate) targets: Vec<RebuildTarget<'a>>,
    pub(crate) mapped: Vec<MappedPiece>,
}
