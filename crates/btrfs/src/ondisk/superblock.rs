//! The superblock: 4 KiB at 64 KiB, 64 MiB and 256 GiB of every device.

use std::fmt;

use ashlar_block::ondisk_layout;
use thiserror::Error;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::csum::{Checksum, ChecksumKind, MAX_SIZE};
use crate::units::{DevId, Logical, Physical};

/// Size of a superblock in bytes (`BTRFS_SUPER_INFO_SIZE`).
pub const SUPERBLOCK_SIZE: usize = 4096;
/// `_BHRfS_M`
pub const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// Offsets of its copies (`btrfs_sb_offset`).
pub const OFFSETS: [Physical; 3] = [Physical(64 << 10), Physical(64 << 20), Physical(256 << 30)];
/// Space for chunk items in bytes (`BTRFS_SYSTEM_CHUNK_ARRAY_SIZE`).
pub const SYS_CHUNK_ARRAY_SIZE: usize = 2048;
/// Bytes of a label, including the final zero.
pub const LABEL_SIZE: usize = 256;

/// `struct btrfs_dev_item`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DevItem {
    /// The device's number.
    pub devid: U64,
    /// Device size in bytes.
    pub total_bytes: U64,
    /// Bytes that belong to chunks.
    pub bytes_used: U64,
    /// Alignment of I/O.
    pub io_align: U32,
    /// Best width of I/O.
    pub io_width: U32,
    /// Its sector size.
    pub sector_size: U32,
    /// Unused.
    pub kind: U64,
    /// Expected generation, unused.
    pub generation: U64,
    /// Start of its usable space; unused.
    pub start_offset: U64,
    /// Unused.
    pub dev_group: U32,
    /// Unused.
    pub seek_speed: u8,
    /// Unused.
    pub bandwidth: u8,
    /// The device's identity.
    pub uuid: [u8; 16],
    /// The file system's identity.
    pub fsid: [u8; 16],
}

ondisk_layout!(DevItem, 98, {
    devid: 0, total_bytes: 8, bytes_used: 16, io_align: 24, io_width: 28, sector_size: 32,
    kind: 36, generation: 44, start_offset: 52, dev_group: 60, seek_speed: 64, bandwidth: 65,
    uuid: 66, fsid: 82,
});

/// `struct btrfs_root_backup`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RootBackup {
    /// Root of the tree of roots.
    pub tree_root: U64,
    /// Its generation.
    pub tree_root_gen: U64,
    /// Root of the chunk tree.
    pub chunk_root: U64,
    /// Its generation.
    pub chunk_root_gen: U64,
    /// Root of the extent tree.
    pub extent_root: U64,
    /// Its generation.
    pub extent_root_gen: U64,
    /// Root of the first subvolume.
    pub fs_root: U64,
    /// Its generation.
    pub fs_root_gen: U64,
    /// Root of the device tree.
    pub dev_root: U64,
    /// Its generation.
    pub dev_root_gen: U64,
    /// Root of the checksum tree.
    pub csum_root: U64,
    /// Its generation.
    pub csum_root_gen: U64,
    /// Size of the file system.
    pub total_bytes: U64,
    /// Bytes used.
    pub bytes_used: U64,
    /// Number of devices.
    pub num_devices: U64,
    /// Reserved.
    pub unused_64: [U64; 4],
    /// Level of the tree of roots.
    pub tree_root_level: u8,
    /// Level of the chunk tree.
    pub chunk_root_level: u8,
    /// Level of the extent tree.
    pub extent_root_level: u8,
    /// Level of the first subvolume.
    pub fs_root_level: u8,
    /// Level of the device tree.
    pub dev_root_level: u8,
    /// Level of the checksum tree.
    pub csum_root_level: u8,
    /// Reserved.
    pub unused_8: [u8; 10],
}

ondisk_layout!(RootBackup, 168, {
    tree_root: 0, tree_root_gen: 8, chunk_root: 16, chunk_root_gen: 24, extent_root: 32,
    extent_root_gen: 40, fs_root: 48, fs_root_gen: 56, dev_root: 64, dev_root_gen: 72,
    csum_root: 80, csum_root_gen: 88, total_bytes: 96, bytes_used: 104, num_devices: 112,
    unused_64: 120, tree_root_level: 152, chunk_root_level: 153, extent_root_level: 154,
    fs_root_level: 155, dev_root_level: 156, csum_root_level: 157, unused_8: 158,
});

