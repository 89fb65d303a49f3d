//! Keys, which order a tree, and the numbers of objects and item types.

use std::fmt;

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `struct btrfs_disk_key`
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DiskKey {
    /// Compared first.
    pub objectid: U64,
    /// One of [`item`].
    pub kind: u8,
    /// Compared last.
    pub offset: U64,
}

ondisk_layout!(DiskKey, 17, { objectid: 0, kind: 8, offset: 9 });

/// The key of an item; ordered by its fields in sequence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Key {
    /// The object: an inode, a byte address, a device, one of [`objectid`].
    pub objectid: u64,
    /// The type of the item, one of [`item`].
    pub kind: u8,
    /// The meaning depends on the type.
    pub offset: u64,
}

impl Key {
    /// Below all others.
    pub const MIN: Self = Self::new(0, 0, 0);
    /// Above all others.
    pub const MAX: Self = Self::new(u64::MAX, u8::MAX, u64::MAX);

    /// A key of these three parts.
    pub const fn new(objectid: u64, kind: u8, offset: u64) -> Self {
        Self { objectid, kind, offset }
    }

    /// The next key in order; `None` after the last.
    pub fn next(self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_add(1) {
            return Some(Self { offset, ..self });
        }
        if let Some(kind) = self.kind.checked_add(1) {
            return Some(Self { kind, offset: 0, ..self });
        }
        Some(Self::new(self.objectid.checked_add(1)?, 0, 0))
    }
}

impl From<&DiskKey> for Key {
    fn from(key: &DiskKey) -> Self {
        Self::new(key.objectid.get(), key.kind, key.offset.get())
    }
}

impl From<Key> for DiskKey {
    fn from(key: Key) -> Self {
        Self { objectid: key.objectid.into(), kind: key.kind, offset: key.offset.into() }
    }
}

impl fmt::Display for Key {
    /// Formats as in the kernel's messages: `(objectid type offset)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} {} {})", self.objectid, self.kind, self.offset)
    }
}

/// Object ids with a special meaning (`BTRFS_*_OBJECTID`).
pub mod objectid {
    /// The tree of tree roots.
    pub const ROOT_TREE: u64 = 1;
    /// The tree of extents.
    pub const EXTENT_TREE: u64 = 2;
    /// The tree of chunks.
    pub const CHUNK_TREE: u64 = 3;
    /// The tree of device extents.
    pub const DEV_TREE: u64 = 4;
    /// The first subvolume.
    pub const FS_TREE: u64 = 5;
    /// The directory of the tree roots.
    pub const ROOT_TREE_DIR: u64 = 6;
    /// The tree of checksums.
    pub const CSUM_TREE: u64 = 7;
    /// The tree of quotas.
    pub const QUOTA_TREE: u64 = 8;
    /// The tree of subvolume UUIDs.
    pub const UUID_TREE: u64 = 9;
    /// The tree of free space.
    pub const FREE_SPACE_TREE: u64 = 10;
    /// The tree of block groups.
    pub const BLOCK_GROUP_TREE: u64 = 11;
    /// The tree of RAID stripes.
    pub const RAID_STRIPE_TREE: u64 = 12;
    /// Device statistics in the device tree.
    pub const DEV_STATS: u64 = 0;
    /// Where a balance keeps its state.
    pub const BALANCE: u64 = -4_i64 as u64;
    /// Orphans.
    pub const ORPHAN: u64 = -5_i64 as u64;
    /// The log tree of a subvolume.
    pub const TREE_LOG: u64 = -6_i64 as u64;
    /// The tree that a relocation uses.
    pub const TREE_RELOC: u64 = -8_i64 as u64;
    /// The tree of relocated data.
    pub const DATA_RELOC_TREE: u64 = -9_i64 as u64;
    /// All items of the checksum tree.
    pub const EXTENT_CSUM: u64 = -10_i64 as u64;
    /// The free space cache of old file systems.
    pub const FREE_SPACE: u64 = -11_i64 as u64;
    /// The inode cache of old file systems.
    pub const FREE_INO: u64 = -12_i64 as u64;
    /// All chunk items.
    pub const FIRST_CHUNK_TREE: u64 = 256;
    /// All device items.
    pub const DEV_ITEMS: u64 = 1;
    /// The first id for user subvolumes, and the root directory of each.
    pub const FIRST_FREE: u64 = 256;
    /// The last one.
    pub const LAST_FREE: u64 = -256_i64 as u64;
}

