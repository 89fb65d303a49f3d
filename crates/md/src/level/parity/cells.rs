//! Cells: a row cut where the writes of some of its chunks begin and end, so that in each cell a chunk is overwritten or not.

use std::ops::Range;

use ashlar_block::bio::Segments;
use ashlar_block::{Bio, Buffer, Flags, Sector, Sectors, Status, buffer};
use smallvec::{SmallVec, smallvec};

use crate::raid5::Geometry;

/// Part of a row: the same range of each of its chunks.
pub(super) struct Cell {
    /// Where it begins in the members' data areas.
    pub(super) at: Sector,
    pub(super) len: Sectors,
    /// What the data chunks of the row get, by their number in the row.
    pub(super) new: SmallVec<[Option<Segments>; 8]>,
    /// Modifiers of the writes.
    pub(super) flags: Flags,
    /// The writes that it is of, by their number.
    pub(super) writes: SmallVec<[usize; 4]>,
}

impl Cell {
    /// A copy of what a data chunk gets, if it gets something. A client may change its memory while it is written, and then parity would not
    /// fit.
    pub(super) fn copy(&self, index: usize) -> Result<Option<Buffer>, Status> {
        let Some(segments) = &self.new[index] else { return Ok(None) };
        let mut copy = Buffer::try_alloc(self.len.bytes() as usize).ok_or(Status::Resource)?;
        buffer::gather(segments, copy.as_mut_slice());
        Ok(Some(copy))
    }

    /// Whether a data chunk gets something.
    pub(super) fn overwrites(&self, index: usize) -> bool {
        self.new[index].is_some()
    }

    /// Its parts that a log can have as an entry: neighbouring chunks, or the whole row, and not more than `most` on each member.
    pub(super) fn loggable(&self, most: Sectors) -> SmallVec<[Cell; 1]> {
        let chunks = 0..self.new.len();
        let mut runs: SmallVec<[Range<usize>; 2]> = SmallVec::new();
        for index in chunks.filter(|index| self.overwrites(*index)) {
            match runs.last_mut() {
                Some(run) if run.end == index => run.end += 1,
                Some(_) | None => runs.push(index..index + 1),
            }
        }
        let is_whole = runs.first().is_some_and(|run| run.len() == self.new.len());
        let step = if is_whole { self.len } else { most };
        let mut parts = SmallVec::new();
        for run in &runs {
            let mut from = Sectors::ZERO;
            while from < self.len {
                let len = step.min(self.len - from);
                let part = |index: usize| {
                    let segments = self.new[index].clone().filter(|_| run.contains(&index))?;
                    let (all, at) = (Bio::write(self.at, segments), self.at + from);
                    Some(all.slice_to(at, len, at).segments)
                };
                parts.push(Cell {
                    at: self.at + from,
                    len,
                    new: (0..self.new.len()).map(part).collect(),
                    flags: self.flags,
                    writes: SmallVec::new(),
                });
                from += len;
            }
        }
        parts
    }

    fn may_take(&self, next: &Self) -> bool {
        let same =
            self.new.iter().zip(&next.new).all(|(one, other)| one.is_some() == other.is_some());
        self.at + self.len == next.at && same
    }

    fn take(&mut self, next: Self) {
        for (segments, more) in self.new.iter_mut().zip(next.new) {
            let Some((segments, more)) = segments.as_mut().zip(more) else { continue };
            for segment in more {
                match segments.last_mut() {
                    Some(last) if last.is_followed_by(&segment) => last.extend(&segment),
                    Some(_) | None => segments.push(segment),
                }
            }
        }
        self.len += next.len;
        self.flags |= next.flags;
        for write in next.writes {
            if !self.writes.contains(&write) {
                self.writes.push(write);
            }
        }
    }
}

/// What one write does to one chunk: from where to where in the chunk.
struct Stroke {
    index: usize,
    from: Sectors,
    to: Sectors,
    write: usize,
}

