//! Free extents of a group, and their allocation to new or growing volumes.
//!
//! The order of attempts is LVM's (`_allocate` in `lib/metadata/lv_manip.c`): in one piece,
//! directly after the last extent if the volume grows; then on the same physical volumes; then, for
//! `normal`, piece by piece, always the largest free one, so that volumes have few segments.

use std::ops::Range;

use ashlar_block::Sectors;
use thiserror::Error;

use crate::metadata::{Area, PvExtents, Segment, SegmentKind, StripeAreas, VolumeGroup};

/// Free extents of each physical volume of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FreeMap {
    /// By physical volume, in ascending order; adjacent ranges are joined.
    free: Vec<Vec<Range<u32>>>,
}

/// How pieces are placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Each stripe in one piece, an extension directly after the existing extents.
    Contiguous,
    /// An extension on the physical volumes at the volume's end, in any pieces.
    Cling,
    /// Any pieces; stripes on different physical volumes.
    #[default]
    Normal,
}

/// An allocation request.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Total extents of all stripes: a multiple of their number.
    pub extents: u32,
    /// Number of stripes; one: linear.
    pub stripes: u32,
    /// Stripe size, for more than one stripe.
    pub stripe_size: Sectors,
    /// The placement policy.
    pub policy: Policy,
    /// Physical volumes to use, by index; empty: all allocatable ones.
    pub only: Vec<usize>,
}

/// A physical volume of a group, or ranges of its extents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PvPart {
    /// Its index in the group.
    pub pv: usize,
    /// The extents; none: all.
    pub ranges: Vec<Range<u32>>,
}

impl PvPart {
    /// The ranges of these extents that belong to it.
    pub(crate) fn part_of(&self, on: PvExtents) -> Vec<Range<u32>> {
        match on.pv == self.pv {
            true => self.common(&(on.start..on.start + on.count)),
            false => Vec::new(),
        }
    }

    /// The ranges of `within` that belong to it, in the order of [`Self::ranges`].
    pub(crate) fn common(&self, within: &Range<u32>) -> Vec<Range<u32>> {
        if self.ranges.is_empty() {
            return vec![within.clone()];
        }
        let cut = |range: &Range<u32>| range.start.max(within.start)..range.end.min(within.end);
        self.ranges.iter().map(cut).filter(|range| !range.is_empty()).collect()
    }
}

/// Why an allocation failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AllocError {
    /// Not enough extents.
    #[error("{wanted} extents are needed, {free} are free")]
    NoSpace {
        /// Requested extents.
        wanted: u32,
        /// Free extents on all usable physical volumes.
        free: u64,
    },
    /// There are enough free extents, but the placement is impossible.
    #[error(
        "{wanted} extents are free, but not as requested: {stripes} stripes on different physical volumes, \
         placed as \"{policy}\""
    )]
    NotSo {
        /// Requested extents.
        wanted: u32,
        /// Requested stripes.
        stripes: u32,
        /// LVM's name for the policy.
        policy: &'static str,
    },
    /// The extents cannot be divided by the stripes.
    #[error("{extents} extents cannot be divided into {stripes} stripes")]
    Stripes {
        /// Requested extents.
        extents: u32,
        /// Requested stripes.
        stripes: u32,
    },
}

impl Policy {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::Cling => "cling",
            Self::Normal => "normal",
        }
    }
}

impl Wish {
    /// A linear volume of this size, with LVM's default placement.
    pub fn linear(extents: u32) -> Self {
        Self { extents, stripes: 1, stripe_size: Sectors(0), policy: Policy::Normal, only: vec![] }
    }

    /// A striped volume of this size.
    pub fn striped(extents: u32, stripes: u32, stripe_size: Sectors) -> Self {
        Self { stripes, stripe_size, ..Self::linear(extents) }
    }
}

impl VolumeGroup {
    /// The extents of all physical volumes that no logical volume uses.
    pub fn free_map(&self) -> FreeMap {
        let mut used: Vec<PvExtents> = self.lvs.iter().flat_map(|lv| lv.pv_extents()).collect();
        used.sort_unstable();
        let mut used = used.into_iter().peekable();
        let mut free = Vec::with_capacity(self.pvs.len());
        for (index, pv) in self.pvs.iter().enumerate() {
            let mut ranges = Vec::new();
            let mut at = 0;
            while let Some(on) = used.next_if(|on| on.pv == index) {
                if at < on.start {
                    ranges.push(at..on.start);
                }
                at = at.max(on.start.saturating_add(on.count));
            }
            if at < pv.pe_count {
                ranges.push(at..pv.pe_count);
            }
            free.push(ranges);
        }
        FreeMap { free }
    }

