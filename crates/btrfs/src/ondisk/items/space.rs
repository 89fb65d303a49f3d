//! Space usage: device extents, block groups, and their free space.

use std::ops::Range;

use ashlar_block::ondisk_layout;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemError, exact};
use crate::ondisk::chunk::BlockGroupFlags;
use crate::ondisk::key::{DiskKey, Key};
use crate::units::Logical;

/// `struct btrfs_dev_extent`: part of a device that belongs to a chunk. The key is `(device
/// DEV_EXTENT offset)`.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DevExtent {
    /// Always the chunk tree.
    pub chunk_tree: U64,
    /// Always [`FIRST_CHUNK_TREE`](crate::ondisk::key::objectid::FIRST_CHUNK_TREE).
    pub chunk_objectid: U64,
    /// Start of the chunk in the file system's space.
    pub chunk_offset: U64,
    /// Its length in bytes.
    pub length: U64,
    /// The chunk tree's identity.
    pub chunk_tree_uuid: [u8; 16],
}

ondisk_layout!(DevExtent, 48, {
    chunk_tree: 0, chunk_objectid: 8, chunk_offset: 16, length: 24, chunk_tree_uuid: 32,
});

impl DevExtent {
    /// Parses the body of a `DEV_EXTENT`.
    ///
    /// # Errors
    /// The size is wrong; or the range is empty, or exceeds the device's address space.
    pub fn parse(key: Key, bytes: &[u8]) -> Result<&Self, ItemError> {
        const ITEM: &str = "device extent";
        let disk: &Self = exact(ITEM, bytes)?;
        let value = disk.length.get();
        if value == 0 || key.offset.checked_add(value).is_none() {
            return Err(ItemError::Field { item: ITEM, field: "length", value });
        }
        Ok(disk)
    }

    /// Start of its chunk.
    pub fn chunk(&self) -> Logical {
        Logical(self.chunk_offset.get())
    }

    /// The chunk tree's identity.
    pub fn chunk_tree_uuid(&self) -> Uuid {
        Uuid::from_bytes(self.chunk_tree_uuid)
    }
}

/// `struct btrfs_block_group_item`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskBlockGroupItem {
    /// Bytes of extents in it.
    pub used: U64,
    /// Always [`FIRST_CHUNK_TREE`](crate::ondisk::key::objectid::FIRST_CHUNK_TREE).
    pub chunk_objectid: U64,
    /// [`BlockGroupFlags`]
    pub flags: U64,
}

ondisk_layout!(DiskBlockGroupItem, 24, { used: 0, chunk_objectid: 8, flags: 16 });

/// A block group: usage of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockGroup {
    /// Its first byte.
    pub start: Logical,
    /// Its bytes.
    pub length: u64,
    /// Bytes of extents in it.
    pub used: u64,
    /// Content and profile; unnamed bits are kept.
    pub flags: BlockGroupFlags,
}

impl BlockGroup {
    /// Parses a `BLOCK_GROUP_ITEM`.
    ///
    /// # Errors
    /// The size is wrong; its range is empty or overflows; or it uses more bytes than it has.
    pub fn parse(key: Key, bytes: &[u8]) -> Result<Self, ItemError> {
        const ITEM: &str = "block group item";
        let disk: &DiskBlockGroupItem = exact(ITEM, bytes)?;
        let (start, length, used) = (Logical(key.objectid), key.offset, disk.used.get());
        let wrong = |field, value| Err(ItemError::Field { item: ITEM, field, value });
        if length == 0 || start.checked_add(length).is_none() {
            return wrong("length", length);
        }
        if used > length {
            return wrong("used", used);
        }
        let flags = BlockGroupFlags::from_bits_retain(disk.flags.get());
        Ok(Self { start, length, used, flags })
    }
}

/// `struct btrfs_free_space_info`: how a block group's free space is recorded.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FreeSpaceInfo {
    /// Number of free ranges.
    pub extent_count: U32,
    /// 1: recorded as bitmaps.
    pub flags: U32,
}

ondisk_layout!(FreeSpaceInfo, 8, { extent_count: 0, flags: 4 });

