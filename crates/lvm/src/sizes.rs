//! Sizes and numbers of extents in the syntax of LVM's options. Errors are messages for the user.

use ashlar_block::Sectors;
use ashlar_block::size::Notation;

use crate::command::{Amount, Base, NewSize, Sign};

/// A size: a number, perhaps with a fraction, in MiB, or with a unit in upper or lower case: b(ytes), s(ectors), k, m,
/// g, t, p, e, in powers of 1024.
///
/// # Errors
/// The text is not a size.
pub fn size(text: &str) -> Result<Sectors, String> {
    scaled(text, Notation::LVM, "MiB")
}

/// As [`size`], in KiB: chunks and stripes.
///
/// # Errors
/// As there.
pub fn small_size(text: &str) -> Result<Sectors, String> {
    scaled(text, Notation::LVM_SMALL, "KiB")
}

fn scaled(text: &str, notation: Notation, unit: &str) -> Result<Sectors, String> {
    let bytes = notation.parse(text).map_err(|_| {
        format!("`{text}` is not a size: a number of {unit}, or with b, s, k, m, g, t, p or e")
    })?;
    if text.ends_with(['b', 'B']) && !bytes.is_multiple_of(512) {
        return Err(format!("`{text}` is not a multiple of 512 bytes"));
    }
    Ok(Sectors::from_bytes_floor(bytes))
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
///
/// # Errors
/// As there.
pub fn amount(text: &str) -> Result<Amount, String> {
    size(text).map(|size| Amount::Sectors(size.0))
}

/// As [`size`], with a leading `+` or `-` if it is a change.
///
/// # Errors
/// As there.
pub fn new_size(text: &str) -> Result<NewSize, String> {
    signed(text, amount)
}

/// As [`extents`], with a leading `+` or `-` if they are a change.
///
/// # Errors
/// As there.
pub fn new_extents(text: &str) -> Result<NewSize, String> {
    signed(text, extents)
}

/// Extents: a number, or a share with `%VG`, `%FREE`, `%PVS`, `%ORIGIN` or `%LV`.
///
/// # Errors
/// The text is neither.
pub fn extents(text: &str) -> Result<Amount, String> {
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
    fn sizes_are_whole_sectors_with_or_without_a_sign() {
        assert_eq!((size("4"), small_size("4")), (Ok(Sectors(8192)), Ok(Sectors(8))));
        assert_eq!((size("512b"), size("1.3m")), (Ok(Sectors(1)), Ok(Sectors(2662))));
        for (bad, why) in [
            ("100b", "`100b` is not a multiple of 512 bytes"),
            ("+1", "`+1` is not a size: a number of MiB, or with b, s, k, m, g, t, p or e"),
        ] {
            assert_eq!(size(bad), Err(why.to_owned()));
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
