//! The devices of a file system.

use ashlar_block::{Gateway, Status};
use uuid::Uuid;

use crate::ondisk::superblock::{Owner, Superblock, SuperblockError};
use crate::units::DevId;

/// A device that may belong to a file system.
#[derive(Clone)]
pub struct Source {
    /// Name for messages.
    pub name: String,
    /// Access to the device.
    pub gateway: Gateway,
}

/// State of a superblock location.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SuperState {
    /// Not read: the location is past the end of the device, or of the part that the file system uses.
    Absent,
    /// A good superblock of this device.
    Good {
        /// Its generation.
        generation: u64,
    },
    /// A good superblock of another file system, or of another device of this one. It is ignored.
    Foreign {
        /// The owner it names.
        owner: Owner,
        /// Its generation.
        generation: u64,
    },
    /// Anything else.
    Bad(SuperblockError),
    /// It cannot be read.
    Unreadable(Status),
}

/// A device of the file system.
pub struct Device {
    /// Its number.
    pub devid: DevId,
    /// Its identity.
    pub uuid: Uuid,
    /// Name for messages.
    pub name: String,
    /// Access to the device.
    pub gateway: Gateway,
    /// Its size according to the file system.
    pub total_bytes: u64,
    /// State of its superblocks.
    pub supers: [SuperState; 3],
    /// The newest of its own superblocks.
    pub superblock: Box<Superblock>,
}

impl Device {
    /// Whether only a backup superblock shows that the device belongs to the file system: the first
    /// superblock is missing (it is not merely damaged), or its location cannot be
    /// read. Such a device may have been reformatted since; look for other signatures before
    /// writing to it.
    pub fn is_by_backup(&self) -> bool {
        match &self.supers[0] {
            SuperState::Unreadable(_) | SuperState::Bad(SuperblockError::Magic) => true,
            SuperState::Bad(
                SuperblockError::ChecksumType(_)
                | SuperblockError::Checksum { .. }
                | SuperblockError::Bytenr { .. }
                | SuperblockError::Field { .. },
            )
            | SuperState::Absent
            | SuperState::Good { .. }
            | SuperState::Foreign { .. } => false,
        }
    }

    /// The last transaction on the device.
    pub fn generation(&self) -> u64 {
        self.superblock.generation.get()
    }
}