impl FreeSpaceInfo {
    /// Parses the body of a `FREE_SPACE_INFO`.
    ///
    /// # Errors
    /// The size is wrong.
    pub fn parse(bytes: &[u8]) -> Result<&Self, ItemError> {
        exact("free space info", bytes)
    }
}

/// Maximum size of a bitmap in bytes (`BTRFS_FREE_SPACE_BITMAP_SIZE`).
pub const FREE_SPACE_BITMAP_SIZE: usize = 256;

/// A bitmap: set bits are free sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeSpaceBitmap<'a> {
    start: u64,
    sectorsize: u64,
    sectors: usize,
    bits: &'a [u8],
}

impl<'a> FreeSpaceBitmap<'a> {
    /// Parses a `FREE_SPACE_BITMAP`.
    ///
    /// # Errors
    /// Its range overflows or does not consist of whole sectors; or its size does not match the range.
    pub fn parse(key: Key, bytes: &'a [u8], sectorsize: u32) -> Result<Self, ItemError> {
        const ITEM: &str = "free space bitmap";
        let sectorsize = u64::from(sectorsize.max(1));
        let (start, length) = (key.objectid, key.offset);
        let wrong = |field, value| Err(ItemError::Field { item: ITEM, field, value });
        if start % sectorsize != 0 {
            return wrong("start", start);
        }
        let sectors = length / sectorsize;
        let within = (1..=FREE_SPACE_BITMAP_SIZE as u64 * 8).contains(&sectors);
        if length % sectorsize != 0 || !within || start.checked_add(length).is_none() {
            return wrong("length", length);
        }
        let sectors = sectors as usize;
        let wanted = sectors.div_ceil(8);
        if bytes.len() != wanted {
            return Err(ItemError::Size { item: ITEM, found: bytes.len(), wanted });
        }
        Ok(Self { start, sectorsize, sectors, bits: bytes })
    }

    fn is_free(&self, sector: usize) -> bool {
        self.bits[sector / 8] >> (sector % 8) & 1 == 1
    }

    /// The free ranges, ascending; two ranges never touch.
    pub const fn ranges(self) -> FreeRanges<'a> {
        FreeRanges { bitmap: self, sector: 0 }
    }
}

/// The free ranges of a bitmap.
#[derive(Clone, Debug)]
pub struct FreeRanges<'a> {
    bitmap: FreeSpaceBitmap<'a>,
    sector: usize,
}

impl Iterator for FreeRanges<'_> {
    type Item = Range<Logical>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { bitmap, sector } = self;
        let first = (*sector..bitmap.sectors).find(|sector| bitmap.is_free(*sector));
        let Some(first) = first else {
            *sector = bitmap.sectors;
            return None;
        };
        let used = (first..bitmap.sectors).find(|sector| !bitmap.is_free(*sector));
        *sector = used.unwrap_or(bitmap.sectors);
        let at = |sector: usize| Logical(bitmap.start + sector as u64 * bitmap.sectorsize);
        Some(at(first)..at(*sector))
    }
}

/// `struct btrfs_free_space_header`: the item `(FREE_SPACE 0 block group)` of the old free space
/// cache, which is a file.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FreeSpaceHeader {
    /// The file's inode.
    pub location: DiskKey,
    /// The transaction that wrote it.
    pub generation: U64,
    /// Number of free ranges.
    pub num_entries: U64,
    /// Number of bitmaps.
    pub num_bitmaps: U64,
}

ondisk_layout!(FreeSpaceHeader, 41, {
    location: 0, generation: 17, num_entries: 25, num_bitmaps: 33,
});

