//! Reads, writes, discards and flushes of an array.
//!
//! All levels go the same way: the personality says where the copies of a chunk are, and what has one
//! copy only is simply a mirror of one. The array's limits make the gateway split reads and writes
//! at chunk ends; discards and write-zeroes come whole, and go to each member as one range where the
//! level's planner allows it.

use ashlar_block::gateway::all;
use ashlar_block::{Bio, BioResult, Buffer, Features, Flags, IoFuture, Op, Sectors, Status, trace};
use tracing::warn;

use crate::array::{Array, CORRECTION};
use crate::personality::{Copies, Personality};
use crate::raid0::{MemberRange, Span};
use crate::raid10;
use crate::raid10::discard::DiscardPlan;
use crate::raid10::geometry::Location;
use crate::rdev::Rdev;

/// Ranges or chunks of one discard under way at a time.
const WINDOW: usize = 64;

impl Array {
    /// A read or write of one chunk that has one copy: it needs no future of its own.
    pub(crate) fn submit_striped(&self, bio: Bio) -> IoFuture<'_> {
        let at = self.personality.map(bio.sector)[0];
        trace::bio(&self.disk, trace::Action::Remap, &bio);
        match &self.members[at.disk] {
            Some(rdev) => rdev.submit(Bio { sector: at.sector, ..bio }),
            None => IoFuture::failed(Status::Io),
        }
    }

    /// A read within one chunk.
    pub(crate) async fn read_chunk(&self, bio: Bio) -> BioResult {
        let copies = self.personality.map(bio.sector);
        let Some((rdev, at)) = self.best_copy(&copies) else { return Err(Status::Io) };
        let result = {
            let _reading = rdev.reading(at.sector, bio.len);
            trace::bio(&self.disk, trace::Action::Remap, &bio);
            rdev.submit(Bio { sector: at.sector, ..bio.clone() }).await
        };
        match result {
            Err(status) if self.is_worth_another_copy(&bio, status) => {
                warn!(
                    array = self.disk.name(),
                    member = rdev.path(),
                    sector = %at.sector,
                    %status,
                    "read error, trying the other copies"
                );
                rdev.count_read_error();
                self.read_again(&bio, &copies, at.disk).await
            }
            result => result,
        }
    }

    fn is_worth_another_copy(&self, bio: &Bio, status: Status) -> bool {
        status.is_retryable_elsewhere() && !bio.flags.contains(Flags::RAHEAD)
    }

    /// The copy to read: of an array whose copies may differ always the first, else the one whose
    /// member has least to do.
    fn best_copy<'a>(&'a self, copies: &Copies) -> Option<(&'a Rdev, Location)> {
        let mut present = copies.iter().filter_map(|at| Some((self.in_sync(at.disk)?, *at)));
        if self.first_copy_only {
            return present.next();
        }
        present.min_by_key(|(rdev, at)| rdev.read_cost(at.sector))
    }

    /// Reads what could not be read from `failed` piece by piece from wherever it can be, and writes
    /// it back to the copies that could not give it.
    async fn read_again(&self, bio: &Bio, copies: &Copies, failed: usize) -> BioResult {
        let mut at = bio.sector;
        while at < bio.end() {
            let aligned_end = (at + Sectors(1)).round_up(CORRECTION);
            let len = Sectors::min(aligned_end - at, bio.end() - at);
            let len = len.round_up(self.disk.limits().logical_block()).min(bio.end() - at);
            self.read_piece(&bio.slice_to(at, len, at), at - bio.sector, copies, failed).await?;
            at += len;
        }
        Ok(())
    }

    /// One piece: tried on the copy that failed first, since most of it is likely good.
    async fn read_piece(
        &self,
        piece: &Bio,
        into: Sectors,
        copies: &Copies,
        failed: usize,
    ) -> BioResult {
        let mut order: Copies = copies.clone();
        order.sort_by_key(|at| at.disk != failed);
        let mut bad = Copies::new();
        let mut last = Status::Io;
        for at in order {
            let Some(rdev) = self.in_sync(at.disk) else { continue };
            match rdev.submit(Bio { sector: at.sector + into, ..piece.clone() }).await {
                Ok(()) => {
                    return if bad.is_empty() {
                        Ok(())
                    } else {
                        self.correct(piece, into, bad).await
                    };
                }
                Err(status) => {
                    last = status;
                    bad.push(at);
                }
            }
        }
        Err(last)
    }

    /// Writes a piece over the copies that could not be read, from one that can, and reads it back.
    ///
    /// Regular writes are kept out meanwhile, so the piece is read anew from a good copy under the
    /// barrier: what was read before may be old already.
    async fn correct(&self, piece: &Bio, into: Sectors, bad: Copies) -> BioResult {
        if self.disk.is_read_only() {
            return Ok(());
        }
        let _raised = self.barrier.raise(piece.sector).await;
        let copies = self.personality.map(piece.sector - into);
        let good = copies.iter().filter(|at| !bad.contains(at));
        let mut data = Buffer::alloc(piece.len.bytes() as usize);
        let mut found = false;
        for at in good {
            let Some(rdev) = self.in_sync(at.disk) else { continue };
            if rdev.submit(Bio::read_into(at.sector + into, &mut data)).await.is_ok() {
                found = true;
                break;
            }
        }
        if !found {
            return Ok(());
        }
        // Read while the barrier is up: the caller gets what is on disk now.
        for (segment, from) in piece.segments.iter().scan(0, |at, s| {
            let from = *at;
            *at += s.len();
            Some((s, from))
        }) {
            segment.copy_from(&data.as_slice()[from..from + segment.len()]);
        }
        let _writing = self.write_start().await?;
        for at in bad {
            let Some(rdev) = self.in_sync(at.disk) else { continue };
            let sector = at.sector + into;
            let mut check = Buffer::alloc(data.len());
            let mut rewritten = rdev.submit(Bio::write_from(sector, &mut data)).await;
            if rewritten.is_ok() {
                rewritten = rdev.submit(Bio::read_into(sector, &mut check)).await;
            }
            match rewritten {
                Ok(()) => {
                    rdev.count_corrected(piece.len);
                    warn!(array = self.disk.name(), member = rdev.path(), %sector, "read error corrected");
                }
                // A copy that can be neither read nor written. If it is the last of something
                // else it stays, and what was read is good all the same.
                Err(status) => {
                    self.fail_member(rdev, status).await?;
                }
            }
        }
        Ok(())
    }

    /// A write (or a discard or write-zeroes of the ordinary path) within one chunk, to all copies.
    pub(crate) async fn write_chunk(&self, bio: Bio) -> BioResult {
        let _writing = self.write_start().await?;
        let _pass = self.pass(&bio).await;
        self.write_copies(&bio).await
    }

    async fn pass(&self, bio: &Bio) -> Option<crate::barrier::Pass<'_>> {
        if self.is_redundant() { Some(self.barrier.wait(bio.sector, bio.len).await) } else { None }
    }

    async fn write_copies(&self, bio: &Bio) -> BioResult {
        let copies = self.personality.map(bio.sector);
        trace::bio(&self.disk, trace::Action::Remap, bio);
        let targets: Copies =
            copies.into_iter().filter(|at| self.in_sync(at.disk).is_some()).collect();
        match targets.as_slice() {
            [] => Err(Status::Io),
            [only] => {
                let Some(rdev) = self.in_sync(only.disk) else { return Err(Status::Io) };
                let result = rdev.submit(Bio { sector: only.sector, ..bio.clone() }).await;
                self.judge(bio.op, [(only.disk, result)]).await
            }
            several => {
                let submitted = several.iter().filter_map(|at| {
                    let rdev = self.in_sync(at.disk)?;
                    Some((at.disk, rdev.submit(Bio { sector: at.sector, ..bio.clone() })))
                });
                let (slots, futures): (Vec<_>, Vec<_>) = submitted.unzip();
                let results = all(futures).await;
                self.judge(bio.op, slots.into_iter().zip(results)).await
            }
        }
    }

    /// What a write to several members comes to: good if one copy has it and no other copy that
    /// is still a member lacks it.
    async fn judge(
        &self,
        op: Op,
        results: impl IntoIterator<Item = (usize, BioResult)>,
    ) -> BioResult {
        let (mut good, mut bad) = (0, Vec::new());
        for (slot, result) in results {
            match result {
                Ok(()) => good += 1,
                Err(status) => bad.push((slot, status)),
            }
        }
        if op == Op::Discard {
            return self.judge_discard(good, bad.iter().map(|(_, status)| *status));
        }
        self.recorded().await?;
        let Some(&(_, last)) = bad.last() else { return Ok(()) };
        if good == 0 || !self.is_redundant() {
            // No copy has it: it was not written, and nobody is to blame alone.
            return Err(last);
        }
        for (slot, status) in bad {
            let Some(rdev) = self.members[slot].as_ref() else { continue };
            // A copy that must stay, because it is the last of something else, lacks this write.
            if !self.fail_member(rdev, status).await? {
                return Err(status);
            }
        }
        Ok(())
    }

    /// Where a discarded range reads as anything, a copy that was not discarded is as good as one
    /// that was, and nobody fails for it (as in md); if no member can discard, the caller is told so.
    /// Where the array promises zeroes, an error is the caller's to know: it will write them.
    fn judge_discard(&self, good: usize, bad: impl Iterator<Item = Status>) -> BioResult {
        let mut bad = bad.peekable();
        match bad.peek().copied() {
            Some(first) if self.disk.limits().features.contains(Features::DISCARD_ZEROES) => {
                Err(first)
            }
            Some(_) if good == 0 && bad.all(|s| s == Status::NotSupported) => {
                Err(Status::NotSupported)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// A discard or write-zeroes of any length.
    pub(crate) async fn submit_ranged(&self, bio: Bio) -> BioResult {
        let _writing = self.write_start().await?;
        let _pass = self.pass(&bio).await;
        let span = Span { start: bio.sector, len: bio.len };
        match &self.personality {
            Personality::Raid0(zones) => {
                self.submit_ranges(&bio, crate::raid0::discard::plan(zones, span)).await
            }
            Personality::Raid1 { .. } => self.write_copies(&bio).await,
            Personality::Raid10(geometry) if geometry.is_plain_mirror() => {
                self.write_copies(&bio).await
            }
            Personality::Raid10(geometry) => match raid10::discard::plan(geometry, span) {
                DiscardPlan::Ordinary => self.submit_by_chunks(&bio, span).await,
                DiscardPlan::Striped(striped) => {
                    self.submit_by_chunks(&bio, striped.head()).await?;
                    self.submit_ranges(&bio, striped.ranges()).await?;
                    self.submit_by_chunks(&bio, striped.tail()).await
                }
            },
        }
    }

    /// The ordinary path: chunk by chunk.
    async fn submit_by_chunks(&self, bio: &Bio, span: Span) -> BioResult {
        let mut at = span.start;
        while at < span.end() {
            let mut chunks = Vec::new();
            while at < span.end() && chunks.len() < WINDOW {
                let len = self.personality.chunk_left(at).min(span.end() - at);
                let chunk = bio.slice_to(at, len, at);
                chunks.push(async move { self.write_copies(&chunk).await });
                at += len;
            }
            for result in futures_util::future::join_all(chunks).await {
                result?;
            }
        }
        Ok(())
    }

    /// One range for each member.
    async fn submit_ranges(
        &self,
        bio: &Bio,
        ranges: impl Iterator<Item = MemberRange>,
    ) -> BioResult {
        trace::bio(&self.disk, trace::Action::Remap, bio);
        let submitted = ranges.filter_map(|range| {
            let rdev = self.in_sync(range.disk)?;
            let mut part = Bio { sector: range.span.start, len: range.span.len, ..bio.clone() };
            part.segments.clear();
            Some((range.disk, rdev.submit(part)))
        });
        let (slots, futures): (Vec<_>, Vec<_>) = submitted.unzip();
        let results = all(futures).await;
        self.judge_ranges(bio.op, slots, results.into_iter().collect()).await
    }

    /// Like `judge`, but the ranges are no copies of one another: each failed member must go, and if
    /// it cannot the operation failed.
    async fn judge_ranges(&self, op: Op, slots: Vec<usize>, results: Vec<BioResult>) -> BioResult {
        if op == Op::Discard {
            let good = results.iter().filter(|result| result.is_ok()).count();
            return self.judge_discard(good, results.iter().filter_map(|result| result.err()));
        }
        self.recorded().await?;
        for (slot, result) in slots.into_iter().zip(results) {
            let Err(status) = result else { continue };
            let Some(rdev) = self.members[slot].as_ref() else { continue };
            if !self.is_redundant() || !self.fail_member(rdev, status).await? {
                return Err(status);
            }
        }
        Ok(())
    }

    /// A flush of all members. One that cannot be flushed has lost writes, and fails.
    pub(crate) async fn submit_flush(&self) -> BioResult {
        let members = || (0..self.members.len()).filter(|slot| self.in_sync(*slot).is_some());
        let slots: Vec<usize> = members().collect();
        let flushes =
            slots.iter().filter_map(|slot| self.in_sync(*slot)).map(|rdev| rdev.submit_flush());
        let results = all(flushes).await;
        self.judge(Op::Flush, slots.iter().copied().zip(results)).await
    }
}
