//! What members' answers to a write, discard or flush mean for them and for the client.
//!
//! A member that did not take a write fails, unless it has a bad block log that can list what it lacks, or holds the last copy of some data.

use ashlar_block::{Bio, BioResult, Sector, Status};

use super::mirror::Mirrored;
use crate::canary::{Rule, broken};
use crate::core::Core;
use crate::level::parts::Answers;
use crate::membership::rdev::Rdev;
use crate::membership::slots::Index;

impl Mirrored {
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
            let Some(rdev) = self.core.members.get(*index) else { continue };
            held |= result.is_ok() && rdev.is_in_sync();
            if result.is_ok() && !rdev.bad_blocks().is_empty() {
                let at = self.copy_on(*index, bio.sector);
                at.into_iter().for_each(|at| self.core.blocks_are_good(rdev, at, bio.len));
            }
        }
        if !held {
            return answers;
        }
        for (index, result) in &mut answers {
            let Some(rdev) = self.core.members.get(*index) else { continue };
            let Err(status) = *result else { continue };
            if let Some(copy) =
                self.copy_on(*index, bio.sector).filter(|_| Core::may_list(rdev, status))
            {
                *result = self.core.write_block_by_block(rdev, bio, copy, status).await;
            }
        }
        answers
    }

    /// Where a member has its copy of `sector`.
    pub(super) fn copy_on(&self, index: Index, sector: Sector) -> Option<Sector> {
        let copies = self.core.personality().map(sector);
        let here = |slot| self.core.members.both(slot).any(|(other, _)| other == index);
        copies.into_iter().find(|copy| here(copy.disk)).map(|copy| copy.sector)
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
            result = self.core.misses_a_change(index, rdev, status).await.and(result);
        }
        result.and(self.core.recorded().await)
    }
}
