//! Reads into the queue's own memory.
//!
//! A read that reached its deadline has ended for its submitter, which may use the memory for something else: md reads
//! the same data from another member into it. But the device may still write to the memory that the driver gave it. So a
//! queue with a deadline gives the driver memory of its own, and copies the data when the read ends in time. (A driver that
//! can release a read's memory gets that of the submitters; see [`ReadMemory`]. So does any driver if the submitters have
//! [given](Flags::GIVEN) it, and copying would take longer than preparing that memory for the device.) [`Memory`] is what the
//! queue keeps of the submitters' memory meanwhile, and says which of this is the case.

use std::mem;

use smallvec::SmallVec;

use crate::bio::{Flags, Segments};
use crate::buffer::{BUFFER_ALIGN, Buffer, Segment, shared};
use crate::dispatch::ReadMemory;
use crate::request::{QueuedBio, Request};
use crate::status::Status;

/// Reads from this size on go to memory that was given: below it a copy is cheaper than to pin pages, which registered memory saves.
const WORTH_BYTES: usize = 32 << 10;

/// Segments, one list for each bio.
type Lists = SmallVec<[Segments; 1]>;

/// The submitters' memory of a request that the driver has.
#[derive(Default)]
pub(crate) enum Memory {
    /// The request has no data.
    #[default]
    None,
    /// Of a write: the driver has it, also after the deadline.
    Written(Lists),
    /// Of a read into memory of the queue or of its driver: the data are copied to it.
    Bounced(Lists),
    /// Of a read into it; the driver can release it.
    Revocable(Lists),
    /// Of a read into it, which may still happen after the deadline: the submitters do not use it again if the read fails.
    Given(Lists),
}

impl Memory {
    /// That of a write.
    pub(crate) fn written(rq: &Request) -> Self {
        Self::Written(lists(rq))
    }

    /// At the deadline of its request: marks the memory that the driver may still use.
    pub(crate) fn end_in_use(self) {
        if let Self::Written(lists) | Self::Given(lists) = self {
            lists.iter().flatten().for_each(Segment::leave);
        }
    }

    /// At the end of its request: gives a read's bios their memory again, with the bytes read if that succeeded; drops the
    /// references to a write's, which its submitters expect back.
    pub(crate) fn give_back(self, bios: &mut [QueuedBio], is_ok: bool) {
        let (lists, is_bounced) = match self {
            Self::None | Self::Written(_) => return,
            Self::Bounced(lists) => (lists, true),
            Self::Revocable(lists) | Self::Given(lists) => (lists, false),
        };
        for (queued, memory) in bios.iter_mut().zip(lists) {
            if is_ok && is_bounced {
                deliver(queued, &memory);
            }
            queued.bio.segments = memory;
        }
    }
}

/// Whether direct I/O can use the memory of a request.
fn is_aligned(rq: &Request) -> bool {
    rq.segments().all(|part| (part.as_ptr() as usize | part.len()).is_multiple_of(BUFFER_ALIGN))
}

/// Gives a read memory of the queue or of its driver, in one piece, unless the driver reads in place; returns the memory that its
/// bios had.
///
/// # Errors
/// [`Status::Resource`]: there is no memory for the read.
pub(crate) fn divert(
    rq: &mut Request,
    choose: impl FnOnce(usize) -> ReadMemory,
) -> Result<Memory, Status> {
    let len = rq.len().bytes() as usize;
    if rq.flags().contains(Flags::GIVEN) && len >= WORTH_BYTES && is_aligned(rq) {
        return Ok(Memory::Given(lists(rq)));
    }
    let mut rest = match choose(len) {
        ReadMemory::Driver(own) => own,
        ReadMemory::Queue => {
            Buffer::try_alloc(len).map(Buffer::into_whole).ok_or(Status::Resource)?
        }
        ReadMemory::Submitters => {
            rq.0.is_revocable = true;
            return Ok(Memory::Revocable(lists(rq)));
        }
    };
    rq.0.nr_segments = rq.0.bios.len() as u32;
    let divert_one = |queued: &mut QueuedBio| {
        let part = rest.split_to(queued.bio.len.bytes() as usize);
        mem::replace(&mut queued.bio.segments, Segments::from_buf([part]))
    };
    Ok(Memory::Bounced(rq.0.bios.iter_mut().map(divert_one).collect()))
}

/// References to the memory of a request.
fn lists(rq: &Request) -> Lists {
    rq.0.bios.iter().map(|queued| queued.bio.segments.clone()).collect()
}

/// Copies what a bio has read to its submitter's memory.
fn deliver(queued: &QueuedBio, memory: &Segments) {
    for own in &queued.bio.segments {
        let mut bytes = own.bytes();
        for segment in memory {
            let (part, rest) = bytes.split_at(segment.len());
            shared::copy(part, segment.bytes());
            bytes = rest;
        }
    }
}
