//! The image behind its lock, and the flights that carry its changes to the members.
//!
//! Flights are numbered. The **next** flight collects current changes. At
//! most one is in the air. Two numbers tell waiters the result: all flights up to
//! `durable` (or one after them, with their blocks) have arrived; flights up to `tried` and above
//! `durable` have failed.

use std::sync::Arc;

use ashlar_block::{BioResult, Status};
use event_listener::listener;
use futures_util::future::join_all;

use super::image::Image;
use super::{Bitmap, Store};
use crate::ondisk::bitmap_super::BitmapSuper;

/// What the lock protects.
pub(super) struct Board {
    pub(super) image: Image,
    /// The superblock that the image will get once the marks are settled.
    pub(super) next: BitmapSuper,
    /// After a change of layout: the members' superblock in the old layout, until the marks are
    /// written in the new one.
    pub(super) old_layout: Option<BitmapSuper>,
    air: Option<Flight>,
    loading: u64,
    tried: u64,
    durable: u64,
    error: Status,
}

/// The number of the flight that carries a change: the change is durable once it arrived.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Number(u64);

struct Flight {
    number: u64,
    cargo: Arc<[Run]>,
}

/// Adjacent blocks, as at take-off.
struct Run {
    offset: usize,
    bytes: Vec<u8>,
}

impl Board {
    pub(super) fn new(image: Image, next: BitmapSuper) -> Self {
        Self {
            image,
            next,
            old_layout: None,
            air: None,
            loading: 1,
            tried: 0,
            durable: 0,
            error: Status::Io,
        }
    }

    /// The flight that will carry all changes that are not in the air yet.
    pub(super) fn loading(&self) -> Number {
        Number(self.loading)
    }

    /// The flight that makes a chunk's mark durable. The mark is in the image, and not known to be
    /// durable.
    pub(super) fn carrier(&mut self, chunk: u32) -> Number {
        let aboard = |run: &Run| self.image.is_marked_in(run.offset, &run.bytes, chunk);
        match &self.air {
            Some(flight) if flight.cargo.iter().any(aboard) => Number(flight.number),
            Some(_) | None => {
                self.image.rewrite(chunk);
                self.loading()
            }
        }
    }

    pub(super) fn is_flying(&self) -> bool {
        self.air.is_some()
    }

    fn take_off(&mut self) -> Arc<[Run]> {
        let runs = self.image.take_dirty();
        let bytes = self.image.bytes();
        let cargo: Arc<[Run]> = runs
            .into_iter()
            .map(|run| Run { offset: run.start, bytes: bytes[run].to_vec() })
            .collect();
        self.air = Some(Flight { number: self.loading, cargo: Arc::clone(&cargo) });
        self.loading += 1;
        cargo
    }

    /// The flight in the air arrived, failed, or (`None`) was abandoned.
    fn land(&mut self, result: Option<BioResult>) {
        let Some(flight) = self.air.take() else { return };
        match result {
            Some(Ok(())) => {
                self.tried = flight.number;
                self.durable = flight.number;
                return;
            }
            Some(Err(status)) => {
                self.tried = flight.number;
                self.error = status;
            }
            None => {}
        }
        for run in &*flight.cargo {
            self.image.touch_range(run.offset..run.offset + run.bytes.len());
        }
    }
}

/// What a task that waits for a flight does next.
enum NextStep<'a> {
    Done(BioResult),
    Wait,
    Fly(Pilot<'a>),
}

/// The task that writes the flight in the air. Dropping this ends the flight.
struct Pilot<'a> {
    bitmap: &'a Bitmap,
    cargo: Arc<[Run]>,
    result: Option<BioResult>,
}

impl Pilot<'_> {
    async fn fly(mut self, store: &dyn Store) {
        let writes = self.cargo.iter().map(|run| store.write(run.offset as u64, &run.bytes));
        let results = join_all(writes).await;
        self.result = Some(results.into_iter().collect());
    }
}

impl Drop for Pilot<'_> {
    fn drop(&mut self) {
        self.bitmap.board().land(self.result);
        self.bitmap.landed.notify(usize::MAX);
    }
}

impl Bitmap {
    /// Waits until a flight has arrived; starts one if none is in the air.
    pub(super) async fn arrival(&self, of: Number, store: &dyn Store) -> BioResult {
        loop {
            // Listen before the check, so that a landing after the check is noticed.
            listener!(self.landed => landed);
            match self.next_step(of) {
                NextStep::Done(result) => return result,
                NextStep::Wait => landed.await,
                NextStep::Fly(pilot) => pilot.fly(store).await,
            }
        }
    }

    fn next_step(&self, of: Number) -> NextStep<'_> {
        let mut board = self.board();
        if board.durable >= of.0 {
            NextStep::Done(Ok(()))
        } else if board.tried >= of.0 {
            NextStep::Done(Err(board.error))
        } else if board.air.is_some() {
            NextStep::Wait
        } else {
            NextStep::Fly(Pilot { bitmap: self, cargo: board.take_off(), result: None })
        }
    }
}
