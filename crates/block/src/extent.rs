//! What is known of parts of a device without reading them, as NBD's `base:allocation` and lseek(2)'s `SEEK_HOLE` tell it.

use bitflags::bitflags;

use crate::units::{Sector, Sectors};

bitflags! {
    /// What is known of a part of a device; nothing is known of data. The bits are those of NBD.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct ExtentState: u8 {
        /// No space is allocated for it.
        const HOLE = 1 << 0;
        /// It reads as zeroes.
        const ZERO = 1 << 1;
    }
}

/// A part of a device of one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its length, not zero.
    pub len: Sectors,
    /// Its state.
    pub state: ExtentState,
}

/// Consecutive parts of a device. Neighbours have different states.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extents {
    end: Sector,
    list: Vec<Extent>,
}

impl Extents {
    /// The most parts of an answer; the caller asks again from its end.
    pub const MAX: usize = 8192;

    /// No parts yet, from a sector on.
    pub const fn new(start: Sector) -> Self {
        Self { end: start, list: Vec::new() }
    }

    /// A range of which nothing is known.
    pub fn data(start: Sector, len: Sectors) -> Self {
        let mut extents = Self::new(start);
        extents.extend_to(start + len, ExtentState::empty());
        extents
    }

    /// Adds what lies between the end and `end`, if that is later, unless the answer is full.
    pub fn extend_to(&mut self, end: Sector, state: ExtentState) {
        if end <= self.end {
            return;
        }
        let (len, is_full) = (end - self.end, self.is_full());
        match self.list.last_mut() {
            Some(last) if last.state == state => last.len += len,
            _ if is_full => return,
            _ => self.list.push(Extent { len, state }),
        }
        self.end = end;
    }

    /// Whether no part of another state can be added.
    pub fn is_full(&self) -> bool {
        self.list.len() >= Self::MAX
    }

    /// The end of the last part.
    pub const fn end(&self) -> Sector {
        self.end
    }

    /// The parts.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.list.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_state_are_one_and_the_number_is_bounded() {
        let mut extents = Extents::new(Sector(8));
        let (data, hole) = (ExtentState::empty(), ExtentState::HOLE);
        for (end, state) in [(8, hole), (9, data), (12, data), (20, hole), (15, data)] {
            extents.extend_to(Sector(end), state);
        }
        let parts: Vec<_> = extents.iter().map(|extent| (extent.len.0, extent.state)).collect();
        assert_eq!((parts, extents.end()), (vec![(4, data), (8, hole)], Sector(20)));
        for end in 21..100_000 {
            extents.extend_to(Sector(end), if end % 2 == 0 { data } else { hole });
        }
        let len: u64 = extents.iter().map(|extent| extent.len.0).sum();
        assert!(extents.is_full() && extents.iter().count() == Extents::MAX);
        assert_eq!(extents.end(), Sector(8 + len));
    }
}
