//! Check and repair: compare the copies, and for a repair make them equal.

use std::ops::Range;

use ashlar_block::{Bio, Buffer, Sector, Sectors, Status, rate_limited};
use futures_util::future::join_all;
use tracing::info;

use super::drive::{Ended, Job, Step, Trouble};
use super::source::Part;
use super::window::{ALL, Piece, pieces};
use crate::array::Array;
use crate::bitmap::{self, Purpose};
use crate::copies::Source;
use crate::rdev::State;

pub(super) struct Check<'a> {
    array: &'a Array,
    repair: bool,
    range: Range<Sector>,
    window_len: Sectors,
}

/// A copy of a piece as read.
struct Read<'a> {
    source: Source<'a>,
    data: Buffer,
    /// Whether each block of the smallest size could be read; empty if all could. A copy without any
    /// readable block still takes part: it must be corrected.
    blocks: Vec<bool>,
}

impl Array {
    /// Compares all copies; makes them equal if `repair`.
    pub(super) async fn check(&self, repair: bool) -> Ended {
        let end = self.disk.capacity();
        let unit = self.personality.chunk().0.max(Piece::BLOCK.0);
        let start = self.sync.settings.sync_min().min(end).round_down(Sectors(unit));
        let job = Check {
            array: self,
            repair,
            range: start.as_end()..end.as_end(),
            window_len: self.sync_window_len(),
        };
        info!(array = self.disk.name(), repair, "check");
        let ended = self.drive(&job).await;
        let mismatches = self.sync.mismatches();
        info!(array = self.disk.name(), repair, %mismatches, ?ended, "check ended");
        ended
    }
}