/// Types of items (`BTRFS_*_KEY`).
pub mod item {
    /// Inode.
    pub const INODE_ITEM: u8 = 1;
    /// Name and parent of an inode.
    pub const INODE_REF: u8 = 12;
    /// Like [`INODE_REF`], for many links.
    pub const INODE_EXTREF: u8 = 13;
    /// Extended attribute.
    pub const XATTR_ITEM: u8 = 24;
    /// fs-verity descriptor.
    pub const VERITY_DESC_ITEM: u8 = 36;
    /// fs-verity Merkle tree.
    pub const VERITY_MERKLE_ITEM: u8 = 37;
    /// Object to be removed at the next mount.
    pub const ORPHAN_ITEM: u8 = 48;
    /// Logged range of directory items.
    pub const DIR_LOG_ITEM: u8 = 60;
    /// Logged range of directory indexes.
    pub const DIR_LOG_INDEX: u8 = 72;
    /// Directory entry by the hash of its name.
    pub const DIR_ITEM: u8 = 84;
    /// Directory entry by its index.
    pub const DIR_INDEX: u8 = 96;
    /// Part of a file.
    pub const EXTENT_DATA: u8 = 108;
    /// Checksums of data; the offset is the first byte.
    pub const EXTENT_CSUM: u8 = 128;
    /// Root of a tree.
    pub const ROOT_ITEM: u8 = 132;
    /// Parent of a subvolume.
    pub const ROOT_BACKREF: u8 = 144;
    /// Child of a subvolume.
    pub const ROOT_REF: u8 = 156;
    /// Extent; the offset is its length.
    pub const EXTENT_ITEM: u8 = 168;
    /// Tree block; the offset is its level.
    pub const METADATA_ITEM: u8 = 169;
    /// Owner of an extent (simple quotas).
    pub const EXTENT_OWNER_REF: u8 = 172;
    /// Reference to a tree block by its tree.
    pub const TREE_BLOCK_REF: u8 = 176;
    /// Reference to data by a file.
    pub const EXTENT_DATA_REF: u8 = 178;
    /// Reference to a tree block by its parent.
    pub const SHARED_BLOCK_REF: u8 = 182;
    /// Reference to data by a leaf.
    pub const SHARED_DATA_REF: u8 = 184;
    /// Block group; the offset is its length.
    pub const BLOCK_GROUP_ITEM: u8 = 192;
    /// How a block group's free space is recorded.
    pub const FREE_SPACE_INFO: u8 = 198;
    /// A free range.
    pub const FREE_SPACE_EXTENT: u8 = 199;
    /// A bitmap of free blocks.
    pub const FREE_SPACE_BITMAP: u8 = 200;
    /// Part of a device that belongs to a chunk.
    pub const DEV_EXTENT: u8 = 204;
    /// Device.
    pub const DEV_ITEM: u8 = 216;
    /// Chunk.
    pub const CHUNK_ITEM: u8 = 228;
    /// Stripes of a data extent, for the RAID stripe tree.
    pub const RAID_STRIPE: u8 = 230;
    /// Quota state.
    pub const QGROUP_STATUS: u8 = 240;
    /// Quota use.
    pub const QGROUP_INFO: u8 = 242;
    /// Quota limit.
    pub const QGROUP_LIMIT: u8 = 244;
    /// Quota hierarchy.
    pub const QGROUP_RELATION: u8 = 246;
    /// Temporary state, such as a balance's.
    pub const TEMPORARY_ITEM: u8 = 248;
    /// Persistent state, such as device statistics.
    pub const PERSISTENT_ITEM: u8 = 249;
    /// Device replacement.
    pub const DEV_REPLACE: u8 = 250;
    /// Subvolume by its UUID.
    pub const UUID_SUBVOL: u8 = 251;
    /// Subvolume by its received UUID.
    pub const UUID_RECEIVED_SUBVOL: u8 = 252;
    /// Text, unused.
    pub const STRING_ITEM: u8 = 253;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_key_carries_over() {
        assert_eq!(Key::new(1, 2, 3).next(), Some(Key::new(1, 2, 4)));
        assert_eq!(Key::new(1, 2, u64::MAX).next(), Some(Key::new(1, 3, 0)));
        assert_eq!(Key::new(1, u8::MAX, u64::MAX).next(), Some(Key::new(2, 0, 0)));
        assert_eq!(Key::MAX.next(), None);
    }

    #[test]
    fn keys_are_ordered_by_object_then_type_then_offset() {
        let mut keys = [Key::new(2, 0, 0), Key::new(1, 9, 0), Key::new(1, 3, 7), Key::new(1, 3, 6)];
        keys.sort();
        let sorted = [Key::new(1, 3, 6), Key::new(1, 3, 7), Key::new(1, 9, 0), Key::new(2, 0, 0)];
        assert_eq!(keys, sorted);
    }
}
