//! Sizes among options: numbers of bytes, and mdadm's sizes, which RAM disks use, too. The notations are those of
//! [`ashlar_block::size`].

use crate::options::Bytes;
use ashlar_block::Sectors;
use ashlar_block::size::Notation;

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
/// The message for the user: the text is not a size, or the size does not fit into 64 bits.
pub fn size(text: &str) -> Result<Sectors, String> {
    let bytes = Notation::MDADM.parse(text.strip_prefix('+').unwrap_or(text)).ok();
    let sectors = bytes.map(Sectors::from_bytes_floor).filter(|size| size.0 <= u64::MAX >> 10);
    sectors.ok_or_else(|| {
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
    fn sizes_have_a_place_among_sectors() {
        assert_eq!(size("1M"), Ok(Sectors(2048)));
        assert_eq!(size("+3s"), Ok(Sectors(3)));
        assert_eq!(size("18014398509481983s"), Ok(Sectors((1 << 54) - 1)));
        for bad in ["18014398509481984s", "9007199254740992", "8388608T", "++1", "-1"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_limit_is_a_size_or_none() {
        assert_eq!(limit("max"), Ok(Limit(None)));
        assert_eq!(limit("2"), Ok(Limit(Some(Sectors(4)))));
    }
}
