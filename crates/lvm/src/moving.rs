//! Moves of extents between physical volumes: what `pvmove` does to a group.
//!
//! As in LVM, a hidden volume `pvmove0` has a segment for each piece: a mirror of the old place and the new one. The volumes
//! whose extents move are made of it meanwhile, and are locked. One mirror after the other is copied; when its two areas are equal, durably,
//! that is recorded, and from then on the new one counts.
//!
//! ```text
//!   lv       [ pv0:0 .. 12 | pv1:4 .. 8 ]           before, and after an abort
//!   lv       [ pvmove0:0 .. 12 | pv1:4 .. 8 ]       pvmove0 [ mirror of pv0:0 and pv2:0 ]
//!   lv       [ pv2:0 .. 12 | pv1:4 .. 8 ]           after the move
//! ```
//!
//! A crash leaves one of these on disk. Until a piece is recorded as moved, the old place has everything that was written: its copy
//! begins again.
//!
//! Source: `pvmove(8)`, and the texts that LVM 2.03 writes.

use std::collections::BTreeSet;
use std::ops::Range;

use ashlar_block::Sectors;

use crate::alloc::{AllocError, FreeMap, Policy, PvPart};
use crate::change::{Author, ChangeError, is_striped};
use crate::metadata::{
    Allocation, Area, AreaVolume, LogicalVolume, LvFlag, Mirror, Segment, SegmentKind, StripeAreas,
    VolumeGroup,
};

/// LVM's default size of the regions of a mirror.
const REGION: Sectors = Sectors(4096);
/// What LVM calls these volumes, before a number.
const NAME: &str = "pvmove";

/// A move to begin.
#[derive(Clone, Debug)]
pub struct NewMove {
    /// The extents that move.
    pub from: PvPart,
    /// The only volume whose extents move, with those that it is made of; `None`: all.
    pub volume: Option<String>,
    /// Where they may go; none: all other physical volumes.
    pub to: Vec<PvPart>,
    /// How they are placed: `Contiguous` in one piece each.
    pub policy: Policy,
}

/// A move that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Move<'a>(&'a LogicalVolume);

/// A piece of a move: a segment of its volume.
#[derive(Clone, Copy, Debug)]
pub struct MovePiece<'a> {
    segment: &'a Segment,
    mirror: &'a Mirror,
}

impl<'a> MovePiece<'a> {
    fn of(segment: &'a Segment) -> Option<Self> {
        let mirror = segment.kind.as_mirror().filter(|mirror| mirror.areas.len() == 2)?;
        Some(Self { segment, mirror })
    }

    /// Whether its new place counts.
    pub fn is_moved(&self) -> bool {
        self.mirror.extents_moved.unwrap_or(0) >= self.segment.count
    }

    /// The segment.
    pub fn segment(&self) -> &'a Segment {
        self.segment
    }

    /// The place that counts.
    pub fn place(&self) -> &'a Area {
        &self.mirror.areas[usize::from(self.is_moved())]
    }

    /// The old place and the new one.
    pub fn areas(&self) -> &'a [Area] {
        &self.mirror.areas
    }

    /// The size of its regions.
    pub fn region(&self) -> Sectors {
        self.mirror.region_size.unwrap_or(REGION)
    }
}

impl<'a> Move<'a> {
    /// The move that this volume is, if it is one.
    pub fn of(lv: &'a LogicalVolume) -> Option<Self> {
        let is = lv.flags.contains(&LvFlag::PvMove) && !lv.segments.is_empty();
        let all = || lv.segments.iter().all(|segment| MovePiece::of(segment).is_some());
        (is && all()).then_some(Self(lv))
    }

    /// The name of its volume.
    pub fn name(&self) -> &'a str {
        &self.0.name
    }

    /// Its pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = MovePiece<'a>> {
        self.0.segments.iter().filter_map(MovePiece::of)
    }

    /// The piece that is being copied.
    pub fn running(&self) -> Option<MovePiece<'a>> {
        self.pieces().find(|piece| !piece.is_moved())
    }

    /// The physical volume that is left: its index.
    pub fn source(&self) -> Option<usize> {
        match self.pieces().next()?.areas().first()?.on {
            AreaVolume::Pv(index) => Some(index),
            AreaVolume::Lv(_) => None,
        }
    }

    /// All extents.
    pub fn extents(&self) -> u32 {
        self.0.extents()
    }

    /// Extents that are moved already.
    pub fn moved(&self) -> u32 {
        self.pieces().filter(MovePiece::is_moved).map(|piece| piece.segment.count).sum()
    }
}

