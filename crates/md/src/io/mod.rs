//! Reads, writes, discards and flushes of an array.
//!
//! All levels share this code: the personality gives the places of a chunk's copies, and data with one
//! copy is a mirror of one. The array's limits make the gateway split reads and writes
//! at chunk ends; discards and write-zeroes arrive whole, and go to each member as one range where the
//! level's planner allows it.
//!
//! A slot may have two members: the current one and its replacement. Writes go to every member
//! that has not failed, in sync or under rebuild; reads go to members that hold the data.

pub(crate) mod behind;
mod discard;
mod named;
mod read;
mod write;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use ashlar_block::{Bio, BioResult, IoFuture, Status};
use smallvec::SmallVec;

use crate::array::Array;
use crate::canary::{Rule, broken};
use crate::members::Index;
use crate::rdev::Rdev;

/// Results from members.
type Answers = SmallVec<[(Index, BioResult); 4]>;

/// Bios in flight to members.
type Sent<'a> = SmallVec<[(Index, IoFuture<'a>); 4]>;

/// Waits for all results.
async fn gather(mut sent: Sent<'_>) -> Answers {
    let mut answers = Answers::new();
    poll_fn(|cx| {
        sent.retain(|(index, future)| match Pin::new(future).poll(cx) {
            Poll::Ready(result) => {
                answers.push((*index, result));
                false
            }
            Poll::Pending => true,
        });
        if sent.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers
}

impl Array {
    /// A read or write within one chunk that has one copy: it needs no extra future.
    pub(crate) fn submit_striped(&self, bio: Bio) -> IoFuture<'_> {
        let at = self.personality.map(bio.sector)[0];
        match self.members.member(at.disk) {
            Some(rdev) => {
                rdev.submit_from(&self.disk, bio.sector, Bio { sector: at.sector, ..bio })
            }
            None => IoFuture::failed(Status::Io),
        }
    }

    /// Flushes all members. A member that cannot be flushed may have lost writes, so it fails.
    pub(crate) async fn submit_flush(&self) -> BioResult {
        // Keeps the array from being stopped meanwhile.
        let _writing = self.is_redundant().then(|| self.hold_open());
        self.behind.all_ended().await;
        let targets = self.members.placed().filter(|(_, rdev)| !rdev.is_faulty());
        let skipped = usize::from(broken(Rule::FlushReachesAll));
        let flushes = targets.skip(skipped).map(|(index, rdev)| (index, rdev.submit_flush()));
        self.judge(gather(flushes.collect()).await).await
    }

    /// The members that a write to `slot` goes to.
    fn writable(&self, slot: usize) -> impl Iterator<Item = (Index, &Rdev)> {
        let writable = |rdev: &Rdev| rdev.is_in_sync() || !broken(Rule::RebuildingIsWritten);
        self.members.both(slot).filter(move |(_, rdev)| !rdev.is_faulty() && writable(rdev))
    }

    /// The result of a write, write-zeroes or flush on several members. It succeeds if no remaining
    /// member lacks it: members on which it failed fail, which the superblocks record. If it failed on
    /// all copies, one of them stays (md's rule), so that copies remain the same.
    async fn judge(&self, answers: Answers) -> BioResult {
        let held = |index: Index| self.members.get(index).is_some_and(Rdev::is_in_sync);
        // A member under rebuild cannot replace an in-sync member here.
        let good = answers.iter().any(|(index, result)| result.is_ok() && held(*index));
        let bad = || answers.iter().filter_map(|(index, result)| Some((*index, (*result).err()?)));
        let Some((_, first)) = bad().next() else {
            // No results: there was no member to write to.
            return if good { self.recorded().await } else { Err(Status::Io) };
        };
        let refused = !good && bad().all(|(_, status)| !status.is_retryable_elsewhere());
        if refused || !self.is_redundant() {
            return Err(first);
        }
        let mut result = Ok(());
        for (index, status) in bad() {
            let Some(rdev) = self.members.get(index) else { continue };
            if good && broken(Rule::FailedWritesFailMembers) {
                continue;
            }
            match self.fail_member(rdev, status).await {
                Ok(true) => {}
                // The last copy of some data, which must stay, lacks this.
                Ok(false) => {
                    self.lacks_a_write(index);
                    result = Err(status);
                }
                Err(status) => result = Err(status),
            }
        }
        result.and(self.recorded().await)
    }
}
