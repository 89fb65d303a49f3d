//! Linear and RAID 0: each sector on one member.
//!
//! There is nothing to keep equal, so a striped array has no active state, no barrier and no bitmap; a member that fails
//! takes the array with it, so its errors go to the client, and it stays.

use std::sync::Arc;

use ashlar_block::zeroes::all_or_none;
use ashlar_block::{
    Bio, BioResult, Extents, Features, IoFuture, LocalFuture, Op, Place, Sector, Sectors, Status,
    extent,
};
use futures_util::future::join_all;

use super::{Level, Trouble, Work};
use crate::core::Core;
use crate::membership::rdev::Rdev;
use crate::raid0::{Mapped, Span, Zones, discard};

/// Sectors that are contiguous on a member.
struct Run {
    slot: usize,
    /// Where the run begins in the array.
    from: Sector,
    /// In the member's sectors.
    bio: Bio,
}

/// See the module text.
pub(crate) struct StripedLevel {
    core: Arc<Core>,
    zones: Zones,
}

impl StripedLevel {
    pub(crate) fn new(core: Arc<Core>, zones: Zones) -> Self {
        Self { core, zones }
    }

    fn member(&self, slot: usize) -> Result<&Rdev, Status> {
        self.core.members.member(slot).ok_or(Status::Io)
    }

    /// Sends a bio to where its first sector lies on a member.
    fn send(&self, at: Mapped, bio: Bio) -> IoFuture<'_> {
        match self.member(at.disk) {
            Ok(rdev) => {
                rdev.submit_from(&self.core.disk, bio.sector, Bio { sector: at.sector, ..bio })
            }
            Err(status) => IoFuture::failed(status),
        }
    }

    /// A read or write of several chunks: one bio to each member for each run of its sectors.
    async fn send_chunks(&self, bio: Bio) -> BioResult {
        // For each member its last run, which the member's next chunk may continue.
        let mut runs: Vec<Run> = Vec::new();
        let mut sent = Vec::new();
        let mut at = bio.sector;
        while at < bio.end() {
            let place = self.zones.map(at);
            let part = bio.slice_to(at, place.left.min(bio.end() - at), place.sector);
            let run = Run { slot: place.disk, from: at, bio: part };
            at += run.bio.len;
            match runs.iter_mut().find(|other| other.slot == run.slot) {
                Some(last) if last.bio.end() == run.bio.sector => {
                    last.bio.len += run.bio.len;
                    last.bio.segments.extend(run.bio.segments);
                }
                Some(last) => sent.push(self.send_run(std::mem::replace(last, run))),
                None => runs.push(run),
            }
        }
        sent.extend(runs.into_iter().map(|run| self.send_run(run)));
        join_all(sent).await.into_iter().fold(Ok(()), BioResult::and)
    }

    fn send_run(&self, run: Run) -> IoFuture<'_> {
        match self.member(run.slot) {
            Ok(rdev) => rdev.submit_from(&self.core.disk, run.from, run.bio),
            Err(status) => IoFuture::failed(status),
        }
    }

    /// A discard or write-zeroes: one range for each member and zone.
    async fn send_ranges(&self, bio: Bio) -> BioResult {
        let span = Span { start: bio.sector, len: bio.len };
        let send = async |bio: Bio| {
            let sent = discard::plan(&self.zones, span).map(|range| {
                let part = Bio { sector: range.span.start, len: range.span.len, ..bio.clone() };
                self.send_run(Run { slot: range.disk, from: bio.sector, bio: part })
            });
            join_all(sent).await
        };
        // All members or no member: the client must know which range it has to write itself.
        let disks = self.core.members.placed().map(|(_, rdev)| rdev.disk());
        let op = bio.op;
        let results = all_or_none(disks, bio, send).await;
        let failed = results.iter().filter_map(|result| result.err());
        match failed.min_by_key(|status| *status == Status::NotSupported) {
            // What was discarded may read as anything, so a member that cannot discard does not matter, if another can.
            Some(Status::NotSupported)
                if op == Op::Discard
                    && results.iter().any(Result::is_ok)
                    && !self.core.disk.limits().features.contains(Features::DISCARD_ZEROES) =>
            {
                Ok(())
            }
            Some(status) => Err(status),
            None => Ok(()),
        }
    }

    async fn flush(&self) -> BioResult {
        let flushes = self.core.members.placed().map(|(_, rdev)| rdev.submit_flush());
        join_all(flushes).await.into_iter().fold(Ok(()), BioResult::and)
    }
}

impl Level for StripedLevel {
    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        if self.core.lifecycle.is_stopped() {
            return IoFuture::failed(Status::Offline);
        }
        if bio.op.is_write() && !self.core.is_writable() {
            return IoFuture::failed(Status::ReadOnly);
        }
        match bio.op {
            Op::Read | Op::Write => {
                let at = self.zones.map(bio.sector);
                if at.left >= bio.len {
                    self.send(at, bio)
                } else {
                    IoFuture::boxed(self.send_chunks(bio))
                }
            }
            Op::Discard | Op::WriteZeroes => IoFuture::boxed(self.send_ranges(bio)),
            Op::Flush => IoFuture::boxed(self.flush()),
        }
    }

    /// A member that is itself a mirror has several copies.
    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        let (mut at, end, mut most) = (at, at + len, 1);
        while at < end {
            let place = self.zones.map(at);
            let len = place.left.min(end - at);
            let copies = self.member(place.disk).map_or(1, |rdev| rdev.copies(place.sector, len));
            most = copies.max(most);
            at += len;
        }
        most
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        let place = |at| {
            let Mapped { disk, sector, left } = self.zones.map(at);
            Place { on: Some((disk, sector)), left }
        };
        let ask = async |slot, at, len| self.member(slot)?.extents(at, len).await;
        Box::pin(async move {
            if self.core.lifecycle.is_stopped() {
                return Err(Status::Offline);
            }
            Ok(extent::gather(at, len, self.zones.disks(), place, ask).await)
        })
    }

    fn window<'a>(&'a self, _: Work<'a>) -> LocalFuture<'a, Result<Sectors, Trouble>> {
        // A level without copies has nothing to sync, and is never asked.
        Box::pin(std::future::ready(Err(Trouble::Failed(Status::NotSupported))))
    }
}
