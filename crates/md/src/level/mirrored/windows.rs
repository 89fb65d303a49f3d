//! One window of a resync, a recovery, a check or a repair. The caller has raised the barrier over it.

use std::ops::Range;

use ashlar_block::{Buffer, Sector, Sectors, Segment, Status, rate_limited};
use futures_util::future::join_all;

use super::copies::{FetchResult, Sources};
use super::mirror::Mirrored;
use crate::core::blocks::slice;
use crate::core::{Part, Source};
use crate::level::{MappedPiece, Piece, Rebuild, RebuildTarget, Trouble};
use crate::membership::rdev::State;

/// A copy of a piece as read.
struct ReadCopy<'a> {
    source: Source<'a>,
    data: Buffer,
    /// What could not be read, ascending. A copy that could not be read at all still takes part: it must be corrected.
    lost: Vec<Part>,
}

impl ReadCopy<'_> {
    /// Whether it has the part. Parts are cut where anything lost begins or ends.
    fn has(&self, part: Part) -> bool {
        !self.lost.iter().any(|lost| lost.into <= part.into && part.into < lost.end())
    }
}

impl Mirrored {
    /// Makes the copies of pieces equal.
    pub(super) async fn equalize(
        &self,
        range: Range<Sector>,
        pieces: Vec<Piece>,
    ) -> Result<Sectors, Trouble> {
        let mut buffer = memory(range.end - range.start)?;
        let copies = pieces.iter().map(|piece| {
            let data = buffer.segment(piece.bytes_from(range.start));
            self.spread(*piece, data)
        });
        sum(join_all(copies).await)
    }

    /// Reads a piece, and writes it to the copies that it was not read from.
    async fn spread(&self, piece: Piece, data: Segment) -> Result<Sectors, Trouble> {
        let sources = self.sources(piece.at);
        let fetched = self.fetch(&sources, &data).await;
        fetched.count_errors(&sources);
        let mut trouble = None;
        let good = fetched.good(piece.len);
        let targets = sources.iter().enumerate().filter(|(at, _)| Some(*at) != fetched.only);
        let writes = targets
            .flat_map(|(_, target)| good.iter().map(|part| self.core.put(*target, *part, &data)));
        for result in join_all(writes).await {
            trouble = trouble.or(result.err());
        }
        for (place, part) in &fetched.bad {
            trouble = trouble.or(self.core.verify(sources[*place], *part).await.err());
        }
        for (part, status) in fetched.lost {
            trouble = trouble.or(self.forget(&sources, part, status));
        }
        trouble.map_or(Ok(piece.len), |status| Err(Trouble::Incomplete(status)))
    }

