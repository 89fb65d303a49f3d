//! Reads: from the least busy member, and the handling of read errors.

use ashlar_block::buffer::scatter;
use ashlar_block::{
    Bio, BioResult, Buffer, Extents, Flags, IoFuture, Sector, Sectors, Segment, Status,
    rate_limited,
};
use futures_util::future::join_all;

use super::copies::{FetchResult, Sources};
use super::mirror::Mirrored;
use crate::barrier::Pass;
use crate::canary::{Rule, broken};
use crate::core::Source;
use crate::level::extents_of_members;
use crate::membership::rdev::Rdev;
use crate::membership::slots::Index;
use crate::personality::Personality;

impl Mirrored {
    /// A read of several chunks.
    pub(super) async fn read_chunks(&self, bio: Bio) -> BioResult {
        let chunks = self.chunks(&bio).map(|chunk| self.read(chunk));
        join_all(chunks).await.into_iter().fold(Ok(()), BioResult::and)
    }

    /// What is known of a range: what the members know that would be read. A member that is written behind is not asked.
    pub(super) async fn extents(&self, at: Sector, len: Sectors) -> Result<Extents, Status> {
        let _pass = self.core.barrier.wait_read(at, len).await;
        let source = |at, len| {
            let copy = self.best_copy(at, len, None)?;
            (!copy.rdev.is_write_mostly()).then_some(copy)
        };
        // Each member of a RAID 1 has the whole range, of a RAID 10 its share.
        let devices = match self.core.personality() {
            Personality::Raid10(geometry) => geometry.disks() / usize::from(geometry.layout().near),
            Personality::Linear { .. }
            | Personality::Raid0(_)
            | Personality::Raid1 { .. }
            | Personality::Parity(_) => 1,
        };
        extents_of_members(&self.core, (at, len), devices, source).await
    }

