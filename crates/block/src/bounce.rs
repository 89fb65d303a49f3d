//! Reads into the queue's own memory.
//!
//! A read that reached its deadline has ended for its submitter, which may use the memory for something else: md reads
//! the same data from another member into it. But the device may still write to the memory that the driver gave it. So a
//! queue with a deadline gives the driver memory of its own, and copies the data when the read ends in time. (A driver that
//! can release a read's memory gets that of the submitters; see [`ReadMemory`]. So does any driver if the submitters have
//! [given](Flags::GIVEN) it, and copying would take longer than preparing that memory for the device.) [`Memory`] says which
//! of this is the case.

use std::mem;

use crate::bio::{Bio, Flags, Op, Segments};
use crate::buffer::{BUFFER_ALIGN, Buffer, Segment, shared};
use crate::device::QueuedBio;
use crate::dispatch::ReadMemory;
use crate::status::Status;

/// Reads from this size on go to memory that was given: below it a copy is cheaper than to pin pages, which registered memory saves.
const WORTH_BYTES: usize = 32 << 10;

/// The memory that the driver has of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The submitters', of a request without a deadline, which has the only references to it; or none.
    Lent,
    /// The submitters', of a write: the driver has it also after the deadline.
    Written,
    /// Of the queue or of its driver: what was read is copied to the submitters'.
    Bounced,
    /// The submitters', of a read; the driver can release it.
    Revocable,
    /// The submitters', of a read that may still happen after the deadline: they do not use it again if the read fails.
    Given,
}

impl Memory {
    /// At the deadline of a flight: marks the memory that the driver may still use.
    pub(crate) fn end_in_use(self, bios: &[QueuedBio]) {
        if matches!(self, Self::Written | Self::Given) {
            segments(bios).for_each(Segment::leave);
        }
    }

    /// At the end of a read that succeeded: copies what the driver has read to the memory of the bios.
    pub(crate) fn deliver(self, read: &[Segment], bios: &[QueuedBio]) {
        let (Self::Bounced, [own]) = (self, read) else { return };
        let mut bytes = own.bytes();
        for segment in segments(bios) {
            let (part, rest) = bytes.split_at(segment.len());
            shared::copy(part, segment.bytes());
            bytes = rest;
        }
    }

    /// Before bios are tried again: they need the memory that the driver had.
    pub(crate) fn give_back(self, lent: Segments, bios: &mut [QueuedBio]) {
        let mut lent = lent.into_iter().filter(|_| self == Self::Lent);
        for QueuedBio { bio, .. } in bios {
            while bio.data_bytes() < bio.len.bytes() {
                let Some(segment) = lent.next() else { return };
                bio.segments.push(segment);
            }
        }
    }
}

fn segments(bios: &[QueuedBio]) -> impl Iterator<Item = &Segment> {
    bios.iter().flat_map(|queued| &queued.bio.segments)
}

/// Whether direct I/O can use the memory of a request.
fn is_aligned(bios: &[QueuedBio]) -> bool {
    segments(bios).all(|part| (part.as_ptr() as usize | part.len()).is_multiple_of(BUFFER_ALIGN))
}

/// The segments of all bios, taken or cloned.
fn all(bios: &mut [QueuedBio], of: impl Fn(&mut Segments) -> Segments) -> Segments {
    match bios {
        [one] => of(&mut one.bio.segments),
        several => several.iter_mut().flat_map(|queued| of(&mut queued.bio.segments)).collect(),
    }
}

/// The memory for the driver of a request without a deadline.
pub(crate) fn lend(bios: &mut [QueuedBio]) -> (Memory, Segments) {
    (Memory::Lent, all(bios, mem::take))
}

/// The memory for the driver of a request with a deadline. A read gets memory of the queue or of its driver, in one piece, unless
/// the driver reads in place.
///
/// # Errors
/// [`Status::Resource`]: there is no memory for the read.
pub(crate) fn share(
    bios: &mut [QueuedBio],
    choose: impl FnOnce(usize) -> ReadMemory,
) -> Result<(Memory, Segments), Status> {
    let Bio { op, flags, .. } = bios[0].bio;
    let len = segments(bios).map(Segment::len).sum();
    let is_given = || flags.contains(Flags::GIVEN) && len >= WORTH_BYTES;
    let memory = match op {
        Op::Flush | Op::Discard | Op::WriteZeroes => return Ok((Memory::Lent, Segments::new())),
        Op::Write => Memory::Written,
        Op::Read if is_given() && is_aligned(bios) => Memory::Given,
        Op::Read => {
            let own = match choose(len) {
                ReadMemory::Driver(own) => Some(own),
                ReadMemory::Queue => {
                    Some(Buffer::try_alloc(len).ok_or(Status::Resource)?.into_whole())
                }
                ReadMemory::Submitters => None,
            };
            match own {
                Some(own) => return Ok((Memory::Bounced, Segments::from_buf([own]))),
                None => Memory::Revocable,
            }
        }
    };
    Ok((memory, all(bios, |segments| segments.clone())))
}
