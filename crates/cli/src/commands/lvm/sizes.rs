//! Sizes and numbers of extents in the syntax of LVM's options.

use ashlar_block::Sectors;
use ashlar_lvm::command::{Amount, Base, NewSize, Sign};

/// A size: a number, perhaps with a fraction, in MiB, or with a unit in upper or lower case: b(ytes), s(ectors), k, m,
/// g, t, p, e, in powers of 1024.
pub(super) fn size(text: &str) -> Result<Sectors, String> {
    scaled(text, 'm')
}

/// As [`size`], in KiB: chunks and stripes.
pub(super) fn small_size(text: &str) -> Result<Sectors, String> {
    scaled(text, 'k')
}

fn scaled(text: &str, default: char) -> Result<Sectors, String> {
    let bad = || {
        let unit = if default == 'k' { "KiB" } else { "MiB" };
        format!("`{text}` is not a size: a number of {unit}, or with b, s, k, m, g, t, p or e")
    };
    let (digits, unit) = match text.char_indices().last() {
        Some((at, last)) if last.is_ascii_alphabetic() => (&text[..at], last.to_ascii_lowercase()),
        Some(_) | None => (text, default),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) || fraction.len() > 9 {
        return Err(bad());
    }
    let bytes: u128 = match unit {
        'b' => 1,
        's' => 512,
        _ => {
            let power = "kmgtpe".find(unit).ok_or_else(bad)? as u32 + 1;
            1 << (10 * power)
        }
    };
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    let fraction_of: u128 = 10_u128.pow(fraction.len() as u32);
    let fraction: u128 = fraction.parse().map_err(|_| bad())?;
    let bytes = u128::from(whole) * bytes + fraction * bytes / fraction_of;
    if unit == 'b' && !bytes.is_multiple_of(512) {
        return Err(format!("`{text}` is not a multiple of 512 bytes"));
    }
    // A size whose bytes cannot be counted is refused.
    u64::try_from(bytes).map(Sectors::from_bytes_floor).map_err(|_| bad())
}

/// A size, or with a sign in front a change of one.
fn signed(text: &str, parse: impl Fn(&str) -> Result<Amount, String>) -> Result<NewSize, String> {
    let (sign, rest) = match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(rest), _) => (Sign::Plus, rest),
        (None, Some(rest)) => (Sign::Minus, rest),
        (None, None) => (Sign::Absolute, text),
    };
    Ok(NewSize { sign, amount: parse(rest)? })
}

/// As [`size`], for an amount of space.
pub(super) fn amount(text: &str) -> Result<Amount, String> {
    size(text).map(|size| Amount::Sectors(size.0))
}

/// As [`size`], with a leading `+` or `-` if it is a change.
pub(super) fn new_size(text: &str) -> Result<NewSize, String> {
    signed(text, amount)
}

/// As [`extents`], with a leading `+` or `-` if they are a change.
pub(super) fn new_extents(text: &str) -> Result<NewSize, String> {
    signed(text, extents)
}

/// Extents: a number, or a share with `%VG`, `%FREE`, `%PVS`, `%ORIGIN` or `%LV`.
pub(super) fn extents(text: &str) -> Result<Amount, String> {
    let bad = || {
        format!("`{text}` is not a number of extents, or one with %VG, %FREE, %PVS, %ORIGIN or %LV")
    };
    let Some((number, of)) = text.split_once('%') else {
        return text.parse().map(Amount::Extents).map_err(|_| bad());
    };
    let of = match of.to_ascii_uppercase().as_str() {
        "VG" => Base::Group,
        "FREE" => Base::Free,
        "PVS" => Base::Named,
        "ORIGIN" => Base::Origin,
        "LV" => Base::Volume,
        _ => return Err(bad()),
    };
    number.parse().map(|number| Amount::Share(number, of)).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_mib_unless_they_say_otherwise() {
        for (text, sectors) in [
            ("4", 8192),
            ("4M", 8192),
            ("1.5g", 3 << 20),
            ("512b", 1),
            ("3s", 3),
            ("0.5K", 1),
            ("1t", 1 << 31),
            ("1.3m", 2662),
        ] {
            assert_eq!(size(text), Ok(Sectors(sectors)), "{text}");
        }
        assert_eq!(small_size("4"), Ok(Sectors(8)));
        for bad in ["", "m", "-1", "+1", "1,5", "1.m", ".5", "1x", "100b", "1e3", "16e", "4MB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        let amount = Amount::Sectors(2048);
        assert_eq!(new_size("+1"), Ok(NewSize { sign: Sign::Plus, amount }));
        assert_eq!(new_size("-1"), Ok(NewSize { sign: Sign::Minus, amount }));
        assert_eq!(new_size("1"), Ok(NewSize { sign: Sign::Absolute, amount }));
    }

    #[test]
    fn extents_are_numbers_or_shares() {
        assert_eq!(extents("7"), Ok(Amount::Extents(7)));
        assert_eq!(extents("50%free"), Ok(Amount::Share(50, Base::Free)));
        for bad in ["", "%", "5%", "5%X", "-1", "%VG", "4294967296"] {
            assert!(extents(bad).is_err(), "{bad}");
        }
    }
}
