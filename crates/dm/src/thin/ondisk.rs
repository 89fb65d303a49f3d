//! The metadata format of a thin pool (`drivers/md/dm-thin-metadata.c` and `drivers/md/persistent-data/`).
//!
//! The metadata device is divided into blocks of 4 KiB, which begin with a checksum. Block 0 is the
//! superblock. All numbers are little-endian. docs/formats/dm-thin.md has the tables.

use ashlar_block::{Sectors, ondisk_layout};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::crc32c;

/// Bytes per block of the metadata device.
pub const BLOCK_BYTES: usize = 4096;
/// Sectors per block of the metadata device.
pub const BLOCK: Sectors = Sectors(8);
/// Identifies a superblock.
pub const MAGIC: u64 = 27_022_010;
/// The existing versions. The kernel checks none of them: the fields that are read here do not differ.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 1..=2;
/// Superblock flag: the kernel met an error and requires a check first.
pub const NEEDS_CHECK: u32 = 1;
/// Data blocks are multiples of this, 64 KiB.
pub const MIN_DATA_BLOCK: Sectors = Sectors(128);
/// The maximum size of data blocks, 1 GiB.
pub const MAX_DATA_BLOCK: Sectors = Sectors(1 << 21);
/// Flag of a node with children.
pub const INTERNAL: u32 = 1;
/// Flag of a node with values.
pub const LEAF: u32 = 2;
/// XORed into the checksum of a superblock.
const SUPERBLOCK_XOR: u32 = 160_774;
/// XORed into the checksum of a node.
const NODE_XOR: u32 = 121_107;

/// The start of a space map: the allocation state of a device.
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SpaceMapRoot {
    /// Blocks of the device.
    pub nr_blocks: U64,
    /// Number of used blocks.
    pub nr_allocated: U64,
    /// Root of the bitmaps.
    pub bitmap_root: U64,
    /// Root of the counts above 2.
    pub ref_count_root: U64,
    /// Reserved.
    pub rest: [u8; 96],
}

/// The superblock: block 0.
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskSuperblock {
    /// Checksum of the rest of the block.
    pub csum: U32,
    /// [`NEEDS_CHECK`].
    pub flags: U32,
    /// 0; a metadata snapshot has its own block number here.
    pub blocknr: U64,
    /// Unused.
    pub uuid: [u8; 16],
    /// [`MAGIC`].
    pub magic: U64,
    /// One of [`VERSIONS`].
    pub version: U32,
    /// Incremented with every snapshot.
    pub time: U32,
    /// For pool managers: LVM counts its changes with it.
    pub trans_id: U64,
    /// The block of the metadata snapshot, or 0.
    pub held_root: U64,
    /// Allocation of data blocks.
    pub data_space_map: SpaceMapRoot,
    /// Allocation of metadata blocks.
    pub metadata_space_map: SpaceMapRoot,
    /// Root of the tree from devices to the roots of their mappings.
    pub data_mapping_root: U64,
    /// Root of the tree of device details.
    pub device_details_root: U64,
    /// In sectors.
    pub data_block_size: U32,
    /// In sectors: 8.
    pub metadata_block_size: U32,
    /// Size of the metadata device when it was formatted; it may have grown since.
    pub metadata_nr_blocks: U64,
    /// Features that can be ignored.
    pub compat_flags: U32,
    /// Features required for writing.
    pub compat_ro_flags: U32,
    /// Features required for reading.
    pub incompat_flags: U32,
}

/// The start of a node of a tree. All slots for keys follow, then all slots for values.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct NodeHeader {
    /// Checksum of the rest of the block.
    pub csum: U32,
    /// [`INTERNAL`] or [`LEAF`].
    pub flags: U32,
    /// Its block number.
    pub blocknr: U64,
    /// Number of used keys and values.
    pub nr_entries: U32,
    /// Number of slots.
    pub max_entries: U32,
    /// Bytes per value.
    pub value_size: U32,
    /// Zero.
    pub padding: U32,
}

/// Details of a device.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskDetails {
    /// Number of mapped blocks, exclusive or shared.
    pub mapped_blocks: U64,
    /// The pool's `trans_id` at its creation.
    pub transaction_id: U64,
    /// The pool's time at its creation.
    pub creation_time: U32,
    /// The pool's time at its last snapshot.
    pub snapshotted_time: U32,
}

ondisk_layout!(SpaceMapRoot, 128, {
    nr_blocks: 0, nr_allocated: 8, bitmap_root: 16, ref_count_root: 24, rest: 32,
});
ondisk_layout!(DiskSuperblock, 364, {
    csum: 0, flags: 4, blocknr: 8, uuid: 16, magic: 32, version: 40, time: 44, trans_id: 48,
    held_root: 56, data_space_map: 64, metadata_space_map: 192, data_mapping_root: 320,
    device_details_root: 328, data_block_size: 336, metadata_block_size: 340,
    metadata_nr_blocks: 344, compat_flags: 352, compat_ro_flags: 356, incompat_flags: 360,
});
ondisk_layout!(NodeHeader, 32, {
    csum: 0, flags: 4, blocknr: 8, nr_entries: 16, max_entries: 20, value_size: 24, padding: 28,
});
ondisk_layout!(DiskDetails, 24, {
    mapped_blocks: 0, transaction_id: 8, creation_time: 16, snapshotted_time: 20,
});

/// A block of the metadata device.
pub type Block = [u8; BLOCK_BYTES];

/// The correct checksum of a superblock.
pub fn superblock_checksum(block: &Block) -> u32 {
    crc32c::raw(&block[4..]) ^ SUPERBLOCK_XOR
}

/// The correct checksum of a node.
pub fn node_checksum(block: &Block) -> u32 {
    crc32c::raw(&block[4..]) ^ NODE_XOR
}
