//! Problems found by a scrub.

use std::fmt;

use ashlar_block::{CopyNumber, Status};
use thiserror::Error;
use uuid::Uuid;

use crate::error::{ReadError, TreeError};
use crate::ondisk::node::NodeError;
use crate::ondisk::superblock::SuperblockError;
use crate::units::{DevId, Logical, MirrorNum, Physical};

/// Receives the problems found by a scrub.
pub trait Sink: Send + Sync {
    /// Called once for each bad block, when its outcome is known.
    fn problem(&self, problem: &Problem);
}

/// A sink that ignores problems, if only the counters are needed.
impl Sink for () {
    fn problem(&self, _problem: &Problem) {}
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ProblemKind {
    /// It cannot be read.
    #[error("read error: {0}")]
    Read(Status),
    /// Its location is unknown: the RAID stripe tree does not have it.
    #[error("{0}")]
    Place(ReadError),
    /// The checksum of a data sector is wrong.
    #[error("checksum error")]
    Checksum,
    /// A tree block is damaged.
    #[error("{0}")]
    Verify(NodeError),
    /// A tree block crosses the end of a stripe, as conversion from other file systems once created
    /// them. It is not verified.
    #[error("a tree block across the end of a stripe, not verified")]
    Crossing,
    /// A superblock is damaged.
    #[error("superblock: {0}")]
    Super(SuperError),
    /// A parity sector does not match the row's data.
    #[error("parity that is not the row's")]
    Parity,
    /// Parity was not verified, because data of its row is bad or unreadable.
    #[error("parity not verified: data of its row is lost")]
    ParityUnverified,
    /// A part of a tree could not be read from any mirror, so what it describes was not verified.
    /// The position is where the scrub met this.
    #[error("not verified, as a tree is damaged: {0}")]
    Tree(TreeError),
}

/// What is wrong with a superblock.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SuperError {
    /// It cannot be read.
    #[error("read error: {0}")]
    Read(Status),
    /// It is damaged.
    #[error("{0}")]
    Bad(SuperblockError),
    /// It is from an older transaction than the file system.
    #[error("generation {found}, wanted {wanted}")]
    Generation {
        /// The stored value.
        found: u64,
        /// The file system's.
        wanted: u64,
    },
    /// It belongs to another file system, or another device of this one.
    #[error("it is of the device {device} of the file system {fsid}")]
    Foreign {
        /// The file system it belongs to.
        fsid: Uuid,
        /// The device it belongs to.
        device: Uuid,
    },
}

/// Outcome for a bad block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Repair {
    /// It is now good: it was rewritten and read back, or a second read was correct.
    Done,
    /// A good copy was found, but the scrub is read-only.
    NotTried,
    /// No good copy was found (or there is nothing to repair: a tree, a row whose data is lost).
    Impossible,
    /// The write failed, or the block is still bad when read back. With [`Status::NotSupported`]
    /// nothing was written: the RAID stripe tree has the block at another place than its chunk, and
    /// what else is stored there is unknown.
    Failed(Status),
}

impl Repair {
    /// Outcome of a write.
    pub(super) fn of_write(written: Result<(), Status>) -> Self {
        match written {
            Ok(()) => Self::Done,
            Err(status) => Self::Failed(status),
        }
    }
}

/// What the extent tree knows about a tree block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeBlock {
    /// The transaction that wrote it.
    pub generation: u64,
    /// Its level, if the extent tree has it.
    pub level: Option<u8>,
    /// A tree it belongs to, if the extent tree has one.
    pub owner: Option<u64>,
}

/// A bad block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The device.
    pub devid: DevId,
    /// Offset on the device.
    pub physical: Physical,
    /// Length in bytes: a sector, a tree block or a superblock; zero for an unreadable tree.
    pub len: u32,
    /// Address in the file system's space; for parity, the first byte of its row. `None` for superblocks.
    pub logical: Option<Logical>,
    /// Mirror; `None` for superblocks, parity and trees.
    pub mirror: Option<MirrorNum>,
    /// The only copy below the file system on which it is bad; [`CopyNumber::ANY`] if the device has
    /// one, or no good one.
    pub copy: CopyNumber,
    /// What is wrong.
    pub kind: ProblemKind,
    /// The outcome.
    pub repair: Repair,
    /// For a tree block, what the extent tree knows about it.
    pub tree: Option<TreeBlock>,
}

impl Problem {
    /// Whether it is a tree block.
    pub const fn is_metadata(&self) -> bool {
        self.tree.is_some()
    }

    /// Whether it is now good.
    pub fn is_repaired(&self) -> bool {
        self.repair == Repair::Done
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { devid, physical, .. } = self;
        match self.repair {
            Repair::Done => write!(f, "repaired: ")?,
            Repair::NotTried => write!(f, "to be repaired: ")?,
            Repair::Impossible => write!(f, "not repaired: ")?,
            Repair::Failed(status) => write!(f, "repair failed ({status}): ")?,
        }
        if self.copy != CopyNumber::ANY {
            write!(f, "copy {} of ", self.copy.0)?;
        }
        write!(f, "device {devid} at {physical}")?;
        if let Some(logical) = self.logical {
            write!(f, ", address {logical}")?;
        }
        if let Some(mirror) = self.mirror {
            write!(f, ", mirror {}", mirror.0)?;
        }
        if let Some(tree) = &self.tree {
            write!(f, ", tree block")?;
            if let Some(owner) = tree.owner {
                write!(f, " of tree {owner}")?;
            }
            if let Some(level) = tree.level {
                write!(f, ", level {level}")?;
            }
        }
        write!(f, ": {}", self.kind)
    }
}