    /// Number of free extents on allocatable physical volumes.
    pub fn free_extents(&self) -> u64 {
        let map = self.free_map();
        let usable = (0..self.pvs.len()).filter(|pv| self.pvs[*pv].is_allocatable());
        usable.map(|pv| map.on(pv)).sum()
    }

    /// Allocates segments for a new volume, or for a growing one that ends with `after`. They begin
    /// at extent 0 of the new part; [`LogicalVolume::extend`](crate::LogicalVolume::extend) sets
    /// their starts.
    ///
    /// # Errors
    /// The request cannot be satisfied.
    pub fn allocate(
        &self,
        wish: &Wish,
        after: Option<&Segment>,
    ) -> Result<Vec<Segment>, AllocError> {
        let mut map = self.free_map();
        for (index, pv) in self.pvs.iter().enumerate() {
            let wanted = wish.only.is_empty() || wish.only.contains(&index);
            if !wanted || !pv.is_allocatable() {
                map.free[index].clear();
            }
        }
        map.allocate(wish, after)
    }
}

impl FreeMap {
    /// Free extents of a physical volume.
    pub fn on(&self, pv: usize) -> u64 {
        self.ranges(pv).iter().map(|range| u64::from(range.end - range.start)).sum()
    }

    /// The free ranges of a physical volume, ascending.
    pub fn ranges(&self, pv: usize) -> &[Range<u32>] {
        self.free.get(pv).map_or(&[], Vec::as_slice)
    }

    /// Free extents of all physical volumes.
    pub fn total(&self) -> u64 {
        (0..self.free.len()).map(|pv| self.on(pv)).sum()
    }

    /// Keeps the extents of these parts alone.
    pub(crate) fn restrict(&mut self, parts: &[PvPart]) {
        for (pv, free) in self.free.iter_mut().enumerate() {
            let both = |range: &Range<u32>| {
                let of = parts.iter().filter(move |part| part.pv == pv);
                of.flat_map(|part| part.common(range)).collect::<Vec<_>>()
            };
            let mut kept: Vec<Range<u32>> = free.iter().flat_map(both).collect();
            kept.sort_unstable_by_key(|range| range.start);
            // Parts may overlap.
            kept.dedup_by(|next, last| {
                let joins = next.start <= last.end;
                last.end = if joins { last.end.max(next.end) } else { last.end };
                joins
            });
            *free = kept;
        }
    }

    /// Takes up to `most` extents in one piece, on none of the physical volumes in `apart_from`: all of them on the first physical
    /// volume that has them so, else the largest piece.
    pub(crate) fn take_piece(&mut self, most: u32, apart_from: &[usize]) -> Option<PvExtents> {
        let others: Vec<usize> =
            (0..self.free.len()).filter(|pv| !apart_from.contains(pv)).collect();
        let fits = |pv: &usize| {
            let whole = self.ranges(*pv).iter().find(|range| range.end - range.start >= most)?;
            Some(PvExtents { pv: *pv, start: whole.start, count: most })
        };
        let piece = others
            .iter()
            .find_map(fits)
            .or_else(|| self.largest(Some(&others)).first().copied())?;
        self.take(piece);
        Some(piece)
    }

    fn take(&mut self, on: PvExtents) {
        let ranges = &mut self.free[on.pv];
        let end = on.start + on.count;
        let Some(at) = ranges.iter().position(|range| range.start <= on.start && end <= range.end)
        else {
            return;
        };
        let Range { start, end: last } = ranges[at].clone();
        let rest = [start..on.start, end..last];
        ranges.splice(at..=at, rest.into_iter().filter(|range| !range.is_empty()));
    }

    /// The largest free range of each physical volume, largest first; of equal ones, the first.
    fn largest(&self, only: Option<&[usize]>) -> Vec<PvExtents> {
        let mut best: Vec<PvExtents> = Vec::new();
        for (pv, ranges) in self.free.iter().enumerate() {
            if only.is_some_and(|only| !only.contains(&pv)) {
                continue;
            }
            let sizes =
                ranges.iter().map(|r| PvExtents { pv, start: r.start, count: r.end - r.start });
            best.extend(sizes.rev().max_by_key(|on| on.count));
        }
        best.sort_by_key(|on| std::cmp::Reverse(on.count));
        best
    }

