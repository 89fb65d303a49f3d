//! Sizes, in bytes or in units.

use ashlar_files::size;

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
