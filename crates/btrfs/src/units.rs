//! Unit types, so that addresses of the file system and of its devices cannot be mixed up.

use std::fmt;

use ashlar_block::{CopyNumber, Sector};

/// A byte address in the file system's space, as in all tree pointers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Logical(pub u64);

/// A byte address on a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Physical(pub u64);

/// The number of a device in its file system (`devid`), starting at 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DevId(pub u64);

/// A mirror, as numbered by the kernel: 1 is the first copy. On RAID5 and RAID6, 2 is rebuilt from
/// P; on RAID6, 3 is rebuilt from Q, and each further one from both, assuming that another data
/// stripe is also wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MirrorNum(pub u8);

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
    /// The 512-byte sector that begins there: every read or write begins at one.
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

/// A way to read bytes of the file system's space: a mirror, and which copy of it the devices below
/// the file system are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Leg {
    /// The mirror.
    pub mirror: MirrorNum,
    /// The copy of the mirror's place on its device.
    pub copy: CopyNumber,
}

/// A mirror as its device returns it.
impl From<MirrorNum> for Leg {
    fn from(mirror: MirrorNum) -> Self {
        Self { mirror, copy: CopyNumber::ANY }
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
