//! The log of a registry's changes, for those that follow it.
//!
//! A follower remembers the generation up to which it has read. It learns which devices changed, and looks up what they are now:
//! of several changes of one device only the result counts. The log is bounded: a follower that is too far behind looks at
//! all devices again.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use event_listener::{Event, EventListener};

/// The most changes that are remembered.
const MOST: usize = 4096;

/// What has become of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Change {
    /// It is new, was removed, or has other names or another use.
    Registered,
    /// It has another size.
    Resized,
    /// It does not respond or is offline, or answers again ([`ashlar_block::Presence`]).
    Presence,
}

/// The devices that have changed since a generation.
#[derive(PartialEq, Eq, Debug)]
pub enum Changes {
    /// These, by name.
    Of(BTreeSet<(String, Change)>),
    /// Perhaps all of them.
    Unknown,
}

/// See the module text.
#[derive(Default)]
pub(crate) struct Log {
    records: Mutex<Records>,
    changed: Event,
}

#[derive(Default)]
struct Records {
    /// The number of changes so far.
    generation: u64,
    /// The number of those that were [`Change::Registered`].
    registered: u64,
    last: VecDeque<(String, Change)>,
}

impl Log {
    /// Adds a change of the device with this name.
    pub(crate) fn note(&self, device: &str, change: Change) {
        let mut records = self.records();
        records.generation += 1;
        records.registered += u64::from(change == Change::Registered);
        if records.last.len() == MOST {
            records.last.pop_front();
        }
        records.last.push_back((device.to_owned(), change));
        drop(records);
        self.changed.notify(usize::MAX);
    }

    /// How often a device came, went, or got other names or another use.
    pub(crate) fn registered(&self) -> u64 {
        self.records().registered
    }

    /// What has changed since `generation`, and the present generation.
    pub(crate) fn since(&self, generation: u64) -> (Changes, u64) {
        let records = self.records();
        let missed = records.generation.saturating_sub(generation);
        let known = usize::try_from(missed).ok().filter(|missed| *missed <= records.last.len());
        let changes = known.map_or(Changes::Unknown, |missed| {
            Changes::Of(records.last.iter().rev().take(missed).cloned().collect())
        });
        (changes, records.generation)
    }

    /// Ends with the next change.
    pub(crate) fn listen(&self) -> EventListener {
        self.changed.listen()
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(changes: &[(&str, Change)]) -> Changes {
        Changes::Of(changes.iter().map(|(name, change)| ((*name).to_owned(), *change)).collect())
    }

    #[test]
    fn a_follower_learns_each_change_once() {
        let log = Log::default();
        assert_eq!(log.since(0), (of(&[]), 0));
        log.note("dm-0", Change::Registered);
        log.note("dm-0", Change::Registered);
        log.note("md0", Change::Resized);
        let both = of(&[("dm-0", Change::Registered), ("md0", Change::Resized)]);
        assert_eq!(log.since(0), (both, 3));
        assert_eq!(log.since(2), (of(&[("md0", Change::Resized)]), 3));
        assert_eq!((log.since(3), log.registered()), ((of(&[]), 3), 2));
    }

    #[test]
    fn a_follower_that_is_too_far_behind_is_told_so() {
        let log = Log::default();
        for number in 0..=MOST {
            log.note(&format!("dm-{number}"), Change::Registered);
        }
        let generation = MOST as u64 + 1;
        assert_eq!(log.since(0), (Changes::Unknown, generation));
        let Changes::Of(changes) = log.since(1).0 else { panic!("all are there") };
        assert_eq!(changes.len(), MOST);
    }

    #[test]
    fn a_change_wakes_those_that_listen() {
        use futures_util::FutureExt;
        let log = Log::default();
        let mut listener = log.listen();
        assert!((&mut listener).now_or_never().is_none());
        log.note("md0", Change::Resized);
        assert!((&mut listener).now_or_never().is_some());
    }
}
