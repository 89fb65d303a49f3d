//! Timers of one reactor: an ordered map of deadlines, checked once a turn.
//!
//! The nearest deadline is the time limit of the reactor's sleep in the kernel; no timer costs a
//! system call of its own.

mod sleep;

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub use sleep::{Sleep, sleep, timeout};

/// `CLOCK_MONOTONIC` in nanoseconds.
pub fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// `CLOCK_REALTIME` since the epoch.
pub fn wall_clock() -> Duration {
    Duration::from_nanos(nanoseconds(clock_gettime(ClockId::Realtime)))
}

/// Nanoseconds of a clock that never goes below zero; u64 lasts until the year 2554.
fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Deadline in nanoseconds of [`now_ns`], and a number that distinguishes equal deadlines (and keeps them in the order
/// in which they were set).
type Key = (u64, u64);

#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<Key, Waker>,
    set: u64,
}

impl Timers {
    fn insert(&mut self, deadline: u64, waker: Waker) -> Key {
        self.set += 1;
        let key = (deadline, self.set);
        self.waiting.insert(key, waker);
        key
    }

    /// The wakers whose deadlines have passed, in the order of their deadlines.
    pub(crate) fn expire(&mut self, now: u64) -> BTreeMap<Key, Waker> {
        // Most turns: splitting the map would allocate.
        if self.waiting.first_key_value().is_none_or(|((deadline, _), _)| *deadline > now) {
            return BTreeMap::new();
        }
        let later = self.waiting.split_off(&(now.saturating_add(1), 0));
        std::mem::replace(&mut self.waiting, later)
    }

    /// How long until the first deadline.
    pub(crate) fn time_left(&self, now: u64) -> Option<Duration> {
        let (&(deadline, _), _) = self.waiting.first_key_value()?;
        Some(Duration::from_nanos(deadline.saturating_sub(now)))
    }
}
