//! Discards and write-zeroes of any length.

use ashlar_block::{Bio, BioResult, Features, IoFuture, Op, Status};

use super::{Answers, gather};
use crate::array::Array;
use crate::bitmap::{Discard, Intent};
use crate::personality::Personality;
use crate::raid0::{MemberRange, Span};
use crate::raid10;
use crate::raid10::discard::DiscardPlan;
use crate::rdev::Rdev;

/// Chunks of one discard in flight at a time.
const WINDOW: usize = 64;

/// The results of the parts of a discard.
#[derive(Default)]
struct Discarded {
    good: bool,
    unsupported: bool,
    failed: Option<Status>,
    /// Some member may lack a part of it.
    lacking: bool,
}

/// What the bitmap holds for a range.
enum Marks<'a> {
    None,
    Write(Intent<'a>),
    Discard(Discard<'a>),
}

impl Marks<'_> {
    /// The discard or write has ended; if `lacking`, some copy may lack it.
    fn end(self, lacking: bool) {
        match self {
            Self::Write(intent) if lacking => intent.failed(),
            Self::Discard(discard) if lacking => discard.failed(),
            Self::Discard(discard) => discard.done(),
            Self::None | Self::Write(_) => {}
        }
    }
}

impl Discarded {
    fn add(&mut self, answers: Answers) {
        for (_, result) in answers {
            match result {
                Ok(()) => self.good = true,
                // Copies may differ where only some members discarded: that is allowed.
                Err(Status::NotSupported) => self.unsupported = true,
                Err(status) => {
                    self.failed = self.failed.or(Some(status));
                    self.lacking = true;
                }
            }
        }
    }
}

impl Array {
    /// The result of a discard. If a discarded range may read as anything, a copy that was not
    /// discarded is as good as one that was, and no member fails for it (as in md); if no member can
    /// discard, the caller gets `NotSupported`. If the array promises zeroes, the caller gets the error
    /// and writes the zeroes itself.
    fn judge_discard(&self, parts: &Discarded) -> BioResult {
        let zeroes = self.disk.limits().features.contains(Features::DISCARD_ZEROES);
        // A failed copy does not matter if another succeeded or does not support discards.
        let enough = (parts.good || parts.unsupported) && self.is_redundant() && !zeroes;
        match (parts.failed, parts.unsupported) {
            (Some(status), _) if !enough => Err(status),
            (_, true) if zeroes || !parts.good => Err(Status::NotSupported),
            (Some(_) | None, _) => Ok(()),
        }
    }

    /// A discard or write-zeroes of any length.
    pub(super) async fn submit_ranged(&self, bio: Bio) -> BioResult {
        let _writing = self.write_start().await?;
        let _pass = self.pass(&bio).await;
        self.behind.clear_of(bio.sector, bio.end()).await;
        let marks = self.mark_range(&bio).await?;
        let mut parts = Discarded::default();
        let sent = self.send_parts(&bio, &mut parts).await;
        let degraded = self.members.degraded() != 0;
        let lacking = sent.is_err() || parts.lacking;
        marks.end(lacking || degraded);
        if lacking && !degraded {
            // No member failed, so only this starts the sync of the marked chunks.
            self.wake_sync();
        }
        sent?;
        if bio.op == Op::Discard { self.judge_discard(&parts) } else { Ok(()) }
    }

    async fn send_parts(&self, bio: &Bio, parts: &mut Discarded) -> BioResult {
        let span = Span { start: bio.sector, len: bio.len };
        match self.personality() {
            Personality::Raid0(zones) => {
                let ranges = crate::raid0::discard::plan(zones, span);
                self.take(bio, self.send_ranges(bio, ranges).await, parts).await
            }
            Personality::Raid1 { .. } => self.take(bio, self.send_whole(bio).await, parts).await,
            Personality::Raid10(geometry) if geometry.is_plain_mirror() => {
                self.take(bio, self.send_whole(bio).await, parts).await
            }
            Personality::Raid10(geometry) => match raid10::discard::plan(geometry, span) {
                DiscardPlan::Ordinary => self.submit_by_chunks(bio, span, parts).await,
                DiscardPlan::Striped(striped) => {
                    self.submit_by_chunks(bio, striped.head(), parts).await?;
                    let answers = self.send_ranges(bio, striped.ranges()).await;
                    self.take(bio, answers, parts).await?;
                    self.submit_by_chunks(bio, striped.tail(), parts).await
                }
            },
        }
    }

    /// Marks a range in the bitmap, if there is one.
    async fn mark_range(&self, bio: &Bio) -> Result<Marks<'_>, Status> {
        // If the array promises zeroes, copies of a discarded range must be the same, and a new member
        // must get the zeroes: the discard counts as a write.
        let zeroes = self.disk.limits().features.contains(Features::DISCARD_ZEROES);
        match self.bitmap() {
            None => Ok(Marks::None),
            Some(bitmap) if bio.op == Op::Discard && !zeroes => {
                self.recorded().await?;
                let marks = bitmap.begin_discard(bio.sector, bio.len, self).await?;
                self.marks_are_recorded().await?;
                Ok(Marks::Discard(marks))
            }
            Some(_) => Ok(self.intend(bio).await?.map_or(Marks::None, Marks::Write)),
        }
    }

    /// Sends each range to the members of its slot.
    async fn send_ranges(&self, bio: &Bio, ranges: impl Iterator<Item = MemberRange>) -> Answers {
        let targets = ranges.flat_map(|range| {
            let mut part = Bio { sector: range.span.start, len: range.span.len, ..bio.clone() };
            part.segments.clear();
            self.writable(range.disk).map(move |(index, rdev)| {
                let part = part.clone();
                let sent = async move {
                    rdev.submit_from(&self.disk, bio.sector, part.clone()).await?;
                    self.zeroes_are_good(rdev, &part);
                    Ok(())
                };
                (index, IoFuture::boxed(sent))
            })
        });
        gather(targets.collect()).await
    }

    /// Sends a bio that is contiguous on every copy to all copies.
    async fn send_whole(&self, bio: &Bio) -> Answers {
        let answers = self.send_copies(bio).await;
        for (index, result) in &answers {
            if let (Ok(()), Some(rdev)) = (result, self.members.get(*index))
                && let Some(at) = self.copy_on(*index, bio.sector)
            {
                self.zeroes_are_good(rdev, &Bio { sector: at, ..bio.clone() });
            }
        }
        answers
    }

    /// Blocks of a member that were overwritten with zeroes are no longer bad; discarded ones may still
    /// be.
    fn zeroes_are_good(&self, rdev: &Rdev, part: &Bio) {
        if part.op == Op::WriteZeroes && !rdev.bad_blocks().is_empty() {
            self.blocks_are_good(rdev, part.sector, part.len);
        }
    }

    /// Judges a part of a write-zeroes, or collects a part of a discard, which is judged as a whole.
    async fn take(&self, bio: &Bio, answers: Answers, parts: &mut Discarded) -> BioResult {
        if bio.op == Op::Discard {
            parts.add(answers);
            return Ok(());
        }
        parts.lacking |= answers.iter().any(|(_, result)| result.is_err());
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
                chunks.push(async move { self.send_whole(&chunk).await });
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
}
