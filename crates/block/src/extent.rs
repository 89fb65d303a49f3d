//! What is known of parts of a device without reading them, as NBD's `base:allocation` and lseek(2)'s `SEEK_HOLE` tell it.

use bitflags::bitflags;

use crate::status::Status;
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
    start: Sector,
    /// The ends of the parts, ascending, and their states.
    list: Vec<(Sector, ExtentState)>,
    /// Whether a part had no room: what follows must not be taken for it.
    is_cut: bool,
}

impl Extents {
    /// The most parts of an answer; the caller asks again from its end.
    pub const MAX: usize = 8192;

    /// No parts yet, from a sector on.
    pub const fn new(start: Sector) -> Self {
        Self { start, list: Vec::new(), is_cut: false }
    }

    /// A range of one state.
    pub fn of(start: Sector, len: Sectors, state: ExtentState) -> Self {
        let mut extents = Self::new(start);
        extents.extend_to(start + len, state);
        extents
    }

    /// A range of which nothing is known.
    pub fn data(start: Sector, len: Sectors) -> Self {
        Self::of(start, len, ExtentState::empty())
    }

    /// Adds what lies between the end and `end`, if that is later. The answer ends before the first part that has no room.
    pub fn extend_to(&mut self, end: Sector, state: ExtentState) {
        if end <= self.end() || self.is_cut {
            return;
        }
        let is_full = self.is_full();
        match self.list.last_mut() {
            Some((last, same)) if *same == state => *last = end,
            _ if is_full => self.is_cut = true,
            _ => self.list.push((end, state)),
        }
    }

    /// Adds the parts of an answer that starts at the end of this one, up to `last`.
    pub fn append(&mut self, next: &Self, last: Sector) {
        for (end, state) in &next.list {
            self.extend_to((*end).min(last), *state);
        }
    }

    /// Whether no part of another state can be added.
    pub fn is_full(&self) -> bool {
        self.list.len() >= Self::MAX
    }

    /// The start of the first part.
    pub const fn start(&self) -> Sector {
        self.start
    }

    /// The end of the last part.
    pub fn end(&self) -> Sector {
        self.list.last().map_or(self.start, |(end, _)| *end)
    }

    /// The state of a sector, and how many sectors from it on have the same; `None` of a sector outside.
    pub fn state(&self, at: Sector) -> Option<(ExtentState, Sectors)> {
        let after = self.list.partition_point(|(end, _)| *end <= at);
        let (end, state) = self.list.get(after).filter(|_| at >= self.start)?;
        Some((*state, *end - at))
    }

    /// The same parts of another device, on which the first one starts at `start`.
    #[must_use]
    pub fn moved_to(mut self, start: Sector) -> Self {
        for (end, _) in &mut self.list {
            *end = start + (*end - self.start);
        }
        self.start = start;
        self
    }

    /// What both know, where they overlap from the start of both: a state that only one knows is not known.
    ///
    /// Both start at the same sector.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut both = Self::new(self.start);
        let mut at = self.start;
        while let (Some((one, len)), Some((two, other))) = (self.state(at), other.state(at)) {
            at += len.min(other);
            both.extend_to(at, one & two);
        }
        both
    }

    /// The parts.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        let starts = [self.start].into_iter().chain(self.list.iter().map(|(end, _)| *end));
        let parts = starts.zip(&self.list);
        parts.map(|(start, (end, state))| Extent { len: *end - start, state: *state })
    }
}

/// Where the first sectors of a range of a layer lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place<K> {
    /// The lower device, and the sector there; `None` if it is not known what the sectors hold.
    pub on: Option<(K, Sector)>,
    /// How many sectors of the range lie there, one after the other; not zero.
    pub left: Sectors,
}

/// The most places that [`gather`] looks at for one answer: some milliseconds.
const MOST_PLACES: usize = 1 << 14;

