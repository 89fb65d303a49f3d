//! Writes and discards: marks before data.

use std::ops::Range;

use ashlar_block::{Sector, Sectors, Status};

use super::lockless::{Action, State};
use super::transactions::Tid;
use super::{Bitmap, Kind, Store};
use crate::canary::{Rule, broken};

/// A write or discard is in flight, and the marks that it needs are durable. Dropping this ends it; a discard without
/// [`Self::done`] ends as if it had been a write.
#[must_use = "the write has ended when this is dropped"]
pub struct Intent<'a> {
    bitmap: &'a Bitmap,
    chunks: Range<u32>,
    /// Of a discard that has not ended: chunks that lie entirely in it and were marked for it.
    whole: Box<[u32]>,
}

impl Bitmap {
    /// Begins a write if all marks that it needs are durable and it touches few chunks: one atomic
    /// addition for each chunk, no lock. On `None`, use [`Self::begin`].
    #[inline]
    pub fn try_begin(&self, sector: Sector, len: Sectors) -> Option<Intent<'_>> {
        self.counters.try_enter(sector, len).map(|chunks| self.intent(chunks))
    }

    fn intent(&self, chunks: Range<u32>) -> Intent<'_> {
        Intent { bitmap: self, chunks, whole: Box::default() }
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
        if let Some(tid) = self.mark(chunks.clone()) {
            if !broken(Rule::MarksComeFirst) {
                self.wait_commit(tid, store).await?;
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
        self.counters.enter(sector, len).map(|chunks| self.intent(chunks))
    }

    /// Marks chunks that a write has entered; returns the transaction to wait for, unless all marks are
    /// durable already.
    fn mark(&self, chunks: impl IntoIterator<Item = u32>) -> Option<Tid> {
        let mut transactions = self.transactions();
        let mut wait = None;
        for chunk in chunks {
            if self.counters.get(chunk).claim() {
                continue;
            }
            let tid = if transactions.image.state(chunk).is_marked() {
                transactions.transaction_of(chunk)
            } else {
                transactions.image.act(chunk, Action::Write);
                transactions.running()
            };
            wait = wait.max(Some(tid));
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
    ) -> Result<Intent<'_>, Status> {
        match self.kind {
            Kind::Classic => self.begin(sector, len, store).await,
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
    ) -> Result<Intent<'_>, Status> {
        let mut intent = self.enter(sector, len)?;
        let end = sector + len;
        let is_whole = |chunk: u32| {
            let whole =
                self.counters.start_of(chunk) >= sector && self.counters.end_of(chunk) <= end;
            whole || broken(Rule::ForgetsWholeChunks)
        };
        let marked: Vec<u32> = {
            let transactions = self.transactions();
            let unwritten = |chunk| transactions.image.state(chunk) == State::Unwritten;
            let chunks = intent.chunks.clone();
            chunks.filter(|chunk| !(is_whole(*chunk) && unwritten(*chunk))).collect()
        };
        if let Some(tid) = self.mark(marked.iter().copied()) {
            self.wait_commit(tid, store).await?;
            for chunk in &marked {
                self.counters.get(*chunk).settle();
            }
        }
        intent.whole = marked.into_iter().filter(|chunk| is_whole(*chunk)).collect();
        for chunk in &intent.whole {
            self.counters.get(*chunk).hold_alone();
        }
        Ok(intent)
    }
}

impl Intent<'_> {
    /// It has succeeded on all members. In a lockless bitmap, chunks of a discard that need no sync any
    /// more become unwritten; the next commit writes that to the members.
    pub fn done(mut self) {
        self.forget(true);
    }

    /// Some copy lacks it: its chunks stay marked until a sync, except unwritten ones.
    pub fn failed(&self) {
        let mut transactions = self.bitmap.transactions();
        for chunk in self.chunks.clone() {
            if transactions.image.state(chunk) != State::Unwritten {
                self.bitmap.counters.get(chunk).need();
                transactions.image.act(chunk, Action::Degrade);
            }
        }
    }

    /// The discard ends, and is still counted in: if it is `done`, its chunks become unwritten.
    #[cold]
    fn forget(&mut self, done: bool) {
        let mut transactions = self.bitmap.transactions();
        for chunk in std::mem::take(&mut self.whole) {
            if self.bitmap.counters.get(chunk).discarded(done) {
                transactions.image.act(chunk, Action::Discard);
            }
        }
    }
}

impl Drop for Intent<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.whole.is_empty() {
            self.forget(false);
        }
        self.bitmap.counters.leave(&self.chunks);
    }
}
