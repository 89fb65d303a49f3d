//! Quotas. A group's number is the key's offset: level in the upper 16 bits, subvolume in the
//! others. `QGROUP_RELATION` items have no body.

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemError, exact, prefix};

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

/// The state of quotas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QgroupStatus<'a> {
    /// What all kernels write.
    pub disk: &'a QgroupStatusItem,
    /// The transaction in which simple quotas were enabled; older kernels do not write it.
    pub enable_gen: Option<u64>,
}

impl<'a> QgroupStatus<'a> {
    /// Parses the body of a `QGROUP_STATUS`.
    ///
    /// # Errors
    /// Its size is neither the old nor the new one.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ItemError> {
        const ITEM: &str = "quota status";
        let (disk, rest) = prefix::<QgroupStatusItem>(ITEM, bytes)?;
        let enable_gen = match rest {
            [] => None,
            rest => Some(U64::read_from_bytes(rest).map_err(|_| {
                let wanted = size_of::<QgroupStatusItem>() + size_of::<U64>();
                ItemError::Size { item: ITEM, found: bytes.len(), wanted }
            })?),
        };
        Ok(Self { disk, enable_gen: enable_gen.map(U64::get) })
    }
}

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
    use super::super::testing::counting;
    use super::*;

    #[test]
    fn every_field_is_at_its_place() {
        let bytes = counting::<40>();
        let status = QgroupStatus::parse(&bytes).unwrap();
        assert_eq!(status.enable_gen, Some(0x2827_2625_2423_2221));
        let old = QgroupStatus::parse(&bytes[..32]).unwrap();
        assert_eq!((old.disk, old.enable_gen), (status.disk, None));
        let item = status.disk;
        assert_eq!(item.version, 0x0807_0605_0403_0201);
        assert_eq!(item.generation, 0x100f_0e0d_0c0b_0a09);
        assert_eq!(item.flags, 0x1817_1615_1413_1211);
        assert_eq!(item.rescan, 0x201f_1e1d_1c1b_1a19);
        let item = QgroupInfoItem::parse(&bytes).unwrap();
        assert_eq!(item.generation, 0x0807_0605_0403_0201);
        assert_eq!(item.rfer, 0x100f_0e0d_0c0b_0a09);
        assert_eq!(item.rfer_cmpr, 0x1817_1615_1413_1211);
        assert_eq!(item.excl, 0x201f_1e1d_1c1b_1a19);
        assert_eq!(item.excl_cmpr, 0x2827_2625_2423_2221);
        let item = QgroupLimitItem::parse(&bytes).unwrap();
        assert_eq!(item.flags, 0x0807_0605_0403_0201);
        assert_eq!(item.max_rfer, 0x100f_0e0d_0c0b_0a09);
        assert_eq!(item.max_excl, 0x1817_1615_1413_1211);
        assert_eq!(item.rsv_rfer, 0x201f_1e1d_1c1b_1a19);
        assert_eq!(item.rsv_excl, 0x2827_2625_2423_2221);
    }

    #[test]
    fn sizes_are_exact() {
        let bytes = [1; 64];
        for len in (0..=64).filter(|len| *len != 40) {
            assert!(QgroupInfoItem::parse(&bytes[..len]).is_err(), "{len}");
            assert!(QgroupLimitItem::parse(&bytes[..len]).is_err(), "{len}");
            assert_eq!(QgroupStatus::parse(&bytes[..len]).is_ok(), len == 32, "{len}");
        }
    }
}
