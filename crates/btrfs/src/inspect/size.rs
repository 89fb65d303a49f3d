//! Sizes.

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

/// How sizes are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeForm {
    /// As bytes, like `-b` of btrfs-progs.
    Bytes,
    /// In the largest unit that they fill.
    Units,
}

impl SizeForm {
    /// A size.
    pub fn text(self, bytes: u64) -> String {
        match self {
            Self::Bytes => bytes.to_string(),
            Self::Units => size(bytes as f64),
        }
    }

    /// A size that may be negative.
    pub(super) fn signed(self, bytes: i64) -> String {
        let sign = if bytes < 0 { "-" } else { "" };
        format!("{sign}{}", self.text(bytes.unsigned_abs()))
    }

    /// The column of sizes in `btrfs filesystem usage`.
    pub(super) const fn width(self) -> usize {
        match self {
            Self::Bytes => 18,
            Self::Units => 10,
        }
    }
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
