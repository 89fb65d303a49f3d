//! Trace points for every step of a bio (blktrace's actions).
//!
//! Without a reader, a trace point is one load of a value that does not change, and a branch that is
//! always predicted. With readers, the thread that fires an event passes it to every reader;
//! a reader must be quick and must not submit I/O.
//!
//! The feature `no-trace-points` removes them: a reader then sees nothing. It exists to measure
//! their cost (`ashlar-benches trace-cost`); no release uses it.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use crate::bio::{Bio, Flags, Op};
use crate::clock;
use crate::disk::{DeviceNumber, Disk};
use crate::status::{BioResult, Status};
use crate::units::{Sector, Sectors};

/// What happened to a bio or request; the letters are those of `blkparse(1)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// `A`: remapped from another device; the event belongs to the lower one.
    Remap,
    /// `Q`: arrived at the device.
    Queue,
    /// `X`: split to fit the device's limits; the range is the first part.
    Split,
    /// `G`: became a request.
    GetRequest,
    /// `P`: the plug was set.
    Plug,
    /// `U`: the plug was removed, and its requests proceed.
    Unplug,
    /// `M`: merged to the end of a request.
    BackMerge,
    /// `F`: merged to the front of a request.
    FrontMerge,
    /// `I`: inserted into the list of requests that wait for the driver.
    Insert,
    /// `D`: sent to the driver.
    Issue,
    /// `R`: failed, and is retried bio by bio.
    Requeue,
    /// `C`: completed.
    Complete,
}

impl Action {
    /// The letter that `blkparse` prints.
    pub const fn letter(self) -> char {
        match self {
            Self::Remap => 'A',
            Self::Queue => 'Q',
            Self::Split => 'X',
            Self::GetRequest => 'G',
            Self::Plug => 'P',
            Self::Unplug => 'U',
            Self::BackMerge => 'M',
            Self::FrontMerge => 'F',
            Self::Insert => 'I',
            Self::Issue => 'D',
            Self::Requeue => 'R',
            Self::Complete => 'C',
        }
    }
}

/// Additional information of some actions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Nothing.
    None,
    /// [`Action::Remap`]: where the bio was on the device above.
    From {
        /// The device above.
        device: DeviceNumber,
        /// The sector there.
        sector: Sector,
    },
    /// [`Action::Unplug`]: the number of requests.
    Requests(u32),
    /// [`Action::Split`]: where the rest begins.
    Rest(Sector),
    /// [`Action::Complete`] and [`Action::Requeue`]: why it failed.
    Failed(Status),
}

/// One trace event.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// The time, in nanoseconds on the runtime's clock.
    pub at_ns: u64,
    /// The device.
    pub disk: &'a Disk,
    /// What happened.
    pub action: Action,
    /// The operation. Events of plugs have an empty read, as in the kernel.
    pub op: Op,
    /// The flags.
    pub flags: Flags,
    /// The first sector.
    pub sector: Sector,
    /// The length.
    pub len: Sectors,
    /// Additional information.
    pub detail: Detail,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Disk({})", self.name())
    }
}

/// A receiver of trace events.
pub trait Reader: Send + Sync + 'static {
    /// Receives one event.
    fn event(&self, event: &Event<'_>);
}

static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static READERS: RwLock<Vec<(usize, Arc<dyn Reader>)>> = RwLock::new(Vec::new());

/// A reader's registration, until dropped.
pub struct Watch {
    id: usize,
}

/// Passes every event of every device to `reader` until the watch is dropped.
pub fn watch(reader: Arc<dyn Reader>) -> Watch {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let id = NEXT.fetch_add(1, Relaxed);
    READERS.write().unwrap_or_else(PoisonError::into_inner).push((id, reader));
    ACTIVE.fetch_add(1, Relaxed);
    Watch { id }
}

impl Drop for Watch {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Relaxed);
        READERS.write().unwrap_or_else(PoisonError::into_inner).retain(|(id, _)| *id != self.id);
    }
}

/// Whether this build has trace points.
pub const HAS_POINTS: bool = cfg!(not(feature = "no-trace-points"));

/// Whether there is a reader, and the build has trace points.
#[inline]
pub fn is_active() -> bool {
    HAS_POINTS && ACTIVE.load(Relaxed) != 0
}

/// Fires a trace point for a bio.
#[inline]
pub fn bio(disk: &Disk, action: Action, bio: &Bio) {
    range(disk, action, bio.op, bio.flags, bio.sector, bio.len);
}

/// Fires a trace point for a range.
#[inline]
pub fn range(disk: &Disk, action: Action, op: Op, flags: Flags, sector: Sector, len: Sectors) {
    if is_active() {
        fire(disk, action, (op, flags, sector, len), Detail::None);
    }
}

/// Fires [`Action::Remap`], before `bio` is submitted to `lower`: it comes from `sector` of `upper`.
#[inline]
pub fn remap(lower: &Disk, bio: &Bio, upper: &Disk, sector: Sector) {
    if is_active() {
        let detail = Detail::From { device: upper.number(), sector };
        fire(lower, Action::Remap, (bio.op, bio.flags, bio.sector, bio.len), detail);
    }
}

/// Fires [`Action::Split`]: the first `len` sectors of `bio` proceed, the rest follows.
#[inline]
pub fn split(disk: &Disk, bio: &Bio, len: Sectors) {
    if is_active() {
        let detail = Detail::Rest(bio.sector + len);
        fire(disk, Action::Split, (bio.op, bio.flags, bio.sector, len), detail);
    }
}

/// Fires [`Action::Plug`].
#[inline]
pub(crate) fn plug(disk: &Disk) {
    if is_active() {
        fire(disk, Action::Plug, NOTHING, Detail::None);
    }
}

/// Fires [`Action::Unplug`] for `requests` requests.
#[inline]
pub(crate) fn unplug(disk: &Disk, requests: usize) {
    if is_active() {
        fire(disk, Action::Unplug, NOTHING, Detail::Requests(requests as u32));
    }
}

/// Fires [`Action::Complete`], or [`Action::Requeue`].
#[inline]
pub(crate) fn end(disk: &Disk, action: Action, range: Range, result: BioResult) {
    if is_active() {
        fire(disk, action, range, result.map_or_else(Detail::Failed, |()| Detail::None));
    }
}

/// The subject of an event.
pub(crate) type Range = (Op, Flags, Sector, Sectors);

/// The subject of plug events.
const NOTHING: Range = (Op::Read, Flags::empty(), Sector::ZERO, Sectors::ZERO);

#[cold]
fn fire(disk: &Disk, action: Action, (op, flags, sector, len): Range, detail: Detail) {
    let at_ns = clock::now_ns();
    let event = Event { at_ns, disk, action, op, flags, sector, len, detail };
    for (_, reader) in READERS.read().unwrap_or_else(PoisonError::into_inner).iter() {
        reader.event(&event);
    }
}
