//! Requests to a sync, and its status.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use ashlar_block::Sectors;
use event_listener::Event;
use thiserror::Error;

/// The kernel's system-wide `speed_limit_min`, KiB in a second for each member.
pub const DEFAULT_SPEED_MIN_KIB: u64 = 1000;
/// The kernel's system-wide `speed_limit_max`, KiB in a second for each member.
pub const DEFAULT_SPEED_MAX_KIB: u64 = 200_000;

/// What a sync does, in the kernel's words (`sync_action`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Action {
    /// Nothing.
    #[default]
    Idle,
    /// Copies that may differ are made the same.
    Resync,
    /// Members without data, or without all of it, are rebuilt.
    Recover,
    /// Copies are compared.
    Check,
    /// Copies are compared and made the same.
    Repair,
    /// Nothing, and nothing will begin.
    Frozen,
}

impl Action {
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

/// What a user may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// End what runs. What is necessary begins again by itself.
    Idle,
    /// End what runs, and let nothing begin.
    Frozen,
    /// Begin what is necessary.
    Resync,
    /// As [`Self::Resync`].
    Recover,
    /// Compare all copies.
    Check,
    /// Compare all copies and make them the same.
    Repair,
}

impl FromStr for Request {
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
    /// Something runs, or has been asked for.
    #[error("a sync is under way already")]
    Busy,
    /// Not something that this version does.
    #[error("reshaping an array is not supported")]
    Reshape,
    /// No action of that name.
    #[error("no such action: idle, frozen, resync, recover, check and repair are known")]
    Unknown,
    /// The array is only read.
    #[error("the array is read-only")]
    ReadOnly,
    /// The level has one copy of everything.
    #[error("the level has no copies to sync")]
    NotRedundant,
    /// The array was stopped.
    #[error("the array is stopped")]
    Stopped,
    /// A bound that is no multiple of the chunk, or on the wrong side of the other one.
    #[error("sync_min and sync_max must be multiples of the chunk, in ascending order")]
    Bound,
}

/// What a sync may do. Changes are heeded at once.
#[derive(Debug)]
pub struct SyncSettings {
    /// Zero for the system's.
    speed_min_kib: AtomicU64,
    /// Zero for the system's.
    speed_max_kib: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
    pub(super) changed: Event,
}

impl Default for SyncSettings {
    fn default() -> Self {
        Self {
            speed_min_kib: AtomicU64::new(0),
            speed_max_kib: AtomicU64::new(0),
            min: AtomicU64::new(0),
            max: AtomicU64::new(u64::MAX),
            changed: Event::new(),
        }
    }
}

fn own(value: &AtomicU64) -> Option<u64> {
    Some(value.load(SeqCst)).filter(|value| *value != 0)
}

impl SyncSettings {
    /// KiB in a second that a sync may do even while there is regular I/O; `None` for the system's
    /// [`DEFAULT_SPEED_MIN_KIB`].
    pub fn own_speed_min_kib(&self) -> Option<u64> {
        own(&self.speed_min_kib)
    }

    /// KiB in a second that a sync never exceeds (but for `speed_min`); `None` for the system's
    /// [`DEFAULT_SPEED_MAX_KIB`].
    pub fn own_speed_max_kib(&self) -> Option<u64> {
        own(&self.speed_max_kib)
    }

    /// KiB in a second that a sync may do even while there is regular I/O.
    pub fn speed_min_kib(&self) -> u64 {
        self.own_speed_min_kib().unwrap_or(DEFAULT_SPEED_MIN_KIB)
    }

    /// KiB in a second that a sync never exceeds.
    pub fn speed_max_kib(&self) -> u64 {
        self.own_speed_max_kib().unwrap_or(DEFAULT_SPEED_MAX_KIB)
    }

    /// Sets the speed to be kept up while there is regular I/O; `None` for the system's.
    pub fn set_speed_min_kib(&self, kib: Option<u64>) {
        self.set(&self.speed_min_kib, kib.unwrap_or(0));
    }

    /// Sets the speed not to be exceeded; `None` for the system's.
    pub fn set_speed_max_kib(&self, kib: Option<u64>) {
        self.set(&self.speed_max_kib, kib.unwrap_or(0));
    }

    /// Where a check or repair begins.
    pub fn sync_min(&self) -> Sectors {
        Sectors(self.min.load(SeqCst))
    }

    /// Where any sync waits until the bound is raised; [`Sectors::MAX`] for nowhere.
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

/// How far a sync is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SyncStatus {
    /// What runs; [`Action::Frozen`] if nothing does and nothing may.
    pub action: Action,
    /// What ran last, or runs.
    pub last: Action,
    /// Sectors that are done: of a member if it is a recovery, of the array otherwise.
    pub done: Sectors,
    /// Sectors there are; zero if nothing runs.
    pub total: Sectors,
    /// KiB in a second over the last half minute.
    pub speed_kib: u64,
    /// Sectors in 64 KiB blocks that differed in the last check, repair or resync.
    pub mismatches: Sectors,
    /// How long it will still take at this speed.
    pub eta: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_the_kernels_words() {
        for (word, request, action) in [
            ("idle", Request::Idle, Action::Idle),
            ("frozen", Request::Frozen, Action::Frozen),
            ("resync", Request::Resync, Action::Resync),
            ("recover", Request::Recover, Action::Recover),
            ("check", Request::Check, Action::Check),
            ("repair", Request::Repair, Action::Repair),
        ] {
            assert_eq!(word.parse(), Ok(request));
            assert_eq!(action.name(), word);
        }
        assert_eq!("reshape".parse::<Request>(), Err(SyncError::Reshape));
        assert_eq!("".parse::<Request>(), Err(SyncError::Unknown));
        assert_eq!("Check".parse::<Request>(), Err(SyncError::Unknown));
    }

    #[test]
    fn a_speed_that_was_not_set_is_the_systems() {
        let settings = SyncSettings::default();
        assert_eq!((settings.speed_min_kib(), settings.speed_max_kib()), (1000, 200_000));
        settings.set_speed_max_kib(Some(7));
        assert_eq!((settings.own_speed_max_kib(), settings.speed_max_kib()), (Some(7), 7));
        settings.set_speed_max_kib(None);
        assert_eq!((settings.own_speed_max_kib(), settings.speed_max_kib()), (None, 200_000));
    }
}
