//! Sizes as programs' options have them: a number, perhaps with a fraction, and a unit.
//!
//! The programs differ in the units and in whether there are fractions: [`Notation`] is the table of that. Signs, and words
//! such as `max`, are the callers'.

use thiserror::Error;

use crate::units::SECTOR_SIZE;

/// The letters of the units, by the powers of 1024 (or 1000) from the first one.
pub const LETTERS: &str = "kmgtpe";

/// The power of 1024 (or 1000) that a letter stands for, in upper or lower case; `None` if for none.
pub fn power(letter: char) -> Option<u32> {
    let at = LETTERS.find(letter.to_ascii_lowercase())?;
    u32::try_from(at + 1).ok()
}

/// How the options of a program write sizes.
#[derive(Clone, Copy, Debug)]
pub struct Notation {
    /// The bytes of a number without a unit.
    bare: u64,
    /// The highest power of 1024 with a letter.
    highest: u32,
    /// Letters for bytes.
    bytes: &'static str,
    /// Letters for sectors of 512 bytes.
    sectors: &'static str,
    /// Whether `KB` and `KiB` are `K`.
    long: bool,
    fraction: Fraction,
}

/// Which fractions a number may have.
#[derive(Clone, Copy, Debug)]
enum Fraction {
    None,
    /// With digits on both sides of the point, at most this many behind it.
    Whole(usize),
    /// With digits on one side of the point; no more than this many behind it count.
    Half(usize),
}

/// Why a text is not a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadSize {
    /// The number is missing or malformed.
    #[error("not a number")]
    Number,
    /// The unit is unknown.
    #[error("not a unit")]
    Unit,
    /// Its number of bytes does not fit into 64 bits.
    #[error("too large")]
    TooLarge,
}

impl Notation {
    /// ashlar's own: bytes, or with K, M, G, T.
    pub const BYTES: Self =
        Self { bare: 1, highest: 4, bytes: "", sectors: "", long: false, fraction: Fraction::None };
    /// The bandwidth of a model of a device: bytes, or with K, M, G.
    pub const BANDWIDTH: Self = Self { highest: 3, ..Self::BYTES };
    /// mdadm's: KiB, or with K, M, G, T, s.
    pub const MDADM: Self = Self { bare: 1 << 10, sectors: "s", ..Self::BYTES };
    /// LVM's for volumes: MiB, or with b, s, k, m, g, t, p, e.
    pub const LVM: Self = Self {
        bare: 1 << 20,
        highest: 6,
        bytes: "bB",
        sectors: "sS",
        long: false,
        fraction: Fraction::Whole(9),
    };
    /// LVM's for chunks and stripes: KiB.
    pub const LVM_SMALL: Self = Self { bare: 1 << 10, ..Self::LVM };
    /// ZFS's: bytes, or with B, K, M, G, T, P, E. Twelve decimal places are exact to the byte up to terabytes.
    pub const ZFS: Self = Self {
        bare: 1,
        highest: 6,
        bytes: "bB",
        sectors: "",
        long: true,
        fraction: Fraction::Half(12),
    };

