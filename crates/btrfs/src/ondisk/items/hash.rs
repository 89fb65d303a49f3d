//! Hashes in keys: CRC-32C with a different seed, and not inverted at the end.

/// CRC-32C of each byte, bits reflected (polynomial 0x1edc6f41).
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The state after `bytes`. Names are short, so a table is fast enough, and it accepts any seed.
fn update(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)])
}

/// Key offset of the `DIR_ITEM` or `XATTR_ITEM` of this name (`btrfs_name_hash`).
pub fn name_hash(name: &[u8]) -> u64 {
    update(!1, name).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_that_of_crc32c() {
        // CRC catalogue: CRC-32/ISCSI of the check string.
        assert_eq!(!update(!0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn hashes_are_those_that_the_kernel_stored() {
        // The entry "default" of the tree of roots: its key is (6 DIR_ITEM 2378154706) in every file system.
        assert_eq!(name_hash(b"default"), 2_378_154_706);
        assert_eq!(name_hash(b""), 0xffff_fffe);
    }
}
