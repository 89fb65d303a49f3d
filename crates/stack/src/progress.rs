//! What an array does by itself: resync, recovery, check or repair, and how far it is.

use std::time::Duration;

use ashlar_block::Sectors;

/// What an array does by itself, with the words of the kernel's `sync_action`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing.
    Idle,
    /// Nothing, and it is not to begin anything.
    Frozen,
    /// Makes copies the same after a crash.
    Resync,
    /// Fills a new member.
    Recover,
    /// Compares copies.
    Check,
    /// Compares copies and makes them the same.
    Repair,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Idle, Self::Frozen, Self::Resync, Self::Recover, Self::Check, Self::Repair];

    /// The word in `sync_action`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Frozen => "frozen",
            Self::Resync => "resync",
            Self::Recover => "recover",
            Self::Check => "check",
            Self::Repair => "repair",
        }
    }

    /// The action with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == word)
    }

    /// The word in `proc/mdstat`: a repair is a resync there.
    pub const fn mdstat_name(self) -> &'static str {
        match self {
            Self::Recover => "recovery",
            Self::Check => "check",
            Self::Resync | Self::Repair | Self::Idle | Self::Frozen => "resync",
        }
    }

    /// The words of mdadm: that of the state (`recovering`) and that of the line about it (`Rebuild`).
    pub(crate) const fn detail_names(self) -> (&'static str, &'static str) {
        match self {
            Self::Recover => ("recovering", "Rebuild"),
            Self::Check => ("checking", "Check"),
            Self::Resync | Self::Repair | Self::Idle | Self::Frozen => ("resyncing", "Resync"),
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing is under way or due.
    None,
    /// Something is due, but the array is only read.
    Pending,
    /// Waits for its turn.
    Delayed,
    /// Under way.
    Running(Run),
}

/// Something under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Sectors done: of the array for a resync, check or repair, of each member for a recovery; as in
    /// the kernel.
    pub done: Sectors,
    /// All sectors.
    pub total: Sectors,
    /// KiB a second of late.
    pub speed_kib: u64,
    /// The time that is left at that speed.
    pub left: Option<Duration>,
}

impl Run {
    /// Thousandths done, with the kernel's arithmetic (`status_resync` in `drivers/md/md.c`).
    pub fn per_mille(&self) -> u64 {
        let done = self.done.0.min(self.total.0);
        let mut scale = 10;
        while scale < 31 && self.total.0 / 2 > 1 << (scale + 32) {
            scale += 1;
        }
        (done >> scale) * 1000 / ((self.total.0 >> scale) + 1)
    }
}

/// What an array does by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What it does or is about to.
    pub action: Action,
    /// What it did last, or does.
    pub last: Option<Action>,
    /// How far it is.
    pub step: Step,
    /// Sectors found to differ by the last check or repair.
    pub mismatches: Sectors,
}

impl Progress {
    /// Nothing, now or ever before.
    pub const NONE: Self =
        Self { action: Action::Idle, last: None, step: Step::None, mismatches: Sectors::ZERO };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back() {
        for action in Action::ALL {
            assert_eq!(Action::parse(action.name()), Some(action));
        }
        assert_eq!(Action::parse("reshape"), None);
    }

    #[test]
    fn per_mille_never_says_done_before_it_is() {
        let run = |done, total| Run {
            done: Sectors(done),
            total: Sectors(total),
            speed_kib: 0,
            left: None,
        };
        assert_eq!(run(0, 0).per_mille(), 0);
        assert_eq!(run(2048, 2048).per_mille(), 666);
        assert_eq!(run(1 << 30, 1 << 30).per_mille(), 999);
        assert_eq!(run(1 << 29, 1 << 30).per_mille(), 499);
        // Larger than any array, and more done than there is.
        for (done, total) in [(u64::MAX, u64::MAX), (u64::MAX >> 1, u64::MAX), (9, 8)] {
            assert!(run(done, total).per_mille() < 1000);
        }
    }
}