/// The cells of writes within one row, in their order. Where two writes overlap, the later one counts.
pub(super) fn cells(geometry: &Geometry, row: u64, writes: &[&Bio]) -> SmallVec<[Cell; 1]> {
    let (chunk, data_disks) = (geometry.chunk(), geometry.data_disks());
    let start = Sector(row * geometry.row_len().0);
    // Most writes are alone, and in one chunk.
    if let [bio] = writes
        && geometry.chunk_left(bio.sector) >= bio.len
    {
        let (index, from) = ((bio.sector - start).0 / chunk.0, (bio.sector - start).0 % chunk.0);
        let mut new: SmallVec<[Option<Segments>; 8]> = SmallVec::from_elem(None, data_disks);
        new[index as usize] = Some(bio.segments.clone());
        let at = Sector(row * chunk.0 + from);
        let cell = Cell { at, len: bio.len, new, flags: bio.flags, writes: smallvec![0] };
        return smallvec![cell];
    }
    let mut strokes = Vec::new();
    for (write, bio) in writes.iter().enumerate() {
        let mut at = bio.sector;
        while at < bio.end() {
            let len = geometry.chunk_left(at).min(bio.end() - at);
            let index = ((at - start).0 / chunk.0) as usize;
            let from = Sectors((at - start).0 % chunk.0);
            strokes.push(Stroke { index, from, to: from + len, write });
            at += len;
        }
    }
    let mut cuts: Vec<Sectors> = strokes.iter().flat_map(|one| [one.from, one.to]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut cells: SmallVec<[Cell; 1]> = SmallVec::new();
    for cut in cuts.windows(2) {
        let (from, to) = (cut[0], cut[1]);
        let mut cell = Cell {
            at: Sector(row * chunk.0) + from,
            len: to - from,
            new: SmallVec::from_elem(None, data_disks),
            flags: Flags::empty(),
            writes: SmallVec::new(),
        };
        for stroke in strokes.iter().filter(|one| one.from <= from && to <= one.to) {
            let bio = writes[stroke.write];
            let at = start + Sectors(chunk.0 * stroke.index as u64) + from;
            let part = bio.slice_to(at, cell.len, at);
            cell.new[stroke.index] = Some(part.segments);
            cell.flags |= part.flags;
            cell.writes.push(stroke.write);
        }
        if cell.writes.is_empty() {
            continue;
        }
        match cells.last_mut() {
            Some(last) if last.may_take(&cell) => last.take(cell),
            Some(_) | None => cells.push(cell),
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid5::ParityLevel;

    const CHUNK: u64 = 8;

    fn geometry() -> Geometry {
        Geometry::new(ParityLevel::Raid5, 2, 4, Sectors(CHUNK), Sectors(80)).unwrap()
    }

    fn bio(sector: u64, len: u64, fill: u8) -> Bio {
        let mut data = Buffer::from_slice(&vec![fill; len as usize * 512]);
        Bio::write_from(Sector(sector), &mut data)
    }

    /// The cells as (begin, length, first byte of each chunk).
    fn found(row: u64, writes: &[Bio]) -> Vec<(u64, u64, Vec<Option<u8>>)> {
        let writes: Vec<&Bio> = writes.iter().collect();
        let cells = cells(&geometry(), row, &writes);
        let byte = |cell: &Cell, index| {
            cell.copy(index).unwrap().map(|copy: Buffer| {
                assert_eq!(copy.len() as u64, cell.len.bytes());
                copy.as_slice()[0]
            })
        };
        cells
            .iter()
            .map(|cell| (cell.at.0, cell.len.0, (0..3).map(|index| byte(cell, index)).collect()))
            .collect()
    }

    #[test]
    fn a_row_is_one_cell() {
        assert_eq!(found(2, &[bio(48, 24, 7)]), [(16, 8, vec![Some(7); 3])]);
    }

    #[test]
    fn a_row_is_cut_where_a_write_begins_and_ends() {
        let one = |byte| (byte == 1).then_some(1);
        assert_eq!(
            found(0, &[bio(5, 14, 1)]),
            [
                (0, 3, vec![None, one(1), one(1)]),
                (3, 2, vec![None, one(1), None]),
                (5, 3, vec![one(1), one(1), None]),
            ]
        );
    }

    #[test]
    fn neighbours_become_one_and_fill_a_row() {
        let writes: Vec<Bio> = (0..24).map(|at| bio(at, 1, at as u8)).collect();
        let cells = found(0, &writes);
        assert_eq!(cells.len(), 1);
        assert_eq!((cells[0].0, cells[0].1), (0, 8));
        assert_eq!(cells[0].2, [Some(0), Some(8), Some(16)]);
    }

    #[test]
    fn of_writes_that_overlap_the_later_one_counts() {
        let cells = found(0, &[bio(0, 8, 1), bio(2, 2, 2)]);
        let row = |byte| vec![Some(byte), None, None];
        assert_eq!(cells, [(0, 8, row(1))]);
        let writes = [bio(0, 8, 1), bio(2, 2, 2)];
        let cells = super::cells(&geometry(), 0, &writes.iter().collect::<Vec<_>>());
        let copy = cells[0].copy(0).unwrap().unwrap();
        let fills: Vec<u8> = copy.as_slice().chunks(512).map(|sector| sector[0]).collect();
        assert_eq!(fills, [1, 1, 2, 2, 1, 1, 1, 1]);
        assert_eq!(cells[0].writes.as_slice(), [0, 1]);
    }
}
