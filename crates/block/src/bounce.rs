//! Reads into the queue's own memory.
//!
//! A read that reached its deadline has ended for its submitter, which may use the memory for something else: md reads
//! the same data from another member into it. But the device may still write to the memory that the driver gave it. So a
//! queue with a deadline gives the driver memory of its own, and copies the data when the read ends in time.

use std::mem;

use smallvec::SmallVec;

use crate::bio::Segments;
use crate::buffer::{Buffer, Segment, shared};
use crate::request::{QueuedBio, Request};
use crate::status::Status;

/// The submitters' memory of a request, one list for each bio.
pub(crate) type Memory = SmallVec<[Segments; 1]>;

/// Gives a read memory of the queue, in one piece, the driver's if `own` has some; returns the memory that its bios had.
///
/// # Errors
/// [`Status::Resource`]: there is none.
pub(crate) fn divert(
    rq: &mut Request,
    own: impl FnOnce(usize) -> Option<Segment>,
) -> Result<Memory, Status> {
    let len = rq.len().bytes() as usize;
    let ordinary = || Buffer::try_alloc(len).map(Buffer::into_whole);
    let mut rest = own(len).or_else(ordinary).ok_or(Status::Resource)?;
    rq.0.nr_segments = rq.0.bios.len() as u32;
    let divert_one = |queued: &mut QueuedBio| {
        let part = rest.split_to(queued.bio.len.bytes() as usize);
        mem::replace(&mut queued.bio.segments, Segments::from_buf([part]))
    };
    Ok(rq.0.bios.iter_mut().map(divert_one).collect())
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
