//! Discards and write-zeroes of any length.

use ashlar_block::{Bio, BioResult, Features, IoFuture, Op, Sector, Sectors, Status};
use futures_util::StreamExt;
use futures_util::future::join3;
use futures_util::stream::iter;

use super::mirror::Mirrored;
use crate::level::parts::{Answers, Parts, gather};
use crate::membership::rdev::Rdev;
use crate::personality::Personality;
use crate::raid0::{MemberRange, Span};
use crate::raid10::discard::{DiscardPlan, plan};

/// Chunks of one discard in flight at a time.
const WINDOW: usize = 64;

/// The results of the parts of a discard or write-zeroes.
#[derive(Default)]
struct Outcome {
    /// Some member discarded its part, or may have written zeroes.
    good: bool,
    /// Some member cannot discard, or has refused a write-zeroes.
    unsupported: bool,
    /// A member's error: of a discard, one of them; of a write-zeroes, what it means for the client.
    failed: Option<Status>,
    /// Some member may lack a part of it.
    lacking: bool,
}

impl Outcome {
    fn and(self, other: Self) -> Self {
        Self {
            good: self.good || other.good,
            unsupported: self.unsupported || other.unsupported,
            failed: self.failed.or(other.failed),
            lacking: self.lacking || other.lacking,
        }
    }

    /// Of one part of a discard.
    fn of_discard(answers: &Answers) -> Self {
        let mut outcome = Self::default();
        for (_, result) in answers {
            match result {
                Ok(()) => outcome.good = true,
                // Copies may differ where only some members discarded: that is allowed.
                Err(Status::NotSupported) => outcome.unsupported = true,
                Err(status) => {
                    outcome.failed = outcome.failed.or(Some(*status));
                    outcome.lacking = true;
                }
            }
        }
        outcome
    }
}

impl Mirrored {
    /// A discard or write-zeroes of any length.
    pub(super) async fn discard(&self, bio: Bio) -> BioResult {
        let mut write = self.begin(&bio).await?;
        let outcome = self.send_all_or_none(&bio).await;
        let degraded = !self.core.is_complete();
        if outcome.lacking || degraded {
            write.failed();
        } else {
            write.done();
        }
        if outcome.lacking && !degraded {
            // No member failed, so only this starts the sync of the marked chunks.
            self.core.sync_wakeup.wake();
        }
        if bio.op == Op::Discard {
            self.judge_discard(&outcome)
        } else if outcome.unsupported {
            Err(Status::NotSupported)
        } else {
            outcome.failed.map_or(Ok(()), Err)
        }
    }

    /// Sends all parts. A write-zeroes that some member refuses is refused by all, without effect, or sent again as one that may
    /// not be refused (see [`ashlar_block::zeroes`]): otherwise copies would differ, unmarked.
    async fn send_all_or_none(&self, bio: &Bio) -> Outcome {
        let outcome = self.send_parts(bio).await;
        if !(bio.is_refusable() && outcome.unsupported && outcome.good) {
            return outcome;
        }
        let again = self.send_parts(&bio.clone().insisting()).await;
        Outcome { unsupported: false, ..outcome }.and(again)
    }

    /// The result of a discard. If a discarded range may read as anything, a copy that was not
    /// discarded is as good as one that was, and no member fails for it (as in md); if no member can
    /// discard, the caller gets `NotSupported`. If the array promises zeroes, the caller gets the error
    /// and writes the zeroes itself.
    fn judge_discard(&self, outcome: &Outcome) -> BioResult {
        let zeroes = self.core.disk.limits().features.contains(Features::DISCARD_ZEROES);
        // A failed copy does not matter if another succeeded or does not support discards.
        let enough = (outcome.good || outcome.unsupported) && !zeroes;
        match (outcome.failed, outcome.unsupported) {
            (Some(status), _) if !enough => Err(status),
            (_, true) if zeroes || !outcome.good => Err(Status::NotSupported),
            (Some(_) | None, _) => Ok(()),
        }
    }

