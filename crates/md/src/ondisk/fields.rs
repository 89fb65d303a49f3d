//! The small values all md superblock versions share: version, level, role, feature bits, times.

use core::fmt;

use ashlar_block::units::{Sector, Sectors};
use bitflags::bitflags;
use uuid::Uuid;

/// The magic number of every md superblock, 0.90 and 1.x (`MD_SB_MAGIC`).
pub const MAGIC: u32 = 0xa92b_4efc;
/// Most entries of the role table of a version 1 superblock.
pub const MAX_ROLES: usize = 1920;

/// How long a table of roles must be: up to the last one that is not a spare, which is also the role of a number outside the table.
pub fn in_use(roles: &[Role]) -> usize {
    roles.iter().rposition(|role| *role != Role::Spare).map_or(0, |last| last + 1)
}

/// Space reserved at the end of a device for a 0.90 superblock, and its alignment (64 KiB).
const RESERVED_0_90: u64 = 128;

/// Smallest device that can carry a 1.x superblock, in sectors.
const MIN_DEVICE_1: u64 = 24;

/// A superblock version, which also determines the superblock's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Version {
    /// 0.90: in the last 64 to 128 KiB, 64 KiB aligned, host byte order, at most 27 members.
    V0_90,
    /// 1.0: 8 to 12 KiB before the end, 4 KiB aligned.
    V1_0,
    /// 1.1: at the start.
    V1_1,
    /// 1.2: 4 KiB from the start.
    V1_2,
}

impl Version {
    /// All versions in the order in which mdadm tries them.
    pub const ALL: [Self; 4] = [Self::V0_90, Self::V1_0, Self::V1_1, Self::V1_2];

    /// The smallest device, in sectors, that can carry this version.
    pub const fn min_device(self) -> Sectors {
        match self {
            Self::V0_90 => Sectors(RESERVED_0_90),
            Self::V1_0 | Self::V1_1 | Self::V1_2 => Sectors(MIN_DEVICE_1),
        }
    }

    /// Where the superblock is on a device of this size; `None` if the device is too small.
    pub const fn super_offset(self, device: Sectors) -> Option<Sector> {
        if device.0 < self.min_device().0 {
            return None;
        }
        Some(Sector(match self {
            Self::V0_90 => (device.0 & !(RESERVED_0_90 - 1)) - RESERVED_0_90,
            Self::V1_0 => (device.0 - 16) & !7,
            Self::V1_1 => 0,
            Self::V1_2 => 8,
        }))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V0_90 => "0.90",
            Self::V1_0 => "1.0",
            Self::V1_1 => "1.1",
            Self::V1_2 => "1.2",
        })
    }
}

/// A RAID level ("personality") with md's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Level {
    /// -1: members concatenated.
    Linear,
    /// 0: striped.
    Raid0,
    /// 1: mirrored.
    Raid1,
    /// 4: striped with a parity member.
    Raid4,
    /// 5: striped with rotating parity.
    Raid5,
    /// 6: striped with two rotating parities.
    Raid6,
    /// 10: striped copies.
    Raid10,
    /// -4: several paths to one device.
    Multipath,
    /// -5: fault injection.
    Faulty,
    /// Any other number: unknown to md.
    Other(i32),
}

impl Level {
    /// The level for md's number.
    pub const fn from_raw(raw: i32) -> Self {
        match raw {
            -1 => Self::Linear,
            0 => Self::Raid0,
            1 => Self::Raid1,
            4 => Self::Raid4,
            5 => Self::Raid5,
            6 => Self::Raid6,
            10 => Self::Raid10,
            -4 => Self::Multipath,
            -5 => Self::Faulty,
            other => Self::Other(other),
        }
    }

    /// md's number for it.
    pub const fn raw(self) -> i32 {
        match self {
            Self::Linear => -1,
            Self::Raid0 => 0,
            Self::Raid1 => 1,
            Self::Raid4 => 4,
            Self::Raid5 => 5,
            Self::Raid6 => 6,
            Self::Raid10 => 10,
            Self::Multipath => -4,
            Self::Faulty => -5,
            Self::Other(raw) => raw,
        }
    }

    /// mdadm's name for it; `None` for numbers mdadm does not know.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Linear => Some("linear"),
            Self::Raid0 => Some("raid0"),
            Self::Raid1 => Some("raid1"),
            Self::Raid4 => Some("raid4"),
            Self::Raid5 => Some("raid5"),
            Self::Raid6 => Some("raid6"),
            Self::Raid10 => Some("raid10"),
            Self::Multipath => Some("multipath"),
            Self::Faulty => Some("faulty"),
            Self::Other(_) => None,
        }
    }

    /// Whether data is laid out in chunks, so that a chunk size is needed.
    pub const fn is_striped(self) -> bool {
        matches!(self, Self::Raid0 | Self::Raid4 | Self::Raid5 | Self::Raid6 | Self::Raid10)
    }

    /// Whether rows of chunks have parity.
    pub const fn has_parity(self) -> bool {
        matches!(self, Self::Raid4 | Self::Raid5 | Self::Raid6)
    }

    /// Whether members hold redundancy, so that `size` and `resync_offset` have a meaning.
    pub const fn is_redundant(self) -> bool {
        self.raw() > 0
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "level {}", self.raw()),
        }
    }
}

