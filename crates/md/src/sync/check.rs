//! Check and repair: compare the copies, and for a repair make them equal.

use std::ops::Range;

use ashlar_block::sync::lock;
use ashlar_block::{Sector, Sectors};
use tracing::info;

use super::Engine;
use super::drive::{Job, Step, SyncEnd};
use super::window::{ALL, pieces};
use crate::bitmap::{self, Purpose};
use crate::level::{Piece, Trouble, Work};

pub(super) struct Check<'a> {
    engine: &'a Engine,
    repair: bool,
    range: Range<Sector>,
    window_len: Sectors,
}

impl Engine {
    /// Compares all copies; makes them equal if `repair`.
    pub(super) async fn check(&self, repair: bool) -> SyncEnd {
        let end = self.core.sync_end();
        let unit = self.core.personality().chunk().max(Piece::BLOCK);
        let start = self.settings.sync_min().min(end - Sector::ZERO).round_down(unit);
        let job = Check {
            engine: self,
            repair,
            range: start.as_end()..end,
            window_len: self.window_len(),
        };
        info!(array = self.core.name(), repair, "check");
        let ended = self.drive(&job).await;
        let mismatches = lock(&self.progress).mismatches;
        info!(array = self.core.name(), repair, %mismatches, ?ended, "check ended");
        // It has written what a member could not read.
        ended.with(self.core.record_good_blocks(&mut *self.core.superblocks().await).await)
    }
}

impl Check<'_> {
    fn needed(&self, at: Sector) -> bitmap::Step {
        // Copies of unwritten or discarded chunks may differ.
        self.engine.core.bitmap().map_or(ALL, |bitmap| bitmap.needs_sync(at, Purpose::Rebuild))
    }
}

impl Job for Check<'_> {
    fn range(&self) -> Range<Sector> {
        self.range.clone()
    }

    fn window_len(&self) -> Sectors {
        self.window_len
    }

    fn next(&self, at: Sector) -> Step {
        let to = (at + Sectors(1)).round_up(self.window_len).min(self.range.end);
        let step = self.needed(at);
        if step.needed || step.run.is_zero() {
            Step::Window(to)
        } else {
            Step::Skip(Sector(at.0.saturating_add(step.run.0)).min(self.range.end))
        }
    }

    async fn window(&self, range: Range<Sector>) -> Result<Sectors, Trouble> {
        let Engine { core, level, .. } = self.engine;
        let _raised = core.raise(&range).await;
        if self.engine.is_interrupted() {
            return Err(Trouble::Interrupted);
        }
        let pieces = pieces(core.personality(), range, |at| self.needed(at));
        let mismatch = |sectors| lock(&self.engine.progress).mismatches += sectors;
        level.window(Work::Check { pieces, repair: self.repair, mismatch: &mismatch }).await
    }

    fn advance(&self, _: Sector) -> bool {
        true
    }

    fn wants_checkpoints(&self) -> bool {
        false
    }
}