    /// No source could return a part. If it is certainly lost, there is nothing to make equal.
    fn forget(&self, sources: &[Source<'_>], part: Part, status: Option<Status>) -> Option<Status> {
        match status {
            // All copies were already listed as bad.
            None => None,
            Some(Status::Medium) => {
                let log = |source: &&Source<'_>| source.rdev.bad_blocks().has_log();
                for source in sources.iter().filter(log) {
                    self.core.note_bad(*source, part);
                }
                None
            }
            Some(status) => Some(status),
        }
    }

    /// Copies to the targets of a group what they lack.
    pub(super) async fn rebuild(&self, group: &Rebuild<'_>) -> Result<Sectors, Trouble> {
        let start = group.range.start;
        let mut buffer = memory(group.range.end - start)?;
        let window = &buffer.whole();
        let reads = group.mapped.iter().map(|mapped| {
            let data = on_member(mapped, start, window);
            async move {
                let sources = self.sources_without(group, mapped.piece.at);
                let fetched = self.fetch(&sources, &data).await;
                fetched.count_errors(&sources);
                (sources, fetched)
            }
        });
        let fetched = join_all(reads).await;
        let mut runs: Vec<Part> = Vec::new();
        for (mapped, (_, fetched)) in group.mapped.iter().zip(&fetched) {
            let at = mapped.on_member - start;
            for part in fetched.good(mapped.piece.len) {
                let part = Part { into: at + part.into, len: part.len };
                match runs.last_mut() {
                    Some(last) if last.end() == part.into => last.len += part.len,
                    Some(_) | None => runs.push(part),
                }
            }
        }
        let writes = group.targets.iter().flat_map(|&RebuildTarget { index, rdev }| {
            let target = Source { index, rdev, at: start };
            runs.iter().map(move |part| self.core.put(target, *part, window))
        });
        for result in join_all(writes).await {
            // The target lacks the data, and the failure cannot be recorded.
            result.map_err(Trouble::Incomplete)?;
        }
        for (mapped, (sources, fetched)) in group.mapped.iter().zip(&fetched) {
            let data = on_member(mapped, start, window);
            if let Err(status) = self.repair(sources, fetched, &data).await {
                // The targets have the data that was read anyway.
                rate_limited!(warn, array = self.core.name(), %status, "read error not corrected");
            }
            self.miss(group, mapped, fetched).await?;
        }
        Ok(runs.iter().fold(Sectors::ZERO, |sum, run| sum + run.len))
    }

    /// The copies to read a piece from: all except the group's targets, in their order of rank.
    fn sources_without(&self, group: &Rebuild<'_>, at: Sector) -> Sources<'_> {
        let mut sources = self.sources(at);
        let targets = &group.targets;
        sources.retain(|source| targets.iter().all(|target| target.index != source.index));
        sources
    }

    /// Blocks that no source can return are listed as bad on the targets that have a log. A target
    /// without a log would return wrong data there, so it fails. A source that cannot be reached still has
    /// its data: the targets lack it until a later recovery, and do not fail.
    async fn miss(
        &self,
        group: &Rebuild<'_>,
        mapped: &MappedPiece,
        fetched: &FetchResult,
    ) -> Result<(), Trouble> {
        for (part, status) in &fetched.lost {
            match *status {
                Some(status) if status.is_gone() => return Err(Trouble::Failed(status)),
                Some(status) if status.may_pass() => return Err(Trouble::Incomplete(status)),
                Some(_) | None => {}
            }
            for target in &group.targets {
                let at = Source { index: target.index, rdev: target.rdev, at: mapped.on_member };
                if target.rdev.is_faulty() || self.core.note_bad(at, *part) {
                    continue;
                }
                let status = status.unwrap_or(Status::Medium);
                let (member, sector) = (target.rdev.path(), mapped.piece.at + part.into);
                rate_limited!(error, array = self.core.name(), member, %sector, "no copy can be read");
                let failed = self.core.fail_member(target.rdev, status).await;
                failed.map_err(Trouble::Incomplete)?;
            }
        }
        Ok(())
    }

    /// Compares the copies of pieces.
    pub(super) async fn compare_all(
        &self,
        pieces: Vec<Piece>,
        repair: bool,
        mismatch: &dyn Fn(Sectors),
    ) -> Result<Sectors, Trouble> {
        let pieces = pieces.into_iter().map(|piece| self.compare(piece, repair, mismatch));
        sum(join_all(pieces).await)
    }

    /// Compares the copies of a piece, after it has corrected what could not be read of them.
    async fn compare(
        &self,
        piece: Piece,
        repair: bool,
        mismatch: &dyn Fn(Sectors),
    ) -> Result<Sectors, Trouble> {
        let mut copies = self.read_each(piece).await.map_err(Trouble::Incomplete)?;
        if copies.len() < 2 {
            return Ok(piece.len);
        }
        let mut result = self.correct_each(&mut copies, piece.len).await;
        let mut into = Sectors::ZERO;
        while into < piece.len {
            let edge = (piece.at + into + Sectors(1)).round_up(Piece::BLOCK) - piece.at;
            let part = Part { into, len: edge.min(piece.len) - into };
            into += part.len;
            let bytes = part.into.bytes() as usize..into.bytes() as usize;
            let Some((first, others)) = copies.split_first_mut() else { break };
            for other in others {
                if first.data.as_slice()[bytes.clone()] == other.data.as_slice()[bytes.clone()] {
                    continue;
                }
                // Counted as in the kernel: the whole block, for each copy that differs from the first.
                mismatch(part.len);
                if repair {
                    let data = first.data.whole();
                    result = result.and(self.core.put(other.source, part, &data).await);
                }
            }
        }
        result.map(|()| piece.len).map_err(Trouble::Incomplete)
    }

    /// Reads each copy of a piece. Known bad blocks are to be rewritten, but not on a member that had a
    /// write error (as in the kernel).
    async fn read_each(&self, piece: Piece) -> Result<Vec<ReadCopy<'_>>, Status> {
        let able = |source: &Source<'_>| {
            source.rdev.holds(source.at + piece.len)
                && (source.rdev.can_read(source.at, piece.len)
                    || !source.rdev.state().contains(State::WRITE_ERROR))
        };
        let reads = self.sources(piece.at).into_iter().filter(able).map(|source| async move {
            let mut data = Buffer::try_alloc(piece.len.bytes() as usize).ok_or(Status::Resource)?;
            let fetched = self.fetch(&[source], &data.whole()).await;
            Ok((source, data, fetched))
        });
        let mut copies = Vec::new();
        for read in join_all(reads).await {
            let (source, data, fetched) = read?;
            fetched.count_errors(&[source]);
            match fetched.gone.first() {
                // It may have failed just now because it returns old data.
                Some(_) if source.rdev.is_faulty() => {}
                Some((_, status)) if status.is_gone() => {
                    self.core.fail_member(source.rdev, *status).await?;
                }
                Some(_) => {}
                None => {
                    let lost = fetched.lost.into_iter().map(|(part, _)| part).collect();
                    copies.push(ReadCopy { source, data, lost });
                }
            }
        }
        Ok(copies)
    }

