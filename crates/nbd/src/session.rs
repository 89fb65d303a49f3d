//! What the connections of a disk to one life of its server have acknowledged, and may have lost.
//!
//! A session begins with the connection of the [link](crate::link); [lanes](crate::lanes) join it. All of them end together: if one
//! ends, the server may have crashed, and what it had only acknowledged would be neither on its successor nor known to be lost there. So the
//! session ends first, which reports the loss, and then the link connects again, which begins the next session.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use ashlar_block::sync::{Word, until};
use event_listener::Event;

use crate::departure::Departure;

/// Tells the disk of a loss.
pub(crate) type Report = Box<dyn Fn() + Send + Sync>;

/// What all sessions of a disk may have lost.
#[derive(Default)]
pub(crate) struct Losses {
    /// Whether a session has ended with changes that were not flushed: the next flush fails.
    is_untold: AtomicBool,
    /// Tells the disk at once: what is read from now on may be older than what was acknowledged.
    report: OnceLock<Report>,
}

impl Losses {
    /// Has `report` called at each loss from now on.
    pub(crate) fn set_report(&self, report: Report) {
        let (Ok(()) | Err(_)) = self.report.set(report);
    }

    fn note(&self) {
        self.is_untold.store(true, SeqCst);
        if let Some(report) = self.report.get() {
            report();
        }
    }
}

/// How many changes the server has acknowledged that are not durable by themselves, and whether the session has ended: in one word, so
/// that of an acknowledgement and an end whichever comes second sees the other one in what its change of the word returns.
#[derive(Default)]
struct Ledger<W = AtomicU64> {
    /// Twice the number of changes, and [`ENDED`].
    acknowledged: W,
    /// How many of them flushes cover, or were noted as lost.
    settled: W,
}

const ENDED: u64 = 1;

impl<W: Word> Ledger<W> {
    /// Counts a change. After the end it is noted as lost, before this returns.
    fn acknowledge(&self, note: impl Fn()) {
        let before = self.acknowledged.add(2);
        if before & ENDED != 0 {
            self.note_lost(before / 2 + 1, note);
        }
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load() / 2
    }

    fn settle(&self, count: u64) {
        let (Ok(_) | Err(_)) = self.settled.update(|settled| (settled < count).then_some(count));
    }

    /// What is not settled is lost. Each thread that ends the session notes that, unless another one has done so: after this no
    /// thread may find the loss unnoted.
    fn end(&self, note: impl Fn()) {
        let (Ok(before) | Err(before)) =
            self.acknowledged.update(|word| (word & ENDED == 0).then_some(word | ENDED));
        self.note_lost(before / 2, note);
    }

    fn has_ended(&self) -> bool {
        self.acknowledged.load() & ENDED != 0
    }

    fn note_lost(&self, count: u64, note: impl Fn()) {
        if count > self.settled.load() {
            note();
            self.settle(count);
        }
    }
}

/// See the module text.
pub(crate) struct Session {
    ledger: Ledger,
    ended: Event,
    losses: Arc<Losses>,
    departure: Arc<Departure>,
}

impl Session {
    pub(crate) fn new(losses: Arc<Losses>, departure: Arc<Departure>) -> Arc<Self> {
        Arc::new(Self { ledger: Ledger::default(), ended: Event::new(), losses, departure })
    }

    /// That of the disk.
    pub(crate) fn departure(&self) -> &Arc<Departure> {
        &self.departure
    }

    /// Counts a change that the server has acknowledged. To be called when the reply comes, before its submitter sees it.
    pub(crate) fn acknowledge(&self) {
        self.ledger.acknowledge(|| self.losses.note());
    }

    /// What a flush covers that is sent now.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.ledger.acknowledged()
    }

    /// The server has executed a flush that covers so many changes.
    pub(crate) fn settle(&self, covers: u64) {
        self.ledger.settle(covers);
    }

    /// Whether a flush must fail, because a session has lost changes since the last one.
    pub(crate) fn must_fail_flush(&self) -> bool {
        self.losses.is_untold.swap(false, SeqCst)
    }

    /// No connection may send anything more. The server may have crashed, and a flush of the next session need not cover what is
    /// not settled.
    pub(crate) fn end(&self) {
        self.ledger.end(|| self.losses.note());
        self.ended.notify(usize::MAX);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ledger.has_ended()
    }

    /// Returns once the session has ended.
    pub(crate) async fn ended(&self) {
        until(&self.ended, || self.has_ended()).await;
    }
}

#[cfg(test)]
mod tests {
    use ashlar_block::sync::model::explore;
    use ashlar_block::sync::model::loom::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;

    #[derive(Default)]
    struct World {
        ledger: Ledger<AtomicU64>,
        is_untold: AtomicU64,
        /// Whether the submitter of the change has seen that it is acknowledged.
        is_seen: AtomicU64,
    }

    impl World {
        fn note(&self) {
            self.is_untold.set(1);
        }
    }

    fn acknowledge(world: &World) {
        world.ledger.acknowledge(|| world.note());
        world.is_seen.set(1);
    }

    fn end(world: &World) {
        world.ledger.end(|| world.note());
    }

    /// Ends the session, and flushes in the next one.
    fn end_and_flush(world: &World) {
        end(world);
        let is_seen = world.is_seen.load(SeqCst) == 1;
        let is_flushed = world.is_untold.swap(0, SeqCst) == 0;
        assert!(!(is_seen && is_flushed), "a flush covers a change that may be lost");
    }

    /// Whichever connection sees the end first, and whether the change is acknowledged before the end, meanwhile or after it.
    #[test]
    fn no_flush_of_the_next_session_covers_what_this_one_has_lost() {
        explore(3, World::default, &[end_and_flush, acknowledge, end], |world| {
            assert_eq!(world.ledger.settled.load(SeqCst), 1, "it was noted");
        });
    }

    #[test]
    fn what_a_flush_covers_is_not_lost() {
        let ledger = Ledger::<std::sync::atomic::AtomicU64>::default();
        let noted = std::cell::Cell::new(0);
        let note = || noted.set(noted.get() + 1);
        (0..3).for_each(|_| ledger.acknowledge(note));
        ledger.settle(2);
        ledger.settle(1);
        ledger.acknowledge(note);
        ledger.settle(4);
        ledger.end(note);
        assert_eq!((noted.get(), ledger.acknowledged()), (0, 4));
        // Acknowledged after the end: noted, once, though another connection ends later.
        ledger.acknowledge(note);
        ledger.end(note);
        assert_eq!(noted.get(), 1);
    }
}
