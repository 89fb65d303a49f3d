//! Times in LVM's formats. There is no clock and no time zone database here: a time zone is an offset.

/// Date and time.
struct Moment {
    year: i64,
    month: usize,
    day: u64,
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
/// The first second of the year 10000, the end of the supported range.
const END: u64 = 253_402_300_800;

/// Converts days since 1970 to a date: the usual computation in eras of 400 years that begin in March.
fn moment(seconds: u64, utc_offset: i32) -> Option<Moment> {
    let local = seconds.checked_add_signed(utc_offset.into()).filter(|local| *local < END)?;
    let (days, rest) = (local / 86_400, local % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 2 } else { from_march - 10 };
    Some(Moment {
        year: (year_of_era + era * 400) as i64 + i64::from(month < 2),
        month: month as usize,
        day: day_of_year - (153 * from_march + 2) / 5 + 1,
        weekday: ((days + 4) % 7) as usize,
        hour: rest / 3_600,
        minute: rest / 60 % 60,
        second: rest % 60,
    })
}

/// Like C's `ctime`, without its newline: `Sat Nov 21 17:02:39 2026`. Empty for times after the year 9999.
///
/// `seconds` since 1970; `utc_offset` in seconds, positive east of Greenwich.
pub fn ctime(seconds: u64, utc_offset: i32) -> String {
    let Some(m) = moment(seconds, utc_offset) else { return String::new() };
    format!(
        "{} {} {:2} {:02}:{:02}:{:02} {}",
        WEEKDAYS[m.weekday], MONTHS[m.month], m.day, m.hour, m.minute, m.second, m.year
    )
}

/// Like `%Y-%m-%d %T %z` of `strftime`: `2026-11-21 17:02:39 +0000`. Empty for times after the year 9999.
pub fn stamp(seconds: u64, utc_offset: i32) -> String {
    let Some(m) = moment(seconds, utc_offset) else { return String::new() };
    let sign = if utc_offset < 0 { '-' } else { '+' };
    let minutes = utc_offset.unsigned_abs() / 60;
    format!(
        "{}-{:02}-{:02} {:02}:{:02}:{:02} {sign}{:02}{:02}",
        m.year,
        m.month + 1,
        m.day,
        m.hour,
        m.minute,
        m.second,
        minutes / 60,
        minutes % 60
    )
}

/// The seconds since 1970 of `@SECONDS`, or of a date as `2026-11-21`, `2026-11-21 17:02` or `2026-11-21 17:02:39`
/// with or without ` +0100`; UTC if there is no offset.
pub fn parse(text: &str) -> Option<u64> {
    if let Some(seconds) = text.strip_prefix('@') {
        return seconds.parse().ok();
    }
    let mut words = text.split_ascii_whitespace();
    let numbers = |word: &str, separator: char| -> Option<Vec<u64>> {
        word.split(separator).map(|part| part.parse().ok()).collect()
    };
    let date = numbers(words.next()?, '-')?;
    let &[year @ 1970..=9999, month @ 1..=12, day @ 1..=31] = &*date else { return None };
    let time = words.next().map_or_else(|| Some(Vec::new()), |word| numbers(word, ':'))?;
    let (hour, minute, second) = match *time {
        [] => (0, 0, 0),
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let offset = match words.next() {
        None => 0,
        Some(offset) => {
            let sign = if offset.starts_with('-') { -1 } else { 1 };
            let digits: u16 = offset.strip_prefix(['+', '-'])?.parse().ok()?;
            let digits = i64::from(digits);
            sign * (digits / 100 * 3_600 + digits % 100 * 60)
        }
    };
    // Years that begin in March, as above.
    let from_march = (month + 9) % 12;
    let year = year - u64::from(month < 3);
    let days =
        year * 365 + year / 4 - year / 100 + year / 400 + (153 * from_march + 2) / 5 + day - 1;
    let seconds = (days - 719_468) * 86_400 + hour * 3_600 + minute * 60 + second;
    words.next().is_none().then(|| seconds.checked_add_signed(-offset)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_parsed_as_they_are_printed() {
        for seconds in [0, 68_169_599, 68_169_600, 951_782_400, 951_868_800, 1_795_280_559] {
            assert_eq!(parse(&stamp(seconds, 3_600)), Some(seconds), "{}", stamp(seconds, 0));
            assert_eq!(parse(&format!("@{seconds}")), Some(seconds));
        }
        assert_eq!(parse("2026-11-21"), parse("2026-11-21 00:00"));
        let wrong = ["", "x", "2026", "2026-13-01", "2026-01-01 24:00", "2026-01-01 0:0:0 +0 x"];
        assert!(wrong.iter().all(|text| parse(text).is_none()));
    }

    #[test]
    fn known_moments() {
        assert_eq!(ctime(0, 0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(ctime(1_709_164_799, 0), "Wed Feb 28 23:59:59 2024");
        assert_eq!(ctime(1_709_164_799, 3_600), "Thu Feb 29 00:59:59 2024");
        assert_eq!(stamp(1_709_251_200, 0), "2024-03-01 00:00:00 +0000");
        assert_eq!(stamp(1_709_251_200, -12_600), "2024-02-29 20:30:00 -0330");
        assert_eq!(stamp(END - 1, 0), "9999-12-31 23:59:59 +0000");
    }

    #[test]
    fn times_that_no_calendar_has_are_left_out() {
        assert_eq!(ctime(u64::MAX, 1), "");
        assert_eq!(stamp(END, 0), "");
        assert_eq!(stamp(0, -1), "");
    }
}
