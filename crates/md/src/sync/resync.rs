//! Resync: makes copies equal that may differ.

use std::cell::Cell;
use std::ops::Range;

use ashlar_block::{BioResult, Sector, Sectors};
use tracing::{info, warn};

use super::Engine;
use super::drive::{Job, Step, SyncEnd};
use super::window::pieces;
use crate::bitmap::{Bitmap, Purpose};
use crate::core::Core;
use crate::level::{Piece, Trouble, Work};
use crate::membership::superblocks::Change;

pub(super) struct Resync<'a> {
    engine: &'a Engine,
    bitmap: Option<&'a Bitmap>,
    /// The array's bound, unless another thread has changed it.
    reached: Cell<Sectors>,
    end: Sector,
    window_len: Sectors,
}

impl Engine {
    /// Makes all copies equal where they may differ.
    pub(super) async fn resync(&self) -> SyncEnd {
        // Without writes the superblocks say clean, and how far copies are the same: recorded
        // progress then survives a crash.
        match self.core.go_clean().await {
            Ok(true) => {}
            // If this was due to a flush instead of a write, only this task checks again.
            Ok(false) => self.core.watch(),
            Err(status) => {
                warn!(array = self.core.name(), %status, "a crash would lose the resync's progress");
            }
        }
        let Some(job) = Resync::begin(self).await else { return SyncEnd::Overtaken };
        info!(array = self.core.name(), from = %job.reached.get(), "resync");
        let ended = self.drive(&job).await;
        let result = match ended {
            SyncEnd::Complete => job.complete().await,
            SyncEnd::Interrupted | SyncEnd::Failed(_) => self.core.checkpoint().await,
            SyncEnd::Overtaken => Ok(()),
        };
        if let Some(bitmap) = job.bitmap {
            bitmap.close_sync();
        }
        ended.with(result)
    }
}

impl<'a> Resync<'a> {
    /// Sets the bound below which copies are the same, in memory and for the next superblocks.
    async fn begin(engine: &'a Engine) -> Option<Self> {
        let core = &engine.core;
        let _superblocks = core.superblocks().await;
        let end = core.sync_end();
        let found = core.resync_offset.get();
        // Only the bitmap marks differences: read first copies until they are resynced.
        let from =
            if found == Sectors::MAX { Sectors::ZERO } else { found.min(end - Sector::ZERO) };
        // Whole chunks, if the level has them, and whole blocks.
        let from = from.round_down(core.personality().chunk().max(Piece::BLOCK));
        if !core.resync_offset.advance(found, from) {
            return None;
        }
        core.resync_offset.limit_durable(from);
        Some(Self {
            engine,
            bitmap: core.bitmap(),
            reached: Cell::new(from),
            end,
            window_len: engine.window_len(),
        })
    }

    fn core(&self) -> &'a Core {
        &self.engine.core
    }

    /// All copies are the same. Flushes the members, then records it in the superblocks.
    async fn complete(&self) -> BioResult {
        let core = self.core();
        if let Some(bitmap) = self.bitmap {
            // To the bitmap's end, which may lie beyond the last whole block.
            bitmap.end_sync(Sector::ZERO..bitmap.size().as_end(), true);
        }
        let mut superblocks = core.superblocks().await;
        core.flush_members(&mut superblocks).await?;
        core.resync_offset.set_durable(Sectors::MAX);
        // If a write left copies that differ meanwhile, it has reset the bound: resync again.
        if !core.resync_offset.advance(self.reached.get(), Sectors::MAX) {
            return Ok(());
        }
        core.record(&mut superblocks, Change::Members).await
    }

    /// Whether what must agree at a place is on at least two members.
    fn has_copies(&self, at: Sector) -> bool {
        let core = self.core();
        let slots = core.personality().slots_at(at);
        let here = slots.iter().flat_map(|slot| core.members.both(*slot));
        let mut members = here.filter(|(_, rdev)| !rdev.is_faulty()).map(|(index, _)| index);
        let first = members.next();
        members.any(|member| Some(member) != first)
    }
}

impl Job for Resync<'_> {
    fn range(&self) -> Range<Sector> {
        self.reached.get().as_end()..self.end
    }

    fn window_len(&self) -> Sectors {
        self.window_len
    }

    fn next(&self, at: Sector) -> Step {
        let to = (at + Sectors(1)).round_up(self.window_len).min(self.end);
        if let Some(bitmap) = self.bitmap {
            let step = bitmap.needs_sync(at, Purpose::Resync);
            if !step.needed && !step.run.is_zero() {
                return Step::Skip((at + step.run).min(self.end));
            }
        }
        if !self.has_copies(at) {
            let left = self.core().personality().chunk_left(at).0;
            return Step::Skip(Sector(at.0.saturating_add(left)).min(self.end));
        }
        Step::Window(to)
    }

    async fn window(&self, range: Range<Sector>) -> Result<Sectors, Trouble> {
        let core = self.core();
        let _raised = core.raise(&range).await;
        if self.engine.is_interrupted() {
            return Err(Trouble::Interrupted);
        }
        let degraded = !core.is_complete();
        let needed = |at| match self.bitmap {
            Some(bitmap) => bitmap.start_sync(at, Purpose::Resync, degraded),
            None => super::window::ALL,
        };
        let pieces = pieces(core.personality(), range.clone(), needed);
        let moved = self.engine.level.window(Work::Resync(range.clone(), pieces)).await;
        if moved.is_err()
            && let Some(bitmap) = self.bitmap
        {
            bitmap.end_sync(range, false);
        }
        moved
    }

    fn advance(&self, to: Sector) -> bool {
        let (reached, to) = (self.reached.get(), to - Sector::ZERO);
        if reached >= to {
            return true;
        }
        if !self.core().resync_offset.advance(reached, to) {
            return false;
        }
        self.reached.set(to);
        if let Some(bitmap) = self.bitmap {
            // The part of the first chunk before `reached` is synced too, or needed no sync.
            let start = reached.as_end().round_down(bitmap.chunk());
            bitmap.end_sync(start..to.as_end(), true);
        }
        true
    }

    fn wants_checkpoints(&self) -> bool {
        true
    }
}
