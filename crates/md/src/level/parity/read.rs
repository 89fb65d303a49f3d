//! Reads: from the member that has the data, otherwise from the rest of the row; and the correction of read errors.

use ashlar_block::buffer::scatter;
use ashlar_block::{
    Bio, BioResult, Buffer, Extents, Flags, IoFuture, Sector, Sectors, Status, rate_limited,
};
use futures_util::future::join_all;

use super::Parity;
use super::row::Way;
use crate::barrier::Pass;
use crate::core::{Part, Source};
use crate::level::{PAGE, extents_of_members};
use crate::membership::rdev::Rdev;
use crate::membership::slots::Index;
use crate::raid10::Location;

/// Memory for the blocks of a row that are read at a time to recover one of them, bytes.
const ROW_BYTES: u64 = 4 << 20;

/// A read that a member has.
type Sent<'a> = (Pass<'a>, Index, &'a Rdev, IoFuture<'a>);

impl Parity {
    /// The member in `slot`, or its replacement, if it can return a range of its data area.
    pub(super) fn source(&self, slot: usize, at: Sector, len: Sectors) -> Option<(Index, &Rdev)> {
        self.core.members.both(slot).find(|(_, rdev)| rdev.can_read(at, len))
    }

    /// What is known of a range: what the members know that hold its data. What a member lacks counts as data.
    pub(super) async fn extents(&self, at: Sector, len: Sectors) -> Result<Extents, Status> {
        let _pass = self.core.barrier.wait_read(at, len).await;
        let source = |at, len| {
            let Location { disk, sector } = self.geometry.map(at);
            let (index, rdev) = self.source(disk, sector, len)?;
            Some(Source { index, rdev, at: sector })
        };
        let devices = self.geometry.data_disks();
        extents_of_members(&self.core, (at, len), devices, source).await
    }

    /// A read of several chunks.
    pub(super) async fn read_chunks(&self, bio: Bio) -> BioResult {
        let chunks = self.core.personality().chunks(&bio).map(|chunk| self.begin_read(chunk));
        join_all(chunks).await.into_iter().fold(Ok(()), BioResult::and)
    }

