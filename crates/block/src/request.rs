//! The request: what a driver has of one or more contiguous bios, as one I/O. The bios are in its flight.

use std::marker::PhantomData;
use std::mem;
use std::rc::Rc;

use crate::bio::{Flags, Op, Segments};
use crate::buffer::Segment;
use crate::units::{Sector, Sectors};

/// Tells apart the requests that one thread has with all drivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestId {
    pub(crate) queue: usize,
    pub(crate) tag: u32,
}

/// The unit of work of a driver: a contiguous range (for discards on devices that accept several
/// ranges, a list of ranges) with the segments of all its bios, in order.
///
/// The driver must end it with [`Request::complete`]; a request dropped without that fails.
pub struct Request {
    pub(crate) id: RequestId,
    pub(crate) op: Op,
    pub(crate) flags: Flags,
    pub(crate) ioprio: u16,
    pub(crate) nr_bios: u32,
    pub(crate) sector: Sector,
    pub(crate) len: Sectors,
    /// Of a discard of several bios.
    pub(crate) ranges: Vec<(Sector, Sectors)>,
    pub(crate) segments: Segments,
    /// Whether it is a read into memory that the driver must be able to release.
    pub(crate) is_revocable: bool,
    pub(crate) has_ended: bool,
    /// It ends on the thread that has its flight.
    pub(crate) thread: PhantomData<Rc<()>>,
}

impl Request {
    /// Its identity while the driver has it.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The operation.
    pub fn op(&self) -> Op {
        self.op
    }

    /// The flags of the first bio: flags that matter to a driver are the same in all bios.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// The I/O priority.
    pub fn ioprio(&self) -> u16 {
        self.ioprio
    }

    /// First sector.
    pub fn sector(&self) -> Sector {
        self.sector
    }

    /// Length of the contiguous range.
    pub fn len(&self) -> Sectors {
        self.len
    }

    /// Whether it covers no sectors (a flush).
    pub fn is_empty(&self) -> bool {
        self.len.is_zero()
    }

    /// The sector after the last one.
    pub fn end(&self) -> Sector {
        self.sector + self.len
    }

    /// Number of bios in it.
    pub fn nr_bios(&self) -> usize {
        self.nr_bios as usize
    }

    /// All data segments, in the order of the device's sectors.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter()
    }

    /// Whether it reads into its submitters' memory, which the driver must be able to [release](crate::queue::Driver::revoke), as it
    /// has said it can.
    pub fn is_revocable(&self) -> bool {
        self.is_revocable
    }

    /// The segments for a driver that keeps them, in the same order. For a revocable read the request has no other references:
    /// the driver releases the memory by dropping them.
    pub fn take_segments<L: FromIterator<Segment>>(&mut self) -> L {
        match self.is_revocable {
            true => mem::take(&mut self.segments).into_iter().collect(),
            false => self.segments.iter().cloned().collect(),
        }
    }

    /// Number of data segments.
    pub fn nr_segments(&self) -> usize {
        self.segments.len()
    }

    /// The ranges, of a discard one for each bio; other requests are contiguous.
    pub fn ranges(&self) -> impl Iterator<Item = (Sector, Sectors)> {
        let whole = self.ranges.is_empty().then_some((self.sector, self.len));
        self.ranges.iter().copied().chain(whole)
    }
}
