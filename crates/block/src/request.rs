//! The request: one or more contiguous bios on their way to a driver as one I/O. Data only; `plug.rs` ends it.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::bio::{Bio, CopyNumber, Flags, Op};
use crate::buffer::Segment;
use crate::cache::CacheLossGuard;
use crate::device::Completion;
use crate::limits::Limits;
use crate::presence::Footprint;
use crate::units::{Sector, Sectors};

/// A bio in a request, and where its result goes.
pub(crate) struct QueuedBio {
    pub(crate) bio: Bio,
    pub(crate) completion: Rc<Completion>,
}

/// What a request consists of.
pub(crate) struct Parts {
    pub(crate) queue: usize,
    pub(crate) bios: SmallVec<[QueuedBio; 1]>,
    pub(crate) sector: Sector,
    pub(crate) len: Sectors,
    pub(crate) nr_segments: u32,
    /// If it may lose the device's cache, from when it is issued; on a queue with a deadline its flight has this.
    pub(crate) loss_guard: Option<CacheLossGuard>,
    /// On a queue with a deadline, from when it is issued: the number of its flight.
    pub(crate) tag: Option<u32>,
    /// Whether it is a read into memory that the driver must be able to release.
    pub(crate) is_revocable: bool,
}

/// The unit of work of a driver: a contiguous range (for discards on devices that accept several
/// ranges, a list of ranges) with the segments of all its bios, in order.
///
/// The driver must end it with [`Request::complete`]; a request dropped without that fails. It is on the heap because it
/// moves from list to list.
pub struct Request(pub(crate) Box<Parts>);

/// Tells apart the requests with a deadline that one thread has with all drivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestId {
    pub(crate) queue: usize,
    pub(crate) tag: u32,
}

impl Request {
    pub(crate) fn new(queue: usize, queued: QueuedBio) -> Self {
        let (sector, len) = (queued.bio.sector, queued.bio.len);
        let nr_segments = queued.bio.segments.len() as u32;
        let mut bios = SmallVec::new();
        bios.push(queued);
        Self(Box::new(Parts {
            queue,
            bios,
            sector,
            len,
            nr_segments,
            loss_guard: None,
            tag: None,
            is_revocable: false,
        }))
    }

    /// Its identity while the driver has it; `None` on a queue without a deadline.
    pub fn id(&self) -> Option<RequestId> {
        Some(RequestId { queue: self.0.queue, tag: self.0.tag? })
    }

    pub(crate) fn footprint(&self, limits: &Limits) -> Footprint {
        let (op, flags) = (self.op(), self.flags());
        // The ranges of a discard may lie anywhere.
        let scattered =
            op == Op::Discard && limits.max_discard_segments > 1 && self.0.bios.len() > 1;
        let (start, end) = match scattered {
            true => (Sector::ZERO, Sectors::MAX.as_end()),
            false => (self.0.sector, self.end()),
        };
        Footprint { op, flags, start, end }
    }

    fn first(&self) -> &Bio {
        &self.0.bios[0].bio
    }

    /// The operation.
    pub fn op(&self) -> Op {
        self.first().op
    }

    /// The flags of the first bio: flags that matter to a driver are the same in all bios.
    pub fn flags(&self) -> Flags {
        self.first().flags
    }

    /// The I/O priority.
    pub fn ioprio(&self) -> u16 {
        self.first().ioprio
    }

    /// The copy that it reads.
    pub(crate) fn copy(&self) -> CopyNumber {
        self.first().copy
    }

    /// First sector.
    pub fn sector(&self) -> Sector {
        self.0.sector
    }

    /// Length of the contiguous range.
    pub fn len(&self) -> Sectors {
        self.0.len
    }

    /// Whether it covers no sectors (a flush).
    pub fn is_empty(&self) -> bool {
        self.0.len.is_zero()
    }

    /// The sector after the last one.
    pub fn end(&self) -> Sector {
        self.0.sector + self.0.len
    }

    /// Number of bios in it.
    pub fn nr_bios(&self) -> usize {
        self.0.bios.len()
    }

    /// All data segments, in the order of the device's sectors.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.0.bios.iter().flat_map(|b| &b.bio.segments)
    }

    /// Whether it reads into its submitters' memory, which the driver must be able to [release](crate::queue::Driver::revoke), as it
    /// has said it can.
    pub fn is_revocable(&self) -> bool {
        self.0.is_revocable
    }

    /// The segments for a driver that keeps them, in the same order. For a revocable read the request has no other references:
    /// the driver releases the memory by dropping them.
    pub fn take_segments<L: FromIterator<Segment>>(&mut self) -> L {
        if !self.is_revocable() {
            return self.segments().cloned().collect();
        }
        let of_each = |queued: &mut QueuedBio| std::mem::take(&mut queued.bio.segments);
        self.0.bios.iter_mut().flat_map(of_each).collect()
    }

    /// Number of data segments.
    pub fn nr_segments(&self) -> usize {
        self.0.nr_segments as usize
    }

    /// The ranges, one for each bio. Only relevant for discards; other requests are contiguous.
    pub fn ranges(&self) -> impl Iterator<Item = (Sector, Sectors)> {
        self.0.bios.iter().map(|b| (b.bio.sector, b.bio.len))
    }
}