/// The role of a member: one entry of the role table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Role {
    /// In this slot of the array; in sync, or being rebuilt (then there is a recovery offset).
    Active(u16),
    /// 0xffff: a spare, or a number that no device has.
    Spare,
    /// 0xfffe: failed.
    Faulty,
    /// 0xfffd: the write journal of a RAID 4/5/6.
    Journal,
}

impl Role {
    /// From the 16 bits of a 1.x role table. Other numbers above 0xff00 become [`Role::Active`]: no array
    /// is that large, so they are never valid.
    pub const fn from_raw(raw: u16) -> Self {
        match raw {
            0xffff => Self::Spare,
            0xfffe => Self::Faulty,
            0xfffd => Self::Journal,
            slot => Self::Active(slot),
        }
    }

    /// The 16 bits of a 1.x role table.
    pub const fn raw(self) -> u16 {
        match self {
            Self::Spare => 0xffff,
            Self::Faulty => 0xfffe,
            Self::Journal => 0xfffd,
            Self::Active(slot) => slot,
        }
    }
}

bitflags! {
    /// The feature bits of a 1.x superblock (`MD_FEATURE_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct Features: u32 {
        /// `bitmap_offset` is valid.
        const BITMAP_OFFSET = 1;
        /// `recovery_offset` is valid: this member is being rebuilt.
        const RECOVERY_OFFSET = 2;
        /// A reshape is under way; the `new_*` fields are valid.
        const RESHAPE_ACTIVE = 4;
        /// The bad block log is not empty.
        const BAD_BLOCKS = 8;
        /// This member is replacing an active one of the same role.
        const REPLACEMENT = 16;
        /// The reshape goes from the end to the start without changing the number of members.
        const RESHAPE_BACKWARDS = 32;
        /// `new_offset` is valid.
        const NEW_OFFSET = 64;
        /// The rebuild of this member is guided by the bitmap.
        const RECOVERY_BITMAP = 128;
        /// The array is shared by a cluster.
        const CLUSTERED = 256;
        /// There is a write journal.
        const JOURNAL = 512;
        /// There is a partial parity log.
        const PPL = 1024;
        /// There are several partial parity logs.
        const MULTIPLE_PPLS = 2048;
        /// `layout` is valid: the layout of a RAID0 with unequal members.
        const RAID0_LAYOUT = 4096;
    }
}

impl Features {
    /// `self` with the bits of `other` set or cleared.
    #[must_use]
    pub const fn set_to(self, other: Self, on: bool) -> Self {
        if on { self.union(other) } else { self.difference(other) }
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.bits())
    }
}

/// Flags of one member (`devflags` of 1.x).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct DeviceFlags {
    /// Read from this member only if no other in-sync member has the data.
    pub write_mostly: bool,
    /// Fail this member at the first error instead of retrying.
    pub failfast: bool,
}

impl DeviceFlags {
    const WRITE_MOSTLY: u8 = 1;
    const FAILFAST: u8 = 2;

    /// From the byte on disk; unknown bits are not represented.
    pub const fn from_raw(raw: u8) -> Self {
        Self { write_mostly: raw & Self::WRITE_MOSTLY != 0, failfast: raw & Self::FAILFAST != 0 }
    }

    /// The byte on disk, with the unknown bits of `old` kept.
    pub const fn merge_into(self, old: u8) -> u8 {
        let mut raw = old & !(Self::WRITE_MOSTLY | Self::FAILFAST);
        if self.write_mostly {
            raw |= Self::WRITE_MOSTLY;
        }
        if self.failfast {
            raw |= Self::FAILFAST;
        }
        raw
    }
}

/// A point in time as 1.x superblocks store it: 40 bits of seconds, 24 bits of microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Timestamp {
    /// Seconds since 1970, below 2^40.
    pub seconds: u64,
    /// Microseconds, below 2^24.
    pub micros: u32,
}

impl Timestamp {
    const SECONDS_MASK: u64 = (1 << 40) - 1;

    /// From the 64 bits on disk.
    pub const fn from_raw(raw: u64) -> Self {
        Self { seconds: raw & Self::SECONDS_MASK, micros: (raw >> 40) as u32 }
    }

    /// The 64 bits on disk; seconds beyond 40 bits are cut off.
    pub const fn raw(self) -> u64 {
        (self.seconds & Self::SECONDS_MASK) | ((self.micros as u64) << 40)
    }

    /// A whole second.
    pub const fn from_seconds(seconds: u64) -> Self {
        Self { seconds, micros: 0 }
    }
}

/// Prints a UUID as mdadm does: four groups of eight hex digits with colons between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MdadmUuid(pub Uuid);

impl fmt::Display for MdadmUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.as_bytes().iter().enumerate() {
            if i != 0 && i % 4 == 0 {
                f.write_str(":")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// A UUID with the bytes of each of its four words reversed: converts between the order in a 0.90
/// superblock and the printed order.
pub(super) fn swap_words(mut uuid: [u8; 16]) -> [u8; 16] {
    uuid.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse());
    uuid
}