    /// Begins a read within one chunk: if it need not wait for anything, its member has it when this returns. One that its member answers at
    /// once needs no future.
    pub(super) fn begin_read(&self, bio: Bio) -> IoFuture<'_> {
        let at = self.geometry.map(bio.sector);
        let pass = self.core.barrier.try_wait_read(bio.sector, bio.len);
        let sent = pass.and_then(|pass| self.send_read(&bio, at, pass));
        let Some(sent) = sent else {
            return IoFuture::boxed(self.read(bio, at));
        };
        if sent.3.result() == Some(Ok(())) && !sent.2.has_lost_writes() {
            return IoFuture::ready(Ok(()));
        }
        IoFuture::boxed(self.end_read(bio, at, sent))
    }

    /// Sends a read that has passed the barrier to its member, if that can return it.
    fn send_read<'a>(&'a self, bio: &Bio, at: Location, pass: Pass<'a>) -> Option<Sent<'a>> {
        let (index, rdev) = self.source(at.disk, at.sector, bio.len)?;
        rdev.note_read(at.sector + bio.len);
        let io = rdev.submit_from(&self.core.disk, bio.sector, bio.remapped(at.sector));
        Some((pass, index, rdev, io))
    }

    /// A read within one chunk that waits for the barrier, or that no member can return.
    async fn read(&self, bio: Bio, at: Location) -> BioResult {
        let pass = self.core.barrier.wait_read(bio.sector, bio.len).await;
        match self.send_read(&bio, at, pass) {
            Some(sent) => self.end_read(bio, at, sent).await,
            None => Box::pin(self.read_failed(bio, at, None)).await,
        }
    }

    /// Ends a read that a member has.
    async fn end_read(&self, bio: Bio, at: Location, sent: Sent<'_>) -> BioResult {
        let (pass, index, rdev, mut io) = sent;
        // By reference, because the future is slow to move.
        let result = match (&mut io).await {
            Ok(()) => self.core.is_current(index, rdev).await,
            failed => failed,
        };
        drop(io);
        drop(pass);
        let Err(status) = result else { return Ok(()) };
        Box::pin(self.read_failed(bio, at, Some((index, status)))).await
    }

    /// Continues a read that its member cannot return, or has failed.
    #[cold]
    async fn read_failed(
        &self,
        bio: Bio,
        at: Location,
        failed: Option<(Index, Status)>,
    ) -> BioResult {
        if let Some((index, status)) = failed {
            if !status.is_retryable_elsewhere() || bio.flags.contains(Flags::RAHEAD) {
                return Err(status);
            }
            let member = self.core.members.get(index).map_or("", Rdev::path);
            let (array, sector) = (self.core.name(), bio.sector);
            rate_limited!(warn, array, member, %sector, %status, "read error, reading the rest of the row");
            // Superblock writes must not be abandoned halfway.
            self.uncancellable(
                move |level| async move { level.core.note_error(index, status).await },
            )
            .await?;
        }
        let mut buffer = Buffer::try_alloc(bio.len.bytes() as usize).ok_or(Status::Resource)?;
        let mut wrong = Vec::new();
        {
            let _pass = self.core.barrier.wait_read(bio.sector, bio.len).await;
            let _row = self.rows.entry(self.row_of(at.sector)).shared().await;
            self.read_parts(at, &mut buffer, &mut wrong).await?;
        }
        if !wrong.is_empty() && self.core.may_correct() {
            let (bio, wrong) = (bio.clone(), wrong);
            let corrected = self
                .uncancellable(move |level| async move { level.correct(&bio, at, &wrong).await });
            // The data that was read is good anyway.
            if let Err(status) = corrected.await {
                rate_limited!(warn, array = self.core.name(), %status, "read error not corrected");
            }
        }
        scatter(buffer.as_slice(), &bio.segments);
        Ok(())
    }

    /// Reads a run within one chunk, each part from its member or from the rest of its row. Parts that the member failed to return are added
    /// to `wrong`.
    async fn read_parts(
        &self,
        at: Location,
        buffer: &mut Buffer,
        wrong: &mut Vec<Part>,
    ) -> BioResult {
        let least = PAGE.max(self.core.disk.limits().logical_block());
        let most = Sectors::from_bytes_floor(ROW_BYTES / self.geometry.disks() as u64);
        let most = most.round_down(least).max(least);
        let len = Sectors::from_bytes_floor(buffer.len() as u64);
        let mut todo = vec![Part { into: Sectors::ZERO, len }];
        while let Some(part) = todo.pop() {
            if part.len > most {
                todo.push(Part { into: part.into + most, len: part.len - most });
                todo.push(Part { len: most, ..part });
                continue;
            }
            match self.read_part(at.disk, at.sector, part, wrong).await {
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
        Ok(())
    }

    /// Reads a part from its member, otherwise from the rest of its row.
    async fn read_part(
        &self,
        slot: usize,
        start: Sector,
        part: Part,
        wrong: &mut Vec<Part>,
    ) -> Result<Buffer, Status> {
        let (at, len) = (start + part.into, part.len);
        let failed = match self.read_member(slot, at, len).await {
            Ok(read) => return Ok(read),
            Err((index, _)) => index.is_some(),
        };
        if self.core.is_suspect(&(at..at + len)) {
            rate_limited!(
                warn,
                array = self.core.name(),
                slot,
                sector = %at,
                "cannot be read: the array was not stopped cleanly, and the parity of this row may be wrong"
            );
            return Err(Status::Medium);
        }
        let read = self.recover(slot, (at, len), &Way::any()).await?;
        if failed {
            wrong.push(part);
        }
        Ok(read)
    }

    /// Reads from a member's data area.
    ///
    /// # Errors
    /// The status, and the member if there is one.
    pub(super) async fn read_member(
        &self,
        slot: usize,
        at: Sector,
        len: Sectors,
    ) -> Result<Buffer, (Option<Index>, Status)> {
        let (index, rdev) = self.source(slot, at, len).ok_or((None, Status::Medium))?;
        let memory = Buffer::try_alloc(len.bytes() as usize);
        let mut buffer = memory.ok_or((Some(index), Status::Resource))?;
        let read = rdev.submit(Bio::read(at, [buffer.whole()])).await;
        let read = match read {
            Ok(()) => self.core.is_current(index, rdev).await,
            Err(status) => {
                rdev.count_read_error();
                Err(status)
            }
        };
        read.map(|()| buffer).map_err(|status| (Some(index), status))
    }

    /// Writes over the pages of a run's parts that the member cannot return what the rest of their rows says. What it returned a moment ago may
    /// be old by now, so everything is read again, with the row locked.
    async fn correct(&self, bio: &Bio, at: Location, wrong: &[Part]) -> BioResult {
        let _write = self.core.begin(bio).await?;
        let _row = self.rows.entry(self.row_of(at.sector)).alone().await;
        let least = PAGE.max(self.core.disk.limits().logical_block());
        for part in wrong {
            let mut into = part.into;
            while into < part.end() {
                // To the next boundary of the member's pages.
                let edge = (at.sector + into + Sectors(1)).round_up(least) - at.sector;
                let len = edge.min(part.end()) - into;
                self.correct_page(at.disk, at.sector + into, len).await?;
                into += len;
            }
        }
        Ok(())
    }

    async fn correct_page(&self, slot: usize, at: Sector, len: Sectors) -> BioResult {
        let Err((Some(index), status)) = self.read_member(slot, at, len).await else {
            return Ok(());
        };
        if !status.is_of_medium() || self.core.is_suspect(&(at..at + len)) {
            return Ok(());
        }
        let mut good = self.recover(slot, (at, len), &Way::any()).await?;
        match self.core.members.get(index) {
            Some(rdev) if !rdev.is_faulty() => {
                let part = Part { into: Sectors::ZERO, len };
                self.core.overwrite(Source { index, rdev, at }, part, &good.whole()).await
            }
            Some(_) | None => Ok(()),
        }
    }
}
