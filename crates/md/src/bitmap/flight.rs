//! Flights: the writes of the image's changes to the members.

use std::sync::Arc;

use ashlar_block::BioResult;
use event_listener::listener;
use futures_util::future::join_all;

use super::board::{Number, Run};
use super::{Bitmap, Store};

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
        match board.result(of) {
            Some(result) => NextStep::Done(result),
            None if board.is_flying() => NextStep::Wait,
            None => NextStep::Fly(Pilot { bitmap: self, cargo: board.take_off(), result: None }),
        }
    }
}
