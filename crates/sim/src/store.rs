//! Sparse contents of a disk.
//!
//! Written sectors are in pages that snapshots share until they change. All other sectors are
//! background: zeroes, or noise that is computed from a seed. So a discard of terabytes costs one
//! entry, and undefined contents are arbitrary, but the same at every read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::ranges::RangeMap;
use crate::rng::mix;

/// The contents of one sector.
pub type SectorData = [u8; 512];

const PAGE_SECTORS: u64 = 8;

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

#[derive(Clone)]
struct Page {
    /// Bit mask of its written sectors.
    valid: u8,
    data: [SectorData; PAGE_SECTORS as usize],
}

/// Sparse contents; cloning is cheap.
#[derive(Clone)]
pub struct Store {
    pages: BTreeMap<u64, Arc<Page>>,
    background: RangeMap<Fill>,
    fill: Fill,
}

const fn place(sector: u64) -> (u64, usize) {
    (sector / PAGE_SECTORS, (sector % PAGE_SECTORS) as usize)
}

impl Store {
    /// A store with `fill` everywhere.
    pub fn new(fill: Fill) -> Self {
        Self { pages: BTreeMap::new(), background: RangeMap::default(), fill }
    }

    fn written(&self, sector: u64) -> Option<&SectorData> {
        let (page, i) = place(sector);
        let page = self.pages.get(&page)?;
        (page.valid & 1 << i != 0).then(|| &page.data[i])
    }

    fn background(&self, sector: u64) -> Fill {
        self.background.get(sector).unwrap_or(self.fill)
    }

    /// The contents of a sector.
    pub fn get(&self, sector: u64) -> SectorData {
        match self.written(sector) {
            Some(data) => *data,
            None => self.background(sector).sector(sector),
        }
    }

    /// Writes a sector.
    pub fn set(&mut self, sector: u64, data: &SectorData) {
        let (page, i) = place(sector);
        let page = self.pages.entry(page).or_insert_with(|| {
            Arc::new(Page { valid: 0, data: [[0; 512]; PAGE_SECTORS as usize] })
        });
        let page = Arc::make_mut(page);
        page.valid |= 1 << i;
        page.data[i] = *data;
    }

    /// Replaces the contents of `range` by `fill`.
    pub fn fill(&mut self, range: Range<u64>, fill: Fill) {
        if range.is_empty() {
            return;
        }
        let pages = range.start / PAGE_SECTORS..range.end.div_ceil(PAGE_SECTORS);
        let touched: Vec<u64> = self.pages.range(pages).map(|(page, _)| *page).collect();
        for number in touched {
            let first = number * PAGE_SECTORS;
            let mut keep = 0;
            for i in 0..PAGE_SECTORS {
                if !range.contains(&(first + i)) {
                    keep |= 1 << i;
                }
            }
            if let Some(page) = self.pages.get_mut(&number) {
                if page.valid & keep == 0 {
                    self.pages.remove(&number);
                } else {
                    Arc::make_mut(page).valid &= keep;
                }
            }
        }
        self.background.set(range, fill);
    }

    /// The ranges of sectors within `[0, capacity)` that differ from `other`.
    pub fn diff(&self, other: &Self, capacity: u64) -> Vec<Range<u64>> {
        let mut out: Vec<Range<u64>> = Vec::new();
        let mut add = |part: Range<u64>| match out.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            Some(_) | None => out.push(part),
        };
        let mut at = 0;
        while at < capacity {
            let here = (self.written(at), other.written(at));
            if matches!(here, (None, None)) {
                let end = self.plain_end(at).min(other.plain_end(at)).min(capacity);
                if self.background(at) != other.background(at) {
                    add(at..end);
                }
                at = end;
                continue;
            }
            let same_page = match (self.pages.get(&place(at).0), other.pages.get(&place(at).0)) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b) && a.valid == u8::MAX,
                (Some(_) | None, None) | (None, Some(_)) => false,
            };
            if same_page {
                at = (place(at).0 + 1) * PAGE_SECTORS;
                continue;
            }
            if self.get(at) != other.get(at) {
                add(at..at + 1);
            }
            at += 1;
        }
        out
    }

    /// Where the unwritten background at `at` ends.
    fn plain_end(&self, at: u64) -> u64 {
        let (page, _) = place(at);
        let next_page =
            self.pages.range(page + 1..).next().map_or(u64::MAX, |(n, _)| n * PAGE_SECTORS);
        let end = if self.pages.contains_key(&page) { at + 1 } else { next_page };
        let next = self.background.within(at..u64::MAX).next();
        match next {
            Some((part, _)) if part.start == at => end.min(part.end),
            Some((part, _)) => end.min(part.start),
            None => end,
        }
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
                        let data = Fill::Noise(rng.next_u64()).sector(0);
                        store.set(start, &data);
                        naive[start as usize] = data;
                    }
                }
                for (s, want) in naive.iter().enumerate() {
                    assert_eq!(&store.get(s as u64), want, "seed {seed} sector {s}");
                }
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
