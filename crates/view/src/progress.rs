//! The array's own I/O: resync, recovery, check or repair, and its progress.

use std::time::Duration;

use ashlar_block::Sectors;
use ashlar_md::SyncAction;
use ashlar_stack::view::ArrayView;

/// The word for an action in `proc/mdstat`: a repair is shown as a resync.
pub const fn mdstat_name(action: SyncAction) -> &'static str {
    match action {
        SyncAction::Recover => "recovery",
        SyncAction::Check => "check",
        SyncAction::Resync | SyncAction::Repair | SyncAction::Idle | SyncAction::Frozen => "resync",
    }
}

/// mdadm's words for an action: for the state (`recovering`) and for the progress line (`Rebuild`).
pub(crate) const fn detail_names(action: SyncAction) -> (&'static str, &'static str) {
    match action {
        SyncAction::Recover => ("recovering", "Rebuild"),
        SyncAction::Check => ("checking", "Check"),
        SyncAction::Resync | SyncAction::Repair | SyncAction::Idle | SyncAction::Frozen => {
            ("resyncing", "Resync")
        }
    }
}

/// The word in `last_sync_action`.
pub(crate) fn last_name(progress: &Progress) -> &'static str {
    if progress.last == SyncAction::Idle { "none" } else { progress.last.name() }
}

/// The progress of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing runs.
    None,
    /// A resync is due, but nothing runs.
    Pending,
    /// An operation runs.
    Running(Run),
}

/// A running operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Sectors done: of the array for a resync, check or repair, of each member for a recovery; as in
    /// the kernel.
    pub done: Sectors,
    /// Sectors in total.
    pub total: Sectors,
    /// Recent speed, KiB per second.
    pub speed_kib: u64,
    /// The remaining time at this speed.
    pub left: Option<Duration>,
}

impl Run {
    /// Per mille done, with the kernel's arithmetic (`status_resync` in `drivers/md/md.c`).
    pub fn per_mille(&self) -> u64 {
        let done = self.done.0.min(self.total.0);
        let mut scale = 10;
        while scale < 31 && self.total.0 / 2 > 1 << (scale + 32) {
            scale += 1;
        }
        (done >> scale) * 1000 / ((self.total.0 >> scale) + 1)
    }
}

/// The array's own I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The current operation; frozen if idle and new ones are forbidden.
    pub action: SyncAction,
    /// The last or current operation; idle if there was none.
    pub last: SyncAction,
    /// Its progress.
    pub step: Step,
    /// The operation that waits because the array is frozen, and how far it is.
    pub paused: Option<(SyncAction, Run)>,
    /// Sectors in which the last check or repair found differences.
    pub mismatches: Sectors,
    /// Whether an operation runs, or is about to.
    pub busy: bool,
}

impl Progress {
    /// The current progress of an array.
    pub fn of(array: &ArrayView) -> Self {
        let status = array.sync_status();
        let run = Run {
            done: status.done,
            total: status.total,
            speed_kib: status.speed_kib,
            left: status.eta,
        };
        let step = match status.action {
            SyncAction::Idle | SyncAction::Frozen if array.is_unsynced() => Step::Pending,
            SyncAction::Idle | SyncAction::Frozen => Step::None,
            SyncAction::Resync | SyncAction::Recover | SyncAction::Check | SyncAction::Repair => {
                Step::Running(run)
            }
        };
        Self {
            action: status.action,
            last: status.last,
            step,
            paused: status.paused.map(|action| (action, run)),
            mismatches: status.mismatches,
            busy: array.is_sync_busy(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // Larger than any array, and more done than the total.
        for (done, total) in [(u64::MAX, u64::MAX), (u64::MAX >> 1, u64::MAX), (9, 8)] {
            assert!(run(done, total).per_mille() < 1000);
        }
    }
}