impl FreeSpaceHeader {
    /// Parses the item's body.
    ///
    /// # Errors
    /// The size is wrong.
    pub fn parse(bytes: &[u8]) -> Result<&Self, ItemError> {
        exact("free space header", bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::key::item;

    #[test]
    fn sizes_are_exact() {
        for len in [0, 7, 9, 23, 25, 40, 42, 47, 49] {
            let bytes = &[1; 50][..len];
            assert!(matches!(DevExtent::parse(Key::MIN, bytes), Err(ItemError::Size { .. })));
            assert!(matches!(BlockGroup::parse(Key::MIN, bytes), Err(ItemError::Size { .. })));
            assert!(matches!(FreeSpaceInfo::parse(bytes), Err(ItemError::Size { .. })));
            assert!(matches!(FreeSpaceHeader::parse(bytes), Err(ItemError::Size { .. })));
        }
    }

    #[test]
    fn device_extents_have_bytes_on_the_device() {
        let mut bytes = [0; 48];
        let key = Key::new(1, item::DEV_EXTENT, u64::MAX - 5);
        let length =
            |value| Err(ItemError::Field { item: "device extent", field: "length", value });
        assert_eq!(DevExtent::parse(key, &bytes), length(0));
        bytes[24] = 5;
        assert!(DevExtent::parse(key, &bytes).is_ok());
        bytes[24] = 6;
        assert_eq!(DevExtent::parse(key, &bytes), length(6));
    }

    #[test]
    fn block_groups_are_checked() {
        let bytes = [0x3000, 256, 0x11].map(u64::to_le_bytes).concat();
        let parse = |start, length| {
            BlockGroup::parse(Key::new(start, item::BLOCK_GROUP_ITEM, length), &bytes)
        };
        let flags = BlockGroupFlags::DATA | BlockGroupFlags::RAID1;
        let start = Logical(0x10_0000);
        let wanted = BlockGroup { start, length: 0x4000, used: 0x3000, flags };
        assert_eq!(parse(0x10_0000, 0x4000), Ok(wanted));
        let wrong = |field, value| Err(ItemError::Field { item: "block group item", field, value });
        assert_eq!(parse(0x10_0000, 0x2fff), wrong("used", 0x3000));
        assert_eq!(parse(0x10_0000, 0), wrong("length", 0));
        assert_eq!(parse(u64::MAX, 0x4000), wrong("length", 0x4000));
    }

    #[test]
    fn a_bitmap_gives_its_runs() {
        let key = |sectors: u64| Key::new(0x10_0000, item::FREE_SPACE_BITMAP, sectors * 4096);
        let runs = |sectors, bits: &[u8]| -> Vec<_> {
            let bitmap = FreeSpaceBitmap::parse(key(sectors), bits, 4096).unwrap();
            let sector = |at: Logical| (at.0 - 0x10_0000) / 4096;
            bitmap.ranges().map(|run| sector(run.start)..sector(run.end)).collect()
        };
        assert_eq!(runs(16, &[0b1000_0110, 0b0000_0011]), [1..3, 7..10]);
        assert_eq!(runs(8, &[0xff]), vec![0..8]);
        assert_eq!(runs(8, &[0]), vec![]);
        // The bits after the last sector mean nothing.
        assert_eq!(runs(11, &[0, 0xff]), vec![8..11]);
        assert_eq!(runs(2048, &[0x55; 256]).len(), 1024);
    }

    #[test]
    fn bitmaps_that_cannot_be_are_refused() {
        let parse = |start, length, bits: &[u8]| {
            let key = Key::new(start, item::FREE_SPACE_BITMAP, length);
            FreeSpaceBitmap::parse(key, bits, 4096).map(drop)
        };
        let wrong =
            |field, value| Err(ItemError::Field { item: "free space bitmap", field, value });
        assert_eq!(parse(1, 4096, &[0]), wrong("start", 1));
        assert_eq!(parse(0, 4097, &[0]), wrong("length", 4097));
        assert_eq!(parse(0, 0, &[]), wrong("length", 0));
        assert_eq!(parse(0, 2049 * 4096, &[0; 257]), wrong("length", 2049 * 4096));
        assert_eq!(parse(u64::MAX - 4095, 4096, &[0]), wrong("length", 4096));
        for len in [0, 2] {
            let found = len;
            let size = ItemError::Size { item: "free space bitmap", found, wanted: 1 };
            assert_eq!(parse(0, 8 * 4096, &[0; 2][..len]), Err(size));
        }
    }
}