/// `struct btrfs_super_block`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Superblock {
    /// Checksum of everything after this field.
    pub csum: [u8; MAX_SIZE],
    /// The file system's identity.
    pub fsid: [u8; 16],
    /// Offset of this copy on its device.
    pub bytenr: U64,
    /// Flags.
    pub flags: U64,
    /// [`MAGIC`]
    pub magic: [u8; 8],
    /// The last committed transaction.
    pub generation: U64,
    /// Root of the tree of roots.
    pub root: U64,
    /// Root of the chunk tree.
    pub chunk_root: U64,
    /// Root of the log tree, or zero.
    pub log_root: U64,
    /// Unused.
    pub log_root_transid: U64,
    /// Sum of the devices' sizes.
    pub total_bytes: U64,
    /// Bytes of extents.
    pub bytes_used: U64,
    /// Always 6.
    pub root_dir_objectid: U64,
    /// Number of devices of the file system.
    pub num_devices: U64,
    /// Bytes covered by one data checksum.
    pub sectorsize: U32,
    /// Size of a tree block.
    pub nodesize: U32,
    /// Same as `nodesize`.
    pub leafsize: U32,
    /// Same as `sectorsize`.
    pub stripesize: U32,
    /// Bytes used in `sys_chunk_array`.
    pub sys_chunk_array_size: U32,
    /// Generation of the chunk tree's root.
    pub chunk_root_generation: U64,
    /// Features that can be ignored.
    pub compat_flags: U64,
    /// If any of these features is unknown, the file system must not be written.
    pub compat_ro_flags: U64,
    /// If any of these features is unknown, the file system must not be read.
    pub incompat_flags: U64,
    /// [`ChecksumKind`]
    pub csum_type: U16,
    /// Level of the tree of roots.
    pub root_level: u8,
    /// Level of the chunk tree.
    pub chunk_root_level: u8,
    /// Level of the log tree.
    pub log_root_level: u8,
    /// The device that contains this superblock.
    pub dev_item: DevItem,
    /// A name, terminated by zero.
    pub label: [u8; LABEL_SIZE],
    /// Generation of the free space cache.
    pub cache_generation: U64,
    /// Generation of the UUID tree.
    pub uuid_tree_generation: U64,
    /// The identity in tree blocks, if different from `fsid`.
    pub metadata_uuid: [u8; 16],
    /// Extent tree v2: global roots.
    pub nr_global_roots: U64,
    /// Reserved.
    pub reserved: [U64; 27],
    /// System chunk items, each after its key.
    pub sys_chunk_array: [u8; SYS_CHUNK_ARRAY_SIZE],
    /// Roots of the last four transactions.
    pub super_roots: [RootBackup; 4],
    /// Zero.
    pub padding: [u8; 565],
}

ondisk_layout!(Superblock, SUPERBLOCK_SIZE, {
    csum: 0, fsid: 32, bytenr: 48, flags: 56, magic: 64, generation: 72, root: 80, chunk_root: 88,
    log_root: 96, log_root_transid: 104, total_bytes: 112, bytes_used: 120, root_dir_objectid: 128,
    num_devices: 136, sectorsize: 144, nodesize: 148, leafsize: 152, stripesize: 156,
    sys_chunk_array_size: 160, chunk_root_generation: 164, compat_flags: 172,
    compat_ro_flags: 180, incompat_flags: 188, csum_type: 196, root_level: 198,
    chunk_root_level: 199, log_root_level: 200, dev_item: 201, label: 299, cache_generation: 555,
    uuid_tree_generation: 563, metadata_uuid: 571, nr_global_roots: 587, reserved: 595,
    sys_chunk_array: 811, super_roots: 2859, padding: 3531,
});

