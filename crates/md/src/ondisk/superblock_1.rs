//! The version 1 superblock (1.0, 1.1, 1.2) as bytes: `struct mdp_superblock_1` of the kernel's
//! `include/uapi/linux/raid/md_p.h`.
//!
//! 256 bytes of header, then two bytes per member ever used ("role table"). All numbers are
//! little-endian. The kernel and mdadm never read more than 4 KiB, so a block is that large here;
//! another structure may follow the used part of the role table (a bitmap 1 KiB behind the
//! superblock), so writers write only [`Block1::used_bytes`].

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::{MAX_ROLES, Role};

/// Bytes read and kept of a superblock.
pub const BLOCK_SIZE: usize = 4096;
/// Bytes before the role table.
pub const HEADER_SIZE: usize = 256;
const _: () = assert!(MAX_ROLES == (BLOCK_SIZE - HEADER_SIZE) / 2);

/// Header of a version 1 superblock.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header1 {
    /// [`MAGIC`](super::MAGIC).
    pub magic: U32,
    /// 1.
    pub major_version: U32,
    /// [`Features`](super::Features).
    pub feature_map: U32,
    /// Zero.
    pub pad0: U32,
    /// Identity of the array.
    pub set_uuid: [u8; 16],
    /// Name, usually `host:name`, zero padded.
    pub set_name: [u8; 32],
    /// Creation time ([`Timestamp`](super::Timestamp)).
    pub ctime: U64,
    /// RAID level, signed.
    pub level: U32,
    /// Layout of RAID 0, 5, 6, 10.
    pub layout: U32,
    /// Sectors used of each member (redundant levels).
    pub size: U64,
    /// Chunk size in sectors.
    pub chunksize: U32,
    /// Active members of a complete array.
    pub raid_disks: U32,
    /// Sectors from the superblock to the bitmap, signed. With a partial parity log: 16 bits signed
    /// offset, 16 bits size.
    pub bitmap_offset: U32,
    /// Level a reshape leads to.
    pub new_level: U32,
    /// Next array sector to reshape.
    pub reshape_position: U64,
    /// Change of `raid_disks` by the reshape, signed.
    pub delta_disks: U32,
    /// Layout a reshape leads to.
    pub new_layout: U32,
    /// Chunk size in sectors a reshape leads to.
    pub new_chunk: U32,
    /// Change of this member's `data_offset` by the reshape, signed.
    pub new_offset: U32,
    /// First sector of the data on this member.
    pub data_offset: U64,
    /// Sectors of this member that can hold data.
    pub data_size: U64,
    /// Sector of this superblock.
    pub super_offset: U64,
    /// Sectors of this member rebuilt so far, or the tail of the journal on a journal device.
    pub recovery_offset: U64,
    /// Permanent number of this member: its index in the role table.
    pub dev_number: U32,
    /// Read errors corrected by rewriting.
    pub cnt_corrected_read: U32,
    /// Identity of this member.
    pub device_uuid: [u8; 16],
    /// Write-mostly, failfast.
    pub devflags: u8,
    /// log2 of the bad block log's unit in sectors.
    pub bblog_shift: u8,
    /// Sectors of the bad block log.
    pub bblog_size: U16,
    /// Sectors from the superblock to the bad block log, signed.
    pub bblog_offset: U32,
    /// Time of the last update ([`Timestamp`](super::Timestamp)).
    pub utime: U64,
    /// Event count.
    pub events: U64,
    /// Sectors known to be in sync; all ones when the array is clean.
    pub resync_offset: U64,
    /// Checksum of header and used role table.
    pub sb_csum: U32,
    /// Entries of the role table in use.
    pub max_dev: U32,
    /// Logical block size of the array in bytes (Linux 6.19 and later), or zero.
    pub logical_block_size: U32,
    /// Zero.
    pub pad3: [u8; 28],
}

ondisk_layout!(Header1, HEADER_SIZE, {
    magic: 0, major_version: 4, feature_map: 8, pad0: 12, set_uuid: 16, set_name: 32,
    ctime: 64, level: 72, layout: 76, size: 80, chunksize: 88, raid_disks: 92, bitmap_offset: 96,
    new_level: 100, reshape_position: 104, delta_disks: 112, new_layout: 116, new_chunk: 120,
    new_offset: 124,
    data_offset: 128, data_size: 136, super_offset: 144, recovery_offset: 152, dev_number: 160,
    cnt_corrected_read: 164, device_uuid: 168, devflags: 184, bblog_shift: 185, bblog_size: 186,
    bblog_offset: 188,
    utime: 192, events: 200, resync_offset: 208, sb_csum: 216, max_dev: 220,
    logical_block_size: 224, pad3: 228,
});

/// A whole version 1 superblock: header and role table.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Block1 {
    /// The fixed part.
    pub header: Header1,
    /// Role of each member ever used, by its `dev_number`: see [`Role`].
    pub dev_roles: [U16; MAX_ROLES],
}

ondisk_layout!(Block1, BLOCK_SIZE, { header: 0, dev_roles: 256 });

impl Block1 {
    /// The block at the start of `bytes`; `None` if there are fewer than [`BLOCK_SIZE`].
    pub fn from_bytes(bytes: &[u8]) -> Option<Box<Self>> {
        Self::read_from_prefix(bytes).ok().map(|(block, _)| Box::new(block))
    }

    /// Number of valid entries of the role table, never more than the block has.
    pub fn role_count(&self) -> usize {
        (self.header.max_dev.get() as usize).min(MAX_ROLES)
    }

    /// The role table in use.
    pub fn roles(&self) -> impl Iterator<Item = Role> + '_ {
        self.dev_roles[..self.role_count()].iter().map(|raw| Role::from_raw(raw.get()))
    }

    /// The role of the member that this superblock is on. A number outside the table is a spare, as in
    /// the kernel.
    pub fn own_role(&self) -> Role {
        let number = self.header.dev_number.get() as usize;
        self.roles().nth(number).unwrap_or(Role::Spare)
    }

    /// Bytes of the superblock: header and used role table.
    pub fn used_bytes(&self) -> usize {
        HEADER_SIZE + 2 * self.role_count()
    }

    /// The checksum this block should have: the sum of its used 32-bit words, folded once. An odd
    /// number of roles leaves two bytes, which count as a 16-bit word. The stored checksum counts as
    /// zero.
    pub fn checksum(&self) -> u32 {
        let used = &self.as_bytes()[..self.used_bytes()];
        let (words, tail) = used.as_chunks::<4>();
        let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum();
        if let [low, high] = *tail {
            sum += u64::from(u16::from_le_bytes([low, high]));
        }
        sum -= u64::from(self.header.sb_csum.get());
        (sum as u32).wrapping_add((sum >> 32) as u32)
    }

    /// Whether the stored checksum is correct.
    pub fn checksum_is_correct(&self) -> bool {
        self.header.sb_csum.get() == self.checksum()
    }

    /// Stores the correct checksum.
    pub fn seal(&mut self) {
        self.header.sb_csum = self.checksum().into();
    }
}
