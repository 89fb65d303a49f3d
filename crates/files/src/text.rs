//! Numbers as text: times in UTC, and sizes.

use std::fmt;

use ashlar_block::calendar::DateTime;

/// Seconds since 1970 as date and time, in UTC: `2026-11-22 09:38:52`.
pub fn utc(seconds: i64) -> impl fmt::Display {
    DateTime::from_seconds(seconds)
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
    fn a_size_has_the_largest_unit_that_it_fills() {
        for (bytes, text) in [(0.0, "0.00B"), (1023.0, "1023.00B"), (1536.0, "1.50KiB")] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size((464_u64 << 20) as f64), "464.00MiB");
    }
}
