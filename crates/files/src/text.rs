//! Numbers as text: times in UTC, and sizes.

use std::fmt;

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

/// `464.00MiB`, as btrfs-progs print sizes.
pub fn size(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024.0 {
        return format!("{bytes:.2}B");
    }
    let mut value = bytes / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.2}{unit}")
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

    #[test]
    fn a_size_has_the_largest_unit_that_it_fills() {
        for (bytes, text) in [(0.0, "0.00B"), (1023.0, "1023.00B"), (1536.0, "1.50KiB")] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size((464_u64 << 20) as f64), "464.00MiB");
    }
}
