//! Writes.
//!
//! In this order: the superblocks say active, the write passes the barrier, the bitmap's marks are durable, the
//! data goes to every member that has not failed, failures of members are handled and
//! recorded, the write is acknowledged. The slots are read after the barrier was passed (see
//! `membership::slots`).

use ashlar_block::{Bio, BioResult};
use futures_util::future::join_all;

use super::mirror::Mirror;
use super::send::{Answers, Sent};
use crate::bitmap::Intent;
use crate::membership::rdev::Rdev;

impl Mirror {
    /// A write of any length, to all copies.
    ///
    /// Rare cases are in separate, boxed futures, so that this one stays small: each write creates one.
    pub(super) async fn write(&self, bio: &Bio) -> BioResult {
        let _writing = self.core.write_start().await?;
        let _pass = self.pass(bio).await;
        if !self.behind.is_empty() {
            Box::pin(self.behind.clear_of(bio.sector, bio.end())).await;
        }
        let intent = self.intend(bio).await?;
        if self.is_in_one_chunk(bio) {
            self.write_chunk(bio, intent.as_ref()).await
        } else {
            Box::pin(self.write_chunks(bio, intent.as_ref())).await
        }
    }

    async fn write_chunks(&self, bio: &Bio, intent: Option<&Intent<'_>>) -> BioResult {
        let chunks = self.chunks(bio);
        let writes = chunks.map(|chunk| async move { self.write_chunk(&chunk, intent).await });
        join_all(writes).await.into_iter().fold(Ok(()), BioResult::and)
    }

    async fn write_chunk(&self, bio: &Bio, intent: Option<&Intent<'_>>) -> BioResult {
        let mut sent = Sent::default();
        let everywhere = self.send(bio, |_| true, &mut sent);
        sent.end().await;
        if (everywhere || intent.is_none()) && self.is_plain(&sent) {
            return self.core.recorded().await;
        }
        Box::pin(self.settle(bio, intent, sent.results().collect())).await
    }

    /// Whether all members took a write, none of them has bad blocks, and one is in sync.
    fn is_plain(&self, sent: &Sent<'_>) -> bool {
        let mut held = false;
        let plain = sent.results().all(|(index, result)| {
            self.core.members.get(index).is_some_and(|rdev: &Rdev| {
                held |= rdev.is_in_sync();
                result.is_ok() && rdev.bad_blocks().is_empty()
            })
        });
        plain && held
    }

    /// Completes a write that some copy lacks, or that may have corrected bad blocks.
    #[cold]
    async fn settle(&self, bio: &Bio, intent: Option<&Intent<'_>>, answers: Answers) -> BioResult {
        let answers = self.keep_with_bad_blocks(bio, answers, false).await;
        if let Some(intent) = intent
            && !self.is_complete(bio.sector, &answers)
        {
            intent.failed();
        }
        self.judge(answers).await
    }
}
