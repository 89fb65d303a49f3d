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

/// Key offset of the `INODE_EXTREF` of this name in the directory `parent` (`btrfs_extref_hash`).
/// Only the lower half of the directory's number is used.
pub fn extref_hash(parent: u64, name: &[u8]) -> u64 {
    update(parent as u32, name).into()
}

/// Key offset of the `EXTENT_DATA_REF` of a tree, an inode and an offset in it
/// (`hash_extent_data_ref`). If hashes collide, items use the following offsets.
pub fn extent_data_ref_hash(root: u64, objectid: u64, offset: u64) -> u64 {
    let high = update(!0, &root.to_le_bytes());
    let low = update(update(!0, &objectid.to_le_bytes()), &offset.to_le_bytes());
    u64::from(high) << 31 ^ u64::from(low)
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
        // Linux 6.18: the item (258 INODE_EXTREF 30503259), in directory 257.
        let name = format!("link0252-{}", "n".repeat(100));
        assert_eq!(extref_hash(257, name.as_bytes()), 30_503_259);
        assert_eq!(extref_hash(257 | 1 << 32, name.as_bytes()), 30_503_259);
        // Keys of EXTENT_DATA_REFs; the second offset is negative.
        assert_eq!(extent_data_ref_hash(5, 504, 0), 1_007_496_931_328_862_710);
        let before = 0_u64.wrapping_sub(0x1_0000);
        assert_eq!(extent_data_ref_hash(5, 337, before), 1_007_496_932_416_350_990);
    }
}
