//! Writes and discards: marks before data.

use std::ops::Range;

use ashlar_block::{Sector, Sectors, Status};

use super::flight::Number;
use super::lockless::{Action, State};
use super::{Bitmap, Kind, Store};
use crate::canary::{Rule, broken};

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
    /// Begins a write if all marks that it needs are durable and it touches few chunks: one atomic
    /// addition for each chunk, no lock. On `None`, use [`Self::begin`].
    #[inline]
    pub fn try_begin(&self, sector: Sector, len: Sectors) -> Option<Intent<'_>> {
        Some(Intent { bitmap: self, chunks: self.counters.try_enter(sector, len)? })
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
        let intent = self.enter(sector, len)?;
        let chunks = intent.chunks.clone();
        if let Some(flight) = self.mark(chunks.clone()) {
            if !broken(Rule::MarksComeFirst) {
                self.arrival(flight, store).await?;
            }
            for chunk in chunks {
                self.counters.get(chunk).settle();
            }
        }
        Ok(intent)
    }

    /// Counts a write in; the caller sets the marks.
    fn enter(&self, sector: Sector, len: Sectors) -> Result<Intent<'_>, Status> {
        if !self.is_settled() {
            return Err(Status::Invalid);
        }
        Ok(Intent { bitmap: self, chunks: self.counters.enter(sector, len)? })
    }

    /// Marks chunks that a write has entered; returns the flight to wait for, unless all marks are
    /// durable already.
    fn mark(&self, chunks: impl IntoIterator<Item = u32>) -> Option<Number> {
        let mut board = self.board();
        let mut wait = None;
        for chunk in chunks {
            if self.counters.get(chunk).claim() {
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
        let intent = self.enter(sector, len)?;
        let end = sector + len;
        let is_whole = |chunk: u32| {
            let whole =
                self.counters.start_of(chunk) >= sector && self.counters.end_of(chunk) <= end;
            whole || broken(Rule::ForgetsWholeChunks)
        };
        let marked: Vec<u32> = {
            let board = self.board();
            let unwritten = |chunk| board.image.state(chunk) == State::Unwritten;
            let chunks = intent.chunks.clone();
            chunks.filter(|chunk| !(is_whole(*chunk) && unwritten(*chunk))).collect()
        };
        if let Some(flight) = self.mark(marked.iter().copied()) {
            self.arrival(flight, store).await?;
            for chunk in &marked {
                self.counters.get(*chunk).settle();
            }
        }
        let mut whole = marked;
        whole.retain(|chunk| is_whole(*chunk));
        for chunk in &whole {
            self.counters.get(*chunk).hold_alone();
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
    #[inline]
    fn drop(&mut self) {
        self.bitmap.counters.leave(&self.chunks);
    }
}

impl Discard<'_> {
    /// The discard has succeeded on all members. In a lockless bitmap, chunks that need no sync any
    /// more become unwritten; the next flight writes that to the members.
    pub fn done(mut self) {
        self.gone = true;
    }

    /// Some copy lacks this discard: its chunks stay marked until a sync, except unwritten ones.
    pub fn failed(&self) {
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
            if bitmap.counters.get(*chunk).discarded(self.gone) {
                board.image.act(*chunk, Action::Discard);
            }
        }
    }
}

impl Bitmap {
    fn degrade(&self, chunks: impl IntoIterator<Item = u32>) {
        let mut board = self.board();
        for chunk in chunks {
            self.counters.get(chunk).need();
            board.image.act(chunk, Action::Degrade);
        }
    }
}
