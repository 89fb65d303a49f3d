//! Writes.
//!
//! In this order: the superblocks say active, the write passes the barrier, the bitmap's marks are durable, the
//! data goes to every member that has not failed, failures of members are handled and
//! recorded, the write is acknowledged. The slots are read after the barrier was passed (see
//! `members`).

use ashlar_block::{Bio, BioResult, Flags, IoFuture, Op, Sector, Sectors, Status, rate_limited};

use super::{Answers, Sent, gather};
use crate::array::Array;
use crate::barrier::Pass;
use crate::bitmap::Intent;
use crate::canary::{Rule, broken};
use crate::members::Index;
use crate::rdev::{Rdev, State};

impl Array {
    /// A write, discard or write-zeroes. In an array with copies it runs to its end even if the future
    /// is dropped.
    pub(crate) fn submit_write(&self, mut bio: Bio) -> IoFuture<'_> {
        if !self.is_writable() {
            return IoFuture::failed(Status::ReadOnly);
        }
        if bio.flags.contains(Flags::FAST) {
            // All members or none: a single member that refused would lack what the others have.
            let fast = |rdev: &Rdev| !rdev.limits().max_write_zeroes.is_zero();
            if !self.members.placed().filter(|(_, rdev)| !rdev.is_faulty()).all(|(_, r)| fast(r)) {
                return IoFuture::failed(Status::NotSupported);
            }
            bio.flags -= Flags::FAST;
        }
        if !self.is_redundant() {
            return IoFuture::boxed(self.submit_ranged(bio));
        }
        // For the same reason, and as in md, writes to copies may wait.
        bio.flags -= Flags::NOWAIT;
        if bio.op == Op::Write
            && !bio.flags.contains(Flags::FUA)
            && self.may_write_behind(bio.sector)
        {
            return self.write_behind(bio);
        }
        let write = self.finish(|array| async move {
            match bio.op {
                Op::Write => array.write_chunk(bio).await,
                Op::Read | Op::Flush | Op::Discard | Op::WriteZeroes => {
                    Box::pin(array.submit_ranged(bio)).await
                }
            }
        });
        write.into()
    }

    /// A write within one chunk, to all copies.
    ///
    /// Rare cases are in separate, boxed futures, so that this one stays small: each write creates one.
    async fn write_chunk(&self, bio: Bio) -> BioResult {
        let _writing = self.write_start().await?;
        let _pass = self.pass(&bio).await;
        if !self.behind.is_empty() {
            Box::pin(self.behind.clear_of(bio.sector, bio.end())).await;
        }
        let intent = self.intend(&bio).await?;
        let (copies, everywhere) = self.copies_of(&bio);
        let answers = gather(copies).await;
        if (everywhere || intent.is_none()) && self.is_plain(&answers) {
            return self.recorded().await;
        }
        Box::pin(self.settle(&bio, intent, answers)).await
    }

    /// Whether all members took a write, none of them has bad blocks, and one is in sync.
    fn is_plain(&self, answers: &Answers) -> bool {
        let mut held = false;
        let plain = answers.iter().all(|(index, result)| {
            self.members.get(*index).is_some_and(|rdev| {
                held |= rdev.is_in_sync();
                result.is_ok() && rdev.bad_blocks().is_empty()
            })
        });
        plain && held
    }

    /// Completes a write that some copy lacks, or that may have corrected bad blocks.
    #[cold]
    async fn settle(&self, bio: &Bio, intent: Option<Intent<'_>>, answers: Answers) -> BioResult {
        let answers = self.keep_with_bad_blocks(bio, answers, false).await;
        if let Some(intent) = &intent
            && !self.is_complete(bio.sector, &answers)
        {
            intent.failed();
        }
        self.judge(answers).await
    }

    /// Passes the barrier for the bio's range.
    pub(super) async fn pass(&self, bio: &Bio) -> Option<Pass<'_>> {
        if !self.is_redundant() {
            return None;
        }
        match self.barrier.try_wait(bio.sector, bio.len) {
            Some(pass) => Some(pass),
            None => Some(Box::pin(self.barrier.wait(bio.sector, bio.len)).await),
        }
    }

    /// Marks the bio's range in the bitmap, if there is one.
    pub(super) async fn intend(&self, bio: &Bio) -> Result<Option<Intent<'_>>, Status> {
        let Some(bitmap) = self.bitmap() else { return Ok(None) };
        if let Some(intent) = bitmap.try_begin(bio.sector, bio.len) {
            return Ok(Some(intent));
        }
        Box::pin(async {
            // A bitmap that is not on the members yet accepts no marks.
            self.recorded().await?;
            let intent = bitmap.begin(bio.sector, bio.len, self).await?;
            self.marks_are_recorded().await?;
            Ok(Some(intent))
        })
        .await
    }

    /// A member that did not take the marks has failed. The superblocks of the others must record that
    /// before data is sent, which that member would lack without a mark.
    pub(super) async fn marks_are_recorded(&self) -> BioResult {
        self.recorded().await
    }

    /// Sends a bio that lies within one chunk to all copies; also returns whether every copy has a
    /// member to write to.
    fn copies_of(&self, bio: &Bio) -> (Sent<'_>, bool) {
        let (mut sent, mut everywhere) = (Sent::new(), true);
        for at in self.personality.map(bio.sector) {
            let before = sent.len();
            for (index, rdev) in self.writable(at.disk) {
                let part = Bio { sector: at.sector, ..bio.clone() };
                sent.push((index, rdev.submit_from(&self.disk, bio.sector, part)));
            }
            everywhere &= sent.len() > before;
        }
        (sent, everywhere)
    }

    /// As [`Self::copies_of`], and waits for all results.
    pub(super) async fn send_copies(&self, bio: &Bio) -> Answers {
        gather(self.copies_of(bio).0).await
    }

    /// Whether every copy of the chunk at `sector` was written: no write failed, no slot is empty.
    /// Members under rebuild count.
    pub(super) fn is_complete(&self, sector: Sector, answers: &Answers) -> bool {
        let took = |slot: usize| {
            let here = |index: &Index| self.members.both(slot).any(|(other, _)| other == *index);
            answers.iter().any(|(index, result)| result.is_ok() && here(index))
        };
        answers.iter().all(|(_, result)| result.is_ok())
            && self.personality.map(sector).iter().all(|copy| took(copy.disk))
    }

    /// Updates bad block lists after a write. On members that took it, known bad blocks are good again.
    /// Failed members that have a bad block log retry block by block, list the blocks that cannot be
    /// written, and stay members, if an in-sync member has all data: one of `answers`, or an earlier
    /// one (`held`). The caller judges the returned results. Do not pass a result twice: after this,
    /// that of a member that listed blocks looks as if it had all of the write.
    pub(super) async fn keep_with_bad_blocks(
        &self,
        bio: &Bio,
        mut answers: Answers,
        mut held: bool,
    ) -> Answers {
        for (index, result) in &answers {
            let Some(rdev) = self.members.get(*index) else { continue };
            held |= result.is_ok() && rdev.is_in_sync();
            if result.is_ok() && !rdev.bad_blocks().is_empty() {
                let at = self.copy_on(*index, bio.sector);
                at.into_iter().for_each(|at| self.blocks_are_good(rdev, at, bio.len));
            }
        }
        if !held {
            return answers;
        }
        for (index, result) in &mut answers {
            let Some(rdev) = self.members.get(*index) else { continue };
            let Err(status) = *result else { continue };
            // Listing its bad blocks does not save a member that lost others with its cache.
            let able = rdev.bad_blocks().has_log() && !rdev.is_faulty() && !rdev.has_lost_writes();
            if status.is_of_medium() && able && !rdev.state().contains(State::FAILFAST) {
                *result = self.write_block_by_block(*index, rdev, bio, status).await;
            }
        }
        answers
    }

    /// Clears the bad blocks in a part of a member's data area that was written.
    pub(super) fn blocks_are_good(&self, rdev: &Rdev, at: Sector, len: Sectors) {
        let at = at + rdev.data_offset();
        if rdev.bad_blocks().check(at, len).is_some()
            && let Err(error) = rdev.bad_blocks().clear(at, len)
        {
            // They stay listed, which only keeps reads off this member.
            rate_limited!(warn, array = self.disk.name(), member = rdev.path(), %error, "bad blocks stay listed");
        }
    }

    /// Where a member has its copy of `sector`.
    pub(super) fn copy_on(&self, index: Index, sector: Sector) -> Option<Sector> {
        let copies = self.personality.map(sector);
        let here = |slot| self.members.both(slot).any(|(other, _)| other == index);
        copies.into_iter().find(|copy| here(copy.disk)).map(|copy| copy.sector)
    }

    /// Retries a failed write block by block, and lists bad blocks; an error if the member must fail.
    async fn write_block_by_block(
        &self,
        index: Index,
        rdev: &Rdev,
        bio: &Bio,
        status: Status,
    ) -> BioResult {
        let Some(copy) = self.copy_on(index, bio.sector) else { return Err(status) };
        rate_limited!(warn, array = self.disk.name(), member = rdev.path(), sector = %copy, %status, "write error");
        rdev.set(State::WRITE_ERROR);
        let block = rdev.bad_blocks().unit().max(self.disk.limits().logical_block());
        let mut at = bio.sector;
        let mut listed = false;
        while at < bio.end() {
            let on_member = copy + (at - bio.sector);
            let len = Sectors::min(block - Sectors(on_member.0 % block.0), bio.end() - at);
            let part = bio.slice_to(at, len, on_member);
            if rdev.submit_from(&self.disk, at, part).await.is_err() {
                let on_device = on_member + rdev.data_offset();
                rdev.bad_blocks().set(on_device, len).map_err(|_| status)?;
                listed = true;
            }
            at += len;
        }
        if listed && !broken(Rule::BadBlocksAreRecorded) {
            // The write is acknowledged only when the log and the superblock are on disk.
            self.must_record();
        }
        Ok(())
    }
}
