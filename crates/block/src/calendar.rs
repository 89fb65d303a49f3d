//! Dates of the Gregorian calendar, from the seconds since 1970 that disks hold. There is neither a clock nor a time zone
//! database here: a time zone is an offset that the caller has added.

use std::fmt;

const SECONDS_PER_DAY: i64 = 86_400;
/// The calendar repeats after 400 years.
const DAYS_PER_ERA: i64 = 146_097;
/// From 0000-03-01, when an era begins, to 1970-01-01.
const DAYS_BEFORE_1970: i64 = 719_468;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

/// A date and a time of day. It prints as `2026-11-21 17:02:39`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DateTime {
    year: i64,
    /// From 1 on, as the day.
    month: i64,
    day: i64,
    /// 0 is Sunday.
    weekday: i64,
    /// Of the day.
    second: i64,
}

impl DateTime {
    /// The date and time so many seconds after 1970 began, or before it.
    pub fn from_seconds(seconds: i64) -> Self {
        let days = seconds.div_euclid(SECONDS_PER_DAY);
        // Years begin in March here, so that the leap day is the last day of a year.
        let since_era = days + DAYS_BEFORE_1970;
        let (era, day_of_era) =
            (since_era.div_euclid(DAYS_PER_ERA), since_era.rem_euclid(DAYS_PER_ERA));
        let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
        let year_of_era = (day_of_era - leap_days) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Self {
            year: year_of_era + era * 400 + i64::from(month < 3),
            month,
            day: day_of_year - (153 * from_march + 2) / 5 + 1,
            weekday: (days + 4).rem_euclid(7),
            second: seconds.rem_euclid(SECONDS_PER_DAY),
        }
    }

    /// The seconds since 1970 at the start of a day, of a year from 1 on.
    pub fn seconds_of_day(year: i64, month: i64, day: i64) -> i64 {
        let (from_march, year) = ((month + 9) % 12, year - i64::from(month < 3));
        let leap_days = year / 4 - year / 100 + year / 400;
        let days = year * 365 + leap_days + (153 * from_march + 2) / 5 + day - 1;
        (days - DAYS_BEFORE_1970) * SECONDS_PER_DAY
    }

    /// As ctime(3) prints it, without the newline: `Sat Nov 21 17:02:39 2026`.
    pub fn ctime(&self) -> impl fmt::Display {
        let Self { year, day, .. } = *self;
        let (weekday, month) = (WEEKDAYS[self.weekday as usize], MONTHS[self.month as usize - 1]);
        fmt::from_fn(move |f| write!(f, "{weekday} {month} {day:2} {} {year}", self.time()))
    }

    fn time(&self) -> impl fmt::Display {
        let (hour, minute, second) = (self.second / 3600, self.second / 60 % 60, self.second % 60);
        fmt::from_fn(move |f| write!(f, "{hour:02}:{minute:02}:{second:02}"))
    }
}

impl fmt::Display for DateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day, .. } = self;
        write!(f, "{year}-{month:02}-{day:02} {}", self.time())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // date -u -d @N
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_340_332, "2026-11-22 09:38:52"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(DateTime::from_seconds(seconds).to_string(), text);
        }
        assert_eq!(DateTime::from_seconds(0).ctime().to_string(), "Thu Jan  1 00:00:00 1970");
        // No number causes a panic.
        assert!(DateTime::from_seconds(i64::MAX).to_string().ends_with(" 15:30:07"));
        assert!(DateTime::from_seconds(i64::MIN).to_string().starts_with('-'));
    }

    #[test]
    fn a_day_begins_at_its_first_second() {
        for day in -750_000..750_000 {
            let start = day * SECONDS_PER_DAY;
            let DateTime { year, month, day, second, .. } = DateTime::from_seconds(start);
            assert_eq!(second, 0);
            if year > 0 {
                assert_eq!(DateTime::seconds_of_day(year, month, day), start);
            }
        }
    }
}
