//! Items that are plain arrays: the stripes of an extent, and the subvolumes of a UUID.

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemError, array};
use crate::units::{DevId, Physical};

/// `struct btrfs_raid_stride`: location of a copy on a device.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RaidStride {
    /// The device.
    pub devid: U64,
    /// Offset on the device.
    pub physical: U64,
}

ondisk_layout!(RaidStride, 16, { devid: 0, physical: 8 });

impl RaidStride {
    /// The device.
    pub fn devid(&self) -> DevId {
        DevId(self.devid.get())
    }

    /// Offset on the device.
    pub fn physical(&self) -> Physical {
        Physical(self.physical.get())
    }
}

/// Parses the body of a `RAID_STRIPE` (`struct btrfs_stripe_extent`); the key is `(address
/// RAID_STRIPE length)`. The format of Linux 6.7 to 6.10, with 8 bytes before the strides, is
/// refused: the feature was experimental, and newer kernels refuse it too.
///
/// # Errors
/// Its size is not that of one or more whole strides.
pub fn raid_stripe(bytes: &[u8]) -> Result<&[RaidStride], ItemError> {
    array("raid stripe", bytes)
}

/// Parses the body of a `UUID_SUBVOL` or `UUID_RECEIVED_SUBVOL` into subvolume numbers.
///
/// # Errors
/// Its size is not that of one or more whole numbers.
pub fn uuid_subvolumes(bytes: &[u8]) -> Result<&[U64], ItemError> {
    array("uuid item", bytes)
}

#[cfg(test)]
mod tests {
    use super::super::testing::counting;
    use super::*;

    #[test]
    fn strides_follow_each_other() {
        let bytes = counting::<32>();
        let [first, second] = raid_stripe(&bytes).unwrap() else { panic!("two strides") };
        assert_eq!(first.devid(), DevId(0x0807_0605_0403_0201));
        assert_eq!(first.physical(), Physical(0x100f_0e0d_0c0b_0a09));
        assert_eq!(second.devid(), DevId(0x1817_1615_1413_1211));
        assert_eq!(second.physical(), Physical(0x201f_1e1d_1c1b_1a19));
        for len in (0..32).filter(|len| *len != 16) {
            let found = len;
            let wanted = if len < 16 { 16 } else { 32 };
            let size = ItemError::Size { item: "raid stripe", found, wanted };
            assert_eq!(raid_stripe(&bytes[..len]), Err(size));
        }
    }

    #[test]
    fn subvolumes_follow_each_other() {
        let bytes = [256_u64, 257].map(u64::to_le_bytes).concat();
        assert_eq!(uuid_subvolumes(&bytes).unwrap(), [256, 257]);
        for len in [0, 1, 7, 9, 15] {
            assert!(matches!(uuid_subvolumes(&bytes[..len]), Err(ItemError::Size { .. })));
        }
    }
}
