//! An array under reshape: the level before it and the level after it, and what is read from a backup.
//!
//! It is only read. A read that touches both sides of the position, or a backup, is split there.

use std::ops::Range;
use std::sync::Arc;

use ashlar_block::{
    Bio, BioResult, Extents, IoFuture, LocalFuture, Op, Sector, Sectors, Status, buffer,
};
use futures_util::future::join_all;

use super::{Level, Trouble, Work};
use crate::assemble::reshape::Saved;
use crate::core::Core;
use crate::reshape::{ReshapePosition, Side};

/// See the module text.
pub(crate) struct ReshapedLevel {
    /// The core that counts the array's I/O, and stops.
    core: Arc<Core>,
    position: ReshapePosition,
    /// The level of each side. A side that is empty has none.
    before: Option<Arc<dyn Level>>,
    after: Option<Arc<dyn Level>>,
    saved: Vec<Saved>,
}

/// Where a run of sectors is.
enum Place<'a> {
    Level(&'a dyn Level),
    Saved(&'a Saved),
}

impl ReshapedLevel {
    /// The levels of both sides, in the order of [`Side::BOTH`], and the parts of the array that are read from a backup.
    pub(crate) fn new(
        core: Arc<Core>,
        position: ReshapePosition,
        [before, after]: [Option<Arc<dyn Level>>; 2],
        saved: Vec<Saved>,
    ) -> Self {
        Self { core, position, before, after, saved }
    }

    fn level(&self, side: Side) -> Result<&dyn Level, Status> {
        let level = match side {
            Side::Before => &self.before,
            Side::After => &self.after,
        };
        level.as_deref().ok_or(Status::Io)
    }

    /// Where the sectors from `at` on are, and how many have the same place.
    fn place(&self, at: Sector) -> Result<(Place<'_>, Sectors), Status> {
        let saved = |at: &Sector| self.saved.iter().find(|saved| saved.range.contains(at));
        if let Some(saved) = saved(&at) {
            return Ok((Place::Saved(saved), saved.range.end - at));
        }
        let next = self.saved.iter().map(|saved| saved.range.start).filter(|start| *start > at);
        let left = next.min().map_or(Sectors::MAX, |start| start - at);
        let level = self.level(self.position.side(at))?;
        Ok((Place::Level(level), left.min(self.position.left(at))))
    }

    /// The parts of a range, each with one place.
    fn parts(
        &self,
        range: Range<Sector>,
    ) -> impl Iterator<Item = Result<(Place<'_>, Range<Sector>), Status>> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let found = self.place(at).map(|(place, left)| {
                let part = at..at + left.min(range.end - at);
                at = part.end;
                (place, part)
            });
            if found.is_err() {
                at = range.end;
            }
            Some(found)
        })
    }

    async fn read(&self, bio: Bio) -> BioResult {
        let mut reads = Vec::new();
        for part in self.parts(bio.sector..bio.end()) {
            let (place, range) = part?;
            let bio = bio.slice_to(range.start, range.end - range.start, range.start);
            match place {
                Place::Level(level) => reads.push(level.submit(bio)),
                Place::Saved(saved) => saved.copy_to(&bio),
            }
        }
        join_all(reads).await.into_iter().fold(Ok(()), BioResult::and)
    }
}

impl Saved {
    /// Copies the bytes of a read within the range.
    fn copy_to(&self, bio: &Bio) {
        let mut at = bio.sector;
        while at < bio.end() {
            let into = at - self.range.start;
            let (piece, skip) = (into.0 / Self::PIECE.0, Sectors(into.0 % Self::PIECE.0));
            let len = (Self::PIECE - skip).min(bio.end() - at);
            let part = bio.slice_to(at, len, at);
            if let Some(data) = self.data.get(piece as usize) {
                let from = skip.bytes() as usize;
                buffer::scatter(
                    &data.as_slice()[from..from + len.bytes() as usize],
                    &part.segments,
                );
            }
            at += len;
        }
    }
}

impl Level for ReshapedLevel {
    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Read | Op::Flush if self.core.lifecycle.is_stopped() => {
                IoFuture::failed(Status::Offline)
            }
            Op::Read => {
                let mut parts = self.parts(bio.sector..bio.end());
                match (parts.next(), parts.next()) {
                    (Some(Ok((Place::Level(level), _))), None) => level.submit(bio),
                    (Some(Err(status)), _) => IoFuture::failed(status),
                    _ => {
                        drop(parts);
                        IoFuture::boxed(self.read(bio))
                    }
                }
            }
            // Nothing was written.
            Op::Flush => IoFuture::ready(Ok(())),
            Op::Write | Op::Discard | Op::WriteZeroes => IoFuture::failed(Status::ReadOnly),
        }
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        let copies = |part: Result<(Place<'_>, Range<Sector>), Status>| match part {
            Ok((Place::Level(level), range)) => level.copies(range.start, range.end - range.start),
            // The bytes of a backup serve as each copy.
            Ok((Place::Saved(_), _)) => u16::MAX,
            Err(_) => 0,
        };
        match self.parts(at..at + len).map(copies).min() {
            None | Some(u16::MAX) => 1,
            Some(copies) => copies,
        }
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        let part = self.parts(at..at + len).next();
        Box::pin(async move {
            match part.ok_or(Status::Invalid)?? {
                (Place::Level(level), range) => {
                    level.extents(range.start, range.end - range.start).await
                }
                (Place::Saved(_), range) => Ok(Extents::data(range.start, range.end - range.start)),
            }
        })
    }

    fn window<'a>(&'a self, work: Work<'a>) -> LocalFuture<'a, Result<Sectors, Trouble>> {
        match work {
            // Nothing is synced on an array that is only read.
            Work::Resync(..) | Work::Rebuild(_) | Work::Check { .. } => {
                Box::pin(async { Err(Trouble::Failed(Status::ReadOnly)) })
            }
        }
    }
}
