//! Writes and discards: marks before data.

use std::ops::Range;

use ashlar_block::{Sector, Sectors, Status};

use super::flight::Number;
use super::lockless::{Action, State};
use super::{Bitmap, Kind, Store};
use crate::canary::{Rule, broken};

/// Spans of at most this many chunks are entered without the lock.
const FAST: u32 = 4;

/// A write is in flight, and the marks of its chunks are durable. Dropping this ends the write.
#[must_use = "the write has ended when this is dropped"]
pub struct Intent<'a> {
    bitmap: &'a Bitmap,
    chunks: Range<u32>,
}

/// A discard is in flight, and the marks that it needs are durable. Dropping this without
/// [`Self::done`] ends it as if it had been a write.
#[must_use = "the discard has ended when this is dropped"]
pub struct Discard<'a> {
    intent: Intent<'a>,
    /// Chunks that lie entirely in the discard and were marked for it.
    whole: Vec<u32>,
    gone: bool,
}

impl Bitmap {
    /// The chunks of a span.
    fn span(&self, sector: Sector, len: Sectors) -> Result<Range<u32>, Status> {
        let end = sector.checked_add(len).ok_or(Status::Invalid)?;
        if end > self.size().as_end() {
            return Err(Status::Invalid);
        }
        if len.is_zero() {
            return Ok(0..0);
        }
        // The number of chunks fits in 32 bits.
        let last = self.chunk_of(Sector(end.0 - 1));
        Ok(self.chunk_of(sector) as u32..last as u32 + 1)
    }

    /// Begins a write if all marks that it needs are durable and it touches few chunks: one atomic
    /// addition for each chunk, no lock. On `None`, use [`Self::begin`].
    pub fn try_begin(&self, sector: Sector, len: Sectors) -> Option<Intent<'_>> {
        let chunks = self.span(sector, len).ok()?;
        if chunks.len() > FAST as usize {
            return None;
        }
        let mut intent = Intent { bitmap: self, chunks: chunks.start..chunks.start };
        for chunk in chunks {
            if !self.counter(chunk).try_enter() {
                return None;
            }
            intent.chunks.end = chunk + 1;
        }
        Some(intent)
    }

    /// Begins a write. Returns when the marks of all its chunks are durable; only then may data go to
    /// the members.
    ///
    /// # Errors
    /// [`Status::Invalid`] for a span beyond [`Self::size`], or before [`Self::write_super`] has
    /// succeeded once; [`Status::Resource`] for more writes than can be counted; and the store's error
    /// if it could not take the marks. The write must not take place.
    pub async fn begin(
        &self,
        sector: Sector,
        len: Sectors,
        store: &dyn Store,
    ) -> Result<Intent<'_>, Status> {
        if let Some(intent) = self.try_begin(sector, len) {
            return Ok(intent);
        }
        let chunks = self.span(sector, len)?;
        let intent = self.enter(chunks.clone())?;
        if let Some(flight) = self.mark(chunks.clone()) {
            if !broken(Rule::MarksComeFirst) {
                self.arrival(flight, store).await?;
            }
            for chunk in chunks {
                self.counter(chunk).settle();
            }
        }
        Ok(intent)
    }

    /// Counts a write in; the caller sets the marks.
    fn enter(&self, chunks: Range<u32>) -> Result<Intent<'_>, Status> {
        if !self.is_settled() {
            return Err(Status::Invalid);
        }
        let mut intent = Intent { bitmap: self, chunks: chunks.start..chunks.start };
        for chunk in chunks {
            if !self.counter(chunk).enter() {
                return Err(Status::Resource);
            }
            intent.chunks.end = chunk + 1;
        }
        Ok(intent)
    }

    /// Marks chunks that a write has entered; returns the flight to wait for, unless all marks are
    /// durable already.
    fn mark(&self, chunks: impl IntoIterator<Item = u32>) -> Option<Number> {
        let mut board = self.board();
        let mut wait = None;
        for chunk in chunks {
            if self.counter(chunk).claim() {
                continue;
            }
            let carrier = if board.image.state(chunk).is_marked() {
                board.carrier(chunk)
            } else {
                board.image.act(chunk, Action::Write);
                board.loading()
            };
            wait = wait.max(Some(carrier));
        }
        wait
    }

    /// Begins a discard. Returns when it may go to the members.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub async fn begin_discard(
        &self,
        sector: Sector,
        len: Sectors,
        store: &dyn Store,
    ) -> Result<Discard<'_>, Status> {
        match self.kind {
            Kind::Classic => {
                let intent = self.begin(sector, len, store).await?;
                Ok(Discard { intent, whole: Vec::new(), gone: false })
            }
            Kind::Lockless => self.begin_forgetting(sector, len, store).await,
        }
    }

    /// Begins a discard with a lockless bitmap: an unwritten chunk that lies entirely in it needs no
    /// mark.
    async fn begin_forgetting(
        &self,
        sector: Sector,
        len: Sectors,
        store: &dyn Store,
    ) -> Result<Discard<'_>, Status> {
        let chunks = self.span(sector, len)?;
        let end = sector + len;
        let is_whole = |chunk: u32| {
            let whole = self.start_of(chunk) >= sector && self.end_of(chunk) <= end;
            whole || broken(Rule::ForgetsWholeChunks)
        };
        let intent = self.enter(chunks.clone())?;
        let marked: Vec<u32> = {
            let board = self.board();
            let unwritten = |chunk| board.image.state(chunk) == State::Unwritten;
            chunks.filter(|chunk| !(is_whole(*chunk) && unwritten(*chunk))).collect()
        };
        if let Some(flight) = self.mark(marked.iter().copied()) {
            self.arrival(flight, store).await?;
            for chunk in &marked {
                self.counter(*chunk).settle();
            }
        }
        let mut whole = marked;
        whole.retain(|chunk| is_whole(*chunk));
        for chunk in &whole {
            self.counter(*chunk).hold_alone();
        }
        Ok(Discard { intent, whole, gone: false })
    }
}

impl Intent<'_> {
    /// Some copy lacks this write: its chunks stay marked until a sync.
    pub fn failed(&self) {
        self.bitmap.degrade(self.chunks.clone());
    }
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        for chunk in self.chunks.clone() {
            self.bitmap.counter(chunk).leave();
        }
    }
}

impl Discard<'_> {
    /// The discard has succeeded on all members. In a lockless bitmap, chunks that need no sync any
    /// more become unwritten; the next flight writes that to the members.
    pub fn done(mut self) {
        self.gone = true;
    }

    /// Some copy lacks this discard: its chunks stay marked until a sync, except unwritten ones.
    pub fn failed(self) {
        let Intent { bitmap, chunks } = &self.intent;
        let marked: Vec<u32> = {
            let board = bitmap.board();
            chunks.clone().filter(|chunk| board.image.state(*chunk) != State::Unwritten).collect()
        };
        bitmap.degrade(marked);
    }
}

impl Drop for Discard<'_> {
    fn drop(&mut self) {
        if self.whole.is_empty() {
            return;
        }
        // The intent is dropped after this: the discard is still counted in.
        let bitmap = self.intent.bitmap;
        let mut board = bitmap.board();
        for chunk in &self.whole {
            if bitmap.counter(*chunk).discarded(self.gone) {
                board.image.act(*chunk, Action::Discard);
            }
        }
    }
}

impl Bitmap {
    fn degrade(&self, chunks: impl IntoIterator<Item = u32>) {
        let mut board = self.board();
        for chunk in chunks {
            self.counter(chunk).need();
            board.image.act(chunk, Action::Degrade);
        }
    }
}
