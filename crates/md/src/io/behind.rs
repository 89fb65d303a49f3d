//! Write-behind: writes that are acknowledged before the write-mostly members have them.
//!
//! An array of one fast member and a slow or distant one (`--write-mostly`, with a bitmap that allows
//! `--write-behind`) acknowledges a write when the members that serve reads have it. The data is copied,
//! because its owner may reuse the buffer; the bitmap's mark stays until the last member has it, so after a
//! crash every unfinished write is marked, and a resync copies from a member that serves reads.
//!
//! The promises of a block device are kept as follows:
//! - a write, behind or not, waits for overlapping writes behind: on a slow member the older could
//!   otherwise land after the newer;
//! - a read that must go to a slow member waits for overlapping writes;
//! - a flush waits for all of them, and so makes acknowledged writes durable on every member. (The
//!   kernel flushes without waiting.)

use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ashlar_block::device::Completion;
use ashlar_block::{Bio, BioResult, Buffer, IoFuture, Sector, Status, rate_limited};
use event_listener::{Event, listener};
use futures_util::future::{Either, select};
use smallvec::SmallVec;

use super::{Answers, Sent, gather};
use crate::array::Array;
use crate::canary::{Rule, broken};
use crate::members::Index;
use crate::rdev::Rdev;

/// The array's writes that may be acknowledged before all members have them.
#[derive(Default)]
pub(crate) struct Behind {
    /// How many are allowed at a time; zero for none.
    limit: AtomicU32,
    /// How many are under way.
    count: AtomicU32,
    list: Mutex<List>,
    ended: Event,
}

/// The writes behind, in the order of their beginning.
#[derive(Default)]
struct List {
    begun: u64,
    ranges: Vec<(u64, Range<Sector>)>,
}

impl List {
    fn is_clear(&self, of: &Range<Sector>) -> bool {
        !self.ranges.iter().any(|(_, range)| range.start < of.end && of.start < range.end)
    }
}

/// A write behind; ends when dropped.
struct Entry<'a> {
    behind: &'a Behind,
    number: u64,
}

impl Behind {
    /// Allows `limit` writes behind at a time (the bitmap's `backlog`).
    pub(crate) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, SeqCst);
    }

    /// How many writes behind are allowed.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(SeqCst)
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the list is empty or `done` returns true for it.
    async fn wait(&self, done: impl Fn(&List) -> bool) {
        while !self.is_empty() {
            listener!(self.ended => ended);
            if done(&self.list()) {
                return;
            }
            ended.await;
        }
    }

    /// Whether no write behind is under way.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    /// Waits until no write behind overlaps `[start, end)`.
    pub(super) async fn clear_of(&self, start: Sector, end: Sector) {
        self.wait(|list| list.is_clear(&(start..end))).await;
    }

    /// Waits until all writes behind that have begun have ended.
    pub(super) async fn all_ended(&self) {
        if self.is_empty() {
            return;
        }
        let begun = self.list().begun;
        self.wait(|list| list.ranges.iter().all(|(number, _)| *number > begun)).await;
    }

    /// Counts a write in once it overlaps no other.
    async fn enter(&self, start: Sector, end: Sector) -> Entry<'_> {
        let range = start..end;
        loop {
            self.clear_of(start, end).await;
            let mut list = self.list();
            // Another write may have entered first.
            if list.is_clear(&range) {
                list.begun += 1;
                let number = list.begun;
                list.ranges.push((number, range));
                self.count.fetch_add(1, SeqCst);
                return Entry { behind: self, number };
            }
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.behind.list().ranges.retain(|(number, _)| *number != self.number);
        self.behind.count.fetch_sub(1, SeqCst);
        self.behind.ended.notify(usize::MAX);
    }
}

impl Array {
    /// Whether a write may be acknowledged before the write-mostly members have it: the chunk has a
    /// write-mostly member and an in-sync one that is not, and not too many writes behind are under way.
    pub(super) fn may_write_behind(&self, sector: Sector) -> bool {
        let limit = self.behind.limit();
        if limit == 0 || self.behind.count.load(SeqCst) >= limit || self.bitmap().is_none() {
            return false;
        }
        let (mut last, mut first) = (false, false);
        for copy in self.personality.map(sector) {
            for (_, rdev) in self.writable(copy.disk) {
                last |= rdev.is_write_mostly();
                first |= !rdev.is_write_mostly() && rdev.is_in_sync();
            }
        }
        last && first
    }

    /// A write that is acknowledged when the members that are not write-mostly have it.
    pub(super) fn write_behind(&self, bio: Bio) -> IoFuture<'_> {
        let Some(array) = self.me() else { return IoFuture::failed(Status::Offline) };
        let acknowledged = Rc::new(Completion::default());
        let completion = Rc::clone(&acknowledged);
        self.runtime.spawn(Box::pin(async move {
            let ended = array.write_in_two(bio, &acknowledged).await;
            // Only takes effect if the write was not acknowledged: it failed early.
            acknowledged.complete(ended);
        }));
        IoFuture::completion(completion)
    }

    async fn write_in_two(&self, bio: Bio, acknowledged: &Completion) -> BioResult {
        let _writing = self.write_start().await?;
        let _pass = self.pass(&bio).await;
        let _entry = self.behind.enter(bio.sector, bio.end()).await;
        let marked = !broken(Rule::BehindIsMarked);
        let intent = if marked { self.intend(&bio).await? } else { None };
        let mut copy = copy_of(&bio);
        let kept = Bio { segments: [copy.whole()].into(), ..bio.clone() };
        let first = Box::pin(self.send_to(&bio, |rdev| !rdev.is_write_mostly()));
        let last = Box::pin(self.send_to(&kept, Rdev::is_write_mostly));
        let (mut answers, last) = match select(first, last).await {
            Either::Left((answers, last)) => (answers, Either::Left(last)),
            Either::Right((late, first)) => (first.await, Either::Right(late)),
        };
        let in_sync = |index: &Index| self.members.get(*index).is_some_and(Rdev::is_in_sync);
        let took = answers.iter().filter(|(_, result)| result.is_ok()).map(|(index, _)| *index);
        let held: SmallVec<[Index; 4]> = took.filter(in_sync).collect();
        let early = !held.is_empty();
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
        if let Some(intent) = &intent
            && !self.is_complete(bio.sector, &answers)
        {
            intent.failed();
        }
        let ended = self.judge(answers).await;
        if let Err(status) = ended {
            rate_limited!(warn, array = self.disk.name(), %status, "a write behind failed");
        }
        ended
    }

    /// Sends a bio to the copies whose members are `wanted`.
    async fn send_to(&self, bio: &Bio, wanted: impl Fn(&Rdev) -> bool) -> Answers {
        let mut targets = Sent::new();
        for at in self.personality.map(bio.sector) {
            for (index, rdev) in self.writable(at.disk).filter(|(_, rdev)| wanted(rdev)) {
                let part = Bio { sector: at.sector, ..bio.clone() };
                targets.push((index, rdev.submit_from(&self.disk, bio.sector, part)));
            }
        }
        gather(targets).await
    }
}

/// A copy of a write's data, which outlives the owner's buffer.
fn copy_of(bio: &Bio) -> Buffer {
    let mut copy = Buffer::alloc(bio.len.bytes() as usize);
    let mut rest = copy.as_mut_slice();
    for segment in &bio.segments {
        let (part, more) = rest.split_at_mut(segment.len());
        segment.copy_to(part);
        rest = more;
    }
    copy
}
