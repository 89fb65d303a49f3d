//! Times in LVM's formats. There is no clock and no time zone database here: a time zone is an offset.

use ashlar_block::calendar::DateTime;

/// The first second of the year 10000, the end of the supported range.
const END: u64 = 253_402_300_800;

fn local(seconds: u64, utc_offset: i32) -> Option<DateTime> {
    let local = seconds.checked_add_signed(utc_offset.into()).filter(|local| *local < END)?;
    Some(DateTime::from_seconds(local.cast_signed()))
}

/// Like C's `ctime`, without its newline: `Sat Nov 21 17:02:39 2026`. Empty for times after the year 9999.
///
/// `seconds` since 1970; `utc_offset` in seconds, positive east of Greenwich.
pub fn ctime(seconds: u64, utc_offset: i32) -> String {
    local(seconds, utc_offset).map_or_else(String::new, |local| local.ctime().to_string())
}

/// Like `%Y-%m-%d %T %z` of `strftime`: `2026-11-21 17:02:39 +0000`. Empty for times after the year 9999.
pub fn stamp(seconds: u64, utc_offset: i32) -> String {
    let Some(local) = local(seconds, utc_offset) else { return String::new() };
    let sign = if utc_offset < 0 { '-' } else { '+' };
    let minutes = utc_offset.unsigned_abs() / 60;
    format!("{local} {sign}{:02}{:02}", minutes / 60, minutes % 60)
}

/// The seconds since 1970 of `@SECONDS`, or of a date as `2026-11-21`, `2026-11-21 17:02` or `2026-11-21 17:02:39`
/// with or without ` +0100`; UTC if there is no offset.
pub fn parse(text: &str) -> Option<u64> {
    if let Some(seconds) = text.strip_prefix('@') {
        return seconds.parse().ok();
    }
    let mut words = text.split_ascii_whitespace();
    let numbers = |word: &str, separator: char| -> Option<Vec<i64>> {
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
    let is_time = |value, most| (0..=most).contains(&value);
    if !(is_time(hour, 23) && is_time(minute, 59) && is_time(second, 60)) {
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
    let seconds = DateTime::seconds_of_day(year, month, day) + hour * 3_600 + minute * 60 + second;
    words.next().is_none().then(|| u64::try_from(seconds - offset).ok()).flatten()
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
        let wrong = [
            "",
            "x",
            "2026",
            "2026-13-01",
            "2026-01-01 24:00",
            "2026-01-01 1:-1",
            "2026-01-01 0:0:0 +0 x",
        ];
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
