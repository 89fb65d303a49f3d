//! CRC-32C (Castagnoli).

/// The checksum of `bytes` as in the kernel's `crc32c(~0, ...)`: without the final inversion.
pub(super) fn raw(bytes: &[u8]) -> u32 {
    !crc_fast::crc32_iscsi(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn sums_are_those_of_rfc_3720() {
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(!super::raw(b"123456789"), 0xe306_9283);
        assert_eq!(!super::raw(&[0; 32]), 0x8a91_36aa);
        assert_eq!(!super::raw(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(!super::raw(&ascending), 0x46dd_794e);
    }
}
