//! What a scrub finds.

use std::fmt;

use ashlar_block::Status;
use thiserror::Error;
use uuid::Uuid;

use crate::error::{ReadError, TreeError};
use crate::ondisk::node::NodeError;
use crate::ondisk::superblock::SuperblockError;
use crate::units::{DevId, Logical, Mirror, Physical};

/// Where a scrub tells what it finds.
pub trait Sink: Send + Sync {
    /// Called once for each block that is not as it should be, when it is known what became of it.
    fn problem(&self, problem: &Problem);
}

/// A sink for those who only want the counters.
impl Sink for () {
    fn problem(&self, _problem: &Problem) {}
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ProblemKind {
    /// It cannot be read.
    #[error("read error: {0}")]
    Read(Status),
    /// Nobody knows where it is: the RAID stripe tree does not say.
    #[error("{0}")]
    Place(ReadError),
    /// The checksum of a sector of data is wrong.
    #[error("checksum error")]
    Checksum,
    /// A tree block is damaged.
    #[error("{0}")]
    Verify(NodeError),
    /// A tree block goes over the end of a stripe, as conversion from other file systems once made
    /// them. It is not verified.
    #[error("a tree block across the end of a stripe, not verified")]
    Crossing,
    /// A superblock is damaged.
    #[error("superblock: {0}")]
    Super(SuperError),
    /// A sector of parity is not what the row's data gives.
    #[error("parity that is not the row's")]
    Parity,
    /// Parity was not verified, because data of its row is bad or cannot be read.
    #[error("parity not verified: data of its row is lost")]
    ParityUnverified,
    /// A part of a tree could not be read from any mirror, so that what it describes was not
    /// verified. The position is the one at which this was met.
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
    /// It is of an older transaction than the file system.
    #[error("generation {found}, wanted {wanted}")]
    Generation {
        /// As stored.
        found: u64,
        /// The file system's.
        wanted: u64,
    },
    /// It is of another file system, or another device of this one.
    #[error("it is of the device {device} of the file system {fsid}")]
    Foreign {
        /// The file system that it is of.
        fsid: Uuid,
        /// The device that it is of.
        device: Uuid,
    },
}

/// What became of a bad block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Repair {
    /// It is good by now: it was written and read back, or read rightly when it was read again.
    Done,
    /// Nothing may be written; a good copy was found.
    NotTried,
    /// No good copy was found (or there is nothing to repair: a tree, a row whose data is lost).
    Impossible,
    /// It was written, and that failed, or what was read back is bad still. With [`Status::NotSupported`] it was
    /// not written: the RAID stripe tree has it in another place than its chunk, and what else is there is not known.
    Failed(Status),
}

impl Repair {
    /// What a write came to.
    pub(super) fn of_write(written: Result<(), Status>) -> Self {
        match written {
            Ok(()) => Self::Done,
            Err(status) => Self::Failed(status),
        }
    }
}

/// What is known of a tree block from the extent tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeBlock {
    /// The transaction that wrote it.
    pub generation: u64,
    /// Its level, if the extent tree tells.
    pub level: Option<u8>,
    /// A tree that it belongs to, if the extent tree tells.
    pub owner: Option<u64>,
}

/// One block that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The device.
    pub devid: DevId,
    /// Where on it.
    pub physical: Physical,
    /// Bytes: a sector, a tree block or a superblock; zero for a tree that cannot be read.
    pub len: u32,
    /// Where in the file system's space; of parity the first byte of its row. `None` for superblocks.
    pub logical: Option<Logical>,
    /// Which copy; `None` for superblocks, parity and trees.
    pub mirror: Option<Mirror>,
    /// What is wrong.
    pub kind: ProblemKind,
    /// What became of it.
    pub repair: Repair,
    /// For a tree block, what is known of it.
    pub tree: Option<TreeBlock>,
}

impl Problem {
    /// Whether it is a tree block.
    pub const fn is_metadata(&self) -> bool {
        self.tree.is_some()
    }

    /// Whether it is good by now.
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
