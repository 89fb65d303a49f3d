//! State of devices: error counters, a balance, a replacement.

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemError, exact, prefix};

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
    /// [`BalanceFlags`]
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

bitflags::bitflags! {
    /// What a balance does (`BTRFS_BALANCE_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct BalanceFlags: u64 {
        /// Balances data.
        const DATA = 1 << 0;
        /// Balances the chunk tree.
        const SYSTEM = 1 << 1;
        /// Balances metadata.
        const METADATA = 1 << 2;
        /// May reduce the number of copies.
        const FORCE = 1 << 3;
        /// Resumes an interrupted balance.
        const RESUME = 1 << 4;
    }
}

impl BalanceItem {
    /// Parses the item's body.
    ///
    /// # Errors
    /// The body is too short.
    pub fn parse(bytes: &[u8]) -> Result<&Self, ItemError> {
        prefix("balance item", bytes).map(|(item, _)| item)
    }

    /// Its flags; unnamed bits are kept.
    pub fn balance_flags(&self) -> BalanceFlags {
        BalanceFlags::from_bits_retain(self.flags.get())
    }
}

/// `struct btrfs_dev_replace_item`: the last replacement of a device. The key is
/// `(0 DEV_REPLACE 0)`.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DevReplaceItem {
    /// The device being replaced; the new device has the number 0 meanwhile.
    pub src_devid: U64,
    /// Everything before this offset on the device was copied.
    pub cursor_left: U64,
    /// Everything from this offset on was not copied.
    pub cursor_right: U64,
    /// 1: the old device is read only where no other copy is good.
    pub cont_reading_from_srcdev_mode: U64,
    /// [`DevReplaceState`]
    pub replace_state: U64,
    /// Start time, in seconds since 1970.
    pub time_started: U64,
    /// End time.
    pub time_stopped: U64,
    /// Failed writes.
    pub num_write_errors: U64,
    /// Blocks without a good copy.
    pub num_uncorrectable_read_errors: U64,
}

ondisk_layout!(DevReplaceItem, 72, {
    src_devid: 0, cursor_left: 8, cursor_right: 16, cont_reading_from_srcdev_mode: 24,
    replace_state: 32, time_started: 40, time_stopped: 48, num_write_errors: 56,
    num_uncorrectable_read_errors: 64,
});

/// State of a replacement (`BTRFS_IOCTL_DEV_REPLACE_STATE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DevReplaceState {
    /// 0
    NeverStarted,
    /// 1
    Started,
    /// 2
    Finished,
    /// 3
    Canceled,
    /// 4
    Suspended,
}

impl DevReplaceState {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::NeverStarted, Self::Started, Self::Finished, Self::Canceled, Self::Suspended];

    /// Whether blocks of the new device may be missing.
    pub const fn is_under_way(self) -> bool {
        match self {
            Self::Started | Self::Suspended => true,
            Self::NeverStarted | Self::Finished | Self::Canceled => false,
        }
    }
}

impl DevReplaceItem {
    /// Parses the item's body.
    ///
    /// # Errors
    /// The size is wrong, or the state is unknown.
    pub fn parse(bytes: &[u8]) -> Result<(&Self, DevReplaceState), ItemError> {
        const ITEM: &str = "device replacement";
        let item: &Self = exact(ITEM, bytes)?;
        let value = item.replace_state.get();
        let state = usize::try_from(value).ok().and_then(|at| DevReplaceState::ALL.get(at));
        match state {
            Some(state) => Ok((item, *state)),
            None => Err(ItemError::Field { item: ITEM, field: "replace_state", value }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::counting;
    use super::*;

    #[test]
    fn every_field_is_at_its_place() {
        let bytes = counting::<448>();
        let balance = BalanceItem::parse(&bytes).unwrap();
        assert_eq!(balance.flags, 0x0807_0605_0403_0201);
        assert_eq!(balance.balance_flags() & BalanceFlags::all(), BalanceFlags::DATA);
        assert_eq!(balance.data.as_bytes(), &bytes[8..144]);
        assert_eq!(balance.meta.as_bytes(), &bytes[144..280]);
        assert_eq!(balance.sys.as_bytes(), &bytes[280..416]);
        let bytes = counting::<136>();
        let item = BalanceArgs::ref_from_bytes(&bytes).unwrap();
        assert_eq!(item.profiles, 0x0807_0605_0403_0201);
        assert_eq!(item.usage, 0x100f_0e0d_0c0b_0a09);
        assert_eq!(item.devid, 0x1817_1615_1413_1211);
        assert_eq!(item.pstart, 0x201f_1e1d_1c1b_1a19);
        assert_eq!(item.pend, 0x2827_2625_2423_2221);
        assert_eq!(item.vstart, 0x302f_2e2d_2c2b_2a29);
        assert_eq!(item.vend, 0x3837_3635_3433_3231);
        assert_eq!(item.target, 0x403f_3e3d_3c3b_3a39);
        assert_eq!(item.flags, 0x4847_4645_4443_4241);
        assert_eq!(item.limit, 0x504f_4e4d_4c4b_4a49);
        assert_eq!(item.stripes_min, 0x5453_5251);
        assert_eq!(item.stripes_max, 0x5857_5655);
        assert_eq!(
            item.unused,
            [
                0x605f_5e5d_5c5b_5a59,
                0x6867_6665_6463_6261,
                0x706f_6e6d_6c6b_6a69,
                0x7877_7675_7473_7271,
                0x807f_7e7d_7c7b_7a79,
                0x8887_8685_8483_8281
            ]
        );
        let mut bytes = counting::<72>();
        bytes[32..40].copy_from_slice(&[4, 0, 0, 0, 0, 0, 0, 0]);
        let (item, state) = DevReplaceItem::parse(&bytes).unwrap();
        assert_eq!(item.src_devid, 0x0807_0605_0403_0201);
        assert_eq!(item.cursor_left, 0x100f_0e0d_0c0b_0a09);
        assert_eq!(item.cursor_right, 0x1817_1615_1413_1211);
        assert_eq!(item.cont_reading_from_srcdev_mode, 0x201f_1e1d_1c1b_1a19);
        assert_eq!(item.replace_state, 4);
        assert_eq!(item.time_started, 0x302f_2e2d_2c2b_2a29);
        assert_eq!(item.time_stopped, 0x3837_3635_3433_3231);
        assert_eq!(item.num_write_errors, 0x403f_3e3d_3c3b_3a39);
        assert_eq!(item.num_uncorrectable_read_errors, 0x4847_4645_4443_4241);
        assert_eq!(state, DevReplaceState::Suspended);
        assert!(state.is_under_way());
    }

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
    fn sizes_and_states_are_checked() {
        assert!(matches!(BalanceItem::parse(&[0; 447]), Err(ItemError::Short { .. })));
        assert!(BalanceItem::parse(&[0; 449]).is_ok());
        for len in [0, 71, 73] {
            assert!(matches!(DevReplaceItem::parse(&[0; 80][..len]), Err(ItemError::Size { .. })));
        }
        for (number, state) in DevReplaceState::ALL.into_iter().enumerate() {
            let mut bytes = [0; 72];
            bytes[32] = number as u8;
            assert_eq!(DevReplaceItem::parse(&bytes).unwrap().1, state);
        }
        for at in [32, 39] {
            let mut bytes = [0; 72];
            bytes[at] = 5;
            assert!(matches!(DevReplaceItem::parse(&bytes), Err(ItemError::Field { .. })));
        }
    }
}
