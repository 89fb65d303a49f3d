//! Writes and flushes, and how a change is sent to the copies.
//!
//! The write begins in the [core](crate::core::Write): the superblocks say active, it passed the barrier, its marks are durable. The data go
//! to every member that has not failed, failures of members are handled and recorded, the write is acknowledged.

use ashlar_block::{Bio, BioResult, Status};
use futures_util::future::join_all;

use super::mirror::Mirrored;
use crate::canary::{Rule, broken};
use crate::core::Write;
use crate::level::parts::{Answers, Parts, gather};
use crate::membership::rdev::Rdev;
use crate::personality::Personality;

impl Mirrored {
    /// A write of any length, to all copies.
    ///
    /// Rare cases are in separate, boxed futures, so that this one stays small: each write creates one.
    pub(super) async fn write(&self, bio: &Bio) -> BioResult {
        let behind = self.backlog.as_ref().is_some_and(|backlog| !backlog.is_empty());
        let begun = if behind { None } else { self.core.try_begin(bio) };
        let write = match begun {
            Some(write) => write,
            None => Box::pin(self.begin(bio)).await?,
        };
        let map = self.core.personality();
        if map.is_in_one_chunk(bio.sector, bio.len) {
            self.write_chunk(bio, map, &write).await?;
        } else {
            Box::pin(self.write_chunks(bio, map, &write)).await?;
        }
        match write.end() {
            Some(rest) => rest.await,
            None => Ok(()),
        }
    }

    /// Begins a write, discard or write-zeroes that may have to wait.
    pub(super) async fn begin(&self, bio: &Bio) -> Result<Write<'_>, Status> {
        let mut write = self.core.begin(bio).await?;
        self.behind_ended(bio).await;
        write.mark(bio).await?;
        Ok(write)
    }

    async fn write_chunks(&self, bio: &Bio, map: &Personality, write: &Write<'_>) -> BioResult {
        let chunks = self.chunks(bio);
        let writes = chunks.map(|chunk| async move { self.write_chunk(&chunk, map, write).await });
        join_all(writes).await.into_iter().fold(Ok(()), BioResult::and)
    }

    async fn write_chunk(&self, bio: &Bio, map: &Personality, write: &Write<'_>) -> BioResult {
        let mut parts = Parts::default();
        let everywhere = self.send(bio, map, |_| true, &mut parts);
        parts.end().await;
        if (everywhere || !write.is_marked()) && self.is_plain(&parts) {
            return Ok(());
        }
        Box::pin(self.settle(bio, write, parts.results().collect())).await
    }

    /// Whether all members took a write, none of them has bad blocks, and one is in sync.
    fn is_plain(&self, parts: &Parts<'_>) -> bool {
        let mut held = false;
        let plain = parts.results().all(|(index, result)| {
            self.core.members.get(index).is_some_and(|rdev| {
                held |= rdev.is_in_sync();
                result.is_ok() && rdev.bad_blocks().is_empty()
            })
        });
        plain && held
    }

    /// Completes a write that some copy lacks, or that may have corrected bad blocks.
    #[cold]
    async fn settle(&self, bio: &Bio, write: &Write<'_>, answers: Answers) -> BioResult {
        let answers = self.keep_with_bad_blocks(bio, answers, false).await;
        if !self.is_complete(bio.sector, &answers) {
            write.failed();
        }
        self.judge(answers).await
    }

    /// Sends a bio that lies within one chunk of the `map` to its copies on `wanted` members; returns whether every copy has
    /// a member to write to.
    pub(super) fn send<'a>(
        &'a self,
        bio: &Bio,
        map: &Personality,
        wanted: impl Fn(&Rdev) -> bool,
        parts: &mut Parts<'a>,
    ) -> bool {
        let mut everywhere = true;
        for at in map.map(bio.sector) {
            let before = parts.len();
            for (index, rdev) in self.core.members.both(at.disk).filter(|(_, rdev)| wanted(rdev)) {
                if let Some(io) = rdev.write(&self.core.disk, bio, at.sector) {
                    parts.push(index, io);
                }
            }
            everywhere &= parts.len() > before;
        }
        everywhere
    }

    /// Flushes all members. A member that cannot be flushed may have lost writes, so it fails.
    pub(super) async fn flush(&self) -> BioResult {
        // Keeps the array from being stopped meanwhile.
        let _hold = self.core.lifecycle.hold_open();
        if let Some(backlog) = &self.backlog {
            backlog.all_ended().await;
        }
        let targets = self.core.members.placed().filter(|(_, rdev)| !rdev.is_faulty());
        let skipped = usize::from(broken(Rule::FlushReachesAll));
        let flushes = targets.skip(skipped).map(|(index, rdev)| (index, rdev.submit_flush()));
        self.judge(gather(flushes.collect()).await).await
    }
}
