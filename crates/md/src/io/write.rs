//! Writes.

use ashlar_block::{Bio, BioResult, Flags, IoFuture, Op, Status, trace};

use super::Answers;
use crate::array::Array;
use crate::barrier::Pass;
use crate::rdev::Rdev;

impl Array {
    /// A write, discard or write-zeroes. Those of an array with copies run to their end whatever
    /// becomes of the future.
    pub(crate) fn submit_write(&self, mut bio: Bio) -> IoFuture<'_> {
        if !self.is_writable() {
            return IoFuture::failed(Status::ReadOnly);
        }
        if bio.flags.contains(Flags::FAST) {
            // All members or none: one that gave up alone would lack what the others have.
            let fast = |rdev: &Rdev| !rdev.limits().max_write_zeroes.is_zero();
            if !self.members.placed().filter(|(_, rdev)| !rdev.is_faulty()).all(|(_, r)| fast(r)) {
                return IoFuture::failed(Status::NotSupported);
            }
            bio.flags -= Flags::FAST;
        }
        if !self.is_redundant() {
            return IoFuture::boxed(self.submit_ranged(bio));
        }
        // For the same reason, and as in md, copies are waited for.
        bio.flags -= Flags::NOWAIT;
        IoFuture::boxed(self.finish(|array| async move {
            match bio.op {
                Op::Write => array.write_chunk(bio).await,
                Op::Read | Op::Flush | Op::Discard | Op::WriteZeroes => {
                    array.submit_ranged(bio).await
                }
            }
        }))
    }

    /// A write within one chunk, to all copies.
    async fn write_chunk(&self, bio: Bio) -> BioResult {
        let _writing = self.write_start().await?;
        let _pass = self.pass(&bio).await;
        self.judge(self.send_copies(&bio).await).await
    }

    /// Waits until nothing keeps writes out of the bio's range. (The members are looked at after.)
    pub(super) async fn pass(&self, bio: &Bio) -> Option<Pass<'_>> {
        if self.is_redundant() { Some(self.barrier.wait(bio.sector, bio.len).await) } else { None }
    }

    /// Sends a bio that lies within one chunk to all copies.
    pub(super) async fn send_copies(&self, bio: &Bio) -> Answers {
        trace::bio(&self.disk, trace::Action::Remap, bio);
        let targets = self.personality.map(bio.sector).into_iter().flat_map(|at| {
            self.writable(at.disk).map(move |(index, rdev)| {
                (index, rdev.submit(Bio { sector: at.sector, ..bio.clone() }))
            })
        });
        self.gather(targets).await
    }
}
