//! Recovery: copies data to members that lack them, and to replacements.

use std::cell::Cell;
use std::ops::Range;

use ashlar_block::{BioResult, Sector, Sectors, Status};
use futures_util::future::{OptionFuture, join_all};
use tracing::{info, warn};

use super::Engine;
use super::drive::{Job, Step, SyncEnd};
use super::window::{ALL, WINDOW};
use crate::barrier;
use crate::bitmap::{self, Purpose};
use crate::canary::{Rule, broken};
use crate::core::Core;
use crate::level::{MappedPiece, Piece, Rebuild, RebuildTarget, Trouble, Work};
use crate::membership::rdev::{FailureCause, Rdev, State};
use crate::membership::slots::{Index, Place};
use crate::membership::superblocks::Change;

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

pub(super) struct Recovery<'a> {
    engine: &'a Engine,
    targets: Vec<Target<'a>>,
    start: Sector,
    end: Sector,
    window_len: Sectors,
    /// The sector up to which the remaining targets have all data.
    reached: Cell<Sector>,
    /// How often members lacked data at the start.
    lacking: u64,
}

impl Engine {
    fn recovery_targets(&self) -> Vec<Target<'_>> {
        let all = self.core.members.to_rebuild().filter_map(|(index, rdev, place)| {
            let (Place::Slot(slot) | Place::Replacement(slot)) = place else { return None };
            Some(Target { index, rdev, place, slot })
        });
        all.collect()
    }

    /// Rebuilds members.
    pub(super) async fn recover(&self) -> SyncEnd {
        let job = Recovery::new(self);
        for target in &job.targets {
            let (member, slot) = (target.rdev.path(), target.slot);
            let purpose = target.purpose();
            info!(array = self.core.name(), member, slot, ?purpose, "recovery");
        }
        let suspects = self.core.suspects();
        if self.core.is_forced() && !suspects.is_empty() {
            // The resync that follows makes the parity of what was recovered, and leaves no trace of this.
            let sectors: u64 = suspects.iter().map(|range| (range.end - range.start).0).sum();
            let text = "recovers data that may be wrong: ashlar md suspect lists where, until the resync that follows has ended";
            warn!(array = self.core.name(), sectors, "{text}");
        }
        let ended = self.drive(&job).await;
        let result = match ended {
            SyncEnd::Complete => job.complete().await,
            SyncEnd::Interrupted | SyncEnd::Failed(_) | SyncEnd::Overtaken => {
                self.core.checkpoint().await
            }
        };
        if let Some(bitmap) = self.core.bitmap() {
            bitmap.close_sync();
        }
        ended.with(result)
    }
}

impl<'a> Recovery<'a> {
    fn new(engine: &'a Engine) -> Self {
        let (core, targets) = (&engine.core, engine.recovery_targets());
        let block = core.disk.limits().logical_block();
        let used = core.personality().used_dev_size();
        let end = used.round_down(block).as_end();
        let from = |target: &Target<'_>| target.rdev.recovered().min(end - Sector::ZERO).as_end();
        // Not earlier: the part that a target holds is read, and where copies may differ it may be the
        // first copy.
        let start = targets.iter().map(from).min().unwrap_or(end).round_down(block);
        let lacking = core.members.lacking();
        let window_len = engine.member_window_len();
        Self { engine, targets, start, end, window_len, reached: Cell::new(start), lacking }
    }

