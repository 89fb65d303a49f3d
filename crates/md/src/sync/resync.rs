//! Resync: makes copies equal that may differ.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use ashlar_block::{BioResult, Buffer, Sector, Sectors, Segment, Status};
use futures_util::future::join_all;
use tracing::{info, warn};

use super::drive::{Ended, Job, Step, Trouble};
use super::source::Part;
use super::window::{Piece, pieces};
use crate::array::Array;
use crate::bitmap::{Bitmap, Purpose};
use crate::copies::Source;
use crate::superblocks::Change;

pub(super) struct Resync<'a> {
    array: &'a Array,
    bitmap: Option<&'a Bitmap>,
    /// The array's `in_sync_to`, unless another thread has changed it.
    reached: Cell<u64>,
    end: Sector,
    window_len: Sectors,
}

impl Array {
    /// Makes all copies equal where they may differ.
    pub(super) async fn resync(&self) -> Ended {
        // Without writes the superblocks say clean, and how far copies are the same: recorded
        // progress then survives a crash.
        match self.go_clean().await {
            Ok(true) => {}
            // If this was due to a flush instead of a write, only `watch` checks again.
            Ok(false) => self.watch(),
            Err(status) => {
                warn!(array = self.disk.name(), %status, "a resync's progress will not outlive a crash");
            }
        }
        let Some(job) = Resync::begin(self).await else { return Ended::Overtaken };
        info!(array = self.disk.name(), from = job.reached.get(), "resync");
        let ended = self.drive(&job).await;
        let result = match ended {
            Ended::Complete => job.complete().await,
            Ended::Interrupted | Ended::Failed => self.checkpoint_sync().await,
            Ended::Overtaken => Ok(()),
        };
        if let Some(bitmap) = job.bitmap {
            bitmap.close_sync();
        }
        ended.with(result)
    }
}

impl<'a> Resync<'a> {
    /// Sets the bound below which copies are the same, in memory and for the next superblocks.
    async fn begin(array: &'a Array) -> Option<Self> {
        let _superblocks = array.superblocks.lock().await;
        let end = array.disk.capacity().as_end();
        let found = array.in_sync_to.load(SeqCst);
        // Only the bitmap marks differences: read first copies until they are resynced.
        let from = if found == u64::MAX { 0 } else { found.min(end.0) };
        // Whole chunks, if the level has them, and whole blocks.
        let unit = array.personality.chunk().0.max(Piece::BLOCK.0);
        let from = from - from % unit;
        array.in_sync_to.compare_exchange(found, from, SeqCst, SeqCst).ok()?;
        array.sync.durable.fetch_min(from, SeqCst);
        Some(Self {
            array,
            bitmap: array.bitmap(),
            reached: Cell::new(from),
            end,
            window_len: array.sync_window_len(),
        })
    }

    /// All copies are the same. Flushes the members, then records it in the superblocks.
    async fn complete(&self) -> BioResult {
        let array = self.array;
        if let Some(bitmap) = self.bitmap {
            // To the bitmap's end, which may lie beyond the last whole block.
            bitmap.end_sync(Sector::ZERO..bitmap.size().as_end(), true);
        }
        let mut superblocks = array.superblocks.lock().await;
        array.flush_members(&mut superblocks).await?;
        array.sync.durable.store(u64::MAX, SeqCst);
        let reached = self.reached.get();
        // If a write left copies that differ meanwhile, it has reset the bound: resync again.
        if array.in_sync_to.compare_exchange(reached, u64::MAX, SeqCst, SeqCst).is_err() {
            return Ok(());
        }
        array.record(&mut superblocks, Change::Members).await
    }

    /// Whether a piece has copies on at least two members.
    fn has_copies(&self, at: Sector) -> bool {
        let mut members = self.array.sources(at).into_iter().map(|source| source.index);
        let first = members.next();
        members.any(|member| Some(member) != first)
    }

    async fn copy(&self, piece: Piece, data: Segment) -> Result<Sectors, Trouble> {
        let array = self.array;
        let sources = array.sources(piece.at);
        let fetched = array.fetch(&sources, &data).await;
        let mut trouble = None;
        let good = fetched.good(piece.len);
        let targets = sources.iter().enumerate().filter(|(at, _)| Some(*at) != fetched.only);
        let writes = targets
            .flat_map(|(_, target)| good.iter().map(|part| array.put(*target, *part, &data)));
        for result in join_all(writes).await {
            trouble = trouble.or(result.err());
        }
        for (place, part) in &fetched.bad {
            trouble = trouble.or(array.verify(sources[*place], *part).await.err());
        }
        for (part, status) in fetched.lost {
            trouble = trouble.or(self.lost(&sources, part, status));
        }
        match trouble {
            Some(status) => Err(Trouble::Incomplete(status)),
            None => Ok(piece.len),
        }
    }

    /// No source could return a part. If it is certainly lost, there is nothing to make equal.
    fn lost(&self, sources: &[Source<'_>], part: Part, status: Option<Status>) -> Option<Status> {
        match status {
            // All copies were already listed as bad.
            None => None,
            Some(Status::Medium) => {
                let log = |source: &&Source<'_>| source.rdev.bad_blocks().has_log();
                for source in sources.iter().filter(log) {
                    self.array.note_bad(*source, part);
                }
                None
            }
            Some(status) => Some(status),
        }
    }
}

impl Job for Resync<'_> {
    fn range(&self) -> Range<Sector> {
        Sector(self.reached.get())..self.end
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
            let left = self.array.personality.chunk_left(at).0;
            return Step::Skip(Sector(at.0.saturating_add(left)).min(self.end));
        }
        Step::Window(to)
    }

    async fn window(&self, range: Range<Sector>) -> Result<Sectors, Trouble> {
        let array = self.array;
        let _raised = array.barrier.raise(range.start, range.end - range.start).await;
        if array.is_sync_interrupted() {
            return Err(Trouble::Interrupted);
        }
        let degraded = array.members.degraded() > 0;
        let needed = |at| match self.bitmap {
            Some(bitmap) => bitmap.start_sync(at, Purpose::Resync, degraded),
            None => super::window::ALL,
        };
        let pieces = pieces(&array.personality, range.clone(), needed);
        let mut buffer = Buffer::alloc((range.end - range.start).bytes() as usize);
        let copies = pieces.iter().map(|piece| {
            let data = buffer.segment(piece.bytes_from(range.start));
            self.copy(*piece, data)
        });
        let mut moved = Ok(Sectors::ZERO);
        for result in join_all(copies).await {
            moved = moved.and_then(|moved| Ok(moved + result?));
        }
        if moved.is_err()
            && let Some(bitmap) = self.bitmap
        {
            bitmap.end_sync(range, false);
        }
        moved
    }

    fn advance(&self, to: Sector) -> bool {
        let (reached, to) = (self.reached.get(), to.0);
        if reached >= to {
            return true;
        }
        if self.array.in_sync_to.compare_exchange(reached, to, SeqCst, SeqCst).is_err() {
            return false;
        }
        self.reached.set(to);
        if let Some(bitmap) = self.bitmap {
            // The part of the first chunk before `reached` is synced too, or needed no sync.
            let start = Sector(reached).round_down(bitmap.chunk());
            bitmap.end_sync(start..Sector(to), true);
        }
        true
    }

    fn wants_checkpoints(&self) -> bool {
        true
    }
}
