//! Times, in UTC.

use std::fmt;

use crate::ondisk::items::Timespec;

/// A time as btrfs-progs writes it: seconds since 1970, a point and nanoseconds without leading
/// zeroes; then date and time.
pub(super) struct Time<'a>(pub(super) &'a Timespec);

impl fmt::Display for Time<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sec, nsec) = (self.0.sec.get(), self.0.nsec.get());
        write!(f, "{sec}.{nsec} ({})", Civil(sec as i64))
    }
}

/// Seconds since 1970 as date and time, in UTC: `2026-11-22 09:38:52`.
pub fn utc(seconds: i64) -> impl fmt::Display {
    Civil(seconds)
}

struct Civil(i64);

impl fmt::Display for Civil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0.div_euclid(86400), self.0.rem_euclid(86400));
        // The Gregorian calendar repeats after 400 years of 146097 days. Years begin in March here,
        // so that the leap day is their last.
        let days = i128::from(days) + 719_468;
        let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let leap_days = day_of_era / 1460 - day_of_era / 36524 + day_of_era / 146_096;
        let year_of_era = (day_of_era - leap_days) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i128::from(month <= 2);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let of = |seconds: i64| Civil(seconds).to_string();
        assert_eq!(of(0), "1970-01-01 00:00:00");
        assert_eq!(of(-1), "1969-12-31 23:59:59");
        // date -u -d @N
        assert_eq!(of(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(of(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(of(1_795_340_332), "2026-11-22 09:38:52");
        assert_eq!(of(4_107_542_400), "2100-03-01 00:00:00");
        // No number causes a panic.
        assert!(of(i64::MAX).ends_with(" 15:30:07"));
        assert!(of(i64::MIN).starts_with('-'));
    }
}