bitflags::bitflags! {
    /// Features that must be known to read (`BTRFS_FEATURE_INCOMPAT_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Incompat: u64 {
        /// Back references of both kinds.
        const MIXED_BACKREF = 1 << 0;
        /// A default subvolume was set.
        const DEFAULT_SUBVOL = 1 << 1;
        /// Data and metadata share block groups.
        const MIXED_GROUPS = 1 << 2;
        /// LZO.
        const COMPRESS_LZO = 1 << 3;
        /// Zstandard.
        const COMPRESS_ZSTD = 1 << 4;
        /// Tree blocks larger than a page.
        const BIG_METADATA = 1 << 5;
        /// Many links to one inode in one directory.
        const EXTENDED_IREF = 1 << 6;
        /// RAID5 or RAID6.
        const RAID56 = 1 << 7;
        /// Items of tree blocks without their first key.
        const SKINNY_METADATA = 1 << 8;
        /// Holes in files without an item.
        const NO_HOLES = 1 << 9;
        /// [`Superblock::metadata_uuid`] is used.
        const METADATA_UUID = 1 << 10;
        /// RAID1 with three or four copies.
        const RAID1C34 = 1 << 11;
        /// Zoned devices.
        const ZONED = 1 << 12;
        /// Extent tree v2.
        const EXTENT_TREE_V2 = 1 << 13;
        /// Locations of data stripes in a tree.
        const RAID_STRIPE_TREE = 1 << 14;
        /// Simple quotas.
        const SIMPLE_QUOTA = 1 << 16;
        /// Chunks remapped by a tree.
        const REMAP_TREE = 1 << 17;
    }
}

bitflags::bitflags! {
    /// Features that must be known to write (`BTRFS_FEATURE_COMPAT_RO_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct CompatRo: u64 {
        /// A tree of free space.
        const FREE_SPACE_TREE = 1 << 0;
        /// The free space tree is valid.
        const FREE_SPACE_TREE_VALID = 1 << 1;
        /// fs-verity.
        const VERITY = 1 << 2;
        /// Block groups have a separate tree.
        const BLOCK_GROUP_TREE = 1 << 3;
    }
}

impl fmt::Display for Incompat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

impl fmt::Display for CompatRo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// `BTRFS_HEADER_FLAG_WRITTEN`: as in tree blocks; always set.
pub const FLAG_WRITTEN: u64 = 1 << 0;
/// `BTRFS_HEADER_FLAG_RELOC`: as in tree blocks.
pub const FLAG_RELOC: u64 = 1 << 1;
/// `BTRFS_SUPER_FLAG_ERROR`: the file system became read-only after an error.
pub const FLAG_ERROR: u64 = 1 << 2;
/// `BTRFS_SUPER_FLAG_SEEDING`: the device is read-only, and others may be added to it.
pub const FLAG_SEEDING: u64 = 1 << 32;
/// `BTRFS_SUPER_FLAG_METADUMP` and its second version: an image without data.
pub const FLAG_METADUMP: u64 = 1 << 33 | 1 << 34;
/// A change of identity was interrupted.
pub const FLAG_CHANGING_FSID: u64 = 1 << 35 | 1 << 36;
/// `BTRFS_SUPER_FLAG_CHANGING_*` of btrfs-progs: a change of identity, of checksums, or to a block
/// group tree was interrupted. Includes bit 37, which has no name yet.
pub const FLAGS_INTERRUPTED: u64 = FLAG_CHANGING_FSID | 1 << 37 | 1 << 38 | 1 << 39 | 1 << 40;
/// Flags with which a file system can be used.
pub const FLAGS_SUPPORTED: u64 = FLAG_WRITTEN | FLAG_RELOC | FLAG_ERROR | FLAG_SEEDING;

