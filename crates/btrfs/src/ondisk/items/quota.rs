//! Quotas. A group's number is the key's offset: level in the upper 16 bits, subvolume in the
//! others. `QGROUP_RELATION` items have no body.

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemError, exact};

/// The part of `struct btrfs_qgroup_status_item` that all kernels write.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct QgroupStatusItem {
    /// Always 1.
    pub version: U64,
    /// The transaction that last changed it.
    pub generation: U64,
    /// 1: on; 2: rescan running; 4: inconsistent; 8: simple quotas.
    pub flags: U64,
    /// Progress of the rescan.
    pub rescan: U64,
}

ondisk_layout!(QgroupStatusItem, 32, { version: 0, generation: 8, flags: 16, rescan: 24 });

/// `struct btrfs_qgroup_info_item`: usage of a group.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct QgroupInfoItem {
    /// The transaction that last changed it.
    pub generation: U64,
    /// Bytes that the group refers to.
    pub rfer: U64,
    /// The same, compressed.
    pub rfer_cmpr: U64,
    /// Bytes that only this group refers to.
    pub excl: U64,
    /// The same, compressed.
    pub excl_cmpr: U64,
}

ondisk_layout!(QgroupInfoItem, 40, {
    generation: 0, rfer: 8, rfer_cmpr: 16, excl: 24, excl_cmpr: 32,
});

impl QgroupInfoItem {
    /// Parses the body of a `QGROUP_INFO`.
    ///
    /// # Errors
    /// The size is wrong.
    pub fn parse(bytes: &[u8]) -> Result<&Self, ItemError> {
        exact("quota info", bytes)
    }
}

/// `struct btrfs_qgroup_limit_item`: limits of a group.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct QgroupLimitItem {
    /// The limits in effect: bit 0 is the first of them.
    pub flags: U64,
    /// Maximum bytes that the group refers to.
    pub max_rfer: U64,
    /// Maximum bytes that only this group refers to.
    pub max_excl: U64,
    /// Unused.
    pub rsv_rfer: U64,
    /// Unused.
    pub rsv_excl: U64,
}

ondisk_layout!(QgroupLimitItem, 40, {
    flags: 0, max_rfer: 8, max_excl: 16, rsv_rfer: 24, rsv_excl: 32,
});

impl QgroupLimitItem {
    /// Parses the body of a `QGROUP_LIMIT`.
    ///
    /// # Errors
    /// The size is wrong.
    pub fn parse(bytes: &[u8]) -> Result<&Self, ItemError> {
        exact("quota limit", bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        let bytes = [1; 64];
        for len in (0..=64).filter(|len| *len != 40) {
            assert!(QgroupInfoItem::parse(&bytes[..len]).is_err(), "{len}");
            assert!(QgroupLimitItem::parse(&bytes[..len]).is_err(), "{len}");
        }
    }
}
