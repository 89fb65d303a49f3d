//! What writes, discards and flushes of several members share: sending, gathering, judging.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use ashlar_block::{Bio, BioResult, IoFuture, Sector, Status};
use smallvec::SmallVec;

use super::mirror::Mirror;
use crate::barrier::Pass;
use crate::bitmap::Intent;
use crate::canary::{Rule, broken};
use crate::membership::rdev::Rdev;
use crate::membership::slots::Index;

/// Results from members.
pub(super) type Answers = SmallVec<[(Index, BioResult); 4]>;

/// A bio to a member, or its result.
enum Part<'a> {
    InFlight(IoFuture<'a>),
    Ended(BioResult),
}

/// Bios to members. Large, so it stays where it is made.
#[derive(Default)]
pub(super) struct Sent<'a>(SmallVec<[(Index, Part<'a>); 4]>);

impl<'a> Sent<'a> {
    fn push(&mut self, index: Index, io: IoFuture<'a>) {
        self.0.push((index, Part::InFlight(io)));
    }

    /// Waits until all have ended.
    pub(super) async fn end(&mut self) {
        poll_fn(|cx| {
            let mut poll = Poll::Ready(());
            for (_, part) in &mut self.0 {
                let Part::InFlight(io) = part else { continue };
                match Pin::new(io).poll(cx) {
                    Poll::Ready(result) => *part = Part::Ended(result),
                    Poll::Pending => poll = Poll::Pending,
                }
            }
            poll
        })
        .await;
    }

    /// The results so far.
    pub(super) fn results(&self) -> impl Iterator<Item = (Index, BioResult)> {
        self.0.iter().filter_map(|(index, part)| match part {
            Part::Ended(result) => Some((*index, *result)),
            Part::InFlight(_) => None,
        })
    }
}

impl<'a> FromIterator<(Index, IoFuture<'a>)> for Sent<'a> {
    fn from_iter<I: IntoIterator<Item = (Index, IoFuture<'a>)>>(all: I) -> Self {
        Self(all.into_iter().map(|(index, io)| (index, Part::InFlight(io))).collect())
    }
}

/// Waits for all results.
pub(super) async fn gather(mut sent: Sent<'_>) -> Answers {
    sent.end().await;
    sent.results().collect()
}

impl Mirror {
    /// Passes the barrier for the bio's range.
    #[inline]
    pub(super) async fn pass(&self, bio: &Bio) -> Pass<'_> {
        match self.core.barrier.try_wait(bio.sector, bio.len) {
            Some(pass) => pass,
            None => Box::pin(self.core.barrier.wait(bio.sector, bio.len)).await,
        }
    }

    /// Marks the bio's range in the bitmap, if there is one.
    ///
    /// A member that did not take the marks has failed. The superblocks of the others record that before data is sent, which
    /// that member would lack without a mark.
    #[inline]
    pub(super) async fn intend(&self, bio: &Bio) -> Result<Option<Intent<'_>>, Status> {
        let Some(bitmap) = self.core.bitmap() else { return Ok(None) };
        if let Some(intent) = bitmap.try_begin(bio.sector, bio.len) {
            return Ok(Some(intent));
        }
        Box::pin(async {
            // A bitmap that is not on the members yet accepts no marks.
            self.core.recorded().await?;
            let intent = bitmap.begin(bio.sector, bio.len, &*self.core).await?;
            self.core.recorded().await?;
            Ok(Some(intent))
        })
        .await
    }

    /// Sends a bio that lies within one chunk to its copies on `wanted` members; returns whether every copy has a member to
    /// write to.
    pub(super) fn send<'a>(
        &'a self,
        bio: &Bio,
        wanted: impl Fn(&Rdev) -> bool,
        sent: &mut Sent<'a>,
    ) -> bool {
        let mut everywhere = true;
        for at in self.core.personality().map(bio.sector) {
            let before = sent.0.len();
            for (index, rdev) in self.writable(at.disk).filter(|(_, rdev)| wanted(rdev)) {
                let part = bio.remapped(at.sector);
                sent.push(index, rdev.submit_from(self.core.disk(), bio.sector, part));
            }
            everywhere &= sent.0.len() > before;
        }
        everywhere
    }

    /// Whether every copy of the chunk at `sector` was written: no write failed, no slot is empty.
    /// Members under rebuild count.
    pub(super) fn is_complete(&self, sector: Sector, answers: &Answers) -> bool {
        let took = |slot: usize| {
            let here =
                |index: &Index| self.core.members.both(slot).any(|(other, _)| other == *index);
            answers.iter().any(|(index, result)| result.is_ok() && here(index))
        };
        answers.iter().all(|(_, result)| result.is_ok())
            && self.core.personality().map(sector).iter().all(|copy| took(copy.disk))
    }

    /// Flushes all members. A member that cannot be flushed may have lost writes, so it fails.
    pub(super) async fn flush(&self) -> BioResult {
        // Keeps the array from being stopped meanwhile.
        let _writing = self.core.lifecycle.hold_open();
        self.behind.all_ended().await;
        let targets = self.core.members.placed().filter(|(_, rdev)| !rdev.is_faulty());
        let skipped = usize::from(broken(Rule::FlushReachesAll));
        let flushes = targets.skip(skipped).map(|(index, rdev)| (index, rdev.submit_flush()));
        self.judge(gather(flushes.collect()).await).await
    }

    /// The members that a write to `slot` goes to.
    pub(super) fn writable(&self, slot: usize) -> impl Iterator<Item = (Index, &Rdev)> {
        let writable = |rdev: &Rdev| rdev.is_in_sync() || !broken(Rule::RebuildingIsWritten);
        self.core.members.both(slot).filter(move |(_, rdev)| !rdev.is_faulty() && writable(rdev))
    }

    /// The result of a write, write-zeroes or flush on several members. It succeeds if no remaining
    /// member lacks it: members on which it failed fail, which the superblocks record. If it failed on
    /// all copies, one of them stays (md's rule), so that copies remain the same.
    pub(super) async fn judge(&self, answers: Answers) -> BioResult {
        let held = |index: Index| self.core.members.get(index).is_some_and(Rdev::is_in_sync);
        // A member under rebuild cannot replace an in-sync member here.
        let good = answers.iter().any(|(index, result)| result.is_ok() && held(*index));
        let bad = || answers.iter().filter_map(|(index, result)| Some((*index, (*result).err()?)));
        let Some((_, first)) = bad().next() else {
            // No results: there was no member to write to.
            return if good { self.core.recorded().await } else { Err(Status::Io) };
        };
        let refused = !good && bad().all(|(_, status)| !status.is_retryable_elsewhere());
        if refused {
            return Err(first);
        }
        let mut result = Ok(());
        for (index, status) in bad() {
            let Some(rdev) = self.core.members.get(index) else { continue };
            if good && broken(Rule::FailedWritesFailMembers) {
                continue;
            }
            match self.core.fail_member(rdev, status).await {
                Ok(true) => {}
                // The last copy of some data, which must stay, lacks this.
                Ok(false) => {
                    self.core.lacks_a_write(index);
                    result = Err(status);
                }
                Err(status) => result = Err(status),
            }
        }
        result.and(self.core.recorded().await)
    }
}
