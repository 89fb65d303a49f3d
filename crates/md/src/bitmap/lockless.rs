//! The states of a chunk as the lockless bitmap (version 6) stores them, one byte each, and the
//! transitions between them.
//!
//! `-` means no change: the action has no effect in that state. The columns are [`Action`]s; the
//! test below compares this text with the code.
//!
//! ```text
//! |           | write | degrade  | start sync | end sync | abort sync | reload   | daemon | discard   |
//! |-----------|-------|----------|------------|----------|------------|----------|--------|-----------|
//! | unwritten | dirty | need     | -          | -        | -          | -        | -      | -         |
//! | clean     | dirty | need     | -          | -        | -          | -        | -      | unwritten |
//! | dirty     | -     | need     | syncing    | -        | -          | need     | clean  | unwritten |
//! | need      | -     | -        | syncing    | -        | -          | -        | -      | unwritten |
//! | syncing   | -     | need     | -          | dirty    | need       | need     | -      | -         |
//! ```
//!
//! It is Linux's table (`drivers/md/md-llbitmap.c`) for levels with full copies, with these
//! differences, all to the safe side:
//! - `degrade` is a write that some copy lacks. Linux checks whether the array is degraded when the
//!   write begins.
//! - A sync may start on a dirty chunk: a re-added member needs it. Linux does so if degraded.
//! - A chunk that is being synced is not made unwritten by a discard.
//! - There is no `stale` column: the bytes of an out-of-date bitmap are meaningless, so all chunks
//!   need a sync, including those that are unwritten by the bytes.
//!
//! A byte with another value (Linux has three more states, for parity) counts as `need`.
//!
//! A classic bitmap has two of the states: a set bit is dirty, a clear one clean.

/// What is known about a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum State {
    /// Never written since the array was created, or discarded entirely: its copies may differ,
    /// which does not matter.
    Unwritten = 0,
    /// Its copies are the same.
    Clean = 1,
    /// It is being written, or was written recently.
    Dirty = 2,
    /// Its copies may differ: it has to be synced.
    NeedSync = 3,
    /// It is being synced.
    Syncing = 4,
}

/// What happens to a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A write begins.
    Write,
    /// A write ended, and some copy lacks it.
    Degrade,
    /// A sync begins.
    StartSync,
    /// A sync succeeded.
    EndSync,
    /// A sync failed or was stopped.
    AbortSync,
    /// The array is assembled.
    Reload,
    /// It had no recent write, and all members have all its data.
    Daemon,
    /// All of it was discarded.
    Discard,
}

use State::{Clean, Dirty, NeedSync, Syncing, Unwritten};

impl State {
    /// All states, by their bytes.
    pub const ALL: [Self; 5] = [Unwritten, Clean, Dirty, NeedSync, Syncing];

    /// The state that a byte on disk stands for.
    pub const fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Unwritten,
            1 => Clean,
            2 => Dirty,
            4 => Syncing,
            _ => NeedSync,
        }
    }

    /// The byte on disk.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Whether, if power fails now, the chunk is synced afterwards.
    pub const fn is_marked(self) -> bool {
        matches!(self, Dirty | NeedSync | Syncing)
    }

    /// The state after `action`; `None` if it stays.
    pub const fn after(self, action: Action) -> Option<Self> {
        match (self, action) {
            (Unwritten | Clean, Action::Write) => Some(Dirty),
            (Unwritten | Clean | Dirty | Syncing, Action::Degrade) => Some(NeedSync),
            (Dirty | NeedSync, Action::StartSync) => Some(Syncing),
            (Syncing, Action::EndSync) => Some(Dirty),
            (Syncing, Action::AbortSync) => Some(NeedSync),
            (Dirty | Syncing, Action::Reload) => Some(NeedSync),
            (Dirty, Action::Daemon) => Some(Clean),
            (Clean | Dirty | NeedSync, Action::Discard) => Some(Unwritten),
            (
                _,
                Action::Write
                | Action::Degrade
                | Action::StartSync
                | Action::EndSync
                | Action::AbortSync
                | Action::Reload
                | Action::Daemon
                | Action::Discard,
            ) => None,
        }
    }

    /// The state of a chunk that replaces two: the one that promises less.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        self.max(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTIONS: [(&str, Action); 8] = [
        ("write", Action::Write),
        ("degrade", Action::Degrade),
        ("start sync", Action::StartSync),
        ("end sync", Action::EndSync),
        ("abort sync", Action::AbortSync),
        ("reload", Action::Reload),
        ("daemon", Action::Daemon),
        ("discard", Action::Discard),
    ];

    fn name(state: State) -> &'static str {
        match state {
            Unwritten => "unwritten",
            Clean => "clean",
            Dirty => "dirty",
            NeedSync => "need",
            Syncing => "syncing",
        }
    }

    #[test]
    fn the_table_in_the_text_is_the_code() {
        let rows: Vec<Vec<&str>> = include_str!("lockless.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("//! |")?.strip_suffix('|'))
            .map(|line| line.split('|').map(str::trim).collect())
            .collect();
        let titles: Vec<&str> = ACTIONS.iter().map(|(title, _)| *title).collect();
        assert_eq!(rows[0][1..], titles);
        assert_eq!(rows.len(), 2 + State::ALL.len());
        for (row, state) in rows[2..].iter().zip(State::ALL) {
            let after = ACTIONS.map(|(_, action)| state.after(action).map_or("-", name));
            assert_eq!(row[0], name(state));
            assert_eq!(row[1..], after, "{state:?}");
        }
    }

    #[test]
    fn every_byte_is_a_state_and_unknown_ones_need_a_sync() {
        for byte in 0..=255 {
            let state = State::from_byte(byte);
            if byte < 5 {
                assert_eq!(state.byte(), byte);
            } else {
                assert_eq!(state, NeedSync);
            }
        }
    }

    /// What the other modules rely on, for every state and action.
    #[test]
    fn only_the_daemon_and_a_discard_take_a_mark_away_and_nothing_but_them_and_writes_makes_one() {
        for state in State::ALL {
            for (title, action) in ACTIONS {
                let after = state.after(action).unwrap_or(state);
                match action {
                    Action::Write | Action::Degrade => {
                        assert!(after.is_marked(), "{state:?} {title}")
                    }
                    Action::Daemon | Action::Discard => {
                        assert!(!after.is_marked() || after == state, "{state:?} {title}");
                    }
                    Action::StartSync | Action::EndSync | Action::AbortSync | Action::Reload => {
                        assert_eq!(after.is_marked(), state.is_marked(), "{state:?} {title}");
                    }
                }
            }
        }
    }

    #[test]
    fn two_chunks_in_one_promise_no_more_than_either() {
        for a in State::ALL {
            for b in State::ALL {
                let both = a.merge(b);
                assert_eq!(both.is_marked(), a.is_marked() || b.is_marked());
                assert_eq!(both == Unwritten, a == Unwritten && b == Unwritten);
                assert_eq!(both, b.merge(a));
            }
        }
    }
}
