//! The defects of a superblock, each with the value found.

use ashlar_block::units::{Sector, Sectors};
use thiserror::Error;
use uuid::Uuid;

use super::bad_block_log::{MAX_LOG_SECTORS, MAX_SHIFT};
use super::fields::{Level, MAGIC, MAX_ROLES, Version};

/// A superblock that was refused: which, where, and why.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("md superblock version {version} at sector {at}: {defect}")]
pub struct SuperblockError {
    /// The expected version.
    pub version: Version,
    /// Where it was expected.
    pub at: Sector,
    /// What is wrong.
    #[source]
    pub defect: Defect,
    /// The array that it belongs to. `None` if its checksum does not prove that.
    pub belongs: Option<ArrayEvents>,
}

/// The array that a superblock belongs to, and its event count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArrayEvents {
    /// Identity of the array.
    pub set_uuid: Uuid,
    /// Event count.
    pub events: u64,
}

/// What is wrong with a superblock.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Defect {
    /// The device has no room for such a superblock.
    #[error("the device has {device} sectors, fewer than the {needed} needed")]
    DeviceTooSmall {
        /// Sectors of the device.
        device: Sectors,
        /// Sectors needed.
        needed: Sectors,
    },
    /// Not all of the block could be read.
    #[error("truncated: {found} of {wanted} bytes")]
    Truncated {
        /// Bytes given.
        found: usize,
        /// Bytes wanted.
        wanted: usize,
    },
    /// There is no superblock of this version here.
    #[error("no superblock: magic is {found:#010x}, not {MAGIC:#010x}")]
    NoMagic {
        /// Magic found.
        found: u32,
    },
    /// A 0.90 superblock of a big-endian machine was to be written.
    #[error("superblocks of big-endian machines can be read, but not written")]
    ForeignByteOrder,
    /// Another format with the same magic.
    #[error("major version is {found}, not {wanted}")]
    MajorVersion {
        /// Version found.
        found: u32,
        /// Version expected at this place.
        wanted: u32,
    },
    /// An unknown 0.90 variant.
    #[error("minor version is {found}, neither 90 nor 91")]
    MinorVersion {
        /// Version found.
        found: u32,
    },
    /// The superblock says that it belongs elsewhere: the device was resized or copied.
    #[error("it says it belongs at sector {found}")]
    SuperOffset {
        /// The sector that it names.
        found: u64,
    },
    /// More roles than fit.
    #[error("role table of {found} entries, more than {MAX_ROLES}")]
    RoleTable {
        /// Entries it claims.
        found: u32,
    },
    /// Unknown features.
    #[error("unknown feature bits {found:#x}")]
    UnknownFeatures {
        /// The unknown bits.
        found: u32,
    },
    /// Wrong checksum.
    #[error("checksum is {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Stored.
        found: u32,
        /// Computed.
        expected: u32,
    },
    /// Padding that is in use: written by a newer kernel for a feature unknown here.
    #[error("unknown field in use: byte {offset} of the superblock is {found:#04x}, not 0")]
    Padding {
        /// Byte of the superblock.
        offset: usize,
        /// Its value.
        found: u8,
    },
    /// A 0.90 superblock that says that it is not persistent.
    #[error("not_persistent is {found}, not 0")]
    NotPersistent {
        /// Value found.
        found: u32,
    },
    /// An unknown level.
    #[error("unknown RAID level {found}")]
    Level {
        /// Level found.
        found: i32,
    },
    /// No members, or more than possible.
    #[error("{found} raid devices, not 1 to {max}")]
    RaidDisks {
        /// Number found.
        found: u32,
        /// Most possible.
        max: u32,
    },
    /// No chunk size, but the level needs one.
    #[error("{level} without a chunk size")]
    ZeroChunk {
        /// Level found.
        level: Level,
    },
    /// A chunk size the level cannot have.
    #[error("{level} with a chunk of {found} bytes, not a multiple of 4096")]
    ChunkNotPages {
        /// Level found.
        level: Level,
        /// Chunk size in bytes.
        found: u64,
    },
    /// A chunk size the level cannot have.
    #[error("{level} with a chunk of {found} bytes, not a power of two")]
    ChunkNotPowerOfTwo {
        /// Level found.
        level: Level,
        /// Chunk size in bytes.
        found: u64,
    },
    /// No whole chunk fits on the member.
    #[error("chunk of {chunk} sectors, but only {room} sectors of data on this member")]
    ChunkTooLarge {
        /// Chunk size.
        chunk: Sectors,
        /// Data on this member.
        room: Sectors,
    },
    /// Layout bits that are meaningless for the level.
    #[error("{level} with unknown layout {found:#x}")]
    Layout {
        /// Level found.
        level: Level,
        /// Layout found.
        found: u32,
    },
    /// RAID10 without near or far copies.
    #[error("raid10 layout {found:#x} has no {which} copies")]
    ZeroCopies {
        /// Layout found.
        found: u32,
        /// "near" or "far".
        which: &'static str,
    },
    /// RAID10 with fewer than two copies, or more copies than members.
    #[error("raid10 layout {found:#x} makes {copies} copies on {raid_disks} devices")]
    Copies {
        /// Layout found.
        found: u32,
        /// near times far copies.
        copies: u32,
        /// Members.
        raid_disks: u32,
    },
    /// The RAID0 layout feature on another level.
    #[error("{level} with the RAID0 layout feature")]
    Raid0LayoutFeature {
        /// Level found.
        level: Level,
    },
    /// Less data space than the kernel accepts.
    #[error("data size of {found} sectors, fewer than 10")]
    DataSize {
        /// Size found.
        found: u64,
    },
    /// A redundant array that uses zero sectors of its members.
    #[error("used size of the members is 0")]
    ZeroSize,
    /// More of the member in use than it has.
    #[error("{size} sectors of the member in use, but its data area has {data_size}")]
    SizeBeyondData {
        /// Sectors in use.
        size: u64,
        /// Sectors of the data area.
        data_size: u64,
    },
    /// The data area extends beyond the device, or into the superblock after it.
    #[error("data at sector {data_offset}, {data_size} sectors long, ends behind sector {limit}")]
    DataBeyondDevice {
        /// Start found.
        data_offset: u64,
        /// Size found.
        data_size: u64,
        /// First sector the data must not reach.
        limit: Sector,
    },
    /// The data area begins inside the superblock.
    #[error("data begins at sector {found}, inside the superblock, which ends at {end}")]
    DataInSuperblock {
        /// Start found.
        found: u64,
        /// First sector after the superblock.
        end: Sector,
    },
    /// The array has a partial parity log, and another feature that excludes it.
    #[error(
        "feature bits {found:#x}: a partial parity log excludes another one, a bitmap and a journal"
    )]
    PplFeatures {
        /// The bits of these features.
        found: u32,
    },
    /// The partial parity log has no room for a header and partial parity.
    #[error("the partial parity log has {found} sectors, less than 16")]
    PplSize {
        /// Its size.
        found: Sectors,
    },
    /// The partial parity log is in an impossible place.
    #[error("the partial parity log {found} sectors from the superblock is {place}")]
    PplOffset {
        /// Sectors from the superblock.
        found: i16,
        /// What is there.
        place: Misplacement,
    },
    /// The bitmap is in an impossible place.
    #[error("bitmap {found} sectors from the superblock is {place}")]
    BitmapOffset {
        /// Offset found.
        found: i32,
        /// Where that is.
        place: Misplacement,
    },
    /// The bad block log is in an impossible place.
    #[error("bad block log {found} sectors from the superblock is {place}")]
    BadBlockLogOffset {
        /// Offset found.
        found: i32,
        /// Where that is.
        place: Misplacement,
    },
    /// The bad block log has an impossible size.
    #[error("bad block log of {found} sectors, not 1 to {MAX_LOG_SECTORS}")]
    BadBlockLogSize {
        /// Sectors found.
        found: u16,
    },
    /// The bad block log has an impossible unit.
    #[error("bad block log shift is {found}, more than {MAX_SHIFT}")]
    BadBlockLogShift {
        /// Shift found.
        found: u8,
    },
    /// This member claims a slot that the array does not have.
    #[error("its own role is {role}, but the array has {slots} slots")]
    RoleBeyondArray {
        /// Slot claimed.
        role: u16,
        /// Slots of the array.
        slots: u32,
    },
    /// An invalid logical block size.
    #[error("logical block size of {found} bytes")]
    LogicalBlockSize {
        /// Bytes found.
        found: u32,
    },
    /// A change that cannot be written to a superblock of this version.
    #[error("{what} cannot be recorded in a version {version} superblock")]
    NotRecordable {
        /// What was changed.
        what: &'static str,
        /// Version of the superblock.
        version: Version,
    },
}

/// The impossible place of a bitmap, partial parity log or bad block log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misplacement {
    /// Before sector 0 or beyond the end.
    OffDevice,
    /// On top of the superblock.
    InSuperblock,
    /// On top of the data.
    InData,
}

impl core::fmt::Display for Misplacement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::OffDevice => "off the device",
            Self::InSuperblock => "inside the superblock",
            Self::InData => "inside the data",
        })
    }
}