    /// The bytes of a size, rounded down.
    ///
    /// # Errors
    /// The text is not a size in this notation.
    pub fn parse(&self, text: &str) -> Result<u64, BadSize> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        if number.is_empty() {
            return Err(BadSize::Number);
        }
        let unit = u128::from(self.unit(suffix).ok_or(BadSize::Unit)?);
        let (whole, fraction) = self.split(number).ok_or(BadSize::Number)?;
        let whole: u64 =
            if whole.is_empty() { Ok(0) } else { whole.parse() }.map_err(|_| BadSize::TooLarge)?;
        // Twelve digits at most.
        let part: u64 = if fraction.is_empty() { Ok(0) } else { fraction.parse() }
            .map_err(|_| BadSize::Number)?;
        let scale = (0..fraction.len()).fold(1, |scale: u128, _| scale * 10);
        let bytes = u128::from(whole) * unit + u128::from(part) * unit / scale;
        u64::try_from(bytes).map_err(|_| BadSize::TooLarge)
    }

    /// The digits before and behind the point, as far as they count.
    fn split<'a>(&self, number: &'a str) -> Option<(&'a str, &'a str)> {
        let Some((whole, fraction)) = number.split_once('.') else { return Some((number, "")) };
        let counted = match self.fraction {
            Fraction::None => return None,
            Fraction::Whole(most) => {
                let is_whole = !whole.is_empty() && (1..=most).contains(&fraction.len());
                is_whole.then_some(fraction)?
            }
            Fraction::Half(most) => {
                let is_half = !(whole.is_empty() && fraction.is_empty());
                is_half.then(|| &fraction[..fraction.len().min(most)])?
            }
        };
        (!fraction.contains('.')).then_some((whole, counted))
    }

    /// The bytes of a unit.
    fn unit(&self, suffix: &str) -> Option<u64> {
        let mut chars = suffix.chars();
        let Some(letter) = chars.next() else { return Some(self.bare) };
        let rest = chars.as_str();
        let is_long = self.long && ["b", "ib"].iter().any(|end| rest.eq_ignore_ascii_case(end));
        match power(letter).filter(|power| *power <= self.highest) {
            Some(power) => (rest.is_empty() || is_long).then(|| 1 << (10 * power)),
            None if !rest.is_empty() => None,
            None if self.bytes.contains(letter) => Some(1),
            None => self.sectors.contains(letter).then_some(SECTOR_SIZE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;
    const G: u64 = 1 << 30;
    const T: u64 = 1 << 40;

    #[test]
    fn sizes_are_those_of_each_program() {
        let (md, lvm, small) = (Notation::MDADM, Notation::LVM, Notation::LVM_SMALL);
        let (bytes, bandwidth, zfs) = (Notation::BYTES, Notation::BANDWIDTH, Notation::ZFS);
        for (notation, text, expected) in [
            (bytes, "0", 0),
            (bytes, "512", 512),
            (bytes, "512m", 512 * M),
            (bytes, "3T", 3 * T),
            (bandwidth, "250M", 250 * M),
            (md, "512", 512 * K),
            (md, "512K", 512 * K),
            (md, "1M", M),
            (md, "3s", 1536),
            (md, "1G", G),
            (md, "2t", 2 * T),
            (lvm, "4", 4 * M),
            (lvm, "4M", 4 * M),
            (lvm, "1.5g", 3 * G / 2),
            (lvm, "512b", 512),
            (lvm, "3s", 1536),
            (lvm, "3S", 1536),
            (lvm, "0.5K", 512),
            (lvm, "1t", T),
            (lvm, "1.3m", 1_363_148),
            (small, "4", 4 * K),
            (small, "1m", M),
            (zfs, "0", 0),
            (zfs, "512", 512),
            (zfs, "512B", 512),
            (zfs, "16k", 16 * K),
            (zfs, "16K", 16 * K),
            (zfs, "1.5G", 3 * G / 2),
            (zfs, "1.G", G),
            (zfs, ".5M", 512 * K),
            (zfs, "1TiB", T),
            (zfs, "2PB", 2048 * T),
            (zfs, "15E", 15 << 60),
            (zfs, "0.1234567890129999K", 126),
        ] {
            assert_eq!(notation.parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_of_a_program_is_refused() {
        use BadSize::{Number, TooLarge, Unit};
        let (md, lvm, zfs) = (Notation::MDADM, Notation::LVM, Notation::ZFS);
        let (bytes, bandwidth) = (Notation::BYTES, Notation::BANDWIDTH);
        for notation in [bytes, bandwidth, md, lvm, zfs] {
            for (text, why) in [
                ("", Number),
                ("K", Number),
                ("-1", Number),
                ("+1", Number),
                (".", Number),
                ("1.2.3", Number),
                ("1 K", Unit),
                ("1,5", Unit),
                ("1x", Unit),
                ("1e3", Unit),
                ("0x10", Unit),
                ("1\u{fc}", Unit),
                ("99999999999999999999", TooLarge),
                ("18446744073709551615G", TooLarge),
            ] {
                assert_eq!(notation.parse(text), Err(why), "{text}");
            }
        }
        for (notation, text, why) in [
            (bytes, "1.5M", Number),
            (bytes, "1P", Unit),
            (bytes, "1s", Unit),
            (bytes, "1KB", Unit),
            (bandwidth, "1T", Unit),
            (md, "1KB", Unit),
            (md, "1.5M", Number),
            (md, "3S", Unit),
            (md, "18446744073709551615T", TooLarge),
            (lvm, "1.m", Number),
            (lvm, ".5", Number),
            (lvm, "1.0000000000", Number),
            (lvm, "4MB", Unit),
            (lvm, "16e", TooLarge),
            (zfs, "16X", Unit),
            (zfs, "1KBB", Unit),
            (zfs, "16E", TooLarge),
        ] {
            assert_eq!(notation.parse(text), Err(why), "{text}");
        }
    }

    #[test]
    fn letters_are_powers() {
        assert_eq!((power('k'), power('E')), (Some(1), Some(6)));
        assert_eq!((power('b'), power(' ')), (None, None));
    }
}
