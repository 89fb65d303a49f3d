//! Reads into the queue's own memory.
//!
//! A read that reached its deadline has ended for its submitter, which may use the memory for something else: md reads
//! the same data from another member into it. But the device may still write to the memory that the driver gave it. So a
//! queue with a deadline gives the driver memory of its own, and copies the data when the read ends in time. (A driver that can let go
//! of a read's memory gets that of the submitters; see [`ReadMemory`].)

use std::mem;

use smallvec::SmallVec;

use crate::bio::Segments;
use crate::buffer::{Buffer, shared};
use crate::queue::ReadMemory;
use crate::request::{QueuedBio, Request};
use crate::status::Status;

/// The submitters' memory of a request, one list for each bio.
pub(crate) type Memory = SmallVec<[Segments; 1]>;

/// Gives a read memory of the queue or of its driver, in one piece, unless the driver reads in place; returns the memory that its
/// bios had.
///
/// # Errors
/// [`Status::Resource`]: there is none.
pub(crate) fn divert(
    rq: &mut Request,
    choose: impl FnOnce(usize) -> ReadMemory,
) -> Result<Memory, Status> {
    let len = rq.len().bytes() as usize;
    let mut rest = match choose(len) {
        ReadMemory::Driver(own) => own,
        ReadMemory::Queue => {
            Buffer::try_alloc(len).map(Buffer::into_whole).ok_or(Status::Resource)?
        }
        ReadMemory::Submitters => {
            rq.0.in_place = true;
            return Ok(memory(rq));
        }
    };
    rq.0.nr_segments = rq.0.bios.len() as u32;
    let divert_one = |queued: &mut QueuedBio| {
        let part = rest.split_to(queued.bio.len.bytes() as usize);
        mem::replace(&mut queued.bio.segments, Segments::from_buf([part]))
    };
    Ok(rq.0.bios.iter_mut().map(divert_one).collect())
}

/// References to the memory of a request.
pub(crate) fn memory(rq: &Request) -> Memory {
    rq.0.bios.iter().map(|queued| queued.bio.segments.clone()).collect()
}

/// Copies what a bio has read to its submitter's memory.
pub(crate) fn deliver(queued: &QueuedBio, memory: &Segments) {
    for own in &queued.bio.segments {
        let mut bytes = own.bytes();
        for segment in memory {
            let (part, rest) = bytes.split_at(segment.len());
            shared::copy(part, segment.bytes());
            bytes = rest;
        }
    }
}
