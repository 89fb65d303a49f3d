//! Decides whether a bio may join a request (the kernel's `blk_rq_merge_ok` and `blk_try_merge`).

use crate::bio::{Bio, Flags, Op};
use crate::device::QueuedBio;
use crate::flight::Flight;
use crate::limits::Limits;
use crate::units::Sectors;

/// How a bio joins a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Merge {
    /// It continues the request.
    Back,
    /// It ends where the request begins.
    Front,
    /// It is another range of a discard.
    Discard,
}

/// Flags that prevent any merge.
const VETO: Flags = Flags::FUA.union(Flags::PREFLUSH).union(Flags::NOMERGE);
/// Flags that must be equal in both.
const ALIKE: Flags = Flags::NOWAIT
    .union(Flags::RAHEAD)
    .union(Flags::NOUNMAP)
    .union(Flags::REFUSABLE)
    .union(Flags::GIVEN);

/// How `bio` can join the request `flight` on a device with `limits` and soft limits of `max_merged` for data and
/// `max_discard` for discards; `None` if it cannot.
pub(crate) fn try_merge(
    flight: &Flight,
    bio: &Bio,
    limits: &Limits,
    max_merged: Sectors,
    max_discard: Sectors,
) -> Option<Merge> {
    let (op, flags) = (flight.op(), flight.flags());
    if op != bio.op
        || (flags | bio.flags).intersects(VETO)
        || (flags ^ bio.flags).intersects(ALIKE)
        || flight.first().ioprio != bio.ioprio
        || flight.first().copy != bio.copy
    {
        return None;
    }
    let max = match op {
        Op::Flush => return None,
        Op::Read | Op::Write => max_merged,
        Op::WriteZeroes => limits.max_write_zeroes,
        Op::Discard => max_discard,
    };
    // A discard of several ranges has no front or back.
    if op == Op::Discard && limits.max_discard_segments > 1 {
        let room = flight.bios.len() < usize::from(limits.max_discard_segments);
        return (room && flight.len + bio.len <= max).then_some(Merge::Discard);
    }
    let how = if flight.end() == bio.sector {
        Merge::Back
    } else if bio.end() == flight.sector {
        Merge::Front
    } else {
        return None;
    };
    let segments = flight.nr_segments as usize + bio.segments.len();
    let fits = flight.len + bio.len <= max && segments <= limits.max_segments as usize;
    let (start, end) = match how {
        Merge::Back | Merge::Discard => (flight.sector, bio.end()),
        Merge::Front => (bio.sector, flight.end()),
    };
    let chunk = limits.chunk_sectors.0;
    let one_chunk = chunk == 0 || !op.has_data() || start.0 / chunk == (end.0 - 1) / chunk;
    (fits && one_chunk).then_some(how)
}

/// Merges `queued` into `flight`, as [`try_merge`] allowed.
pub(crate) fn merge(flight: &mut Flight, queued: QueuedBio, how: Merge) {
    flight.len += queued.bio.len;
    flight.nr_segments += queued.bio.segments.len() as u32;
    match how {
        Merge::Back | Merge::Discard => flight.bios.push(queued),
        Merge::Front => {
            flight.sector = queued.bio.sector;
            flight.bios.insert(0, queued);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::bio::CopyNumber;
    use crate::buffer::Buffer;
    use crate::units::Sector;

    #[test]
    fn reads_of_different_copies_never_merge() {
        let mut data = Buffer::alloc(4096);
        let mut read = |at, copy| Bio::read_into(Sector(at), &mut data).with_copy(CopyNumber(copy));
        let queued = QueuedBio { bio: read(0, 1), completion: Rc::default() };
        let flight = Flight::new(queued);
        let (limits, max) = (Limits::default(), Sectors(256));
        let how = [1, 2, 0].map(|copy| try_merge(&flight, &read(8, copy), &limits, max, max));
        assert_eq!(how, [Some(Merge::Back), None, None]);
    }
}
