//! Sizes in LVM's format (`display_size_units` in `libdm/libdm-string.c`).

use std::str::FromStr;

use ashlar_block::Sectors;
use ashlar_block::size::{LETTERS, power};
use thiserror::Error;

/// How sizes and flags are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Units {
    unit: Unit,
    /// Whether the unit's letter follows each size.
    pub suffix: bool,
    /// Whether flags are 1 and 0, and -1 if they are unknown.
    pub binary: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    /// The largest unit that fits; with `<` in front of rounded-up sizes.
    Human { marked: bool, thousands: bool },
    /// A fixed unit: its letter and its size in bytes.
    Fixed(char, u64),
}

/// Why a text is not a unit.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "\"{0}\" is not a unit: use r, h, b, s, k, m, g, t, p or e; upper case means powers of 1,000"
)]
pub struct BadUnits(String);

impl Default for Units {
    fn default() -> Self {
        let unit = Unit::Human { marked: true, thousands: false };
        Self { unit, suffix: true, binary: false }
    }
}

impl FromStr for Units {
    type Err = BadUnits;

    fn from_str(text: &str) -> Result<Self, BadUnits> {
        let bad = || BadUnits(text.to_owned());
        let mut chars = text.chars();
        let (Some(letter), None) = (chars.next(), chars.next()) else { return Err(bad()) };
        let unit = match letter {
            'r' | 'R' | 'h' | 'H' => Unit::Human {
                marked: letter.eq_ignore_ascii_case(&'r'),
                thousands: letter.is_ascii_uppercase(),
            },
            'b' | 'B' => Unit::Fixed('B', 1),
            's' | 'S' => Unit::Fixed('S', 512),
            _ => {
                let power = power(letter).ok_or_else(bad)?;
                let base: u64 = if letter.is_ascii_uppercase() { 1000 } else { 1024 };
                Unit::Fixed(letter, base.pow(power))
            }
        };
        Ok(Self { unit, suffix: true, binary: false })
    }
}

impl Units {
    /// The text of a size.
    pub fn size(&self, size: Sectors) -> String {
        let (number, letter) = self.parts(size);
        if self.suffix { format!("{number}{letter}") } else { number }
    }

    /// The text of a size with the whole name of the unit, as in LVM's messages: `4.00 MiB`.
    pub fn long(&self, size: Sectors) -> String {
        let (number, letter) = self.parts(size);
        // Only a fixed unit can be omitted.
        match (self.unit, letter) {
            (Unit::Fixed(..), _) if !self.suffix => number,
            (_, ' ') => format!("{number}   "),
            (_, 'B') => format!("{number} B "),
            (_, 'S') => format!("{number} Se"),
            (_, 'K') => format!("{number} kB"),
            (_, letter) if letter.is_ascii_uppercase() => format!("{number} {letter}B"),
            (_, letter) => format!("{number} {}iB", letter.to_ascii_uppercase()),
        }
    }

    /// The number, and the letter of its unit, which is a blank if nothing says which one.
    fn parts(&self, size: Sectors) -> (String, char) {
        let bytes = u128::from(size.0) * 512;
        if bytes == 0 {
            let letter = match self.unit {
                Unit::Human { .. } => ' ',
                Unit::Fixed(letter, _) => letter,
            };
            return ("0".into(), letter);
        }
        let (letter, unit, marked) = match self.unit {
            Unit::Fixed(letter, unit) => (letter, u128::from(unit), false),
            Unit::Human { marked, thousands } => {
                let base: u128 = if thousands { 1000 } else { 1024 };
                let mut power = 1;
                while power < LETTERS.len() as u32 && bytes >= base.pow(power + 1) {
                    power += 1;
                }
                let letter = LETTERS.chars().nth(power as usize - 1).unwrap_or('k');
                let letter = if thousands { letter.to_ascii_uppercase() } else { letter };
                (letter, base.pow(power), marked)
            }
        };
        if unit <= 512 {
            return ((bytes / unit).to_string(), letter);
        }
        // Rounded to the nearest hundredth.
        let hundredths = (bytes * 100 + unit / 2) / unit;
        let is_rounded_up = marked && hundredths * unit > bytes * 100;
        let mark = if is_rounded_up { "<" } else { "" };
        (format!("{mark}{}.{:02}", hundredths / 100, hundredths % 100), letter)
    }
}

/// `4.00 MiB`, as in LVM's messages.
pub fn long(size: Sectors) -> String {
    Units::default().long(size).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_messages_are_lvms() {
        assert_eq!(long(Sectors(8192)), "4.00 MiB");
        assert_eq!(long(Sectors((10 << 21) - 8)), "<10.00 GiB");
    }

    #[test]
    fn sizes_are_printed_as_lvm_prints_them() {
        // 63 MiB; 1 GiB minus 4 MiB, which LVM shows as "1020.00m"; slightly more than 9.99 GiB.
        for (units, sectors, text) in [
            ("r", 63 << 11, "63.00m"),
            ("r", 1020 << 11, "1020.00m"),
            ("r", (10 << 21) - 8, "<10.00g"),
            ("h", (10 << 21) - 8, "10.00g"),
            ("r", (10 << 21) + 8, "10.00g"),
            ("r", 8, "4.00k"),
            ("r", 0, "0 "),
            ("k", 0, "0k"),
            ("b", 0, "0B"),
            ("s", 8, "8S"),
            ("b", 8, "4096B"),
            ("k", 3, "1.50k"),
            ("g", 1 << 20, "0.50g"),
            ("M", 2000, "1.02M"),
            ("H", 2_000_000, "1.02G"),
        ] {
            let units: Units = units.parse().unwrap();
            assert_eq!(units.size(Sectors(sectors)), text);
        }
        for (units, sectors, text) in [
            ("r", 0, "0   "),
            ("k", 0, "0 KiB"),
            ("K", 4096, "2097.15 kB"),
            ("H", 387_072, "198.18 MB"),
            ("b", 8, "4096 B "),
            ("S", 8, "8 Se"),
        ] {
            assert_eq!(units.parse::<Units>().unwrap().long(Sectors(sectors)), text);
        }
        let bare = Units { suffix: false, ..Units::default() };
        assert_eq!(bare.size(Sectors(2048)), "1.00");
        for bad in ["", "x", "kk", "1"] {
            assert!(bad.parse::<Units>().is_err(), "{bad}");
        }
    }
}
