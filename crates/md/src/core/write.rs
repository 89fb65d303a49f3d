//! Writes, discards and write-zeroes of clients, from their beginning to their end.
//!
//! In this order: the superblocks say active, the barrier lets the write pass, its marks are durable. Only then the level reads the slots
//! (see `membership::slots`), and sends it. It is acknowledged when the superblocks have what acknowledgements depend on.

use ashlar_block::{Bio, BioResult, Features, LocalFuture, Op, Status};

use super::{Core, Hold};
use crate::barrier::Pass;
use crate::bitmap::Intent;

/// A write that the array has begun. Dropped, it lets the daemon clear its marks, then a sync raise the barrier, then the array become clean.
#[must_use = "the write has ended when this is dropped"]
pub(crate) struct Write<'a> {
    intent: Option<Intent<'a>>,
    pass: Pass<'a>,
    hold: Hold<'a>,
    core: &'a Core,
}

impl Core {
    /// Keeps the array open, once the superblocks say that it is active.
    pub(crate) async fn write_start(&self) -> Result<Hold<'_>, Status> {
        let hold = self.lifecycle.begin()?;
        if !self.writable {
            return Err(Status::ReadOnly);
        }
        if !self.lifecycle.activity.is_active() {
            Box::pin(self.go_active()).await?;
        }
        Ok(hold)
    }

    /// Begins a write, with its marks, if it need not wait for anything. An array that is active can be written.
    #[inline]
    pub(crate) fn try_begin(&self, bio: &Bio) -> Option<Write<'_>> {
        let hold = self.lifecycle.begin().ok().filter(|_| self.lifecycle.activity.is_active())?;
        let pass = self.barrier.try_wait(bio.sector, bio.len)?;
        let intent = match self.bitmap() {
            Some(bitmap) => {
                let marks = self.personality().sync_range(bio.sector, bio.len);
                Some(bitmap.try_begin(marks.start, marks.end - marks.start)?)
            }
            None => None,
        };
        Some(Write { intent, pass, hold, core: self })
    }

    /// Begins a write, without its marks: the array is active, and the barrier has let the write pass.
    pub(crate) async fn begin(&self, bio: &Bio) -> Result<Write<'_>, Status> {
        let hold = self.write_start().await?;
        let pass = self.barrier.wait(bio.sector, bio.len).await;
        Ok(Write { intent: None, pass, hold, core: self })
    }
}

impl<'a> Write<'a> {
    /// Marks its range in the bitmap, if there is one. A member that did not take the marks has failed. The superblocks of the
    /// others record that before data is sent, which that member would lack without a mark.
    pub(crate) async fn mark(&mut self, bio: &Bio) -> BioResult {
        let Some(bitmap) = self.core.bitmap() else { return Ok(()) };
        // If the array promises zeroes, copies of a discarded range must be the same, and a new member
        // must get the zeroes: the discard counts as a write.
        let zeroes = || self.core.disk.limits().features.contains(Features::DISCARD_ZEROES);
        let forgets = bio.op == Op::Discard && !zeroes();
        let marks = self.core.personality().sync_range(bio.sector, bio.len);
        let (at, len) = (marks.start, marks.end - marks.start);
        if !forgets {
            self.intent = bitmap.try_begin(at, len);
        }
        if self.intent.is_some() {
            return Ok(());
        }
        Box::pin(async {
            // A bitmap that is not on the members yet accepts no marks.
            self.core.recorded().await?;
            self.intent = Some(if forgets {
                bitmap.begin_discard(at, len, self.core).await?
            } else {
                bitmap.begin(at, len, self.core).await?
            });
            self.core.recorded().await
        })
        .await
    }

    /// Whether its range is marked.
    pub(crate) fn is_marked(&self) -> bool {
        self.intent.is_some()
    }

    /// Some copy lacks it: what is marked stays marked until a sync.
    pub(crate) fn failed(&self) {
        self.intent.iter().for_each(Intent::failed);
    }

    /// All members have taken it, and it needs no marks any more.
    pub(crate) fn done(&mut self) {
        self.intent.take().into_iter().for_each(Intent::done);
    }

    /// Ends a write that all members have. Returns what must succeed before it is acknowledged, if anything: superblocks that are still
    /// to be written, which need neither its marks nor the barrier.
    #[inline]
    pub(crate) fn end(self) -> Option<LocalFuture<'a, BioResult>> {
        let Self { intent, pass, hold, core } = self;
        drop(intent);
        drop(pass);
        if core.lifecycle.is_recorded() {
            return None;
        }
        Some(Box::pin(async move {
            let _hold = hold;
            core.recorded().await
        }))
    }
}
