//! RAID 4, 5 and 6, for reading: data from its member, or from the rest of its row.
//!
//! An array is read-only for now, so nothing here writes: neither what a client sends, nor what was recovered.
//!
//! **Which parity can be trusted.** Data is always what its member has. Beyond the bound a crash may have left parity that does not
//! fit its row, and a member that is recovered from it would return what nobody wrote. There a plain read of a member that cannot
//! be read fails. A read that names its copy has a user that judges by itself, and gets it.
//!
//! ```text
//!   mod -- named
//!     \     |
//!      \    |
//!        row
//! ```

mod named;
mod row;

use std::sync::Arc;

use ashlar_block::buffer::scatter;
use ashlar_block::{
    Bio, BioResult, Buffer, CopyNumber, Flags, IoFuture, LocalFuture, Op, Sector, Sectors, Status,
    rate_limited,
};
use futures_util::future::join_all;

use super::{Level, PAGE, Part, Trouble, Work};
use crate::core::Core;
use crate::membership::rdev::Rdev;
use crate::raid5::Geometry;
use crate::raid10::Location;
use row::Way;

/// Memory for the blocks of a row that are read at a time to recover one of them, bytes.
const ROW_BYTES: u64 = 4 << 20;

/// See the module text.
pub(crate) struct ParityLevel {
    core: Arc<Core>,
    geometry: Geometry,
}

impl ParityLevel {
    pub(crate) fn new(core: Arc<Core>, geometry: Geometry) -> Self {
        Self { core, geometry }
    }

    /// The member in `slot`, or its replacement, if it can return a range of its data area.
    fn source(&self, slot: usize, at: Sector, len: Sectors) -> Option<&Rdev> {
        let all = self.core.members.both(slot).map(|(_, rdev)| rdev);
        all.into_iter().find(|rdev| rdev.can_read(at, len))
    }

    /// A read of several chunks.
    async fn read_chunks(&self, bio: Bio) -> BioResult {
        let chunks = self.core.personality().chunks(&bio).map(|chunk| self.begin_read(chunk));
        join_all(chunks).await.into_iter().fold(Ok(()), BioResult::and)
    }

    /// Begins a read within one chunk. One that its member answers at once needs no future.
    fn begin_read(&self, bio: Bio) -> IoFuture<'_> {
        let at = self.geometry.map(bio.sector);
        let Some(rdev) = self.source(at.disk, at.sector, bio.len) else {
            return IoFuture::boxed(async move { self.read_parts(&bio, at).await });
        };
        rdev.note_read(at.sector + bio.len);
        let io = rdev.submit_from(&self.core.disk, bio.sector, bio.remapped(at.sector));
        if io.result() == Some(Ok(())) {
            return IoFuture::ready(Ok(()));
        }
        IoFuture::boxed(self.end_read(bio, at, (rdev, io)))
    }

    /// Ends a read that a member has.
    async fn end_read(
        &self,
        bio: Bio,
        at: Location,
        (rdev, mut io): (&Rdev, IoFuture<'_>),
    ) -> BioResult {
        // By reference, because the future is slow to move.
        let Err(status) = (&mut io).await else { return Ok(()) };
        if !status.is_retryable_elsewhere() || bio.flags.contains(Flags::RAHEAD) {
            return Err(status);
        }
        rdev.count_read_error();
        let (array, member, sector) = (self.core.name(), rdev.path(), bio.sector);
        rate_limited!(warn, array, member, %sector, %status, "read error, reading the rest of the row");
        drop(io);
        Box::pin(self.read_parts(&bio, at)).await
    }

    /// A read within one chunk, of which its member returns not all: each part from there, or from the rest of its row.
    async fn read_parts(&self, bio: &Bio, at: Location) -> BioResult {
        let least = PAGE.max(self.core.disk.limits().logical_block());
        let most = Sectors::from_bytes_floor(ROW_BYTES / self.geometry.disks() as u64);
        let most = most.round_down(least).max(least);
        let mut buffer = Buffer::try_alloc(bio.len.bytes() as usize).ok_or(Status::Resource)?;
        let mut todo = vec![Part { into: Sectors::ZERO, len: bio.len }];
        while let Some(part) = todo.pop() {
            if part.len > most {
                todo.push(Part { into: part.into + most, len: part.len - most });
                todo.push(Part { len: most, ..part });
                continue;
            }
            match self.read_part(at.disk, at.sector + part.into, part.len).await {
                Ok(read) => {
                    let from = part.into.bytes() as usize;
                    let into = &mut buffer.as_mut_slice()[from..][..read.len()];
                    into.copy_from_slice(read.as_slice());
                }
                Err(status) if !status.is_of_medium() || part.len <= least => return Err(status),
                Err(_) => {
                    let half = Sectors(part.len.0 / 2).round_up(least);
                    todo.push(Part { into: part.into + half, len: part.len - half });
                    todo.push(Part { len: half, ..part });
                }
            }
        }
        scatter(buffer.as_slice(), &bio.segments);
        Ok(())
    }

    /// Reads a part from its member, otherwise from the rest of its row.
    async fn read_part(&self, slot: usize, at: Sector, len: Sectors) -> Result<Buffer, Status> {
        if let Ok(read) = self.read_member(slot, at, len).await {
            return Ok(read);
        }
        if self.core.bound.is_beyond(at + len) {
            rate_limited!(
                warn,
                array = self.core.name(),
                slot,
                sector = %at,
                "cannot be read: the array was not stopped cleanly, and the parity of this row may be wrong"
            );
            return Err(Status::Medium);
        }
        self.recover(slot, at, len, &Way::any()).await
    }

    /// Reads from a member's data area.
    async fn read_member(&self, slot: usize, at: Sector, len: Sectors) -> Result<Buffer, Status> {
        let rdev = self.source(slot, at, len).ok_or(Status::Medium)?;
        let mut buffer = Buffer::try_alloc(len.bytes() as usize).ok_or(Status::Resource)?;
        let bio = Bio::read(at, [buffer.whole()]);
        if let Err(status) = rdev.submit(bio).await {
            rdev.count_read_error();
            return Err(status);
        }
        Ok(buffer)
    }
}

impl Level for ParityLevel {
    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Read | Op::Flush if self.core.lifecycle.is_stopped() => {
                IoFuture::failed(Status::Offline)
            }
            Op::Read if bio.copy != CopyNumber::ANY => IoFuture::boxed(self.read_named(bio)),
            Op::Read if self.geometry.chunk_left(bio.sector) >= bio.len => self.begin_read(bio),
            Op::Read => IoFuture::boxed(self.read_chunks(bio)),
            // Nothing was written.
            Op::Flush => IoFuture::ready(Ok(())),
            Op::Write | Op::Discard | Op::WriteZeroes => IoFuture::failed(Status::ReadOnly),
        }
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.ways(at, len)
    }

    fn window<'a>(&'a self, _: Work<'a>) -> LocalFuture<'a, Result<Sectors, Trouble>> {
        // An array that is only read is not synced.
        Box::pin(std::future::ready(Err(Trouble::Failed(Status::ReadOnly))))
    }
}
