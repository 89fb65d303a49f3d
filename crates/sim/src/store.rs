//! Sparse contents of a disk.
//!
//! A range of sectors holds what one write brought, which all stores share that hold it, or zeroes, or noise
//! that is computed from a seed. So a write of many sectors costs one entry and no copy, and so does a discard of
//! terabytes; and undefined contents are arbitrary, but the same at every read.

use std::ops::Range;
use std::sync::Arc;

use rangemap::RangeMap;

use crate::rng::mix;

/// The contents of one sector.
pub type SectorData = [u8; 512];

/// The contents of sectors that were not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Zeroes.
    Zero,
    /// Arbitrary bytes that depend on this seed and the sector.
    Noise(u64),
}

impl Fill {
    /// The contents of one sector.
    pub fn sector(self, sector: u64) -> SectorData {
        let mut data = [0; 512];
        if let Self::Noise(seed) = self {
            let mut word = mix(seed ^ mix(sector));
            for chunk in data.chunks_exact_mut(8) {
                word = mix(word.wrapping_add(0x9e37_79b9_7f4a_7c15));
                chunk.copy_from_slice(&word.to_le_bytes());
            }
        }
        data
    }
}

/// What a range of sectors holds.
#[derive(Clone)]
enum Content {
    /// The data of one write, whose first sector is `first`.
    Data {
        first: u64,
        data: Arc<[SectorData]>,
    },
    Fill(Fill),
}

impl Content {
    /// The data of `part`, a part of its range, if they were written.
    fn written(&self, part: Range<u64>) -> Option<&[SectorData]> {
        match self {
            Self::Data { first, data } => {
                Some(&data[(part.start - first) as usize..(part.end - first) as usize])
            }
            Self::Fill(_) => None,
        }
    }

    fn sector(&self, sector: u64) -> SectorData {
        match self {
            Self::Data { first, data } => data[(sector - first) as usize],
            Self::Fill(fill) => fill.sector(sector),
        }
    }
}

/// Whether the two are the same without a look at the bytes.
impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fill(fill), Self::Fill(other)) => fill == other,
            (Self::Data { first, data }, Self::Data { first: other_first, data: other }) => {
                first == other_first && Arc::ptr_eq(data, other)
            }
            (Self::Data { .. }, Self::Fill(_)) | (Self::Fill(_), Self::Data { .. }) => false,
        }
    }
}

impl Eq for Content {}

/// Sparse contents; cloning copies no data.
#[derive(Clone)]
pub struct Store {
    contents: RangeMap<u64, Content>,
    /// What all other sectors hold.
    background: Content,
}

impl Store {
    /// A store with `fill` everywhere.
    pub fn new(fill: Fill) -> Self {
        Self { contents: RangeMap::new(), background: Content::Fill(fill) }
    }

    /// The contents of a sector.
    pub fn get(&self, sector: u64) -> SectorData {
        self.contents.get(&sector).unwrap_or(&self.background).sector(sector)
    }

    /// `range` in parts, in order, each with what it holds.
    fn parts(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &Content)> {
        let end = range.end;
        let mut at = range.start;
        let within = self.contents.overlapping(range.clone());
        let clip = move |(part, content): (&Range<u64>, _)| {
            (part.start.max(range.start)..part.end.min(end), content)
        };
        let mut known = within.map(clip).peekable();
        std::iter::from_fn(move || {
            let next = known.peek().map_or(end, |(part, _)| part.start);
            let (part, content) = match at < next {
                true => (at..next, &self.background),
                false => known.next()?,
            };
            at = part.end;
            Some((part, content))
        })
    }

    /// Appends the contents of `range` to `out`.
    pub fn read(&self, range: Range<u64>, out: &mut Vec<u8>) {
        for (part, content) in self.parts(range) {
            match content.written(part.clone()) {
                Some(data) => out.extend_from_slice(data.as_flattened()),
                None => part.for_each(|sector| out.extend_from_slice(&content.sector(sector))),
            }
        }
    }

    fn set(&mut self, range: Range<u64>, content: Content) {
        // The map refuses it.
        if !range.is_empty() {
            self.contents.insert(range, content);
        }
    }

    /// Replaces the contents of `range` by its part of `data`, whose first sector is `first`.
    pub fn write(&mut self, range: Range<u64>, first: u64, data: &Arc<[SectorData]>) {
        self.set(range, Content::Data { first, data: Arc::clone(data) });
    }

    /// Replaces the contents of `range` by `fill`.
    pub fn fill(&mut self, range: Range<u64>, fill: Fill) {
        self.set(range, Content::Fill(fill));
    }

    /// The ranges of sectors within `[0, capacity)` that differ from `other`.
    pub fn diff(&self, other: &Self, capacity: u64) -> Vec<Range<u64>> {
        let mut out: Vec<Range<u64>> = Vec::new();
        let mut add = |part: Range<u64>| match out.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            Some(_) | None => out.push(part),
        };
        for (part, content) in self.parts(0..capacity) {
            for (part, other) in other.parts(part) {
                match (content, other) {
                    _ if content == other => {}
                    (Content::Fill(_), Content::Fill(_)) => add(part),
                    _ => part
                        .filter(|at| content.sector(*at) != other.sector(*at))
                        .for_each(|at| add(at..at + 1)),
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn it_agrees_with_an_array_and_diff_finds_every_change() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let mut store = Store::new(Fill::Zero);
            let mut naive = vec![[0u8; 512]; 64];
            let mut old = (store.clone(), naive.clone());
            for step in 0..60u64 {
                let start = rng.below(64);
                let end = start + rng.below(65 - start);
                match rng.below(4) {
                    0 => {
                        store.fill(start..end, Fill::Noise(step));
                        for s in start..end {
                            naive[s as usize] = Fill::Noise(step).sector(s);
                        }
                    }
                    1 => {
                        store.fill(start..end, Fill::Zero);
                        naive[start as usize..end as usize].fill([0; 512]);
                    }
                    2 => old = (store.clone(), naive.clone()),
                    _ => {
                        let new = rng.next_u64();
                        let data: Arc<[SectorData]> =
                            (0..64).map(|s| Fill::Noise(new).sector(s)).collect();
                        // The data of a write begin before the part that reaches the disk.
                        let first = start - rng.below(start + 1);
                        store.write(start..end, first, &data);
                        let (from, len) = ((start - first) as usize, (end - start) as usize);
                        naive[start as usize..end as usize]
                            .copy_from_slice(&data[from..from + len]);
                    }
                }
                for (s, want) in naive.iter().enumerate() {
                    assert_eq!(&store.get(s as u64), want, "seed {seed} sector {s}");
                }
                let mut read = Vec::new();
                store.read(start..end, &mut read);
                assert_eq!(read, naive[start as usize..end as usize].as_flattened(), "seed {seed}");
                let mut differs = [false; 64];
                for part in store.diff(&old.0, 64) {
                    differs[part.start as usize..part.end as usize].fill(true);
                }
                for s in 0..64 {
                    assert_eq!(differs[s], naive[s] != old.1[s], "seed {seed} sector {s}");
                }
            }
        }
    }

    #[test]
    fn terabytes_cost_nothing() {
        let mut store = Store::new(Fill::Noise(1));
        let before = store.clone();
        store.fill(8..1 << 40, Fill::Zero);
        assert_eq!(store.get(1 << 39), [0; 512]);
        let changed = 8..1 << 40;
        assert_eq!(store.diff(&before, 1 << 41), std::slice::from_ref(&changed));
    }
}