    /// Allocates the request from the map.
    fn allocate(
        &mut self,
        wish: &Wish,
        after: Option<&Segment>,
    ) -> Result<Vec<Segment>, AllocError> {
        let Wish { extents, stripes, policy, .. } = *wish;
        if stripes == 0 || extents == 0 || !extents.is_multiple_of(stripes) {
            return Err(AllocError::Stripes { extents, stripes });
        }
        if self.total() < extents.into() {
            return Err(AllocError::NoSpace { wanted: extents, free: self.total() });
        }
        let mut left = extents / stripes;
        let mut rows: Vec<Vec<PvExtents>> = Vec::new();
        let last: Vec<PvExtents> =
            after.map(|last| last.pv_extents().collect()).unwrap_or_default();
        let last = if last.len() == stripes as usize { last } else { Vec::new() };
        let mut put = |map: &mut Self, row: Vec<PvExtents>, left: &mut u32| {
            row.iter().for_each(|on| map.take(*on));
            *left -= row[0].count;
            rows.push(row);
        };
        if !last.is_empty() {
            let row = self.behind(&last, left);
            let whole = row.first().is_some_and(|on| on.count == left);
            // Take what fits after the last extent, and the rest from elsewhere if the policy allows it.
            if whole || !row.is_empty() && policy != Policy::Contiguous {
                put(self, row, &mut left);
            }
            let same: Vec<usize> = last.iter().map(|on| on.pv).collect();
            while left > 0 && policy != Policy::Contiguous {
                let Some(row) = self.clinging(&same, left) else { break };
                put(self, row, &mut left);
            }
        } else if let Some(row) = self.row(stripes, left, None).filter(|row| row[0].count == left) {
            put(self, row, &mut left);
        }
        let anywhere = policy == Policy::Normal || policy == Policy::Cling && last.is_empty();
        while left > 0 && anywhere {
            let Some(row) = self.row(stripes, left, None) else { break };
            put(self, row, &mut left);
        }
        if left > 0 {
            return Err(AllocError::NotSo { wanted: extents, stripes, policy: policy.word() });
        }
        Ok(segments(&rows, wish))
    }

    /// The extents directly after those of a segment, of equal length and at most `most`; empty if
    /// one of them has no free extents after it.
    fn behind(&self, last: &[PvExtents], most: u32) -> Vec<PvExtents> {
        let mut row = Vec::new();
        for on in last {
            let start = on.start.saturating_add(on.count);
            let range = self.ranges(on.pv).iter().find(|range| range.start == start);
            let Some(range) = range else { return Vec::new() };
            row.push(PvExtents { pv: on.pv, start, count: (range.end - start).min(most) });
        }
        equal(row)
    }

    /// The largest pieces of exactly these physical volumes, in their order.
    fn clinging(&self, pvs: &[usize], most: u32) -> Option<Vec<PvExtents>> {
        let mut row = Vec::new();
        for pv in pvs {
            let best = *self.largest(Some(&[*pv])).first()?;
            row.push(PvExtents { count: best.count.min(most), ..best });
        }
        // Two stripes of one physical volume cannot share a piece.
        let distinct = pvs.iter().collect::<std::collections::HashSet<_>>().len() == pvs.len();
        distinct.then(|| equal(row))
    }

    /// The largest pieces of `stripes` different physical volumes.
    fn row(&self, stripes: u32, most: u32, only: Option<&[usize]>) -> Option<Vec<PvExtents>> {
        let mut row = self.largest(only);
        if row.len() < stripes as usize {
            return None;
        }
        row.truncate(stripes as usize);
        for on in &mut row {
            on.count = on.count.min(most);
        }
        row = equal(row);
        // Pieces that are cut to one length keep the order of physical volumes.
        if row.iter().all(|on| on.count == most) {
            row.sort_unstable();
        }
        Some(row)
    }
}

/// Cuts all pieces to the length of the shortest.
fn equal(mut row: Vec<PvExtents>) -> Vec<PvExtents> {
    let count = row.iter().map(|on| on.count).min().unwrap_or(0);
    row.iter_mut().for_each(|on| on.count = count);
    row
}

/// One segment per row of areas.
fn segments(rows: &[Vec<PvExtents>], wish: &Wish) -> Vec<Segment> {
    let stripe_size = (wish.stripes > 1).then_some(wish.stripe_size);
    let mut start = 0;
    let mut segments = Vec::with_capacity(rows.len());
    for row in rows {
        let areas: Vec<Area> = row.iter().map(|on| Area::on_pv(on.pv, on.start)).collect();
        let count = row[0].count * wish.stripes;
        let kind = SegmentKind::Striped(StripeAreas { stripe_size, areas });
        segments.push(Segment::new(start, count, kind));
        start += count;
    }
    segments
}
