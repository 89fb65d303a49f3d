//! Words and numbers as mdadm prints them: names of layouts, sizes, times, strings.

use core::fmt;

/// The name mdadm gives the layout of a RAID 5 or 6.
pub fn parity_layout_name(level_6: bool, layout: u32) -> Option<&'static str> {
    Some(match (layout, level_6) {
        (0, _) => "left-asymmetric",
        (1, _) => "right-asymmetric",
        (2, _) => "left-symmetric",
        (3, _) => "right-symmetric",
        (4, _) => "parity-first",
        (5, _) => "parity-last",
        (8, true) => "ddf-zero-restart",
        (9, true) => "ddf-N-restart",
        (10, true) => "ddf-N-continue",
        (16, true) => "left-asymmetric-6",
        (17, true) => "right-asymmetric-6",
        (18, true) => "left-symmetric-6",
        (19, true) => "right-symmetric-6",
        (20, true) => "parity-first-6",
        _ => return None,
    })
}

/// The name of a RAID0 layout of unequal members.
pub fn raid0_layout_name(layout: u32) -> Option<&'static str> {
    match layout {
        0 => Some("dangerous"),
        1 => Some("original"),
        2 => Some("alternate"),
        _ => None,
    }
}

/// A RAID10 layout as mdadm prints it: ` near=2`, ` far=2`, ` offset=2` or a combination. It starts
/// with a space.
pub fn raid10_layout(layout: u32) -> String {
    let near = layout & 255;
    let far = layout >> 8 & 255;
    let mut out = String::new();
    if near != 1 {
        out.push_str(&format!(" near={near}"));
    }
    if far != 1 {
        let comma = if out.is_empty() { "" } else { "," };
        let kind = if layout & 0x1_0000 != 0 { "offset" } else { "far" };
        out.push_str(&format!("{comma} {kind}={far}"));
    }
    if near * far == 1 {
        out.push_str("NO REDUNDANCY");
    }
    out
}

/// A size in binary and decimal units, in parentheses and with a space before; empty below 5000 KiB.
pub fn human_size(bytes: u64) -> String {
    let Some(ScaledSize { letter, binary, decimal }) = ScaledSize::of(bytes) else {
        return String::new();
    };
    format!(
        " ({}.{:02} {letter}iB {}.{:02} {letter}B)",
        binary / 100,
        binary % 100,
        decimal / 100,
        decimal % 100,
    )
}

/// A size in decimal units without spaces; empty below 5000 KiB.
pub fn decimal_size(bytes: u64) -> String {
    let Some(ScaledSize { letter, decimal, .. }) = ScaledSize::of(bytes) else {
        return String::new();
    };
    format!("{}.{:02}{letter}B", decimal / 100, decimal % 100)
}

/// A size in binary units without spaces; empty below 5000 KiB.
pub fn binary_size(bytes: u64) -> String {
    let Some(ScaledSize { letter, binary, .. }) = ScaledSize::of(bytes) else {
        return String::new();
    };
    format!("{}.{:02}{letter}iB", binary / 100, binary % 100)
}

/// A size in hundredths of a unit.
struct ScaledSize {
    letter: char,
    binary: u128,
    decimal: u128,
}

impl ScaledSize {
    fn of(bytes: u64) -> Option<Self> {
        const MIB: u128 = 1 << 20;
        const GIB: u128 = 1 << 30;
        const TIB: u128 = 1 << 40;
        // mdadm computes with signed 64-bit numbers: larger ones become negative and are not printed.
        let bytes = i64::try_from(bytes).ok()? as u128;
        let (letter, binary, decimal) = match bytes {
            0..0x004e_2000 => return None,
            0x004e_2000..0x8000_0000 => ('M', MIB, 1_000_000),
            0x8000_0000..0x200_0000_0000 => ('G', GIB, 1_000_000_000),
            _ => ('T', TIB, 1_000_000_000_000),
        };
        let binary = (bytes * 200 / binary).div_ceil(2);
        let decimal = (bytes / (decimal / 200)).div_ceil(2);
        Some(Self { letter, binary, decimal })
    }
}

/// A name as mdadm converts it to a file name.
pub fn file_name(name: &str) -> String {
    name.replace([' ', '\t'], "_").replace('/', "-")
}

/// A name as mdadm writes it to `mdadm.conf`: in quotes if it has spaces or quotes. At a quote of the
/// surrounding kind, the quotes are closed and the other kind is opened.
pub fn quoted(name: &str) -> String {
    // The first quote in the name determines the kind.
    let first = name.chars().find(|c| matches!(c, '"' | '\''));
    if first.is_none() && !name.contains([' ', '\t']) {
        return name.to_owned();
    }
    let mut quote = if first == Some('"') { '\'' } else { '"' };
    let mut text = String::from(quote);
    for c in name.chars() {
        if c == quote {
            text.push(quote);
            quote = if quote == '"' { '\'' } else { '"' };
            text.push(quote);
        }
        text.push(c);
    }
    text.push(quote);
    text
}

/// The chunk size of a bitmap, cut down to whole units.
pub fn bitmap_chunk(bytes: u32) -> String {
    const UNITS: [&str; 4] = ["B", "KB", "MB", "GB"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    format!("{} {}", bytes >> (10 * unit), UNITS[unit.min(3)])
}

/// A string of at most this many bytes that ends at the first zero byte. Bytes that are not UTF-8
/// are replaced.
pub fn c_string(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A time in UTC in the format of C's `ctime`, without the newline and cut to 24 characters as
/// mdadm cuts it (which shortens years beyond 9999).
pub struct CTime(
    /// Seconds since 1970.
    pub u64,
);

impl fmt::Display for CTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let days = self.0 / 86_400;
        let second = self.0 % 86_400;
        let (year, month, day) = civil_from_days(days);
        let text = format!(
            "{} {} {day:2} {:02}:{:02}:{:02} {year}",
            DAYS[(days % 7) as usize],
            MONTHS[month],
            second / 3600,
            second / 60 % 60,
            second % 60,
        );
        f.write_str(&text[..text.len().min(24)])
    }
}

/// Year, month (0 to 11) and day (1 to 31) of a day counted from 1970-01-01, Gregorian calendar.
fn civil_from_days(days: u64) -> (u64, usize, u64) {
    // Years begin in March here, so that the leap day is the last day of a year, and eras of 400
    // years all have the same number of days. 719468 days lie between 0000-03-01 and 1970-01-01.
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = ((march_month + 2) % 12) as usize;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    (year, month, day)
}
