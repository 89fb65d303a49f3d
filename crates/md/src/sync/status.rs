//! Requests to a sync, and its status.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use ashlar_block::Sectors;
use event_listener::Event;
use thiserror::Error;

/// The kernel's system-wide `speed_limit_min`, KiB per second for each member.
pub(crate) const DEFAULT_SPEED_MIN_KIB: u64 = 1000;
/// The kernel's system-wide `speed_limit_max`, KiB per second for each member.
pub(crate) const DEFAULT_SPEED_MAX_KIB: u64 = 200_000;

/// What a sync does, in the kernel's words (`sync_action`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SyncAction {
    /// Nothing.
    #[default]
    Idle,
    /// Makes copies equal that may differ.
    Resync,
    /// Rebuilds members that lack data.
    Recover,
    /// Compares copies.
    Check,
    /// Compares copies and makes them equal.
    Repair,
    /// Nothing, and nothing may begin.
    Frozen,
}

impl SyncAction {
    /// The kernel's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Resync => "resync",
            Self::Recover => "recover",
            Self::Check => "check",
            Self::Repair => "repair",
            Self::Frozen => "frozen",
        }
    }
}

/// A user's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncRequest {
    /// End the running action. A necessary action begins again automatically.
    Idle,
    /// End the running action, and let none begin.
    Frozen,
    /// Begin the necessary action.
    Resync,
    /// As [`Self::Resync`].
    Recover,
    /// Compare all copies.
    Check,
    /// Compare all copies and make them equal.
    Repair,
}

impl FromStr for SyncRequest {
    type Err = SyncError;

    fn from_str(word: &str) -> Result<Self, SyncError> {
        Ok(match word {
            "idle" => Self::Idle,
            "frozen" => Self::Frozen,
            "resync" => Self::Resync,
            "recover" => Self::Recover,
            "check" => Self::Check,
            "repair" => Self::Repair,
            "reshape" => return Err(SyncError::Reshape),
            _ => return Err(SyncError::Unknown),
        })
    }
}

/// Why a request or a setting was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SyncError {
    /// An action runs or was requested.
    #[error("a sync is under way already")]
    Busy,
    /// Reshaping is not supported.
    #[error("reshaping an array is not supported")]
    Reshape,
    /// No action of that name.
    #[error("no such action: idle, frozen, resync, recover, check and repair are known")]
    Unknown,
    /// The array is read-only.
    #[error("the array is read-only")]
    ReadOnly,
    /// The level has only one copy.
    #[error("the level has no copies to sync")]
    NotRedundant,
    /// The array was stopped.
    #[error("the array is stopped")]
    Stopped,
    /// A bound that is not a multiple of the chunk, or on the wrong side of the other bound.
    #[error("sync_min and sync_max must be multiples of the chunk, in ascending order")]
    Range,
}

/// Limits of a sync. Changes take effect at once.
#[derive(Debug)]
pub struct SyncSettings {
    /// Zero for the system's.
    speed_min_kib: AtomicU64,
    /// Zero for the system's.
    speed_max_kib: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
    pub(super) changed: Arc<Event>,
}

fn own(value: &AtomicU64) -> Option<u64> {
    Some(value.load(SeqCst)).filter(|value| *value != 0)
}

impl SyncSettings {
    /// The kernel's defaults; changes notify `changed`.
    pub(super) fn notifying(changed: Arc<Event>) -> Self {
        Self {
            speed_min_kib: AtomicU64::new(0),
            speed_max_kib: AtomicU64::new(0),
            min: AtomicU64::new(0),
            max: AtomicU64::new(u64::MAX),
            changed,
        }
    }

    /// KiB per second that a sync may do even during regular I/O; `None` for the system's
    /// 1000.
    pub fn own_speed_min_kib(&self) -> Option<u64> {
        own(&self.speed_min_kib)
    }

