//! Sizes among options: numbers of bytes, and mdadm's sizes, which RAM disks use, too.

use ashlar_block::Sectors;
use ashlar_stack::spec::Bytes;

/// A number of bytes, perhaps with a suffix K, M, G, T.
///
/// # Errors
/// The message for the user.
pub fn bytes(text: &str) -> Result<u64, String> {
    text.parse::<Bytes>().map(|bytes| bytes.0).map_err(|error| error.to_string())
}

/// A size in KiB, or with a suffix K, M, G, T, or `s` for sectors of 512 bytes.
///
/// # Errors
/// The message for the user: the text is no size, or the size has no place in 64 bits.
pub fn size(text: &str) -> Result<Sectors, String> {
    let sectors = match text.strip_suffix('s') {
        Some(sectors) => sectors.parse().ok().map(Sectors),
        None if text.ends_with(|c: char| c.is_ascii_digit()) => {
            text.parse().ok().and_then(|kib: u64| kib.checked_mul(2)).map(Sectors)
        }
        None => bytes(text).ok().map(Sectors::from_bytes_floor),
    };
    sectors.filter(|sectors| sectors.0 <= u64::MAX >> 10).ok_or_else(|| {
        format!("`{text}` is not a size: a number of KiB, or with K, M, G, T or s (sectors)")
    })
}

/// A size, or no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit(pub Option<Sectors>);

/// A size as [`size`], or `max` for no limit.
///
/// # Errors
/// As [`size`].
pub fn limit(text: &str) -> Result<Limit, String> {
    if text == "max" { Ok(Limit(None)) } else { size(text).map(|size| Limit(Some(size))) }
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

    #[test]
    fn a_limit_is_a_size_or_none() {
        assert_eq!(limit("max"), Ok(Limit(None)));
        assert_eq!(limit("2"), Ok(Limit(Some(Sectors(4)))));
    }
}
