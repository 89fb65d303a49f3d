//! RAID 10 as md(4) describes it: chunks are dealt over a grid of members and rows, and the grid is
//! repeated. Uses only lists, no formulas of the crate.

use ashlar_block::units::Sectors;
use ashlar_md::internals::raid10::{Geometry, GeometryError};

/// One combination of layout and members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) disks: usize,
    pub(crate) near: usize,
    pub(crate) far: usize,
    pub(crate) offset: bool,
    /// Far-set mode, bits 17 and 18 of the layout word.
    pub(crate) mode: u32,
}

/// The places of all copies. Sectors of 512 bytes, positions in the members' data areas.
pub(crate) struct Oracle {
    /// The copies (member, sector) of each array sector: near copy by near copy, each followed by its
    /// repetitions.
    pub(crate) copies: Vec<Vec<(usize, u64)>>,
    /// For each member and sector, the array sector that it holds.
    pub(crate) owner: Vec<Vec<Option<u64>>>,
}

impl Case {
    /// Every layout with at least two copies on 2 to `max_disks` members.
    pub(crate) fn all(max_disks: usize) -> Vec<Self> {
        let mut cases = Vec::new();
        for disks in 2..=max_disks {
            for near in 1..=disks {
                for far in 1..=disks / near {
                    for offset in [false, true] {
                        for mode in 0..3 {
                            if near * far > 1 {
                                cases.push(Self { disks, near, far, offset, mode });
                            }
                        }
                    }
                }
            }
        }
        cases
    }

    /// The cases of [`all`](Self::all) that are possible arrays.
    pub(crate) fn legal(max_disks: usize) -> Vec<Self> {
        let mut cases = Self::all(max_disks);
        cases.retain(|c| !c.offset_runs_over() && !c.far_sets_collide());
        cases
    }

    pub(crate) fn bits(self) -> u32 {
        self.near as u32 | (self.far as u32) << 8 | u32::from(self.offset) << 16 | self.mode << 17
    }

    pub(crate) fn geometry(self, chunk: u64, dev: u64) -> Result<Geometry, GeometryError> {
        Geometry::new(self.bits(), self.disks, Sectors(chunk), Sectors(dev))
    }

    /// The sets of members within which repetitions are shifted.
    pub(crate) fn far_sets(self) -> Vec<Vec<usize>> {
        let size = match self.mode {
            0 => self.disks,
            1 => self.disks / self.far,
            _ => self.near * self.far,
        };
        let mut sets: Vec<Vec<usize>> = Vec::new();
        for disk in 0..self.disks {
            let full = sets.last().is_none_or(|s| s.len() == size);
            if full && self.disks - disk >= size {
                sets.push(Vec::new());
            }
            sets.last_mut().expect("a set").push(disk);
        }
        sets
    }

    /// Whether near copies that continue in the next row hit a repetition of the first.
    pub(crate) fn offset_runs_over(self) -> bool {
        self.offset && self.far > 1 && !self.disks.is_multiple_of(self.near)
    }

    /// Whether the kernel's rule shifts copies out of their far set, onto places that are taken.
    pub(crate) fn far_sets_collide(self) -> bool {
        let sets = self.far_sets();
        self.far > 1
            && self.near > 1
            && sets.len() > 1
            && sets[0].len() != sets[sets.len() - 1].len()
    }

    pub(crate) fn oracle(self, chunk: u64, dev: u64) -> Oracle {
        // The base area: cards, each chunk `near` times, dealt row by row.
        let rows = dev / chunk / self.far as u64;
        let cells = rows as usize * self.disks;
        let chunks = cells / self.near;
        let mut cards: Vec<Option<(usize, usize)>> = Vec::new();
        for c in 0..chunks {
            for n in 0..self.near {
                cards.push(Some((c, n)));
            }
        }
        cards.resize(cells, None);
        let base: Vec<Vec<_>> = cards.chunks(self.disks).map(<[_]>::to_vec).collect();

        // The repetitions of a row: shifted right by `near` members within each set.
        let repeated = |row: &Vec<Option<(usize, usize)>>, times: usize| {
            let mut moved = row.clone();
            for set in self.far_sets() {
                let mut part: Vec<_> = set.iter().map(|&d| row[d]).collect();
                let by = self.near * times % part.len();
                part.rotate_right(by);
                for (d, card) in set.into_iter().zip(part) {
                    moved[d] = card;
                }
            }
            moved
        };
        let mut grid: Vec<(usize, Vec<_>)> = Vec::new();
        if self.offset {
            for row in &base {
                grid.extend((0..self.far).map(|f| (f, repeated(row, f))));
            }
        } else {
            for f in 0..self.far {
                grid.extend(base.iter().map(|row| (f, repeated(row, f))));
            }
        }

        let sectors = chunks * chunk as usize;
        let mut copies = vec![vec![(usize::MAX, 0); self.near * self.far]; sectors];
        let mut owner = vec![vec![None; dev as usize]; self.disks];
        for (y, (f, row)) in grid.iter().enumerate() {
            for (disk, card) in row.iter().enumerate() {
                let Some((c, n)) = *card else { continue };
                for i in 0..chunk {
                    let logical = c as u64 * chunk + i;
                    let at = y as u64 * chunk + i;
                    copies[logical as usize][n * self.far + f] = (disk, at);
                    assert_eq!(owner[disk][at as usize].replace(logical), None);
                }
            }
        }
        Oracle { copies, owner }
    }
}