impl VolumeGroup {
    /// The moves that have begun.
    pub fn moves(&self) -> impl Iterator<Item = Move<'_>> {
        self.lvs.iter().filter_map(|lv| Move::of(lv))
    }

    /// Begins a move; returns the name of its volume, and the volumes that were left out, with reasons.
    ///
    /// # Errors
    /// There is nothing to move, or no room for it. The group is then unchanged.
    pub fn start_move(
        &mut self,
        new: &NewMove,
        author: &mut Author<'_>,
    ) -> Result<(String, Vec<String>), ChangeError> {
        self.may_change()?;
        let meant = new.volume.as_deref().map(|name| self.with_parts(name)).transpose()?;
        let mut free = self.free_for_move(new);
        let name = self.free_name(NAME);
        let (mut changed, mut pieces, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        let room = free.total();
        for lv in &self.lvs {
            let is_meant = meant.as_ref().is_none_or(|meant| meant.contains(&lv.name));
            if !is_meant || !lv.pv_extents().any(|on| !new.from.part_of(on).is_empty()) {
                continue;
            }
            if let Some(why) = self.immovable(lv) {
                left_out.push(format!("Skipping LV {}: {why}", lv.name));
                continue;
            }
            let mut mover = Mover { new, name: &name, free: &mut free, pieces: &mut pieces };
            let Some(segments) = mover.segments(self, lv) else {
                return Err(self.no_room(new, room).into());
            };
            changed.push((lv.name.clone(), segments));
        }
        if pieces.is_empty() {
            return Err(ChangeError::NothingToMove(self.name.clone()));
        }
        for (name, segments) in changed {
            if let Some(lv) = self.lv_mut(&name) {
                lv.segments = segments;
                lv.flags.insert(LvFlag::Locked);
            }
        }
        let mut lv = LogicalVolume::new(&name, (author.new_uuid)(), false, pieces);
        lv.flags.insert(LvFlag::PvMove);
        lv.flags.insert(LvFlag::Locked);
        lv.creation = Some(author.creation.clone());
        lv.allocation = Some(Allocation::Contiguous);
        self.add_lv(lv);
        Ok((name, left_out))
    }

    /// Records that the piece which was being copied is moved: both places have the same contents, durably. After the last
    /// one the move has ended, and its volume is gone. Returns whether it has.
    ///
    /// # Errors
    /// There is no such move.
    pub fn advance_move(&mut self, name: &str) -> Result<bool, ChangeError> {
        self.may_change()?;
        self.find_move(name)?;
        let segments = self.lv_mut(name).map(|lv| &mut lv.segments).into_iter().flatten();
        for segment in segments {
            let (count, kind) = (segment.count, &mut segment.kind);
            if let SegmentKind::Mirror(mirror) = kind
                && mirror.extents_moved.unwrap_or(0) < count
            {
                mirror.extents_moved = Some(count);
                break;
            }
        }
        if self.find_move(name)?.running().is_some() {
            return Ok(false);
        }
        self.end_move(name)?;
        Ok(true)
    }

    /// Ends a move: what was moved stays at its new place, the rest at the old one.
    ///
    /// # Errors
    /// There is no such move.
    pub fn end_move(&mut self, name: &str) -> Result<(), ChangeError> {
        self.may_change()?;
        let lv = self.find_move(name)?.0.clone();
        let pieces: Vec<(Range<u32>, Area)> = lv
            .segments
            .iter()
            .filter_map(|segment| {
                let place = MovePiece::of(segment)?.place().clone();
                Some((segment.start..segment.end(), place))
            })
            .collect();
        self.remove_lv(name);
        for user in &mut self.lvs {
            if !user.parts().any(|part| part == name) {
                continue;
            }
            let segments = std::mem::take(&mut user.segments);
            let placed = segments.iter().flat_map(|segment| back(segment, name, &pieces));
            user.extend(placed.collect::<Vec<_>>());
            // Each volume is part of one move at most, because it is locked.
            user.flags.remove(&LvFlag::Locked);
        }
        Ok(())
    }

    fn find_move(&self, name: &str) -> Result<Move<'_>, ChangeError> {
        let not_found =
            || ChangeError::NotFound { name: name.to_owned(), group: self.name.clone() };
        self.lv(name).and_then(Move::of).ok_or_else(not_found)
    }

    /// A volume, and all that it is made of.
    fn with_parts(&self, name: &str) -> Result<BTreeSet<String>, ChangeError> {
        let mut all = BTreeSet::new();
        let mut open = vec![name];
        while let Some(name) = open.pop() {
            let lv = self.find(name)?;
            if all.insert(name.to_owned()) {
                open.extend(lv.parts());
            }
        }
        Ok(all)
    }

    /// Why the extents of a volume cannot be moved.
    fn immovable(&self, lv: &LogicalVolume) -> Option<&'static str> {
        let is_merging = |name: &str| {
            let store = self.snapshot_in(name).is_some_and(|found| found.snapshot.merging);
            store || self.snapshots_of(name).any(|found| found.snapshot.merging)
        };
        if lv.flags.contains(&LvFlag::Locked) {
            Some("it is locked: its extents are being moved")
        } else if is_merging(&lv.name) {
            Some("a snapshot is being merged")
        } else if lv.unsupported.is_some() || !lv.segments.iter().all(is_striped) {
            Some("it is neither linear nor striped")
        } else {
            None
        }
    }

    /// Why a move to `free` extents is not possible.
    fn no_room(&self, new: &NewMove, free: u64) -> AllocError {
        let used = self.lvs.iter().flat_map(|lv| lv.pv_extents());
        let ranges = used.flat_map(|on| new.from.part_of(on));
        let wanted = ranges.map(|range| range.end - range.start).sum();
        if u64::from(wanted) > free {
            return AllocError::NoSpace { wanted, free };
        }
        AllocError::NotSo { wanted, stripes: 1, policy: new.policy.word() }
    }

    /// What is free where a move may go.
    fn free_for_move(&self, new: &NewMove) -> FreeMap {
        let mut free = self.free_map();
        let is_allocatable = |index: &usize| self.pvs[*index].is_allocatable();
        let all = |pv: usize| PvPart { pv, ranges: Vec::new() };
        let mut to: Vec<PvPart> = match &new.to[..] {
            [] => (0..self.pvs.len()).map(all).collect(),
            named => named.to_vec(),
        };
        to.retain(|part| part.pv != new.from.pv && is_allocatable(&part.pv));
        free.restrict(&to);
        free
    }

    /// The largest region that divides an area, up to LVM's default.
    fn region_of(&self, extents: u32) -> Sectors {
        let factor = |number: u64| 1 << number.trailing_zeros().min(32);
        let most: u64 = factor(self.extent_size.0) * factor(extents.into());
        Sectors(most.min(REGION.0))
    }
}

