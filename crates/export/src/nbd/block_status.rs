//! The descriptors of a `BLOCK_STATUS`.

use std::ops::Range;

/// The most extents in one reply. The protocol's bound is 2^20; a client asks again from where a reply ended, and a
/// reply of 64 KiB is already large.
pub const MAX_EXTENTS: usize = ashlar_block::Extents::MAX;

/// A descriptor in a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes, not zero.
    pub length: u32,
    /// The bits that the metadata context defines.
    pub state: u32,
}

/// Builds the descriptors for a request: neighbours of one state become one extent, the sum never
/// exceeds the request, gaps get the context's state of what is not known, and the count is bounded.
#[derive(Debug)]
pub struct Extents {
    unknown: u32,
    range: Range<u64>,
    next: u64,
    limit: usize,
    found: Vec<Extent>,
}

impl Extents {
    /// For a request for `length` bytes at `offset`; `one` is `NBD_CMD_FLAG_REQ_ONE`, `unknown` the state of what nothing is known of.
    /// The caller has checked that the range is within the export.
    pub fn new(offset: u64, length: u32, one: bool, unknown: u32) -> Self {
        let range = offset..offset.saturating_add(u64::from(length));
        let limit = if one { 1 } else { MAX_EXTENTS };
        Self { unknown, next: range.start, range, limit, found: Vec::new() }
    }

    /// Nothing was asked of what lies at `end` and after it: the reply ends there.
    pub fn stop_at(&mut self, end: u64) {
        if end > self.range.start {
            self.range.end = self.range.end.min(end);
        }
    }

    /// Adds the state of `range` (bytes of the export). Parts before the end of the last range added, or outside the
    /// request, are ignored: a volume may answer in its own units.
    pub fn tell(&mut self, range: Range<u64>, state: u32) {
        if range.start > self.next {
            self.append(range.start.min(self.range.end), self.unknown);
        }
        self.append(range.end.min(self.range.end), state);
    }

    /// The descriptors. Never empty.
    pub fn finish(mut self) -> Vec<Extent> {
        self.append(self.range.end, self.unknown);
        self.found
    }

    fn append(&mut self, end: u64, state: u32) {
        let Some(length) = end.checked_sub(self.next).filter(|length| *length > 0) else { return };
        // The length of the whole request fits in 32 bits.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let room = self.found.len() < self.limit;
        match self.found.last_mut() {
            Some(last) if last.state == state => last.length += length,
            _ if room => self.found.push(Extent { length, state }),
            // Full: the reply ends here, and the client asks again.
            _ => return self.range.end = self.next,
        }
        self.next = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(offset: u64, length: u32, one: bool, parts: &[(Range<u64>, u32)]) -> Vec<(u32, u32)> {
        let mut extents = Extents::new(offset, length, one, 0);
        for (range, state) in parts {
            extents.tell(range.clone(), *state);
        }
        extents.finish().iter().map(|extent| (extent.length, extent.state)).collect()
    }

    #[test]
    fn a_volume_that_says_nothing_is_allocated() {
        assert_eq!(told(512, 1024, false, &[]), [(1024, 0)]);
        assert_eq!(told(u64::MAX - 9, 9, true, &[]), [(9, 0)]);
    }

    #[test]
    fn neighbours_of_one_state_are_one_extent_and_gaps_are_allocated() {
        let parts = [(100..200, 3), (200..300, 3), (350..360, 2)];
        assert_eq!(told(100, 300, false, &parts), [(200, 3), (50, 0), (10, 2), (40, 0)]);
    }

    #[test]
    fn what_lies_outside_the_request_is_cut_off() {
        assert_eq!(told(100, 50, false, &[(0..120, 3), (110..1000, 1)]), [(20, 3), (30, 1)]);
        assert_eq!(told(100, 50, false, &[(0..100, 3), (500..600, 3)]), [(50, 0)]);
    }

    #[test]
    fn one_extent_is_one_however_much_is_told() {
        assert_eq!(told(0, 100, true, &[(0..10, 3), (10..20, 0), (20..30, 3)]), [(10, 3)]);
        assert_eq!(told(0, 100, true, &[(0..10, 3), (10..30, 3)]), [(30, 3)]);
    }

    #[test]
    fn replies_are_bounded_and_contiguous() {
        let mut extents = Extents::new(0, u32::MAX, false, 0);
        for i in 0..20_000_u64 {
            extents.tell(i * 512..(i + 1) * 512, (i % 2) as u32);
        }
        let found = extents.finish();
        assert_eq!(found.len(), MAX_EXTENTS);
        assert!(found.iter().all(|extent| extent.length == 512));
    }
}
