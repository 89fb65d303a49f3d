//! RAID 1 and RAID 10: each sector on several members.
//!
//! Both share this code: the geometry gives the places of a chunk's copies. Reads and writes of several chunks are one I/O to
//! the array's state, barrier and bitmap, and one for each chunk to the members; discards and write-zeroes go to each
//! member as one range where the level's planner allows it.
//!
//! A slot may have two members: the current one and its replacement. Writes go to every member
//! that has not failed, in sync or under rebuild; reads go to members that hold the data.
//!
//! ```text
//!   read  named  windows      write_behind  discard
//!      \    |    /                   |     /  |
//!       \   |   /                  write     |
//!        copies                       \     /
//!                                    answers
//! ```

mod answers;
mod backlog;
pub(crate) mod copies;
mod discard;
mod hedge;
mod mirror;
mod named;
mod read;
mod windows;
mod write;
mod write_behind;

use std::sync::Arc;

use ashlar_block::sync::sharded_arc::{ShardHandle, ShardedArc};
use ashlar_block::sync::uncancellable::Uncancellable;
use ashlar_block::{
    Bio, BioResult, CopyNumber, Extents, Flags, IoFuture, LocalFuture, Op, Sector, Sectors, Status,
};

use super::{Level, Trouble, Work};
use crate::core::Core;
use crate::membership::rdev::Rdev;
use mirror::Mirrored;

/// See the module text.
pub(crate) struct MirroredLevel(ShardedArc<Mirrored>);

impl MirroredLevel {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self(ShardedArc::new(Mirrored::new(core)))
    }

    /// Runs `work` to its end, even if the future is dropped.
    fn uncancellable<F>(&self, work: impl FnOnce(Arc<ShardHandle<Mirrored>>) -> F) -> IoFuture<'_>
    where
        F: Future<Output = BioResult> + 'static,
    {
        Uncancellable::of(&self.0.core.runtime, work(self.0.handle_clone())).into()
    }

    /// A write, discard or write-zeroes.
    fn write(&self, mut bio: Bio) -> IoFuture<'_> {
        if bio.is_refusable() {
            // All members or none: a single member that refused would lack what the others have.
            let refuses = |rdev: &Rdev| !rdev.is_faulty() && !rdev.takes_zeroes(bio.flags);
            if self.0.core.members.placed().any(|(_, rdev)| refuses(rdev)) {
                return IoFuture::failed(Status::NotSupported);
            }
        }
        // For the same reason, and as in md, writes to copies may wait.
        bio.flags -= Flags::NOWAIT;
        if bio.op != Op::Write {
            return self.uncancellable(|mirror| async move { mirror.discard(bio).await });
        }
        if let Some(backlog) = &self.0.backlog
            && self.0.may_write_behind(backlog, &bio)
        {
            return self.0.write_behind(bio);
        }
        self.uncancellable(|mirror| async move { mirror.write(&bio).await })
    }
}

impl Level for MirroredLevel {
    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        let core = &self.0.core;
        match bio.op {
            // The array was stopped. The core refuses writes when it counts them.
            Op::Read | Op::Flush if core.lifecycle.is_stopped() => {
                IoFuture::failed(Status::Offline)
            }
            Op::Read if bio.copy != CopyNumber::ANY => IoFuture::boxed(self.0.read_named(bio)),
            Op::Read if core.personality().is_in_one_chunk(bio.sector, bio.len) => {
                self.0.begin_read(bio)
            }
            Op::Read => IoFuture::boxed(self.0.read_chunks(bio)),
            Op::Write | Op::Discard | Op::WriteZeroes => self.write(bio),
            Op::Flush => self.uncancellable(|mirror| async move { mirror.flush().await }),
        }
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.0.copies(at, len)
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(self.0.extents(at, len))
    }

    fn window<'a>(&'a self, work: Work<'a>) -> LocalFuture<'a, Result<Sectors, Trouble>> {
        match work {
            Work::Resync(range, pieces) => Box::pin(self.0.equalize(range, pieces)),
            Work::Rebuild(rebuild) => Box::pin(self.0.rebuild(rebuild)),
            Work::Check { pieces, repair, mismatch } => {
                Box::pin(self.0.compare_all(pieces, repair, mismatch))
            }
        }
    }
}