    /// Begins a read within one chunk: if it need not wait for anything, its member has it when this returns. A read that the member
    /// answers at once needs no future; the others' are as small as can be.
    pub(super) fn begin_read(&self, bio: Bio) -> IoFuture<'_> {
        let Some((pass, copy)) = self.try_read(&bio) else {
            return IoFuture::boxed(self.read(bio));
        };
        let io = self.submit_read(&bio, copy);
        if io.result() == Some(Ok(())) && !copy.rdev.has_lost_writes() {
            return IoFuture::ready(Ok(()));
        }
        IoFuture::boxed(self.end_read(bio, copy, (pass, io)))
    }

    /// Passes the barrier with a read within one chunk, and chooses the copy; `None` if the read has to wait, or needs more than one
    /// I/O.
    #[inline]
    fn try_read(&self, bio: &Bio) -> Option<(Pass<'_>, Source<'_>)> {
        if self.core.members.read_hedge_us() > 0 {
            return None;
        }
        let pass = self.core.barrier.try_wait_read(bio.sector, bio.len)?;
        let copy = self.best_copy(bio.sector, bio.len, None)?;
        (!copy.rdev.is_write_mostly()).then_some((pass, copy))
    }

    /// Ends a read that a member has.
    async fn end_read(
        &self,
        bio: Bio,
        copy: Source<'_>,
        (pass, mut io): (Pass<'_>, IoFuture<'_>),
    ) -> BioResult {
        // By reference, because the future is slow to move.
        let result = match (&mut io).await {
            Ok(()) => self.core.is_current(copy.index, copy.rdev).await,
            failed => failed,
        };
        drop(io);
        drop(pass);
        match result {
            Ok(()) => Ok(()),
            Err(status) => Box::pin(self.read_failed(bio, Some((copy.index, status)))).await,
        }
    }

    /// A read within one chunk, which may have to wait.
    ///
    /// Rare cases are in separate, boxed futures, so that this one stays small.
    pub(super) async fn read(&self, bio: Bio) -> BioResult {
        let failed = if self.core.members.read_hedge_us() > 0 {
            match Box::pin(self.read_hedged(&bio)).await {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            }
        } else {
            let _pass = match self.core.barrier.try_wait_read(bio.sector, bio.len) {
                Some(pass) => pass,
                None => Box::pin(self.core.barrier.wait_read(bio.sector, bio.len)).await,
            };
            match self.best_copy(bio.sector, bio.len, None) {
                None => None,
                Some(copy) => match self.read_copy(&bio, copy).await {
                    Ok(()) => return Ok(()),
                    Err(status) => Some((copy.index, status)),
                },
            }
        };
        Box::pin(self.read_failed(bio, failed)).await
    }

    /// Reads what a bio asks for from a copy, which must be current.
    #[inline]
    pub(super) async fn read_copy(&self, bio: &Bio, copy: Source<'_>) -> BioResult {
        if copy.rdev.is_write_mostly() {
            Box::pin(self.behind_ended(bio)).await;
        }
        self.submit_read(bio, copy).await?;
        self.core.is_current(copy.index, copy.rdev).await
    }

    /// Submits to a copy what a bio asks for.
    #[inline]
    fn submit_read<'a>(&self, bio: &Bio, copy: Source<'a>) -> IoFuture<'a> {
        copy.rdev.note_read(copy.at + bio.len);
        let part = bio.remapped(copy.at);
        copy.rdev.submit_from(&self.core.disk, bio.sector, part)
    }

    /// Continues a read that no single copy could serve, or that failed on a member.
    #[cold]
    async fn read_failed(&self, bio: Bio, failed: Option<(Index, Status)>) -> BioResult {
        if let Some((index, status)) = failed {
            if !status.is_retryable_elsewhere() || bio.flags.contains(Flags::RAHEAD) {
                return Err(status);
            }
            let member = self.core.members.get(index).map_or("", Rdev::path);
            let (array, sector) = (self.core.name(), bio.sector);
            rate_limited!(warn, array, member, %sector, %status, "read error, trying the other copies");
            // Superblock writes must not be abandoned halfway.
            self.uncancellable(
                move |mirror| async move { mirror.core.note_error(index, status).await },
            )
            .await?;
        }
        let failed = failed.map(|(index, _)| index);
        let mut buffer = Buffer::try_alloc(bio.len.bytes() as usize).ok_or(Status::Resource)?;
        let data = buffer.whole();
        let (_, fetched) = {
            let _pass = self.core.barrier.wait_read(bio.sector, bio.len).await;
            self.fetch_for(&bio, failed, &data).await
        };
        let failures = !fetched.bad.is_empty() || !fetched.gone.is_empty();
        let mut lost = fetched.lost.first().map(|(_, status)| status.unwrap_or(Status::Io));
        if failures && self.core.may_correct() {
            let (bio, data) = (bio.clone(), data);
            let corrected = self.uncancellable(move |mirror| async move {
                mirror.correct(&bio, failed, &data).await
            });
            match corrected.await {
                Ok(now) => lost = now,
                // The data that was read is good anyway.
                Err(status) => {
                    rate_limited!(warn, array = self.core.name(), %status, "read error not corrected");
                }
            }
        } else {
            drop(data);
        }
        if let Some(status) = lost {
            return Err(status);
        }
        scatter(buffer.as_slice(), &bio.segments);
        Ok(())
    }

    /// Reads what a bio asks for, block by block, from the copies that can return it; where copies are the same, first from
    /// the copy that failed, since most of it is likely good.
    async fn fetch_for(
        &self,
        bio: &Bio,
        failed: Option<Index>,
        data: &Segment,
    ) -> (Sources<'_>, FetchResult) {
        self.behind_ended(bio).await;
        let mut sources = self.sources(bio.sector);
        if !self.core.resync_offset.is_unsynced() {
            sources.sort_by_key(|source| Some(source.index) != failed);
        }
        let fetched = self.fetch(&sources, data).await;
        (sources, fetched)
    }

    /// Reads again what a bio asks for, and writes it over the copies that could not return it. Returns the error if no copy
    /// has some of it.
    ///
    /// The barrier keeps regular writes out meanwhile: the data read before may already be old.
    async fn correct(
        &self,
        bio: &Bio,
        failed: Option<Index>,
        data: &Segment,
    ) -> Result<Option<Status>, Status> {
        let _hold = self.core.write_start().await?;
        let _raised = match broken(Rule::CorrectionsRaise) {
            false => Some(self.core.barrier.raise(bio.sector, bio.len).await),
            true => None,
        };
        let (sources, fetched) = self.fetch_for(bio, failed, data).await;
        for (place, status) in fetched.gone.iter().filter(|(_, status)| status.is_gone()) {
            self.core.fail_member(sources[*place].rdev, *status).await?;
        }
        self.repair(&sources, &fetched, data).await?;
        Ok(fetched.lost.first().map(|(_, status)| status.unwrap_or(Status::Io)))
    }
}