/// What is known of a range of a layer whose sectors lie on `devices` lower devices, each with as many of them; see
/// [`BlockDevice::extents`](crate::device::BlockDevice::extents). `place` finds a sector of the layer, and `ask` asks a lower device, which may
/// answer for a shorter range. Of a device that fails nothing is known.
pub async fn gather<K: Copy + PartialEq>(
    at: Sector,
    len: Sectors,
    devices: usize,
    place: impl Fn(Sector) -> Place<K>,
    ask: impl AsyncFn(K, Sector, Sectors) -> Result<Extents, Status>,
) -> Extents {
    let (mut at, end) = (at, at + len);
    let mut extents = Extents::new(at);
    // The last answer of each device.
    let mut known: Vec<(K, Extents)> = Vec::new();
    for _ in 0..MOST_PLACES {
        if at >= end || extents.end() < at {
            break;
        }
        let Place { on, left } = place(at);
        let left = left.min(end - at);
        let (state, same) = match on {
            None => (ExtentState::empty(), left),
            Some((key, sector)) => {
                let index = known.iter().position(|(other, _)| *other == key);
                let found = index.and_then(|index| known[index].1.state(sector));
                match found {
                    Some(found) => found,
                    None => {
                        let ahead = Sectors((end - at).0 / devices.max(1) as u64).max(left);
                        let answer = ask(key, sector, ahead).await;
                        let answer = answer.unwrap_or_else(|_| Extents::data(sector, ahead));
                        let found = answer.state(sector);
                        match index {
                            Some(index) => known[index].1 = answer,
                            None => known.push((key, answer)),
                        }
                        found.unwrap_or((ExtentState::empty(), left))
                    }
                }
            }
        };
        at += same.min(left);
        extents.extend_to(at, state);
    }
    extents
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

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

    #[test]
    fn the_state_of_each_sector_is_that_of_its_part() {
        let mut extents = Extents::new(Sector(8));
        extents.extend_to(Sector(12), ExtentState::HOLE);
        extents.extend_to(Sector(20), ExtentState::ZERO);
        for (at, want) in [
            (7, None),
            (8, Some((ExtentState::HOLE, Sectors(4)))),
            (11, Some((ExtentState::HOLE, Sectors(1)))),
            (12, Some((ExtentState::ZERO, Sectors(8)))),
            (20, None),
        ] {
            assert_eq!(extents.state(Sector(at)), want, "{at}");
        }
        let moved = extents.clone().moved_to(Sector(0));
        assert_eq!(moved.iter().collect::<Vec<_>>(), extents.iter().collect::<Vec<_>>());
        assert_eq!((moved.start(), moved.end()), (Sector(0), Sector(12)));
    }

    /// Chunks of `chunk` sectors are dealt out to `count` devices, one of which fails; each device answers for at most `most` parts.
    fn striped(count: u64, chunk: u64, most: u64, fails: Option<u64>) {
        // Sector s of device d is a hole if bit (s + d) of this is set.
        let is_hole =
            |device: u64, sector: u64| 0xb38f_0f01_u64 >> ((sector + device) % 32) & 1 == 1;
        let state = |device, sector| match is_hole(device, sector) && fails != Some(device) {
            true => ExtentState::HOLE,
            false => ExtentState::empty(),
        };
        let place = |at: Sector| {
            let (row, within) = (at.0 / chunk, at.0 % chunk);
            let on = Some((row % count, Sector(row / count * chunk + within)));
            Place { on, left: Sectors(chunk - within) }
        };
        let asked = std::cell::Cell::new(0_u64);
        let ask = async |device: u64, at: Sector, len: Sectors| {
            asked.set(asked.get() + 1);
            if fails == Some(device) {
                return Err(Status::Io);
            }
            let mut answer = Extents::new(at);
            for sector in at.0..(at.0 + len.0.min(most)) {
                answer.extend_to(Sector(sector + 1), state(device, sector));
            }
            Ok(answer)
        };
        let (start, end) = (3, 3 + 8 * count * chunk);
        let mut at = start;
        while at < end {
            let found = gather(Sector(at), Sectors(end - at), count as usize, place, ask);
            let found = found.now_or_never().expect("nothing waits");
            assert!(found.start().0 == at && found.end().0 > at && found.end().0 <= end);
            for sector in at..found.end().0 {
                let (device, on) = place(Sector(sector)).on.unwrap();
                let (found, _) = found.state(Sector(sector)).unwrap();
                assert_eq!(found, state(device, on.0), "{count} x {chunk}: {sector}");
            }
            at = found.end().0;
        }
        if most == u64::MAX {
            assert!(asked.get() <= 2 * count, "{count} x {chunk}: asked {} times", asked.get());
        }
    }

    #[test]
    fn the_parts_of_a_layer_are_those_of_its_devices() {
        for count in 1..=4 {
            for chunk in [1, 2, 3, 8] {
                for most in [1, 3, u64::MAX] {
                    striped(count, chunk, most, None);
                    striped(count, chunk, most, Some(count - 1));
                }
            }
        }
    }

    #[test]
    fn one_answer_looks_at_so_many_places() {
        let place = |at| Place { on: Some(((), at)), left: Sectors(1) };
        let ask = async |(), at: Sector, len: Sectors| Ok(Extents::data(at, len));
        let found = gather(Sector(5), Sectors(1 << 30), 1, place, ask).now_or_never().unwrap();
        assert_eq!(found.end(), Sector(5 + MOST_PLACES as u64));
        let nowhere = |_| Place::<()> { on: None, left: Sectors(1 << 20) };
        let found = gather(Sector(5), Sectors(1 << 30), 1, nowhere, ask).now_or_never().unwrap();
        assert_eq!(found, Extents::data(Sector(5), Sectors(1 << 30)));
    }
}
