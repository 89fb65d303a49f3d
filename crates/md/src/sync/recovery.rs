//! Recovery: copies data to members that lack them, and to replacements.

use std::cell::Cell;
use std::ops::Range;

use ashlar_block::{BioResult, Buffer, Sector, Sectors, Segment, Status, rate_limited};
use futures_util::future::{OptionFuture, join_all};
use smallvec::SmallVec;
use tracing::{info, warn};

use super::drive::{Ended, Job, Step, Trouble};
use super::source::{Fetched, Part};
use super::window::{ALL, Piece, WINDOW};
use crate::array::Array;
use crate::barrier;
use crate::bitmap::{self, Purpose};
use crate::canary::{Rule, broken};
use crate::copies::{Source, Sources};
use crate::members::{Index, Place};
use crate::personality::Personality;
use crate::rdev::{Rdev, State};
use crate::superblocks::Change;

/// A member that is being rebuilt.
#[derive(Clone, Copy)]
struct Target<'a> {
    index: Index,
    rdev: &'a Rdev,
    place: Place,
    slot: usize,
}

impl Target<'_> {
    /// Why data is copied to it.
    fn purpose(&self) -> Purpose {
        if self.rdev.state().contains(State::RETURNS) { Purpose::Return } else { Purpose::Rebuild }
    }

    /// The slot whose member it will replace.
    fn replaces(&self) -> Option<usize> {
        matches!(self.place, Place::Replacement(_)).then_some(self.slot)
    }
}

/// A piece of the array, and the place of its copy on a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Spot {
    piece: Piece,
    on_member: Sector,
}

/// Targets that lack the same pieces at the same places, so that one read serves all.
struct Group<'a> {
    targets: SmallVec<[Target<'a>; 2]>,
    pieces: Vec<Spot>,
}

pub(super) struct Recovery<'a> {
    array: &'a Array,
    targets: Vec<Target<'a>>,
    start: Sector,
    end: Sector,
    /// The sector up to which the remaining targets have all data.
    reached: Cell<Sector>,
    /// [`Array::lacking`] at the start.
    lacking: u64,
}

impl Array {
    /// The members to be rebuilt: members and replacements in slots that have not failed and are not in
    /// sync, and in-sync replacements that have not taken the slot yet.
    fn recovery_targets(&self) -> Vec<Target<'_>> {
        let all = self.members.placed().filter_map(|(index, rdev)| {
            let place = self.members.place(index);
            let (Place::Slot(slot) | Place::Replacement(slot)) = place else { return None };
            let waits = !rdev.is_in_sync() || matches!(place, Place::Replacement(_));
            (waits && !rdev.is_faulty()).then_some(Target { index, rdev, place, slot })
        });
        all.collect()
    }

    /// Whether a member must be rebuilt.
    pub(super) fn wants_recovery(&self) -> bool {
        !self.recovery_targets().is_empty()
    }

    /// Rebuilds members.
    pub(super) async fn recover(&self) -> Ended {
        let job = Recovery::new(self);
        for target in &job.targets {
            let (member, slot) = (target.rdev.path(), target.slot);
            let purpose = target.purpose();
            info!(array = self.disk.name(), member, slot, ?purpose, "recovery");
        }
        let ended = self.drive(&job).await;
        let result = match ended {
            Ended::Complete => job.complete().await,
            Ended::Interrupted | Ended::Failed | Ended::Overtaken => self.checkpoint_sync().await,
        };
        if let Some(bitmap) = self.bitmap() {
            bitmap.close_sync();
        }
        ended.with(result)
    }
}

impl<'a> Recovery<'a> {
    fn new(array: &'a Array) -> Self {
        let targets = array.recovery_targets();
        let block = array.disk.limits().logical_block();
        let used = array.personality.used_dev_size();
        let end = used.round_down(block).as_end();
        let from = |target: &Target<'_>| target.rdev.recovered().min(end - Sector::ZERO).as_end();
        // Not earlier: the part that a target holds is read, and where copies may differ it may be the
        // first copy.
        let start = targets.iter().map(from).min().unwrap_or(end).round_down(block);
        let lacking = array.lacking();
        Self { array, targets, start, end, reached: Cell::new(start), lacking }
    }

