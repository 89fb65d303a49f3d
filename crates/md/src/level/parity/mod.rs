//! RAID 4, 5 and 6: each sector on one member, and in the sums of its row.
//!
//! **Which parity can be trusted.** Data is always what its member has. Beyond the bound a crash may have left parity that does not
//! fit its row, and a member that is recovered from it would return what nobody wrote. There a plain read of a member that cannot
//! be read fails. A read that names its copy has a user that judges by itself, and gets it. Writes there make the parity of what they
//! touch right, if all data of the row can be read.
//!
//! A slot may have two members: the current one and its replacement. Writes go to every member that has not failed, in sync or under
//! rebuild; reads go to members that hold the data.
//!
//! ```text
//!   named  read     discard    windows
//!     \      \        |        /
//!      \      \     write     /
//!       \      \    / | \    /
//!        \      \  / plan cells
//!         `----- row --'                 rows: who may change one
//! ```

mod cells;
mod discard;
mod liar;
mod named;
mod plan;
mod read;
mod row;
mod rows;
pub(crate) mod settings;
mod windows;
mod write;

use std::sync::{Arc, Weak};

use ashlar_block::sync::sharded_arc::{ShardHandle, ShardedArc};
use ashlar_block::sync::uncancellable::Uncancellable;
use ashlar_block::{
    Bio, BioResult, CopyNumber, Extents, Flags, IoFuture, LocalFuture, Op, Sector, Sectors, Status,
};

use super::{Level, Trouble, Work};
use crate::core::Core;
use crate::raid5::Geometry;
use rows::Rows;

/// The state of a level with parity.
pub(super) struct Parity {
    me: Weak<Self>,
    core: Arc<Core>,
    geometry: Geometry,
    rows: Rows,
}

impl Parity {
    fn new(core: Arc<Core>, geometry: Geometry) -> Arc<Self> {
        Arc::new_cyclic(|me| Self { me: me.clone(), core, geometry, rows: Rows::default() })
    }

    /// The number of the row that contains a sector of the members' data areas.
    fn row_of(&self, on_member: Sector) -> u64 {
        self.geometry.row_number(on_member)
    }

    /// Whether parity must be written before data are read.
    #[inline]
    fn is_unsettled(&self) -> bool {
        self.core.ppl().is_some_and(|ppl| !ppl.is_settled() && self.core.may_correct())
    }

    /// The first reads after a crash.
    async fn read_settled(&self, bio: Bio) -> BioResult {
        let settle = self.uncancellable(|level| async move {
            level.core.settle_logs().await;
            Ok(())
        });
        settle.await?;
        if bio.copy != CopyNumber::ANY {
            return self.read_named(bio).await;
        }
        self.read_chunks(bio).await
    }

    /// Runs `work` to its end, even if the future is dropped. For what is rare: it changes a count that all threads share.
    fn uncancellable<T, F>(
        &self,
        work: impl FnOnce(Arc<Self>) -> F + 'static,
    ) -> Uncancellable<'_, T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        Uncancellable::new(&self.core.runtime, &self.me, work)
    }
}

/// See the module text.
pub(crate) struct ParityLevel(ShardedArc<Parity>);

impl ParityLevel {
    pub(crate) fn new(core: Arc<Core>, geometry: Geometry) -> Self {
        Self(ShardedArc::new(Parity::new(core, geometry)))
    }

    /// Runs `work` to its end, even if the future is dropped.
    fn uncancellable<F>(&self, work: impl FnOnce(Arc<ShardHandle<Parity>>) -> F) -> IoFuture<'_>
    where
        F: Future<Output = BioResult> + 'static,
    {
        Uncancellable::of(&self.0.core.runtime, work(self.0.handle_clone())).into()
    }
}

impl Level for ParityLevel {
    fn submit(&self, mut bio: Bio) -> IoFuture<'_> {
        let (core, geometry) = (&self.0.core, &self.0.geometry);
        match bio.op {
            // The array was stopped. The core refuses writes when it counts them.
            Op::Read | Op::Flush if core.lifecycle.is_stopped() => {
                IoFuture::failed(Status::Offline)
            }
            Op::Read if self.0.is_unsettled() => IoFuture::boxed(self.0.read_settled(bio)),
            Op::Read if bio.copy != CopyNumber::ANY => IoFuture::boxed(self.0.read_named(bio)),
            Op::Read if geometry.chunk_left(bio.sector) >= bio.len => self.0.begin_read(bio),
            Op::Read => IoFuture::boxed(self.0.read_chunks(bio)),
            Op::Write => {
                // All members of a row or none.
                bio.flags -= Flags::NOWAIT;
                self.uncancellable(|level| async move { level.write(&bio).await })
            }
            Op::Discard => self.uncancellable(|level| async move { level.discard(&bio).await }),
            Op::WriteZeroes => {
                bio.flags -= Flags::NOWAIT;
                self.uncancellable(|level| async move { level.write_zeroes(&bio).await })
            }
            // Nothing was written.
            Op::Flush if !core.is_writable() => IoFuture::ready(Ok(())),
            Op::Flush => self.uncancellable(|level| async move { level.flush().await }),
        }
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.0.ways(at, len)
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(self.0.extents(at, len))
    }

    fn window<'a>(&'a self, work: Work<'a>) -> LocalFuture<'a, Result<Sectors, Trouble>> {
        match work {
            Work::Resync(_, pieces) => Box::pin(self.0.resync(pieces)),
            Work::Rebuild(rebuild) => Box::pin(self.0.rebuild(rebuild)),
            Work::Check { pieces, repair, mismatch } => {
                Box::pin(self.0.check(pieces, repair, mismatch))
            }
        }
    }
}