    /// KiB per second that a sync never exceeds (unless `speed_min` is higher); `None` for the
    /// system's 200,000.
    pub fn own_speed_max_kib(&self) -> Option<u64> {
        own(&self.speed_max_kib)
    }

    /// KiB per second that a sync may do even during regular I/O.
    pub fn speed_min_kib(&self) -> u64 {
        self.own_speed_min_kib().unwrap_or(DEFAULT_SPEED_MIN_KIB)
    }

    /// KiB per second that a sync never exceeds.
    pub fn speed_max_kib(&self) -> u64 {
        self.own_speed_max_kib().unwrap_or(DEFAULT_SPEED_MAX_KIB)
    }

    /// Sets the speed allowed during regular I/O; `None` for the system's.
    pub fn set_speed_min_kib(&self, kib: Option<u64>) {
        self.set(&self.speed_min_kib, kib.unwrap_or(0));
    }

    /// Sets the speed limit; `None` for the system's.
    pub fn set_speed_max_kib(&self, kib: Option<u64>) {
        self.set(&self.speed_max_kib, kib.unwrap_or(0));
    }

    /// Where a check or repair begins.
    pub fn sync_min(&self) -> Sectors {
        Sectors(self.min.load(SeqCst))
    }

    /// Where a sync waits until the bound is raised; [`Sectors::MAX`] for nowhere.
    pub fn sync_max(&self) -> Sectors {
        Sectors(self.max.load(SeqCst))
    }

    pub(super) fn set_sync_min(&self, at: Sectors) {
        self.set(&self.min, at.0);
    }

    pub(super) fn set_sync_max(&self, at: Sectors) {
        self.set(&self.max, at.0);
    }

    fn set(&self, which: &AtomicU64, value: u64) {
        which.store(value, SeqCst);
        self.changed.notify(usize::MAX);
    }
}

/// Progress of a sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SyncStatus {
    /// The running action; [`SyncAction::Frozen`] if none runs and none may.
    pub action: SyncAction,
    /// The last action, which may still run.
    pub last: SyncAction,
    /// The action that ended because a user froze the array; it continues from there when it is requested again.
    pub paused: Option<SyncAction>,
    /// Sectors done: of a member in a recovery, otherwise of the array.
    pub done: Sectors,
    /// Total sectors; zero if nothing runs and nothing is paused.
    pub total: Sectors,
    /// KiB per second over the last half minute.
    pub speed_kib: u64,
    /// Sectors in 64 KiB blocks that differed in the last check, repair or resync.
    pub mismatches: Sectors,
    /// Remaining time at this speed.
    pub eta: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_the_kernels_words() {
        for (word, request, action) in [
            ("idle", SyncRequest::Idle, SyncAction::Idle),
            ("frozen", SyncRequest::Frozen, SyncAction::Frozen),
            ("resync", SyncRequest::Resync, SyncAction::Resync),
            ("recover", SyncRequest::Recover, SyncAction::Recover),
            ("check", SyncRequest::Check, SyncAction::Check),
            ("repair", SyncRequest::Repair, SyncAction::Repair),
        ] {
            assert_eq!(word.parse(), Ok(request));
            assert_eq!(action.name(), word);
        }
        assert_eq!("reshape".parse::<SyncRequest>(), Err(SyncError::Reshape));
        assert_eq!("".parse::<SyncRequest>(), Err(SyncError::Unknown));
        assert_eq!("Check".parse::<SyncRequest>(), Err(SyncError::Unknown));
    }

    #[test]
    fn a_speed_that_was_not_set_is_the_systems() {
        let settings = SyncSettings::notifying(Arc::default());
        assert_eq!((settings.speed_min_kib(), settings.speed_max_kib()), (1000, 200_000));
        settings.set_speed_max_kib(Some(7));
        assert_eq!((settings.own_speed_max_kib(), settings.speed_max_kib()), (Some(7), 7));
        settings.set_speed_max_kib(None);
        assert_eq!((settings.own_speed_max_kib(), settings.speed_max_kib()), (None, 200_000));
    }
}
