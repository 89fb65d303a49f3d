//! The limit of a member's read errors.
//!
//! A read error that a rewrite of the sector corrects is no reason to fail a member: disks
//! have one occasionally. Many in a short time are. So errors are counted, the
//! count is halved for each full hour since the previous error, and a member whose count
//! exceeds the array's `max_read_errors` fails (as in the kernel's raid1 and raid10).

use std::sync::Mutex;

use ashlar_block::sync::lock;

/// The default of an array's `max_read_errors`.
pub(crate) const DEFAULT_MAX: u32 = 20;

const HOUR_NS: u64 = 3600 * 1_000_000_000;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    errors: u32,
    /// Time of the last error, by the caller's clock.
    last_ns: Option<u64>,
}

/// The read errors of one member.
#[derive(Debug, Default)]
pub(crate) struct ReadErrors(Mutex<Count>);

impl ReadErrors {
    /// Counts an error at `now_ns`, by the runtime's monotonic clock, and returns the new count: the old
    /// one, halved for each full hour since the last error, plus one.
    pub(crate) fn record(&self, now_ns: u64) -> u32 {
        let mut count = lock(&self.0);
        let idle = count.last_ns.map_or(0, |last| now_ns.saturating_sub(last));
        let halvings = u32::try_from(idle / HOUR_NS).unwrap_or(u32::MAX);
        let left = count.errors.checked_shr(halvings).unwrap_or(0);
        // Threads may arrive here in another order than they read the clock.
        let last_ns = count.last_ns.max(Some(now_ns));
        *count = Count { errors: left.saturating_add(1), last_ns };
        count.errors
    }

    /// Forgets all errors.
    pub(crate) fn forget(&self) {
        *lock(&self.0) = Count::default();
    }

    /// Whether the count after the last error is more than `max`: then the member fails.
    pub(crate) fn exceeded(&self, max: u32) -> bool {
        lock(&self.0).errors > max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The count after the last of these errors, which occur at the given hours.
    fn after(hours: impl IntoIterator<Item = f64>) -> u32 {
        let errors = ReadErrors::default();
        hours.into_iter().map(|hour| errors.record((hour * HOUR_NS as f64) as u64)).last().unwrap()
    }

    #[test]
    fn errors_within_an_hour_of_each_other_add_up() {
        assert_eq!(after([5.0]), 1);
        assert_eq!(after([5.0, 5.0, 5.1, 5.9, 6.8]), 5);
    }

    #[test]
    fn each_full_hour_between_two_errors_halves_the_count() {
        let burst = [0.0; 9].into_iter();
        for (pause, expected) in [(0.99, 10), (1.0, 5), (1.99, 5), (2.0, 3), (3.0, 2), (4.0, 1)] {
            assert_eq!(after(burst.clone().chain([pause])), expected, "after {pause} hours");
        }
    }

    #[test]
    fn the_hours_count_from_the_last_error_and_not_from_the_first() {
        assert_eq!(after([0.0, 0.9, 1.8, 2.7, 3.6]), 5);
        assert_eq!(after([0.0, 0.9, 1.9]), 2);
    }

    #[test]
    fn after_a_long_pause_nothing_is_left() {
        for pause in [31.0, 32.0, 33.0, 64.0, 1e6, 5e6] {
            assert_eq!(after([0.0, 0.0, 0.0, pause]), 1, "after {pause} hours");
        }
        let errors = ReadErrors::default();
        errors.record(0);
        assert_eq!(errors.record(u64::MAX), 1);
    }

    #[test]
    fn a_clock_that_seems_to_go_back_neither_halves_now_nor_later() {
        assert_eq!(after([10.0, 9.0, 10.5]), 3);
    }

    #[test]
    fn a_member_may_have_as_many_as_the_limit_and_fails_with_one_more() {
        let errors = ReadErrors::default();
        assert!(!errors.exceeded(0));
        for count in 1..=DEFAULT_MAX {
            assert_eq!(errors.record(7), count);
            assert!(!errors.exceeded(DEFAULT_MAX));
        }
        errors.record(7);
        assert!(errors.exceeded(DEFAULT_MAX));
        assert!(!errors.exceeded(DEFAULT_MAX + 1));
        errors.record(HOUR_NS + 7);
        assert!(!errors.exceeded(DEFAULT_MAX));
        assert!(errors.exceeded(0));
    }

    #[test]
    fn the_first_error_may_be_at_time_zero() {
        assert_eq!(after([0.0, 0.0, 1.0]), 2);
    }
}
