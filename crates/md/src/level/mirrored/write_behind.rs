//! Writes that are acknowledged before the write-mostly members have them; see [`backlog`](super::backlog).

use std::rc::Rc;

use ashlar_block::buffer;
use ashlar_block::device::Completion;
use ashlar_block::{Bio, BioResult, Buffer, Flags, IoFuture, Status, rate_limited};
use futures_util::future::{Either, select};
use smallvec::SmallVec;

use super::backlog::Backlog;
use super::mirror::Mirrored;
use crate::canary::{Rule, broken};
use crate::level::parts::{Parts, gather};
use crate::membership::rdev::Rdev;
use crate::membership::slots::Index;

impl Mirrored {
    /// Whether a write may be acknowledged before the write-mostly members have it: the chunk has a
    /// write-mostly member and an in-sync one that is not, and not too many writes behind are under way.
    pub(super) fn may_write_behind(&self, backlog: &Backlog, bio: &Bio) -> bool {
        let map = self.core.personality();
        if !backlog.has_room()
            || bio.flags.contains(Flags::FUA)
            || self.core.bitmap().is_none()
            || !map.is_in_one_chunk(bio.sector, bio.len)
        {
            return false;
        }
        let (mut last, mut first) = (false, false);
        for copy in map.map(bio.sector) {
            let written = self.core.members.both(copy.disk).filter(|(_, rdev)| rdev.is_written());
            for (_, rdev) in written {
                last |= rdev.is_write_mostly();
                first |= !rdev.is_write_mostly() && rdev.is_in_sync();
            }
        }
        last && first
    }

    /// A write that is acknowledged when the members that are not write-mostly have it.
    pub(super) fn write_behind(&self, bio: Bio) -> IoFuture<'_> {
        let Some(mirror) = self.me() else { return IoFuture::failed(Status::Offline) };
        let acknowledged = Rc::new(Completion::default());
        let completion = Rc::clone(&acknowledged);
        self.core.runtime.spawn(Box::pin(async move {
            let ended = mirror.write_in_two(bio, &acknowledged).await;
            // Only takes effect if the write was not acknowledged: it failed early.
            acknowledged.complete(ended);
        }));
        IoFuture::completion(completion)
    }

    async fn write_in_two(&self, bio: Bio, acknowledged: &Completion) -> BioResult {
        let mut write = self.core.begin(&bio).await?;
        let Some(backlog) = &self.backlog else { return Err(Status::NotSupported) };
        let _entry = backlog.enter(bio.sector, bio.end()).await;
        if !broken(Rule::BehindIsMarked) {
            write.mark(&bio).await?;
        }
        let map = self.core.personality();
        // Without memory for a copy the client waits for all members.
        let mut copy = copy_of(&bio);
        let kept = match &mut copy {
            Some(copy) => Bio { segments: [copy.whole()].into(), ..bio.clone() },
            None => bio.clone(),
        };
        let (mut first, mut last) = (Parts::default(), Parts::default());
        self.send(&bio, map, |rdev| !rdev.is_write_mostly(), &mut first);
        self.send(&kept, map, Rdev::is_write_mostly, &mut last);
        let (first, last) = (Box::pin(gather(first)), Box::pin(gather(last)));
        let (mut answers, last) = match select(first, last).await {
            Either::Left((answers, last)) => (answers, Either::Left(last)),
            Either::Right((late, first)) => (first.await, Either::Right(late)),
        };
        let in_sync = |index: &Index| self.core.members.get(*index).is_some_and(Rdev::is_in_sync);
        let took = answers.iter().filter(|(_, result)| result.is_ok()).map(|(index, _)| *index);
        let held: SmallVec<[Index; 4]> = took.filter(in_sync).collect();
        let early = copy.is_some() && !held.is_empty();
        if early {
            answers = self.keep_with_bad_blocks(&bio, answers, false).await;
            acknowledged.complete(self.judge(answers.clone()).await);
        }
        let late = match last {
            Either::Left(last) => last.await,
            Either::Right(answers) => answers,
        };
        // Pass each result once: a member that lists bad blocks then looks as if it took the write.
        if early {
            let held = held.iter().any(in_sync);
            answers.extend(self.keep_with_bad_blocks(&kept, late, held).await);
        } else {
            answers.extend(late);
            answers = self.keep_with_bad_blocks(&kept, answers, false).await;
        }
        if !self.is_complete(bio.sector, &answers) {
            write.failed();
        }
        let ended = self.judge(answers).await;
        if let Err(status) = ended {
            // What the client was told to be written may be on no member. Before the entry ends, on which a flush waits.
            if early {
                self.core.disk.note_loss();
            }
            rate_limited!(warn, array = self.core.name(), %status, "a write behind failed");
        }
        ended
    }
}

/// A copy of a write's data, which outlives the owner's buffer; `None` if out of memory.
fn copy_of(bio: &Bio) -> Option<Buffer> {
    let mut copy = Buffer::try_alloc(bio.len.bytes() as usize)?;
    buffer::gather(&bio.segments, copy.as_mut_slice());
    Some(copy)
}
