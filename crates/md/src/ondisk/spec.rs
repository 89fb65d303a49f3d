//! An array to create: what a user asks for, what is written, and why it is impossible.

use ashlar_block::units::Sectors;
use thiserror::Error;
use uuid::Uuid;

use super::bitmap_super::BitmapSuper;
use super::defect::SuperblockError;
use super::fields::{DeviceFlags, Level, MAX_ROLES, Version};
use super::superblock::Superblock;

/// Device numbers, which only version 0.90 records.
#[derive(Clone, Default, Debug)]
pub struct DeviceNumbers {
    /// The array's preferred number: 0 for `md0`.
    pub array: u32,
    /// Major and minor number of each member's device, by member number; zeroes for files and for members beyond the
    /// end of the list.
    pub members: Vec<(u32, u32)>,
}

/// The array to create.
#[derive(Clone, Debug)]
pub struct CreateSpec {
    /// Version of the superblocks.
    pub version: Version,
    /// The level; not RAID 0 with version 0.90.
    pub level: Level,
    /// Layout; `None` for the level's default.
    pub layout: Option<u32>,
    /// Chunk size; `None` for the default. RAID1 has none.
    pub chunk: Option<Sectors>,
    /// Active members of the complete array.
    pub raid_devices: u32,
    /// The members by number, `None` for missing ones. Members from `raid_devices` on are spares.
    pub members: Vec<Option<NewMember>>,
    /// Sectors to use of each member; `None` for as many as possible.
    pub size: Option<Sectors>,
    /// Where data begins, not for 0.90 and 1.0; `None` for the default.
    pub data_offset: Option<Sectors>,
    /// Identity of the array.
    pub set_uuid: Uuid,
    /// Name of the array: see [`full_name`]. Version 0.90 has none.
    pub name: String,
    /// Creation time in seconds since 1970.
    pub ctime: u64,
    /// Whether the members are known to be in sync.
    pub assume_clean: bool,
    /// The kind of bitmap, if any.
    pub bitmap: NewBitmap,
    /// Whether it has a partial parity log, instead of a bitmap: RAID 5, not with version 0.90.
    pub ppl: bool,
    /// Limit of write-behind writes, 0 for none.
    pub write_behind: u32,
    /// Seconds between clearings of bitmap bits.
    pub daemon_sleep: u32,
    /// Whether members get a bad block log; version 0.90 has none.
    pub bad_block_log: bool,
    /// Numbers of devices, for version 0.90.
    pub numbers: DeviceNumbers,
}

/// A device that will become a member.
#[derive(Clone, Copy, Debug)]
pub struct NewMember {
    /// Its size.
    pub device: Sectors,
    /// Its new identity.
    pub device_uuid: Uuid,
    /// Its flags.
    pub flags: DeviceFlags,
}

/// Whether a new array has a bitmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewBitmap {
    /// If mdadm would add one by default: redundant arrays with members above 100 GiB, or with
    /// write-behind.
    Auto,
    /// No.
    None,
    /// Yes, with this many bytes per bit, or a suitable number.
    Internal {
        /// Bytes that one bit covers.
        chunk: Option<u64>,
    },
    /// A lockless one, which also records what was never written. mdadm creates it only with version 1.2.
    Lockless,
}

/// What will be written to one member.
#[derive(Clone, Debug)]
pub struct NewSuperblock {
    /// Its superblock.
    pub superblock: Superblock,
    /// Its bitmap's superblock. All bytes after it, up to [`BitmapSuper::total_bytes`] of 4096, must be
    /// 0xff; those of a lockless bitmap mean nothing until the array first runs.
    pub bitmap: Option<BitmapSuper>,
}

/// Why an array cannot be created.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CreateError {
    /// 0.90 superblocks cannot record it.
    #[error("version {0} superblocks cannot record that")]
    Version(Version),
    /// Not possible with superblocks of version 0.90.
    #[error("version 0.90 superblocks: {0}")]
    Old(&'static str),
    /// A level of which no new arrays are created.
    #[error("new arrays of {0} are not supported")]
    Level(Level),
    /// Fewer members than devices.
    #[error("{given} members given for {needed} devices")]
    TooFewMembers {
        /// Members given.
        given: usize,
        /// Devices of the array.
        needed: u32,
    },
    /// More than the role table can hold.
    #[error("{given} members given, {MAX_ROLES} are possible")]
    TooManyMembers {
        /// Members given.
        given: usize,
    },
    /// No members, or a missing one that the level needs.
    #[error("too many members are missing for {0}")]
    Missing(Level),
    /// Spares for a level that cannot use them.
    #[error("{0} cannot use spares")]
    Spares(Level),
    /// A setting that is meaningless for the level.
    #[error("{level} has no {what}")]
    Meaningless {
        /// The level.
        level: Level,
        /// The setting.
        what: &'static str,
    },
    /// A size of less than a chunk.
    #[error("size is below the chunk size of {chunk} sectors")]
    SizeBelowChunk {
        /// Chunk size.
        chunk: Sectors,
    },
    /// A member without room for any data.
    #[error("member {number} with {device} sectors has no room for data")]
    NoRoom {
        /// Number of the member.
        number: usize,
        /// Its size.
        device: Sectors,
    },
    /// A member with less room than requested.
    #[error("member {number} has room for {room} sectors of data, not {size}")]
    TooSmall {
        /// Number of the member.
        number: usize,
        /// Room for data.
        room: Sectors,
        /// Size requested.
        size: Sectors,
    },
    /// Not possible with superblocks of version 0.90.
    #[error("a partial parity log needs superblocks of version 1, not 0.90")]
    PplVersion,
    /// No place for a bitmap.
    #[error("no room for a bitmap")]
    NoRoomForBitmap,
    /// No chunk is large enough.
    #[error("the array is too large for a bitmap: its bits stand for at most 2 GiB each")]
    TooLargeForBitmap,
    /// Lockless bitmaps are for 1.2.
    #[error("a lockless bitmap needs version 1.2 superblocks, not {0}")]
    LocklessVersion(Version),
    /// A bitmap chunk that is impossible.
    #[error("bitmap chunk of {chunk} bytes is not a power of two from {min} up to 2 GiB")]
    BitmapChunk {
        /// Bytes requested.
        chunk: u64,
        /// Smallest possible.
        min: u64,
    },
    /// A name that does not fit.
    #[error("the name is longer than 31 bytes or has a zero byte")]
    Name,
    /// The result would be refused when read.
    #[error(transparent)]
    Impossible(#[from] SuperblockError),
}

/// The name that mdadm stores for an array called `name` on this host: `host:name`; or the name alone,
/// cut to 31 bytes, if it already has a colon or the result would be too long.
pub fn full_name(homehost: Option<&str>, name: &str) -> String {
    match homehost {
        Some(host) if !name.contains(':') && host.len() + 1 + name.len() < 32 => {
            format!("{host}:{name}")
        }
        _ => name[..name.floor_char_boundary(31)].to_owned(),
    }
}