    fn core(&self) -> &'a Core {
        &self.engine.core
    }

    /// Whether a target is still in its place and has not failed.
    fn is_left(&self, target: &Target<'_>) -> bool {
        !target.rdev.is_faulty() && self.core().members.place(target.index) == target.place
    }

    /// The targets that are still in their places and have not failed.
    fn left(&self) -> impl Iterator<Item = Target<'a>> {
        self.targets.iter().filter(|target| self.is_left(target)).copied()
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

    /// The pieces of sync space that are in a range of the member in `slot`.
    fn mapped(&self, slot: usize, range: Range<Sector>) -> impl Iterator<Item = MappedPiece> {
        let core = self.core();
        let mut at = range.start;
        std::iter::from_fn(move || {
            while at < range.end {
                let on_member = at;
                let len = core.personality().member_chunk_left(at).min(range.end - at);
                at += len;
                if let Some(sector) = core.personality().synced_at(slot, on_member) {
                    // The array may end within its last block.
                    let len = len.min(core.sync_end().max(sector) - sector);
                    if !len.is_zero() {
                        return Some(MappedPiece { piece: Piece { at: sector, len }, on_member });
                    }
                }
            }
            None
        })
    }

    /// Whether a target needs a sector, by the bitmap.
    fn needed(&self, target: Target<'_>, at: Sector) -> bitmap::Step {
        self.core().bitmap().map_or(ALL, |bitmap| bitmap.needs_sync(at, target.purpose()))
    }

    /// As [`Self::needed`], and marks the chunk as being synced.
    fn start_sync(&self, target: Target<'_>, at: Sector) -> bitmap::Step {
        let Some(bitmap) = self.core().bitmap() else { return ALL };
        bitmap.start_sync(at, target.purpose(), self.stays_degraded())
    }

    /// Whether some slot will have no member in sync after this recovery.
    fn stays_degraded(&self) -> bool {
        let members = &self.core().members;
        (0..members.slots()).any(|slot| {
            members.in_sync(slot).is_none() && !self.left().any(|target| target.slot == slot)
        })
    }

    /// What each target may lack of a window.
    fn plan(&self, range: &Range<Sector>) -> Vec<(Target<'a>, Vec<MappedPiece>)> {
        let block = self.core().disk.limits().logical_block();
        let plan = self.left().filter_map(|target| {
            let from = target.rdev.recovered().as_end();
            let lacking = from.round_down(block).max(range.start)..range.end;
            (from < range.end).then(|| (target, self.mapped(target.slot, lacking).collect()))
        });
        plan.collect()
    }

    /// The targets of a window, grouped by the pieces that they need, which are then marked as being synced.
    fn groups(
        &self,
        plan: Vec<(Target<'a>, Vec<MappedPiece>)>,
        range: &Range<Sector>,
    ) -> Vec<Rebuild<'a>> {
        let mut groups: Vec<Rebuild<'a>> = Vec::new();
        for (target, planned) in plan.into_iter().filter(|(target, _)| self.is_left(target)) {
            let mut mapped = Vec::new();
            for MappedPiece { piece, on_member } in planned {
                let mut into = Sectors::ZERO;
                while into < piece.len {
                    let step = self.start_sync(target, piece.at + into);
                    let rest = piece.len - into;
                    let len = if step.run.is_zero() { rest } else { step.run.min(rest) };
                    if step.needed {
                        let piece = Piece { at: piece.at + into, len };
                        mapped.push(MappedPiece { piece, on_member: on_member + into });
                    }
                    into += len;
                }
            }
            let target = RebuildTarget { index: target.index, rdev: target.rdev };
            match groups.iter_mut().find(|group| group.mapped == mapped) {
                Some(group) => group.targets.push(target),
                None => {
                    groups.push(Rebuild { range: range.clone(), targets: vec![target], mapped });
                }
            }
        }
        groups.retain(|group| !group.mapped.is_empty());
        groups
    }

    /// Where copies may differ, a replacement that is write-mostly while the old member is not (or the
    /// other way round) would change which copy is first. So it inherits the flag from the member.
    fn inherit(&self, target: Target<'_>) {
        let (core, rdev) = (self.core(), target.rdev);
        let Some(slot) = target.replaces().filter(|_| core.resync_offset.is_unsynced()) else {
            return;
        };
        let last = core.members.counts_last(slot);
        if last != rdev.is_write_mostly() {
            warn!(array = core.name(), member = rdev.path(), write_mostly = last, "inherited");
            let change = if last { Rdev::set } else { Rdev::clear };
            change(rdev, State::WRITE_MOSTLY);
        }
    }

    /// The targets have all data: flushes it and makes them members in sync.
    async fn complete(&self) -> BioResult {
        let core = self.core();
        // No I/O may be in flight while a replacement takes the member's place.
        let replaces = self.left().any(|target| target.replaces().is_some());
        let _frozen = OptionFuture::from(replaces.then(|| core.barrier.freeze())).await;
        let mut superblocks = core.superblocks().await;
        if !broken(Rule::RebuiltIsFlushed) {
            core.flush_members(&mut superblocks).await?;
        }
        // Redundancy first: a source may still change, after it was copied. The resync that follows repairs that.
        if core.has_late_changes() && core.resync_offset.reset() == Sectors::MAX {
            core.sync_wakeup.wake();
        }
        for target in self.left() {
            self.inherit(target);
            target.rdev.set(State::IN_SYNC);
            target.rdev.clear(State::RETURNS);
            let (member, slot) = (target.rdev.path(), target.slot);
            info!(array = core.name(), member, slot, "rebuilt");
        }
        core.record(&mut superblocks, Change::Members).await?;
        // If the array is unsynced, other members may differ too: the resync handles that.
        if let Some(bitmap) = core.bitmap()
            && !self.stays_degraded()
            && !core.resync_offset.is_unsynced()
        {
            bitmap.end_sync(Sector::ZERO..bitmap.size().as_end(), true);
        }
        // Superblocks may record the old member as failed only after they record that the replacement
        // is complete.
        let replacing = self.left().filter(|target| target.replaces().is_some());
        let replacing: Vec<Target<'_>> = replacing.collect();
        for target in &replacing {
            let replaced = core.members.member(target.slot);
            core.lifecycle.must_record();
            if let Some(replaced) = replaced.filter(|member| !member.is_faulty()) {
                info!(array = core.name(), member = replaced.path(), "replaced");
                replaced.set_faulty(FailureCause::User);
            }
            core.members.promote(target.slot);
            target.rdev.clear(State::REPLACEMENT);
        }
        if replacing.is_empty() {
            return Ok(());
        }
        core.record(&mut superblocks, Change::Members).await
    }
}

