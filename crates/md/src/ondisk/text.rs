//! Words and numbers as mdadm prints them: names of layouts, sizes, times, strings.

use core::fmt;

use ashlar_block::calendar::DateTime;

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
        let seconds = i64::try_from(self.0).unwrap_or(i64::MAX);
        let text = DateTime::from_seconds(seconds).ctime().to_string();
        f.write_str(&text[..text.len().min(24)])
    }
}
