//! Where on the device, and when: a grid of bounded size with cells that grow.

use std::collections::BTreeMap;

/// The most rows.
pub(crate) const ROWS: u64 = 72;

/// Cells that I/O touched, by row (sectors divided by the height of a row) and column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Marks {
    /// A row is `1 << shift` sectors high.
    shift: u32,
    /// The kinds of I/O in a cell, one bit each.
    cells: BTreeMap<(u64, u16), u8>,
    /// The first and the last row.
    rows: Option<(u64, u64)>,
}

impl Default for Marks {
    fn default() -> Self {
        // 4 KiB.
        Self { shift: 3, cells: BTreeMap::new(), rows: None }
    }
}

impl Marks {
    /// Marks `sectors` sectors at `sector`, at least one.
    pub(crate) fn add(&mut self, column: u16, sector: u64, sectors: u64, kind: usize) {
        let last = sector.saturating_add(sectors - 1);
        let (mut low, mut high) = (sector >> self.shift, last >> self.shift);
        let (mut first, mut end) = self.rows.unwrap_or((low, high));
        (first, end) = (first.min(low), end.max(high));
        let mut by = 0;
        while (end >> by) - (first >> by) >= ROWS {
            by += 1;
        }
        if by > 0 {
            self.shift += by;
            (low, high, first, end) = (low >> by, high >> by, first >> by, end >> by);
            self.regroup(|(row, column)| (row >> by, column));
        }
        self.rows = Some((first, end));
        for row in low..=high {
            *self.cells.entry((row, column)).or_default() |= 1 << kind;
        }
    }

    /// Two columns become one.
    pub(crate) fn halve_columns(&mut self) {
        self.regroup(|(row, column)| (row, column / 2));
    }

    fn regroup(&mut self, to: impl Fn((u64, u16)) -> (u64, u16)) {
        for (at, kinds) in std::mem::take(&mut self.cells) {
            *self.cells.entry(to(at)).or_default() |= kinds;
        }
    }

    /// The sectors of all rows: the first, and the one after the last.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        let (first, last) = self.rows?;
        Some((first << self.shift, (last + 1).saturating_mul(1 << self.shift)))
    }

    /// Height of a row, sectors.
    pub(crate) const fn row_sectors(&self) -> u64 {
        1 << self.shift
    }

    /// The marks of a kind as runs: row counted from the first one, first column, number of columns.
    pub(crate) fn runs(&self, kind: usize) -> Vec<(u64, u16, u16)> {
        let base = self.rows.map_or(0, |(first, _)| first);
        let mut all: Vec<(u64, u16, u16)> = Vec::new();
        for ((row, column), _) in self.cells.iter().filter(|(_, kinds)| **kinds >> kind & 1 == 1) {
            match all.last_mut() {
                Some((before, from, count))
                    if *before == row - base && *from + *count == *column =>
                {
                    *count += 1;
                }
                Some(_) | None => all.push((row - base, *column, 1)),
            }
        }
        all
    }
}