impl Job for Recovery<'_> {
    fn range(&self) -> Range<Sector> {
        self.start..self.end
    }

    fn window_len(&self) -> Sectors {
        self.window_len
    }

    fn next(&self, at: Sector) -> Step {
        let mut to = (at + Sectors(1)).round_up(self.window_len).min(self.end);
        // A window whose copies are far apart in the array (the areas of a far layout) is cut, so that
        // its barrier stays short.
        if let Some(area) = self.core().personality().member_area() {
            to = to.min((at + Sectors(1)).round_up(area));
        }
        let mut skip = None;
        for target in self.left() {
            let lacks = target.rdev.recovered().as_end() < to;
            let run = match self.mapped(target.slot, at..to).next() {
                Some(first) if lacks && first.on_member == at => {
                    let step = self.needed(target, first.piece.at);
                    if step.needed || step.run.is_zero() {
                        return Step::Window(to);
                    }
                    // To the end of the chunk, which is unlimited for a mirror.
                    self.core().personality().member_chunk_left(at).min(step.run)
                }
                Some(first) if lacks => first.on_member - at,
                Some(_) | None => to - at,
            };
            skip = skip.into_iter().chain([run]).min();
        }
        // Without a target, the window reports its absence.
        skip.map_or(Step::Window(to), |run| Step::Skip((at + run).min(self.end)))
    }

    async fn window(&self, range: Range<Sector>) -> Result<Sectors, Trouble> {
        let core = self.core();
        let plan = self.plan(&range);
        let pieces = || plan.iter().flat_map(|(_, mapped)| mapped).map(|mapped| mapped.piece);
        let (first, last) = (pieces().map(|piece| piece.at).min(), pieces().map(Piece::end).max());
        let (Some(first), Some(last)) = (first, last) else {
            return self.any_left().map(|()| Sectors::ZERO);
        };
        let _raised = core.raise(&(first..last)).await;
        if self.engine.is_interrupted() {
            return Err(Trouble::Interrupted);
        }
        let groups = self.groups(plan, &range);
        let copies = groups.iter().map(|group| self.engine.level.window(Work::Rebuild(group)));
        let mut result = Ok(Sectors::ZERO);
        for done in join_all(copies).await {
            result = result.and_then(|moved| Ok(Sectors::max(moved, done?)));
        }
        self.any_left()?;
        if result.is_err()
            && let Some(bitmap) = core.bitmap()
        {
            bitmap.end_sync(first..last, false);
        }
        result
    }

    fn advance(&self, to: Sector) -> bool {
        // A write since then may be on a target and not on its source. The part of the target that is
        // not read yet is copied again, so that reads do not change when it is read.
        if self.core().members.lacking() != self.lacking {
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