/// What is wrong with a superblock.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SuperblockError {
    /// There is no superblock.
    #[error("no btrfs superblock: the magic is missing")]
    Magic,
    /// The checksum algorithm is unknown.
    #[error("unknown checksum type {0}")]
    ChecksumType(u16),
    /// It is damaged.
    #[error("bad superblock checksum: it is {computed}, stored is {stored}")]
    Checksum {
        /// Checksum of the bytes.
        computed: Checksum,
        /// The stored value.
        stored: Checksum,
    },
    /// It is a copy of a superblock from elsewhere.
    #[error("the superblock at {at} says that it belongs to {says}")]
    Bytenr {
        /// Its actual offset.
        at: Physical,
        /// Its stored offset.
        says: u64,
    },
    /// An impossible value.
    #[error("impossible {field} in the superblock: {value}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl Superblock {
    /// Parses the superblock from the bytes at `at`.
    ///
    /// # Errors
    /// The superblock is missing, damaged or invalid.
    pub fn parse(bytes: &[u8], at: Physical) -> Result<Box<Self>, SuperblockError> {
        let Ok((this, _)) = Self::ref_from_prefix(bytes) else {
            return Err(SuperblockError::Magic);
        };
        this.check(at)?;
        Ok(Box::new(this.clone()))
    }

    /// Computes its checksum.
    pub fn checksum(&self, kind: ChecksumKind) -> Checksum {
        kind.compute(&self.as_bytes()[MAX_SIZE..])
    }

    fn check(&self, at: Physical) -> Result<(), SuperblockError> {
        if self.magic != MAGIC {
            return Err(SuperblockError::Magic);
        }
        let kind = self.csum_type.get();
        let Some(kind) = ChecksumKind::from_number(kind) else {
            return Err(SuperblockError::ChecksumType(kind));
        };
        let computed = self.checksum(kind);
        if !computed.is(&self.csum) {
            let stored = Checksum::stored(kind, &self.csum);
            return Err(SuperblockError::Checksum { computed, stored });
        }
        if self.bytenr.get() != at.0 {
            return Err(SuperblockError::Bytenr { at, says: self.bytenr.get() });
        }
        let power_within =
            |value: u32, least: u32| value.is_power_of_two() && (least..=64 << 10).contains(&value);
        let (sectorsize, nodesize) = (self.sectorsize.get(), self.nodesize.get());
        let wrong = |field, value| Err(SuperblockError::Field { field, value });
        if !power_within(sectorsize, 4096) {
            return wrong("sectorsize", sectorsize.into());
        }
        if !power_within(nodesize, sectorsize) {
            return wrong("nodesize", nodesize.into());
        }
        let levels = [self.root_level, self.chunk_root_level, self.log_root_level];
        if let Some(level) = levels.into_iter().find(|level| *level >= super::node::MAX_LEVEL) {
            return wrong("level of a root", level.into());
        }
        let roots = [self.root.get(), self.chunk_root.get(), self.log_root.get()];
        if let Some(root) = roots.into_iter().find(|at| at % u64::from(sectorsize) != 0) {
            return wrong("address of a root", root);
        }
        let array = self.sys_chunk_array_size.get();
        if array as usize > SYS_CHUNK_ARRAY_SIZE {
            return wrong("sys_chunk_array_size", array.into());
        }
        if self.num_devices.get() == 0 {
            return wrong("num_devices", 0);
        }
        Ok(())
    }

    /// The algorithm of all checksums.
    pub fn csum_kind(&self) -> ChecksumKind {
        ChecksumKind::from_number(self.csum_type.get()).unwrap_or(ChecksumKind::Crc32c)
    }

    /// The file system's identity.
    pub fn fsid(&self) -> Uuid {
        Uuid::from_bytes(self.fsid)
    }

    /// The identity in tree blocks.
    pub fn metadata_uuid(&self) -> Uuid {
        let has_own = self.incompat().contains(Incompat::METADATA_UUID);
        Uuid::from_bytes(if has_own { self.metadata_uuid } else { self.fsid })
    }

    /// Features that must be known to read; unnamed bits are kept.
    pub fn incompat(&self) -> Incompat {
        Incompat::from_bits_retain(self.incompat_flags.get())
    }

    /// Features that must be known to write; unnamed bits are kept.
    pub fn compat_ro(&self) -> CompatRo {
        CompatRo::from_bits_retain(self.compat_ro_flags.get())
    }

    /// The device that contains it.
    pub fn devid(&self) -> DevId {
        DevId(self.dev_item.devid.get())
    }

    /// The root of the chunk tree.
    pub fn chunk_root(&self) -> Logical {
        Logical(self.chunk_root.get())
    }

    /// The root of the tree of roots.
    pub fn root(&self) -> Logical {
        Logical(self.root.get())
    }

    /// The file system's label, up to the zero.
    pub fn label(&self) -> &[u8] {
        let end = self.label.iter().position(|byte| *byte == 0).unwrap_or(LABEL_SIZE);
        &self.label[..end]
    }

    /// The used part of the system chunk array.
    pub fn sys_chunks(&self) -> &[u8] {
        let len = (self.sys_chunk_array_size.get() as usize).min(SYS_CHUNK_ARRAY_SIZE);
        &self.sys_chunk_array[..len]
    }
}

/// The device and file system that a superblock names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The file system.
    pub fsid: Uuid,
    /// The device's identity.
    pub device: Uuid,
    /// The device's number.
    pub devid: DevId,
}

impl Owner {
    /// The owner that `superblock` names.
    pub fn of(superblock: &Superblock) -> Self {
        let device = Uuid::from_bytes(superblock.dev_item.uuid);
        Self { fsid: superblock.fsid(), device, devid: superblock.devid() }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fsid, device, devid } = self;
        write!(f, "device {devid} ({device}) of the file system {fsid}")
    }
}
