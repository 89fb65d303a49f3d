//! Sizes and numbers of extents in the syntax of LVM's options, and sizes as in its messages.

use ashlar_block::Sectors;
use ashlar_lvm::report::Units;

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

/// A size to set or to add.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Resize<T> {
    /// Whether it is added.
    pub(super) adds: bool,
    /// The size.
    pub(super) amount: T,
}

fn resize<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Resize<T>, String> {
    let (adds, rest) = text.strip_prefix('+').map_or((false, text), |rest| (true, rest));
    Ok(Resize { adds, amount: parse(rest)? })
}

/// As [`size`], with a leading `+` if it is added.
pub(super) fn new_size(text: &str) -> Result<Resize<Sectors>, String> {
    resize(text, size)
}

/// As [`extents`], with a leading `+` if they are added.
pub(super) fn new_extents(text: &str) -> Result<Resize<Extents>, String> {
    resize(text, extents)
}

/// The base of a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Of {
    /// All extents of the group.
    Group,
    /// The free extents.
    Free,
    /// The extents of the named physical volumes.
    Named,
    /// The extents of the origin.
    Origin,
    /// The extents of the volume.
    Volume,
}

/// A number of extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extents {
    /// This many.
    Count(u32),
    /// This percentage of a base.
    Share(u32, Of),
}

/// Extents: a number, or a share with `%VG`, `%FREE`, `%PVS`, `%ORIGIN` or `%LV`.
pub(super) fn extents(text: &str) -> Result<Extents, String> {
    let bad = || {
        format!("`{text}` is not a number of extents, or one with %VG, %FREE, %PVS, %ORIGIN or %LV")
    };
    let Some((number, of)) = text.split_once('%') else {
        return text.parse().map(Extents::Count).map_err(|_| bad());
    };
    let of = match of.to_ascii_uppercase().as_str() {
        "VG" => Of::Group,
        "FREE" => Of::Free,
        "PVS" => Of::Named,
        "ORIGIN" => Of::Origin,
        "LV" => Of::Volume,
        _ => return Err(bad()),
    };
    number.parse().map(|number| Extents::Share(number, of)).map_err(|_| bad())
}

/// A share of extents: rounded up for an origin or a volume, else down, as in LVM.
pub(super) fn share(percent: u32, of: Of, extents: u64) -> u32 {
    let all = u64::from(percent).saturating_mul(extents);
    let share = match of {
        Of::Origin | Of::Volume => all.div_ceil(100),
        Of::Group | Of::Free | Of::Named => all / 100,
    };
    u32::try_from(share).unwrap_or(u32::MAX)
}

/// `4.00 MiB`, as in LVM's messages.
pub(super) fn long(size: Sectors) -> String {
    let text = Units::default().size(size);
    let Some(unit) = text.chars().last().filter(char::is_ascii_alphabetic) else { return text };
    let number = &text[..text.len() - 1];
    format!("{number} {}iB", unit.to_ascii_uppercase())
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
        assert_eq!(new_size("+1"), Ok(Resize { adds: true, amount: Sectors(2048) }));
    }

    #[test]
    fn extents_are_numbers_or_shares() {
        assert_eq!(extents("7"), Ok(Extents::Count(7)));
        assert_eq!(extents("50%free"), Ok(Extents::Share(50, Of::Free)));
        for bad in ["", "%", "5%", "5%X", "-1", "%VG", "4294967296"] {
            assert!(extents(bad).is_err(), "{bad}");
        }
        assert_eq!(share(50, Of::Free, 7), 3);
        assert_eq!(share(50, Of::Origin, 7), 4);
        assert_eq!(share(u32::MAX, Of::Group, u64::MAX), u32::MAX);
    }

    #[test]
    fn sizes_in_messages_are_lvms() {
        assert_eq!(long(Sectors(8192)), "4.00 MiB");
        assert_eq!(long(Sectors((10 << 21) - 8)), "<10.00 GiB");
    }
}
