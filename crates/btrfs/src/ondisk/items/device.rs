//! State of devices: error counters, a balance, a replacement.

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemError, prefix};

/// Errors counted on a device (`struct btrfs_dev_stats_item`). The key is `(DEV_STATS PERSISTENT_ITEM device)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DevStats {
    /// Failed writes.
    pub write_errs: u64,
    /// Failed reads.
    pub read_errs: u64,
    /// Failed flushes.
    pub flush_errs: u64,
    /// Blocks with wrong checksums or contents.
    pub corruption_errs: u64,
    /// Blocks with a wrong generation.
    pub generation_errs: u64,
}

impl DevStats {
    /// Parses the item's body. Counters missing from an old, shorter item are zero; additional ones
    /// of a newer item are ignored.
    ///
    /// # Errors
    /// Its size is not a multiple of a counter's.
    pub fn parse(bytes: &[u8]) -> Result<Self, ItemError> {
        let (values, cut) = bytes.as_chunks::<8>();
        if !cut.is_empty() {
            let (found, wanted) = (bytes.len(), 5 * 8);
            return Err(ItemError::Size { item: "device statistics", found, wanted });
        }
        let value = |index| values.get(index).map_or(0, |value| u64::from_le_bytes(*value));
        Ok(Self {
            write_errs: value(0),
            read_errs: value(1),
            flush_errs: value(2),
            corruption_errs: value(3),
            generation_errs: value(4),
        })
    }
}

/// `struct btrfs_disk_balance_args`: filters for the chunks of a balance. A filter that is not in
/// `flags` has no effect.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BalanceArgs {
    /// Their profiles.
    pub profiles: U64,
    /// Maximum usage in percent; or minimum and maximum, as two 32-bit numbers.
    pub usage: U64,
    /// A device that holds part of the chunk.
    pub devid: U64,
    /// First byte on that device.
    pub pstart: U64,
    /// Last byte on that device.
    pub pend: U64,
    /// First byte in the file system's space.
    pub vstart: U64,
    /// Last byte in the file system's space.
    pub vend: U64,
    /// Target profile.
    pub target: U64,
    /// The filters in use.
    pub flags: U64,
    /// Maximum number of chunks; or minimum and maximum, as two 32-bit numbers.
    pub limit: U64,
    /// Minimum number of devices.
    pub stripes_min: U32,
    /// Maximum number of devices.
    pub stripes_max: U32,
    /// Zero.
    pub unused: [U64; 6],
}

ondisk_layout!(BalanceArgs, 136, {
    profiles: 0, usage: 8, devid: 16, pstart: 24, pend: 32, vstart: 40, vend: 48, target: 56,
    flags: 64, limit: 72, stripes_min: 80, stripes_max: 84, unused: 88,
});

/// `struct btrfs_balance_item`: an unfinished balance. The key is `(BALANCE TEMPORARY_ITEM 0)`.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BalanceItem {
    /// What it does (`BTRFS_BALANCE_*`).
    pub flags: U64,
    /// Chunks of data.
    pub data: BalanceArgs,
    /// Chunks of metadata.
    pub meta: BalanceArgs,
    /// Chunks of the chunk tree.
    pub sys: BalanceArgs,
    /// Zero.
    pub unused: [U64; 4],
}

ondisk_layout!(BalanceItem, 448, { flags: 0, data: 8, meta: 144, sys: 280, unused: 416 });

impl BalanceItem {
    /// Parses the item's body.
    ///
    /// # Errors
    /// The body is too short.
    pub fn parse(bytes: &[u8]) -> Result<&Self, ItemError> {
        prefix("balance item", bytes).map(|(item, _)| item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_may_be_shorter_or_longer() {
        let bytes = [1_u64, 2, 3, 4, 5, 6].map(u64::to_le_bytes).concat();
        let mut wanted = DevStats {
            write_errs: 1,
            read_errs: 2,
            flush_errs: 3,
            corruption_errs: 4,
            generation_errs: 5,
        };
        assert_eq!(DevStats::parse(&bytes), Ok(wanted));
        assert_eq!(DevStats::parse(&bytes[..40]), Ok(wanted));
        wanted.generation_errs = 0;
        assert_eq!(DevStats::parse(&bytes[..32]), Ok(wanted));
        assert_eq!(DevStats::parse(&[]), Ok(DevStats::default()));
        assert!(matches!(DevStats::parse(&bytes[..39]), Err(ItemError::Size { found: 39, .. })));
    }

    #[test]
    fn a_balance_may_be_longer() {
        assert!(matches!(BalanceItem::parse(&[0; 447]), Err(ItemError::Short { .. })));
        assert!(BalanceItem::parse(&[0; 449]).is_ok());
    }
}