    /// The targets that are still in their places and have not failed.
    fn left(&self) -> impl Iterator<Item = Target<'a>> {
        let members = &self.array.members;
        let here = |target: &&Target<'_>| {
            !target.rdev.is_faulty() && members.place(target.index) == target.place
        };
        self.targets.iter().filter(here).copied()
    }

    /// Fails if no target is left.
    fn any_left(&self) -> Result<(), Trouble> {
        if self.left().next().is_some() {
            Ok(())
        } else if self.targets.iter().all(|target| target.rdev.is_faulty()) {
            Err(Trouble::Failed(Status::Offline))
        } else {
            Err(Trouble::Overtaken)
        }
    }

    /// The array sector whose copy in `slot` is at a sector of the member's data area.
    fn unmap(&self, slot: usize, at: Sector) -> Option<Sector> {
        match self.array.personality() {
            Personality::Raid0(_) => None,
            Personality::Raid1 { size, .. } => (at < size.as_end()).then_some(at),
            Personality::Raid10(geometry) => geometry.unmap(slot, at),
        }
    }

    /// Sectors of a member from `at` on for which the result of [`Self::unmap`] holds.
    fn chunk_left(&self, at: Sector) -> Sectors {
        match self.array.personality() {
            Personality::Raid10(geometry) => geometry.chunk_left(at),
            Personality::Raid0(_) | Personality::Raid1 { .. } => Sectors::MAX,
        }
    }

    /// The pieces of the array whose copies in `slot` are in a range of the member.
    fn pieces(&self, slot: usize, range: Range<Sector>) -> impl Iterator<Item = Spot> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            while at < range.end {
                let on_member = at;
                let len = self.chunk_left(at).min(range.end - at);
                at += len;
                if let Some(sector) = self.unmap(slot, on_member) {
                    // The array may end within its last block.
                    let end = self.array.disk.capacity().as_end();
                    let len = len.min(end.max(sector) - sector);
                    if !len.is_zero() {
                        return Some(Spot { piece: Piece { at: sector, len }, on_member });
                    }
                }
            }
            None
        })
    }

    /// Whether a target needs a sector, by the bitmap.
    fn needed(&self, target: Target<'_>, at: Sector) -> bitmap::Step {
        self.array.bitmap().map_or(ALL, |bitmap| bitmap.needs_sync(at, target.purpose()))
    }

    /// As [`Self::needed`], and marks the chunk as being synced.
    fn start_sync(&self, target: Target<'_>, at: Sector) -> bitmap::Step {
        let Some(bitmap) = self.array.bitmap() else { return ALL };
        bitmap.start_sync(at, target.purpose(), self.stays_degraded())
    }

    /// Whether some slot will have no member in sync after this recovery.
    fn stays_degraded(&self) -> bool {
        let members = &self.array.members;
        (0..members.slots()).any(|slot| {
            members.in_sync(slot).is_none() && !self.left().any(|target| target.slot == slot)
        })
    }

    /// The part of the array that a window touches.
    fn hull(&self, range: &Range<Sector>) -> Option<Range<Sector>> {
        let mut hull: Option<Range<Sector>> = None;
        for target in self.left() {
            for Spot { piece, .. } in self.pieces(target.slot, range.clone()) {
                let so_far = hull.unwrap_or(piece.at..piece.end());
                hull = Some(so_far.start.min(piece.at)..so_far.end.max(piece.end()));
            }
        }
        hull
    }

    /// The targets of a window, grouped by the pieces that they need.
    fn groups(&self, range: &Range<Sector>) -> Vec<Group<'a>> {
        let block = self.array.disk.limits().logical_block();
        let mut groups: Vec<Group<'a>> = Vec::new();
        for target in self.left() {
            let from = target.rdev.recovered().as_end();
            if from >= range.end {
                continue;
            }
            let lacking = from.round_down(block).max(range.start)..range.end;
            let mut pieces = Vec::new();
            for Spot { piece, on_member } in self.pieces(target.slot, lacking) {
                let mut into = Sectors::ZERO;
                while into < piece.len {
                    let step = self.start_sync(target, piece.at + into);
                    let rest = piece.len - into;
                    let len = if step.run.is_zero() { rest } else { step.run.min(rest) };
                    if step.needed {
                        let piece = Piece { at: piece.at + into, len };
                        pieces.push(Spot { piece, on_member: on_member + into });
                    }
                    into += len;
                }
            }
            match groups.iter_mut().find(|group| group.pieces == pieces) {
                Some(group) => group.targets.push(target),
                None => groups.push(Group { targets: SmallVec::from_iter([target]), pieces }),
            }
        }
        groups.retain(|group| !group.pieces.is_empty());
        groups
    }

    /// The copies to read a piece from: all except the group's targets, in their order of rank.
    fn sources(&self, group: &Group<'_>, at: Sector) -> Sources<'a> {
        let array = self.array;
        let mut sources = array.sources(at);
        let targets = &group.targets;
        sources.retain(|source| targets.iter().all(|target| target.index != source.index));
        sources
    }

    /// Copies the pieces of a window that the targets of a group need.
    async fn copy(&self, group: &Group<'a>, range: &Range<Sector>) -> Result<Sectors, Trouble> {
        let array = self.array;
        let mut buffer = Buffer::alloc((range.end - range.start).bytes() as usize);
        let window = buffer.whole();
        let reads = group.pieces.iter().map(|place| {
            let data = self.data(place, range, &window);
            async move {
                let sources = self.sources(group, place.piece.at);
                let fetched = array.fetch(&sources, &data).await;
                (sources, fetched)
            }
        });
        let fetched = join_all(reads).await;
        let mut runs: Vec<Part> = Vec::new();
        for (place, (_, fetched)) in group.pieces.iter().zip(&fetched) {
            let at = place.on_member - range.start;
            for part in fetched.good(place.piece.len) {
                let part = Part { into: at + part.into, len: part.len };
                match runs.last_mut() {
                    Some(last) if last.into + last.len == part.into => last.len += part.len,
                    Some(_) | None => runs.push(part),
                }
            }
        }
        let on = |target: &Target<'a>| Source {
            index: target.index,
            rdev: target.rdev,
            at: range.start,
        };
        let writes = group
            .targets
            .iter()
            .flat_map(|target| runs.iter().map(|part| array.put(on(target), *part, &window)));
        for result in join_all(writes).await {
            // The target lacks the data, and the failure cannot be recorded.
            result.map_err(Trouble::Incomplete)?;
        }
        for (place, (sources, fetched)) in group.pieces.iter().zip(&fetched) {
            let data = self.data(place, range, &window);
            if let Err(status) = self.correct(sources, fetched, &data).await {
                // The targets have the data that was read anyway.
                rate_limited!(warn, array = array.disk.name(), %status, "read error not corrected");
            }
            self.lost(group, place, fetched).await?;
        }
        Ok(runs.iter().fold(Sectors::ZERO, |sum, run| sum + run.len))
    }

    fn data(&self, place: &Spot, range: &Range<Sector>, window: &Segment) -> Segment {
        let into = place.on_member - range.start;
        super::source::slice(window, Part { into, len: place.piece.len })
    }

    /// Overwrites the blocks that a source could not return with the data of another source.
    async fn correct(
        &self,
        sources: &Sources<'a>,
        fetched: &Fetched,
        data: &Segment,
    ) -> Result<(), Status> {
        for (place, part) in &fetched.bad {
            let source = sources[*place];
            self.array.put(source, *part, data).await?;
            self.array.verify(source, *part).await?;
        }
        Ok(())
    }

    /// Blocks that no source can return are listed as bad on the targets that have a log. A target
    /// without a log would return wrong data there, so it fails.
    async fn lost(
        &self,
        group: &Group<'a>,
        place: &Spot,
        fetched: &Fetched,
    ) -> Result<(), Trouble> {
        for (part, status) in &fetched.lost {
            for target in &group.targets {
                let at = Source { index: target.index, rdev: target.rdev, at: place.on_member };
                if target.rdev.is_faulty() || self.array.note_bad(at, *part) {
                    continue;
                }
                let status = status.unwrap_or(Status::Medium);
                let (member, sector) = (target.rdev.path(), place.piece.at + part.into);
                rate_limited!(error, array = self.array.disk.name(), member, %sector, "no copy can be read");
                let failed = self.array.fail_member(target.rdev, status).await;
                failed.map_err(Trouble::Incomplete)?;
            }
        }
        Ok(())
    }

    /// Where copies may differ, a replacement that is write-mostly while the old member is not (or the
    /// other way round) would change which copy is first. So it inherits the flag from the member.
    fn inherit(&self, target: Target<'_>) {
        let (array, rdev) = (self.array, target.rdev);
        let Some(slot) = target.replaces().filter(|_| array.is_unsynced()) else { return };
        let last = array.members.counts_last(slot);
        if last != rdev.is_write_mostly() {
            warn!(
                array = array.disk.name(),
                member = rdev.path(),
                write_mostly = last,
                "inherited"
            );
            let change = if last { Rdev::set } else { Rdev::clear };
            change(rdev, State::WRITE_MOSTLY);
        }
    }

    /// The targets have all data: flushes it and makes them members in sync.
    async fn complete(&self) -> BioResult {
        let array = self.array;
        // No I/O may be in flight while a replacement takes the member's place.
        let replaces = self.left().any(|target| target.replaces().is_some());
        let _frozen = OptionFuture::from(replaces.then(|| array.barrier.freeze())).await;
        let mut superblocks = array.superblocks.lock().await;
        if !broken(Rule::RebuiltIsFlushed) {
            array.flush_members(&mut superblocks).await?;
        }
        for target in self.left() {
            self.inherit(target);
            target.rdev.set(State::IN_SYNC);
            target.rdev.clear(State::RETURNS);
            let (member, slot) = (target.rdev.path(), target.slot);
            info!(array = array.disk.name(), member, slot, "rebuilt");
        }
        array.record(&mut superblocks, Change::Members).await?;
        // If the array is unsynced, other members may differ too: the resync handles that.
        if let Some(bitmap) = array.bitmap()
            && !self.stays_degraded()
            && !array.is_unsynced()
        {
            bitmap.end_sync(Sector::ZERO..bitmap.size().as_end(), true);
        }
        // Superblocks may record the old member as failed only after they record that the replacement
        // is complete.
        let replacing = self.left().filter(|target| target.replaces().is_some());
        let replacing: Vec<Target<'_>> = replacing.collect();
        for target in &replacing {
            let replaced = array.members.member(target.slot);
            array.must_record();
            if let Some(replaced) = replaced.filter(|member| !member.is_faulty()) {
                info!(array = array.disk.name(), member = replaced.path(), "replaced");
                replaced.set_faulty();
            }
            array.members.promote(target.slot);
            target.rdev.clear(State::REPLACEMENT);
        }
        if replacing.is_empty() {
            return Ok(());
        }
        array.record(&mut superblocks, Change::Members).await
    }
}

