//! Discards: each kind makes a different promise.

use std::ops::Range;

use ashlar_block::{Flags, Gateway, Status};

use super::view::{View, discard};
use super::{Life, Snap};

impl Life {
    /// Discards on one device; returns how many failed.
    pub(super) async fn discards(
        self,
        gateway: Gateway,
        view: View,
        span: Range<u64>,
        ios: usize,
        snap: Option<u64>,
    ) -> u64 {
        let found = |number| self.state.borrow().snaps.iter().find(|s| s.number == number).cloned();
        match snap.map(found) {
            None => self.discard_of_the_origin(&gateway, &span).await,
            Some(Some(snap)) if !snap.features.is_empty() => {
                let mut errors = 0;
                for _ in 0..ios / 2 {
                    errors += u64::from(self.discard(&gateway, &view, &span, &snap).await.is_err());
                }
                errors
            }
            // Not recorded in the view: nothing may change.
            Some(_) => {
                let range = self.some_range(&span, gateway.disk().limits().logical_block().0, 70);
                let refused = gateway.submit(discard(&range)).await;
                assert_eq!(refused, Err(Status::NotSupported), "discards are not switched on");
                0
            }
        }
    }

    /// An origin refuses discards, and on a merged device they have no effect.
    async fn discard_of_the_origin(&self, gateway: &Gateway, span: &Range<u64>) -> u64 {
        let range = self.some_range(span, gateway.disk().limits().logical_block().0, 70);
        let result = gateway.submit(discard(&range)).await;
        let merging = self.state.borrow().snaps.iter().any(|snap| snap.merging);
        let passes = merging && result == Ok(());
        assert!(passes || result == Err(Status::NotSupported), "a discard: {result:?}");
        0
    }

    async fn discard(
        &self,
        gateway: &Gateway,
        view: &View,
        span: &Range<u64>,
        snap: &Snap,
    ) -> Result<(), Status> {
        let block = gateway.disk().limits().logical_block().0;
        let kind = self.draw(|rng| rng.below(3));
        let passes = snap.features.contains("passdown");
        let range = match kind {
            // A chunk with a copy: it reads zeroes afterwards.
            0 => self.some_range(span, snap.chunk, 0),
            // Whole chunks: some have copies and some do not.
            1 => self.some_range(span, snap.chunk, 70),
            _ => self.some_range(span, block, 70),
        };
        if kind > 1 || kind == 1 && passes {
            view.loses(range.clone());
        }
        let below = if passes { Some(self.begin_below(&range, snap.number)) } else { None };
        let result = if kind == 0 {
            view.write_and_discard(gateway, range.clone(), block).await
        } else {
            let ticket = view.oracle().begin_discard(range.clone(), Flags::empty());
            let result = gateway.submit(discard(&range)).await;
            view.oracle().end(ticket, result);
            result
        };
        if let Some(ticket) = below {
            self.state.borrow().view.oracle().end(ticket, result);
        }
        assert_ne!(result, Err(Status::NotSupported), "discards are switched on");
        result
    }

    /// The discard is passed to the origin, too, and makes no exceptions there.
    fn begin_below(&self, range: &Range<u64>, from: u64) -> ashlar_sim::oracle::Ticket {
        let mut state = self.state.borrow_mut();
        state.passed_down.push(range.clone());
        state.view.loses(range.clone());
        // The snapshot that passes it down has a more precise view.
        for snap in state.snaps.iter().filter(|snap| snap.number != from) {
            snap.view.loses(range.clone());
        }
        state.view.oracle().begin_discard(range.clone(), Flags::empty())
    }
}
