//! Reads, writes, discards and flushes of an array.
//!
//! All levels go the same way: the personality says where the copies of a chunk are, and what has one
//! copy only is simply a mirror of one. The array's limits make the gateway split reads and writes
//! at chunk ends; discards and write-zeroes come whole, and go to each member as one range where the
//! level's planner allows it.

use ashlar_block::gateway::all;
use ashlar_block::{Bio, BioResult, Buffer, Features, Flags, IoFuture, Op, Sectors, Status, trace};
use smallvec::SmallVec;
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

/// What members answered, by slot.
type Answers = SmallVec<[(usize, BioResult); 4]>;

/// What the parts of a discard came to.
#[derive(Default)]
struct Discarded {
    good: bool,
    unsupported: bool,
    failed: Option<Status>,
}

impl Discarded {
    fn add(&mut self, answers: Answers) {
        for (_, result) in answers {
            match result {
                Ok(()) => self.good = true,
                Err(Status::NotSupported) => self.unsupported = true,
                Err(status) => self.failed = self.failed.or(Some(status)),
            }
        }
    }
}

impl Array {
    /// A write, discard or write-zeroes. Those of an array with copies run to their end whatever
    /// becomes of the future.
    pub(crate) fn submit_write(&self, mut bio: Bio) -> IoFuture<'_> {
        if !self.is_writable() {
            return IoFuture::failed(Status::ReadOnly);
        }
        if bio.flags.contains(Flags::FAST) {
            // All members or none: one that gave up alone would lack what the others have.
            let fast = |rdev: &Rdev| !rdev.limits().max_write_zeroes.is_zero();
            if !(0..self.members.len()).filter_map(|slot| self.in_sync(slot)).all(fast) {
                return IoFuture::failed(Status::NotSupported);
            }
            bio.flags -= Flags::FAST;
        }
        if !self.is_redundant() {
            return IoFuture::boxed(self.submit_ranged(bio));
        }
        // For the same reason, and as in md, copies are waited for.
        bio.flags -= Flags::NOWAIT;
        IoFuture::boxed(self.finish(|array| async move {
            match bio.op {
                Op::Write => array.write_chunk(bio).await,
                Op::Read | Op::Flush | Op::Discard | Op::WriteZeroes => {
                    array.submit_ranged(bio).await
                }
            }
        }))
    }

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
        if self.is_unsynced() {
            return present.next();
        }
        present.min_by_key(|(rdev, at)| rdev.read_cost(at.sector))
    }

    /// Reads what could not be read from `failed` piece by piece from wherever it can be, and writes
    /// it back to the copies that could not give it.
    async fn read_again(&self, bio: &Bio, copies: &Copies, failed: usize) -> BioResult {
        let block = self.disk.limits().logical_block();
        // Where copies may differ, a block must not be read from here or from there depending on
        // its neighbours.
        let unit = if self.is_unsynced() { block } else { CORRECTION };
        let mut at = bio.sector;
        while at < bio.end() {
            let aligned_end = (at + Sectors(1)).round_up(unit);
            let len = Sectors::min(aligned_end - at, bio.end() - at);
            let len = len.round_up(block).min(bio.end() - at);
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
                    if bad.is_empty() || !self.is_writable() {
                        return Ok(());
                    }
                    let piece = piece.clone();
                    let corrected = self
                        .finish(move |array| async move { array.correct(&piece, into, bad).await });
                    if let Err(status) = corrected.await {
                        // What was read is good all the same.
                        warn!(array = self.disk.name(), %status, "read error not corrected");
                    }
                    return Ok(());
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
        let _writing = self.write_start().await?;
        let _raised = self.barrier.raise(piece.sector, piece.len).await;
        let Some(mut data) = self.read_good(piece, into, &bad).await else { return Ok(()) };
        // The caller gets what is on disk now.
        let mut rest = data.as_slice();
        for segment in &piece.segments {
            let (part, more) = rest.split_at(segment.len());
            segment.copy_from(part);
            rest = more;
        }
        let mut check = Buffer::alloc(data.len());
        for at in bad {
            let Some(rdev) = self.in_sync(at.disk) else { continue };
            let sector = at.sector + into;
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
                // else it stays.
                Err(status) => {
                    self.fail_member(rdev, status).await?;
                }
            }
        }
        Ok(())
    }

    /// A piece as some copy has it that is not among the bad ones.
    async fn read_good(&self, piece: &Bio, into: Sectors, bad: &Copies) -> Option<Buffer> {
        let mut data = Buffer::alloc(piece.len.bytes() as usize);
        for at in self.personality.map(piece.sector - into) {
            let Some(rdev) = self.in_sync(at.disk).filter(|_| !bad.contains(&at)) else { continue };
            if rdev.submit(Bio::read_into(at.sector + into, &mut data)).await.is_ok() {
                return Some(data);
            }
        }
        None
    }

    /// A write within one chunk, to all copies.
    async fn write_chunk(&self, bio: Bio) -> BioResult {
        let _writing = self.write_start().await?;
        let _pass = self.pass(&bio).await;
        self.judge(self.send_copies(&bio).await).await
    }

    async fn pass(&self, bio: &Bio) -> Option<crate::barrier::Pass<'_>> {
        if self.is_redundant() { Some(self.barrier.wait(bio.sector, bio.len).await) } else { None }
    }

    /// Sends a bio that lies within one chunk to all copies.
    async fn send_copies(&self, bio: &Bio) -> Answers {
        trace::bio(&self.disk, trace::Action::Remap, bio);
        let targets = self.personality.map(bio.sector).into_iter().filter_map(|at| {
            let rdev = self.in_sync(at.disk)?;
            Some((at.disk, rdev.submit(Bio { sector: at.sector, ..bio.clone() })))
        });
        self.gather(targets).await
    }

    /// Sends one range to each member.
    async fn send_ranges(&self, bio: &Bio, ranges: impl Iterator<Item = MemberRange>) -> Answers {
        trace::bio(&self.disk, trace::Action::Remap, bio);
        let targets = ranges.filter_map(|range| {
            let rdev = self.in_sync(range.disk)?;
            let mut part = Bio { sector: range.span.start, len: range.span.len, ..bio.clone() };
            part.segments.clear();
            Some((range.disk, rdev.submit(part)))
        });
        self.gather(targets).await
    }

    async fn gather<'a>(&self, targets: impl Iterator<Item = (usize, IoFuture<'a>)>) -> Answers {
        let (slots, mut futures): (SmallVec<[usize; 4]>, SmallVec<[IoFuture<'a>; 4]>) =
            targets.unzip();
        if futures.len() == 1
            && let (Some(slot), Some(only)) = (slots.first(), futures.pop())
        {
            return Answers::from_iter([(*slot, only.await)]);
        }
        slots.into_iter().zip(all(futures).await).collect()
    }

    /// What a write, write-zeroes or flush on several members comes to. It is good if nobody who is
    /// still a member lacks it: those that failed it fail, and the superblocks say so. If it failed on
    /// all copies one of them stays (md's rule), so that copies remain the same.
    async fn judge(&self, answers: Answers) -> BioResult {
        let good = answers.iter().any(|(_, result)| result.is_ok());
        let bad = || answers.iter().filter_map(|(slot, result)| Some((*slot, (*result).err()?)));
        let Some((_, first)) = bad().next() else {
            // No answer at all: nobody is left to write to.
            return if good { self.recorded().await } else { Err(Status::Io) };
        };
        let refused = !good && bad().all(|(_, status)| !status.is_retryable_elsewhere());
        if refused || !self.is_redundant() {
            return Err(first);
        }
        let mut result = Ok(());
        for (slot, status) in bad() {
            let Some(rdev) = self.members[slot].as_ref() else { continue };
            match self.fail_member(rdev, status).await {
                Ok(true) => {}
                // A copy that must stay, because it is the last of something, lacks this.
                Ok(false) => {
                    self.lacks_a_write(slot);
                    result = Err(status);
                }
                Err(status) => result = Err(status),
            }
        }
        result.and(self.recorded().await)
    }

    /// What a discard comes to. Where a discarded range reads as anything, a copy that was not
    /// discarded is as good as one that was, and nobody fails for it (as in md); if no member can
    /// discard, the caller is told so. Where the array promises zeroes, an error is the caller's to
    /// know: it will write them.
    fn judge_discard(&self, parts: &Discarded) -> BioResult {
        let zeroes = self.disk.limits().features.contains(Features::DISCARD_ZEROES);
        // A copy that failed it is not needed if there are others, whatever these could do.
        let enough = (parts.good || parts.unsupported) && self.is_redundant() && !zeroes;
        match (parts.failed, parts.unsupported) {
            (Some(status), _) if !enough => Err(status),
            (_, true) if zeroes || !parts.good => Err(Status::NotSupported),
            (Some(_) | None, _) => Ok(()),
        }
    }

    /// A discard or write-zeroes of any length.
    async fn submit_ranged(&self, bio: Bio) -> BioResult {
        let _writing = self.write_start().await?;
        let _pass = self.pass(&bio).await;
        let mut parts = Discarded::default();
        let span = Span { start: bio.sector, len: bio.len };
        match &self.personality {
            Personality::Raid0(zones) => {
                let ranges = crate::raid0::discard::plan(zones, span);
                self.take(&bio, self.send_ranges(&bio, ranges).await, &mut parts).await?;
            }
            Personality::Raid1 { .. } => {
                self.take(&bio, self.send_copies(&bio).await, &mut parts).await?;
            }
            Personality::Raid10(geometry) if geometry.is_plain_mirror() => {
                self.take(&bio, self.send_copies(&bio).await, &mut parts).await?;
            }
            Personality::Raid10(geometry) => match raid10::discard::plan(geometry, span) {
                DiscardPlan::Ordinary => self.submit_by_chunks(&bio, span, &mut parts).await?,
                DiscardPlan::Striped(striped) => {
                    self.submit_by_chunks(&bio, striped.head(), &mut parts).await?;
                    let answers = self.send_ranges(&bio, striped.ranges()).await;
                    self.take(&bio, answers, &mut parts).await?;
                    self.submit_by_chunks(&bio, striped.tail(), &mut parts).await?;
                }
            },
        }
        if bio.op == Op::Discard { self.judge_discard(&parts) } else { Ok(()) }
    }

    /// Judges a part, or keeps it for the judgement of the whole discard.
    async fn take(&self, bio: &Bio, answers: Answers, parts: &mut Discarded) -> BioResult {
        if bio.op == Op::Discard {
            parts.add(answers);
            return Ok(());
        }
        self.judge(answers).await
    }

    /// The ordinary path: chunk by chunk.
    async fn submit_by_chunks(&self, bio: &Bio, span: Span, parts: &mut Discarded) -> BioResult {
        let mut at = span.start;
        while at < span.end() {
            let mut chunks = Vec::new();
            while at < span.end() && chunks.len() < WINDOW {
                let len = self.personality.chunk_left(at).min(span.end() - at);
                let chunk = bio.slice_to(at, len, at);
                chunks.push(async move { self.send_copies(&chunk).await });
                at += len;
            }
            let mut result = Ok(());
            for answers in futures_util::future::join_all(chunks).await {
                result = result.and(self.take(bio, answers, parts).await);
            }
            result?;
        }
        Ok(())
    }

    /// A flush of all members. One that cannot be flushed has lost writes, and fails.
    pub(crate) async fn submit_flush(&self) -> BioResult {
        let targets = (0..self.members.len())
            .filter_map(|slot| Some((slot, self.in_sync(slot)?.submit_flush())));
        self.judge(self.gather(targets).await).await
    }
}
