//! Sizes in the syntax of mdadm's options, which RAM disks use, too.

use ashlar_block::Sectors;

/// A size in KiB, or with a suffix K, M, G, T, or `s` for sectors of 512 bytes.
///
/// # Errors
/// The message for the user: the text is no size, or the size has no place in 64 bits.
pub fn size(text: &str) -> Result<Sectors, String> {
    let bad =
        || format!("`{text}` is not a size: a number of KiB, or with K, M, G, T or s (sectors)");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| bad())?;
    let unit: u64 = match &text[digits.len()..] {
        "s" => 1,
        "" | "k" | "K" => 2,
        "m" | "M" => 2 << 10,
        "g" | "G" => 2 << 20,
        "t" | "T" => 2 << 30,
        _ => return Err(bad()),
    };
    let sectors = number.checked_mul(unit).filter(|sectors| *sectors <= u64::MAX >> 10);
    sectors.map(Sectors).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_kib_unless_they_say_otherwise() {
        for (text, sectors) in [
            ("512", 1024),
            ("512K", 1024),
            ("1M", 2048),
            ("3s", 3),
            ("1G", 1 << 21),
            ("2t", 1 << 32),
        ] {
            assert_eq!(size(text), Ok(Sectors(sectors)), "{text}");
        }
        for bad in ["", "K", "1KB", "1.5M", "-1", "18446744073709551615T", "1 K"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
