//! Units: addresses of the file system and addresses of its devices cannot be mixed up.

use std::fmt;

use ashlar_block::Sector;

/// A byte address in the file system's own space, the one that all pointers in trees use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Logical(pub u64);

/// A byte address on a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Physical(pub u64);

/// The number of a device in its file system (`devid`), from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DevId(pub u64);

/// A mirror, as the kernel counts them: 1 is the first copy. On RAID5 and RAID6 2 is what parity
/// P gives; on RAID6 3 is what Q gives, and each further one what both give if another data stripe
/// is wrong too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Mirror(pub u8);

impl Logical {
    /// The address `bytes` further; `None` past the end of the space.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl Physical {
    /// The sector of 512 bytes that begins there: all that is read or written begins with one.
    pub const fn sector(self) -> Sector {
        Sector(self.0 >> 9)
    }

    /// The address `bytes` further; `None` past the end of the space.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl fmt::Display for Logical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Physical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for DevId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
