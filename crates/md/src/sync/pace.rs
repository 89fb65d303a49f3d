//! The speed limits and the measured speed of a sync.

use std::collections::VecDeque;
use std::time::Duration;

use ashlar_block::Sectors;
use ashlar_block::stats::Totals;

use super::status::SyncSettings;

const SECOND_NS: u64 = 1_000_000_000;
/// How long after a regular I/O the array still counts as busy.
const BUSY_NS: u64 = SECOND_NS / 5;
/// Number of marks and the time between them (as in the kernel): the measured speed is that of the
/// last half minute.
const MARKS: usize = 10;
const MARK_NS: u64 = 3 * SECOND_NS;

/// Decides when the next window may begin: never faster than `speed_max`, and during regular I/O not
/// faster than `speed_min`.
///
/// The length of a window determines the wait before the next one, at the speed allowed then. So a
/// changed setting, or regular I/O that begins or ends, takes effect at the next call.
#[derive(Default)]
pub(super) struct Pace {
    /// When the last window was due, and its length.
    last_ns: u64,
    last_len: Sectors,
    seen: Option<(u64, u64)>,
    busy_until_ns: u64,
}

impl Pace {
    /// Checks for regular I/O.
    pub(super) fn look(&mut self, now_ns: u64, totals: &Totals) {
        let groups = [totals.read, totals.write, totals.discard, totals.flush];
        let done: u64 = groups.iter().map(|group| group.ios).sum();
        let sectors: u64 = groups.iter().map(|group| group.sectors).sum();
        let moved = self.seen.is_some_and(|seen| seen != (done, sectors));
        self.seen = Some((done, sectors));
        if moved || totals.in_flight() > 0 {
            self.busy_until_ns = now_ns + BUSY_NS;
        }
    }

    /// How long to wait before the next window may begin.
    pub(super) fn delay(&self, now_ns: u64, settings: &SyncSettings) -> Option<Duration> {
        let left = self.due_ns(now_ns, settings).saturating_sub(now_ns);
        (left > 0).then(|| Duration::from_nanos(left))
    }

    /// A window begins.
    pub(super) fn begin(&mut self, now_ns: u64, len: Sectors, settings: &SyncSettings) {
        // Unused time does not allow a burst later.
        self.last_ns = self.due_ns(now_ns, settings).max(now_ns.saturating_sub(BUSY_NS));
        self.last_len = len;
    }

    fn due_ns(&self, now_ns: u64, settings: &SyncSettings) -> u64 {
        let min = settings.speed_min_kib().max(1);
        // As in the kernel, the lower bound applies even if the upper one is below it.
        let max = settings.speed_max_kib().max(min);
        let kib = if now_ns < self.busy_until_ns { min } else { max };
        let ns = u128::from(self.last_len.bytes()) * u128::from(SECOND_NS);
        let ns = ns / (u128::from(kib) * 1024);
        self.last_ns.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// Amounts done at past times.
#[derive(Default)]
pub(super) struct Marks(VecDeque<(u64, Sectors)>);

impl Marks {
    /// Records the amount done at a time.
    pub(super) fn note(&mut self, now_ns: u64, done: Sectors) {
        if self.0.back().is_some_and(|(at_ns, _)| now_ns < at_ns + MARK_NS) {
            return;
        }
        if self.0.len() == MARKS {
            self.0.pop_front();
        }
        self.0.push_back((now_ns, done));
    }

    /// KiB per second since the oldest mark.
    pub(super) fn speed_kib(&self, now_ns: u64, done: Sectors) -> u64 {
        let Some((at_ns, then)) = self.0.front() else { return 0 };
        let ns = u128::from(now_ns.saturating_sub(*at_ns).max(1));
        let bytes = u128::from(done.0.saturating_sub(then.0)) * 512;
        u64::try_from(bytes * u128::from(SECOND_NS) / 1024 / ns).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: Sectors = Sectors(2048);

    /// Begins windows as fast as allowed for ten seconds; returns how many.
    fn windows(settings: &SyncSettings, io: impl Fn(u64) -> u64) -> u64 {
        let mut pace = Pace::default();
        let (mut now, mut count) = (SECOND_NS, 0);
        while now < 11 * SECOND_NS {
            let mut totals = Totals::default();
            totals.read.ios = io(now);
            pace.look(now, &totals);
            match pace.delay(now, settings) {
                Some(delay) => now += delay.as_nanos().min(100_000_000) as u64,
                None => {
                    pace.begin(now, MIB, settings);
                    count += 1;
                    // A window takes some time.
                    now += 1000;
                }
            }
        }
        count
    }

    #[test]
    fn an_idle_array_is_synced_at_the_highest_speed_and_a_busy_one_at_the_lowest() {
        let settings = SyncSettings::notifying(Default::default());
        settings.set_speed_max_kib(Some(10 * 1024));
        settings.set_speed_min_kib(Some(1024));
        assert!((100..=103).contains(&windows(&settings, |_| 0)));
        assert!((10..=12).contains(&windows(&settings, |now| now / 1_000_000)));
        // Busy for half of the time.
        let half = windows(&settings, |now| (now / 1_000_000).min(6000));
        assert!((50..=58).contains(&half), "{half}");
    }

    #[test]
    fn the_lower_bound_holds_even_if_the_upper_is_below_it() {
        let settings = SyncSettings::notifying(Default::default());
        settings.set_speed_max_kib(Some(1));
        settings.set_speed_min_kib(Some(4096));
        assert!((40..=42).contains(&windows(&settings, |_| 0)));
    }

    #[test]
    fn the_speed_is_that_of_the_last_half_minute() {
        let mut marks = Marks::default();
        let mut done = Sectors::ZERO;
        for second in 0..200 {
            // From 100 s on, a tenth.
            done += Sectors(if second < 100 { 20_480 } else { 2048 });
            marks.note(second * SECOND_NS, done);
        }
        let speed = marks.speed_kib(199 * SECOND_NS, done);
        assert!((1000..=1030).contains(&speed), "{speed}");
        assert_eq!(Marks::default().speed_kib(SECOND_NS, done), 0);
    }
}