    /// Overwrites what could not be read of a copy with the first readable copy; in memory too, so that the
    /// copies can be compared.
    async fn correct_each(&self, copies: &mut [ReadCopy<'_>], len: Sectors) -> Result<(), Status> {
        let lost = copies.iter().flat_map(|copy| &copy.lost);
        let mut cuts: Vec<Sectors> = lost.flat_map(|part| [part.into, part.end()]).collect();
        cuts.push(len);
        cuts.sort_unstable();
        cuts.dedup();
        let mut result = Ok(());
        for ends in cuts.windows(2) {
            let part = Part { into: ends[0], len: ends[1] - ends[0] };
            let bytes = part.into.bytes() as usize..part.end().bytes() as usize;
            let good = copies.iter().find(|copy| copy.has(part));
            let good = good.map(|copy| copy.data.as_slice()[bytes.clone()].to_vec());
            for copy in copies.iter_mut().filter(|copy| !copy.has(part)) {
                let Some(good) = &good else {
                    // The contents are lost: there is nothing to compare.
                    copy.data.as_mut_slice()[bytes.clone()].fill(0);
                    continue;
                };
                copy.data.as_mut_slice()[bytes.clone()].copy_from_slice(good);
                if !copy.source.rdev.is_faulty() {
                    let (source, data) = (copy.source, copy.data.whole());
                    result = result.and(self.core.overwrite(source, part, &data).await);
                }
            }
        }
        result
    }
}

/// The part of a window's buffer for a piece, by its place on the member.
fn on_member(mapped: &MappedPiece, start: Sector, window: &Segment) -> Segment {
    slice(window, Part { into: mapped.on_member - start, len: mapped.piece.len })
}

/// The memory of a window; without it the window's part is not synced.
fn memory(len: Sectors) -> Result<Buffer, Trouble> {
    Buffer::try_alloc(len.bytes() as usize).ok_or(Trouble::Incomplete(Status::Resource))
}

fn sum(moved: Vec<Result<Sectors, Trouble>>) -> Result<Sectors, Trouble> {
    moved.into_iter().try_fold(Sectors::ZERO, |sum, moved| Ok(sum + moved?))
}