impl Check<'_> {
    fn needed(&self, at: Sector) -> bitmap::Step {
        // Copies of unwritten or discarded chunks may differ.
        self.array.bitmap().map_or(ALL, |bitmap| bitmap.needs_sync(at, Purpose::Rebuild))
    }

    /// Compares the copies of a piece.
    async fn compare(&self, piece: Piece) -> Result<Sectors, Trouble> {
        let array = self.array;
        let sources = array.sources(piece.at);
        let reads = sources.iter().filter(|source| self.is_able(source, piece.len));
        let reads = reads.map(|source| async move {
            let mut data = Buffer::alloc(piece.len.bytes() as usize);
            let result = if source.rdev.can_read(source.at, piece.len) {
                source.rdev.submit(Bio::read_into(source.at, &mut data)).await
            } else {
                Err(Status::Medium)
            };
            (*source, data, result)
        });
        let mut copies: Vec<Read<'_>> = Vec::new();
        for (source, data, result) in join_all(reads).await {
            if array.is_current(source.index, source.rdev).await.is_err() {
                continue;
            }
            let blocks = match result {
                Ok(()) => Vec::new(),
                Err(status) if status.is_retryable_elsewhere() => {
                    let member = source.rdev.path();
                    rate_limited!(warn, array = array.disk.name(), member, %status, "read error of a check");
                    source.rdev.count_read_error();
                    vec![false]
                }
                Err(_) => continue,
            };
            copies.push(Read { source, data, blocks });
        }
        let mut trouble = None;
        // Read once: it changes when a write leaves copies that differ.
        let unit = array.smallest_read();
        if copies.len() > 1 {
            for copy in copies.iter_mut().filter(|copy| !copy.blocks.is_empty()) {
                copy.blocks = self.read_blocks(copy, piece.len, unit).await;
            }
            let mut into = Sectors::ZERO;
            while into < piece.len {
                let edge = (piece.at + into + Sectors(1)).round_up(Piece::BLOCK) - piece.at;
                let part = Part { into, len: edge.min(piece.len) - into };
                trouble = trouble.or(self.compare_block(&mut copies, part, unit).await.err());
                into += part.len;
            }
        }
        match trouble {
            Some(status) => Err(Trouble::Incomplete(status)),
            None => Ok(piece.len),
        }
    }

    /// Whether a copy is compared. Known bad blocks are rewritten, but not on a member that had a
    /// write error (as in the kernel).
    fn is_able(&self, source: &Source<'_>, len: Sectors) -> bool {
        source.rdev.holds(source.at + len)
            && (source.rdev.can_read(source.at, len)
                || !source.rdev.state().contains(State::WRITE_ERROR))
    }

    /// Reads a copy again, one `unit` at a time; returns which units could be read.
    async fn read_blocks(&self, copy: &mut Read<'_>, len: Sectors, unit: Sectors) -> Vec<bool> {
        let mut blocks = Vec::new();
        let mut into = Sectors::ZERO;
        while into < len {
            let part = Part { into, len: unit.min(len - into) };
            let from = into.bytes() as usize;
            let data = copy.data.segment(from..from + part.len.bytes() as usize);
            let (rdev, at) = (copy.source.rdev, copy.source.at + into);
            let known_bad = !rdev.can_read(at, part.len);
            blocks.push(!known_bad && rdev.submit(Bio::read(at, [data])).await.is_ok());
            into += part.len;
        }
        blocks
    }

    /// Compares one block of 64 KiB, or what the piece has of it.
    async fn compare_block(
        &self,
        copies: &mut [Read<'_>],
        part: Part,
        unit: Sectors,
    ) -> Result<(), Status> {
        self.correct(copies, part, unit).await?;
        let bytes = part.into.bytes() as usize..(part.into + part.len).bytes() as usize;
        let Some((first, others)) = copies.split_first_mut() else { return Ok(()) };
        let mut result = Ok(());
        for other in others {
            if first.data.as_slice()[bytes.clone()] == other.data.as_slice()[bytes.clone()] {
                continue;
            }
            // Counted as in the kernel: the whole block, for each copy that differs from the first.
            self.array.sync.count_mismatch(part.len);
            if self.repair {
                let data = first.data.segment(0..first.data.len());
                result = result.and(self.array.put(other.source, part, &data).await);
            }
        }
        result
    }

    /// Overwrites unreadable blocks of a copy with the first readable copy; in memory too, so that the
    /// copies can be compared.
    async fn correct(
        &self,
        copies: &mut [Read<'_>],
        part: Part,
        unit: Sectors,
    ) -> Result<(), Status> {
        let end = part.into + part.len;
        let mut into = part.into;
        while into < end {
            let block = (into.0 / unit.0) as usize;
            let len = Sectors(unit.0 - into.0 % unit.0).min(end - into);
            let has = |copy: &Read<'_>| copy.blocks.get(block).copied().unwrap_or(true);
            let bytes = into.bytes() as usize..(into + len).bytes() as usize;
            let good = copies.iter().find(|copy| has(copy));
            let good = good.map(|copy| copy.data.as_slice()[bytes.clone()].to_vec());
            for copy in copies.iter_mut().filter(|copy| !has(copy)) {
                let Some(good) = &good else {
                    // The contents are lost: there is nothing to compare.
                    copy.data.as_mut_slice()[bytes.clone()].fill(0);
                    continue;
                };
                copy.data.as_mut_slice()[bytes.clone()].copy_from_slice(good);
                let data = copy.data.segment(0..copy.data.len());
                let part = Part { into, len };
                if !copy.source.rdev.is_faulty() {
                    self.array.put(copy.source, part, &data).await?;
                    self.array.verify(copy.source, part).await?;
                }
            }
            into += len;
        }
        Ok(())
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
        let array = self.array;
        let _raised = array.barrier.raise(range.start, range.end - range.start).await;
        if array.is_sync_interrupted() {
            return Err(Trouble::Interrupted);
        }
        let pieces = pieces(&array.personality, range, |at| self.needed(at));
        let mut moved = Ok(Sectors::ZERO);
        for result in join_all(pieces.into_iter().map(|piece| self.compare(piece))).await {
            moved = moved.and_then(|moved| Ok(moved + result?));
        }
        moved
    }

    fn advance(&self, _: Sector) -> bool {
        true
    }

    fn wants_checkpoints(&self) -> bool {
        false
    }
}