    async fn send_parts(&self, bio: &Bio) -> Outcome {
        let span = Span { start: bio.sector, len: bio.len };
        let Personality::Raid10(geometry) = self.core.personality() else {
            return self.send_whole(bio).await;
        };
        if geometry.is_plain_mirror() {
            return self.send_whole(bio).await;
        }
        match plan(geometry, span) {
            DiscardPlan::Ordinary => self.send_by_chunks(bio, span).await,
            DiscardPlan::Striped(striped) => {
                let (head, body, tail) = join3(
                    self.send_by_chunks(bio, striped.head()),
                    self.send_ranges(bio, striped.ranges()),
                    self.send_by_chunks(bio, striped.tail()),
                )
                .await;
                head.and(body).and(tail)
            }
        }
    }

    /// Sends each range to the members of its slot.
    async fn send_ranges(&self, bio: &Bio, ranges: impl Iterator<Item = MemberRange>) -> Outcome {
        let targets = ranges.flat_map(|MemberRange { disk, span }| {
            let written = self.core.members.both(disk).filter(|(_, rdev)| rdev.is_written());
            written.map(move |(index, rdev)| {
                let part = Bio { sector: span.start, len: span.len, ..bio.clone() };
                let sent = async move {
                    rdev.submit_from(&self.core.disk, bio.sector, part).await?;
                    self.zeroes_are_good(bio.op, rdev, span.start, span.len);
                    Ok(())
                };
                (index, IoFuture::boxed(sent))
            })
        });
        self.take(bio, gather(targets.collect()).await).await
    }

    /// Sends a bio that is contiguous on every copy to all copies.
    async fn send_whole(&self, bio: &Bio) -> Outcome {
        let mut parts = Parts::default();
        self.send(bio, self.core.personality(), |_| true, &mut parts);
        let answers = gather(parts).await;
        for (index, result) in &answers {
            if let (Ok(()), Some(rdev)) = (result, self.core.members.get(*index))
                && let Some(at) = self.copy_on(*index, bio.sector)
            {
                self.zeroes_are_good(bio.op, rdev, at, bio.len);
            }
        }
        self.take(bio, answers).await
    }

    /// Blocks of a member that were overwritten with zeroes are no longer bad; discarded ones may still
    /// be.
    fn zeroes_are_good(&self, op: Op, rdev: &Rdev, at: Sector, len: Sectors) {
        if op == Op::WriteZeroes && !rdev.bad_blocks().is_empty() {
            self.core.blocks_are_good(rdev, at, len);
        }
    }

    /// Judges a part of a write-zeroes, or collects a part of a discard, which is judged as a whole.
    async fn take(&self, bio: &Bio, answers: Answers) -> Outcome {
        if bio.op == Op::Discard {
            return Outcome::of_discard(&answers);
        }
        let refused = |result: &BioResult| *result == Err(Status::NotSupported);
        let good = answers.iter().any(|(_, result)| !refused(result));
        if bio.is_refusable() && answers.iter().any(|(_, result)| refused(result)) {
            // No member fails for that. Errors of other members come again if the part is sent again.
            return Outcome { good, unsupported: true, ..Outcome::default() };
        }
        let lacking = answers.iter().any(|(_, result)| result.is_err());
        let failed = self.judge(answers).await.err();
        let lacking = lacking || failed.is_some();
        Outcome { good, unsupported: false, failed, lacking }
    }

    /// The ordinary path: chunk by chunk.
    async fn send_by_chunks(&self, bio: &Bio, span: Span) -> Outcome {
        if span.is_empty() {
            return Outcome::default();
        }
        let span = bio.slice_to(span.start, span.len, span.start);
        let chunks = self.chunks(&span).map(|chunk| async move { self.send_whole(&chunk).await });
        iter(chunks)
            .buffer_unordered(WINDOW)
            .fold(Outcome::default(), |sum, part| std::future::ready(sum.and(part)))
            .await
    }
}
