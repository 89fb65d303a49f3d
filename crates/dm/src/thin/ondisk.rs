//! The metadata of a thin pool as bytes (`drivers/md/dm-thin-metadata.c` and
//! `drivers/md/persistent-data/`).
//!
//! The metadata device is counted in blocks of 4 KiB, of which each begins with its checksum. Block 0
//! is the superblock. All numbers are little endian. docs/formats/dm-thin.md has the tables.

use ashlar_block::Sectors;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::crc32c;

/// Bytes in a block of the metadata device.
pub const BLOCK_BYTES: usize = 4096;
/// The same in sectors.
pub const BLOCK: Sectors = Sectors(8);
/// Identifies a superblock.
pub const MAGIC: u64 = 27_022_010;
/// The versions there are. The kernel looks at none of them: nothing that is read here differs.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 1..=2;
/// Flag of the superblock: the kernel met an error and wants a check first.
pub const NEEDS_CHECK: u32 = 1;
/// Data blocks are multiples of this, 64 KiB.
pub const MIN_DATA_BLOCK: Sectors = Sectors(128);
/// And never larger, 1 GiB.
pub const MAX_DATA_BLOCK: Sectors = Sectors(1 << 21);
/// Flag of a node with children.
pub const INTERNAL: u32 = 1;
/// Flag of a node with what is looked for.
pub const LEAF: u32 = 2;
/// What goes into the checksum of a superblock.
const SUPERBLOCK_XOR: u32 = 160_774;
/// What goes into the checksum of a node.
const NODE_XOR: u32 = 121_107;

/// The start of a space map: what is known of its device.
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SpaceMapRoot {
    /// Blocks of the device.
    pub nr_blocks: U64,
    /// Those in use.
    pub nr_allocated: U64,
    /// Where the bitmaps are found.
    pub bitmap_root: U64,
    /// Where the counts above 2 are found.
    pub ref_count_root: U64,
    /// There is room for more.
    pub rest: [u8; 96],
}

/// The superblock: block 0.
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskSuperblock {
    /// Of all that follows in the block.
    pub csum: U32,
    /// [`NEEDS_CHECK`].
    pub flags: U32,
    /// 0; a metadata snapshot has its own place here.
    pub blocknr: U64,
    /// Not used.
    pub uuid: [u8; 16],
    /// [`MAGIC`].
    pub magic: U64,
    /// One of [`VERSIONS`].
    pub version: U32,
    /// Goes up with every snapshot.
    pub time: U32,
    /// For who manages the pool: LVM counts its changes with it.
    pub trans_id: U64,
    /// The block of the metadata snapshot, or 0.
    pub held_root: U64,
    /// Which data blocks are in use.
    pub data_space_map: SpaceMapRoot,
    /// Which metadata blocks are in use.
    pub metadata_space_map: SpaceMapRoot,
    /// Root of the tree that leads from a device to the root of its mappings.
    pub data_mapping_root: U64,
    /// Root of the tree with the details of devices.
    pub device_details_root: U64,
    /// Sectors.
    pub data_block_size: U32,
    /// Sectors: 8.
    pub metadata_block_size: U32,
    /// Size of the metadata device when it was formatted; it may have grown since.
    pub metadata_nr_blocks: U64,
    /// Features that change nothing for who does not know them.
    pub compat_flags: U32,
    /// Features that must be known to write.
    pub compat_ro_flags: U32,
    /// Features that must be known to read.
    pub incompat_flags: U32,
}

/// The start of a node of a tree. Then come as many keys as may be, and as many values.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct NodeHeader {
    /// Of all that follows in the block.
    pub csum: U32,
    /// [`INTERNAL`] or [`LEAF`].
    pub flags: U32,
    /// Where it is.
    pub blocknr: U64,
    /// Keys and values in use.
    pub nr_entries: U32,
    /// Keys and values that there is room for.
    pub max_entries: U32,
    /// Bytes of a value.
    pub value_size: U32,
    /// Zero.
    pub padding: U32,
}

/// What is known of a device.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskDetails {
    /// Blocks that it has, its own or shared ones.
    pub mapped_blocks: U64,
    /// The pool's `trans_id` when it was made.
    pub transaction_id: U64,
    /// The pool's time when it was made.
    pub creation_time: U32,
    /// The pool's time when a snapshot of it was made last.
    pub snapshotted_time: U32,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<SpaceMapRoot>() == 128 && size_of::<DiskSuperblock>() == 364);
    assert!(offset_of!(DiskSuperblock, csum) == 0);
    assert!(offset_of!(DiskSuperblock, flags) == 4 && offset_of!(DiskSuperblock, blocknr) == 8);
    assert!(offset_of!(DiskSuperblock, uuid) == 16 && offset_of!(DiskSuperblock, magic) == 32);
    assert!(offset_of!(DiskSuperblock, version) == 40 && offset_of!(DiskSuperblock, time) == 44);
    assert!(offset_of!(DiskSuperblock, trans_id) == 48);
    assert!(offset_of!(DiskSuperblock, held_root) == 56);
    assert!(offset_of!(DiskSuperblock, data_space_map) == 64);
    assert!(offset_of!(DiskSuperblock, metadata_space_map) == 192);
    assert!(offset_of!(DiskSuperblock, data_mapping_root) == 320);
    assert!(offset_of!(DiskSuperblock, device_details_root) == 328);
    assert!(offset_of!(DiskSuperblock, data_block_size) == 336);
    assert!(offset_of!(DiskSuperblock, metadata_block_size) == 340);
    assert!(offset_of!(DiskSuperblock, metadata_nr_blocks) == 344);
    assert!(offset_of!(DiskSuperblock, compat_flags) == 352);
    assert!(offset_of!(DiskSuperblock, compat_ro_flags) == 356);
    assert!(offset_of!(DiskSuperblock, incompat_flags) == 360);
    assert!(offset_of!(SpaceMapRoot, nr_blocks) == 0 && offset_of!(SpaceMapRoot, rest) == 32);
    assert!(offset_of!(SpaceMapRoot, nr_allocated) == 8);
    assert!(offset_of!(SpaceMapRoot, bitmap_root) == 16);
    assert!(offset_of!(SpaceMapRoot, ref_count_root) == 24);
    assert!(size_of::<NodeHeader>() == 32 && offset_of!(NodeHeader, flags) == 4);
    assert!(offset_of!(NodeHeader, blocknr) == 8 && offset_of!(NodeHeader, nr_entries) == 16);
    assert!(offset_of!(NodeHeader, max_entries) == 20 && offset_of!(NodeHeader, value_size) == 24);
    assert!(offset_of!(NodeHeader, csum) == 0 && offset_of!(NodeHeader, padding) == 28);
    assert!(offset_of!(DiskDetails, mapped_blocks) == 0);
    assert!(size_of::<DiskDetails>() == 24 && offset_of!(DiskDetails, transaction_id) == 8);
    assert!(offset_of!(DiskDetails, creation_time) == 16);
    assert!(offset_of!(DiskDetails, snapshotted_time) == 20);
};

/// A block of the metadata device.
pub type Block = [u8; BLOCK_BYTES];

/// The checksum that a superblock should have.
pub fn superblock_checksum(block: &Block) -> u32 {
    crc32c::raw(&block[4..]) ^ SUPERBLOCK_XOR
}

/// The checksum that a node should have.
pub fn node_checksum(block: &Block) -> u32 {
    crc32c::raw(&block[4..]) ^ NODE_XOR
}