impl Job for Recovery<'_> {
    fn range(&self) -> Range<Sector> {
        self.start..self.end
    }

    fn window_len(&self) -> Sectors {
        WINDOW
    }

    fn next(&self, at: Sector) -> Step {
        let mut to = (at + Sectors(1)).round_up(WINDOW).min(self.end);
        // A window whose copies are far apart in the array (the areas of a far layout) is cut, so that
        // its barrier stays short.
        if let Personality::Raid10(geometry) = self.array.personality()
            && !geometry.layout().offset
            && !geometry.stride().is_zero()
        {
            to = to.min((at + Sectors(1)).round_up(geometry.stride()));
        }
        let mut skip = None;
        for target in self.left() {
            let lacks = target.rdev.recovered().as_end() < to;
            let run = match self.pieces(target.slot, at..to).next() {
                Some(first) if lacks && first.on_member == at => {
                    let step = self.needed(target, first.piece.at);
                    if step.needed || step.run.is_zero() {
                        return Step::Window(to);
                    }
                    // To the end of the chunk, which is unlimited for a mirror.
                    self.chunk_left(at).min(step.run)
                }
                Some(first) if lacks => first.on_member - at,
                Some(_) | None => to - at,
            };
            skip = skip.into_iter().chain([run]).min();
        }
        // Without a target, the window reports that there is none.
        skip.map_or(Step::Window(to), |run| Step::Skip((at + run).min(self.end)))
    }

    async fn window(&self, range: Range<Sector>) -> Result<Sectors, Trouble> {
        let array = self.array;
        let Some(hull) = self.hull(&range) else { return self.any_left().map(|()| Sectors::ZERO) };
        let _raised = array.barrier.raise(hull.start, hull.end - hull.start).await;
        if array.is_sync_interrupted() {
            return Err(Trouble::Interrupted);
        }
        let groups = self.groups(&range);
        let mut result = Ok(Sectors::ZERO);
        for done in join_all(groups.iter().map(|group| self.copy(group, &range))).await {
            result = result.and_then(|moved| Ok(Sectors::max(moved, done?)));
        }
        self.any_left()?;
        if result.is_err()
            && let Some(bitmap) = array.bitmap()
        {
            bitmap.end_sync(hull, false);
        }
        result
    }

    fn advance(&self, to: Sector) -> bool {
        // A write since then may be on a target and not on its source. The part of the target that is
        // not read yet is copied again, so that reads do not change when it is read.
        if self.array.lacking() != self.lacking {
            return false;
        }
        if to > self.reached.get() {
            self.reached.set(to);
            let to = to - Sector::ZERO;
            for target in self.left().filter(|target| target.rdev.recovered() < to) {
                target.rdev.set_recovered(to);
            }
        }
        true
    }

    fn wants_checkpoints(&self) -> bool {
        true
    }
}

/// A window touches only a few buckets of the barrier.
const _: () = assert!(WINDOW.0 <= barrier::UNIT.0);