/// Plans where the extents of volumes go.
struct Mover<'a> {
    new: &'a NewMove,
    name: &'a str,
    free: &'a mut FreeMap,
    /// The segments of the move's volume so far.
    pieces: &'a mut Vec<Segment>,
}

impl Mover<'_> {
    /// The segments of a volume during the move; `None` without room.
    fn segments(&mut self, group: &VolumeGroup, lv: &LogicalVolume) -> Option<Vec<Segment>> {
        let mut segments: Vec<Segment> = Vec::new();
        for segment in &lv.segments {
            let SegmentKind::Striped(striped) = &segment.kind else {
                segments.push(segment.clone());
                continue;
            };
            let (mut at, len) = (0, segment.area_extents());
            while at < len {
                let (count, moves) = self.run(striped, at, len);
                let mut areas: Vec<Area> =
                    striped.areas.iter().map(|area| after(area, at)).collect();
                let mut done = count;
                if let Some(moving) = moves {
                    let apart: Vec<usize> = areas.iter().filter_map(pv_of).collect();
                    let apart = if areas.len() > 1 { apart } else { Vec::new() };
                    let piece = self.free.take_piece(count, &apart);
                    let may_split = self.new.policy != Policy::Contiguous;
                    let piece = piece.filter(|piece| may_split || piece.count == count)?;
                    done = piece.count;
                    let start = self.pieces.last().map_or(0, Segment::end);
                    let mirror = Mirror {
                        areas: vec![areas[moving].clone(), Area::on_pv(piece.pv, piece.start)],
                        log: None,
                        region_size: Some(group.region_of(done)),
                        extents_moved: Some(0),
                    };
                    self.pieces.push(Segment::new(start, done, SegmentKind::Mirror(mirror)));
                    areas[moving] = Area { on: AreaVolume::Lv(self.name.to_owned()), start };
                }
                let start = segments.last().map_or(0, Segment::end);
                segments.push(segment.part(start, done, areas));
                at += done;
            }
        }
        Some(segments)
    }

    /// How many extents from `at` on, of each area, move or stay together, and the area that moves.
    fn run(&self, striped: &StripeAreas, at: u32, len: u32) -> (u32, Option<usize>) {
        let (mut moving, mut end) = (None, len);
        for (index, area) in striped.areas.iter().enumerate() {
            if pv_of(area) != Some(self.new.from.pv) {
                continue;
            }
            let within = area.start + at..area.start + len;
            for range in self.new.from.common(&within) {
                let first = range.start - area.start;
                if first > at {
                    end = end.min(first);
                } else if moving.is_none() {
                    moving = Some((index, range.end - area.start));
                }
            }
        }
        match moving {
            // Two stripes on one physical volume move one after the other, in two moves.
            Some((index, until)) => (until.min(end) - at, Some(index)),
            None => (end - at, None),
        }
    }
}

/// An area without its first extents.
fn after(area: &Area, extents: u32) -> Area {
    Area { on: area.on.clone(), start: area.start + extents }
}

fn pv_of(area: &Area) -> Option<usize> {
    match area.on {
        AreaVolume::Pv(index) => Some(index),
        AreaVolume::Lv(_) => None,
    }
}

/// A segment with the places of a move's pieces instead of the move's volume.
fn back(segment: &Segment, name: &str, pieces: &[(Range<u32>, Area)]) -> Vec<Segment> {
    let mut placed = Vec::new();
    let (mut at, len) = (0, segment.area_extents());
    while at < len {
        let mut count = len - at;
        let areas = segment.areas().iter().map(|area| {
            let area = after(area, at);
            let piece = pieces.iter().find(|(range, _)| range.contains(&area.start));
            match piece.filter(|_| area.lv() == Some(name)) {
                Some((range, place)) => {
                    count = count.min(range.end - area.start);
                    after(place, area.start - range.start)
                }
                None => area,
            }
        });
        let areas: Vec<Area> = areas.collect();
        placed.push(segment.part(segment.start, count, areas));
        at += count;
    }
    placed
}
