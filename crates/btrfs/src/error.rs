//! Why a file system cannot be used.

use std::cmp::Ordering;

use ashlar_block::Status;
use thiserror::Error;
use uuid::Uuid;

use crate::chunk_map::MapError;
use crate::ondisk::chunk::ChunkError;
use crate::ondisk::key::Key;
use crate::ondisk::node::NodeError;
use crate::ondisk::superblock::{Owner, SuperblockError};
use crate::units::{DevId, Logical, Physical};

/// Why bytes of the file system's space could not be read from a mirror.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ReadError {
    /// No chunk contains these bytes.
    #[error("no chunk has the address {0}")]
    Unmapped(Logical),
    /// The device is missing.
    #[error("device {0} is missing")]
    Missing(DevId),
    /// The device failed.
    #[error("device {devid}: {status}")]
    Device {
        /// The device.
        devid: DevId,
        /// The error.
        status: Status,
    },
    /// Too many members of a row with parity are lost.
    #[error("the row of {0} has lost more than its parity can reconstruct")]
    Row(Logical),
    /// No item of the RAID stripe tree has the address.
    #[error("the RAID stripe tree does not say where {0} is")]
    NoStripe(Logical),
    /// The RAID stripe tree is damaged where the address should be.
    #[error("the RAID stripe tree does not say where it is: {0}")]
    StripeTree(Box<TreeError>),
}

/// Why a tree block is unavailable.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TreeError {
    /// No mirror could be read; `why` is the last error.
    #[error("cannot read the tree block at {at}: {why}")]
    Read {
        /// Its address.
        at: Logical,
        /// The error.
        why: ReadError,
    },
    /// The block is damaged on each mirror that could be read; `why` is the last error.
    #[error("the tree block at {at} is damaged: {why}")]
    Damaged {
        /// Its address.
        at: Logical,
        /// The damage.
        why: NodeError,
    },
    /// An item has impossible contents.
    #[error("the item {key} of tree {tree} is damaged: {why}")]
    Item {
        /// The tree.
        tree: u64,
        /// The item's key.
        key: Key,
        /// What is wrong with it.
        why: String,
    },
    /// The tree does not exist.
    #[error("there is no tree {0}")]
    NoTree(u64),
}

impl TreeError {
    /// A damaged block.
    pub(crate) fn damaged(at: Logical, why: NodeError) -> Self {
        Self::Damaged { at, why }
    }
}

/// Why a file system cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum OpenError {
    /// No device was given.
    #[error("no device was given")]
    NoDevice,
    /// A device has no valid superblock.
    #[error("{name}: {why}")]
    Superblock {
        /// The device.
        name: String,
        /// What is wrong with the first superblock.
        why: SuperblockError,
    },
    /// A device cannot be read.
    #[error("{name}: cannot read the superblock: {status}")]
    Read {
        /// The device.
        name: String,
        /// The error.
        status: Status,
    },
    /// The devices belong to two file systems.
    #[error(
        "{name} belongs to the file system {found}, not to {wanted} as {first}: give the devices of one file system"
    )]
    OtherFileSystem {
        /// The device.
        name: String,
        /// Its file system.
        found: Uuid,
        /// The first device.
        first: String,
        /// The first device's file system.
        wanted: Uuid,
    },
    /// The first superblock is missing, and the other copies contradict each other.
    #[error(
        "{name}: there is no first superblock, and the copy at {} is of {}, that at {} of {}: nothing shows which of them is outdated",
        .first.0, .first.1, .second.0, .second.1
    )]
    Copies {
        /// The device.
        name: String,
        /// Address of one copy, and the owner it names.
        first: (Physical, Owner),
        /// The other copy.
        second: (Physical, Owner),
    },
    /// A device was given twice.
    #[error(
        "{} (generation {}) and {} (generation {}) are both device {devid} of the file system: {}",
        .first.0, .first.1, .second.0, .second.1, leave_out(.first, .second)
    )]
    Twice {
        /// One, and its generation.
        first: (String, u64),
        /// The other, and its generation.
        second: (String, u64),
        /// Their device number.
        devid: DevId,
    },
    /// The device is the target of an unfinished replacement.
    #[error(
        "{name} is the target of a replacement that was not finished, and not a device of the file system yet: leave it out"
    )]
    ReplaceTarget {
        /// The device.
        name: String,
    },
    /// The device was absent while others were written.
    #[error(
        "{name} missed transactions: its generation is {generation}, that of the file system is {newest}. It may contain old data that no checksum distinguishes from new data"
    )]
    Stale {
        /// The device.
        name: String,
        /// Its last transaction.
        generation: u64,
        /// The file system's last transaction.
        newest: u64,
    },
    /// The file system has devices of its own and seed devices.
    #[error(
        "the file system was grown on a seed (device {devid} is of the file system {seed}), which is not supported yet"
    )]
    Sprout {
        /// A device of the seed.
        devid: DevId,
        /// The seed's identity.
        seed: Uuid,
    },
    /// The device was replaced by another.
    #[error("{name} was device {devid} once, and another disk has replaced it")]
    Replaced {
        /// The device.
        name: String,
        /// Its former number.
        devid: DevId,
    },
    /// Unknown or unsupported features.
    #[error("the file system uses what ashlar does not know: {0}")]
    Features(String),
    /// Features that allow only reading.
    #[error("the file system cannot be written: {0}")]
    ReadOnlyFeatures(String),
    /// Devices are missing.
    #[error("{} of {total} devices missing: {}", .missing.len(), list(.missing))]
    Missing {
        /// The missing devices.
        missing: Vec<DevId>,
        /// Expected number of devices.
        total: u64,
    },
    /// A chunk is invalid.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// The chunks overlap.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A required tree cannot be read.
    #[error("{tree}: {why}")]
    Tree {
        /// The tree.
        tree: &'static str,
        /// The error.
        why: TreeError,
    },
}

/// Advice for two devices with the same number.
fn leave_out(first: &(String, u64), second: &(String, u64)) -> String {
    let outdated = match first.1.cmp(&second.1) {
        Ordering::Less => &first.0,
        Ordering::Greater => &second.0,
        Ordering::Equal => {
            return "one is a copy of the other, or both are one disk: give one of them".to_owned();
        }
    };
    format!("{outdated} is outdated, leave it out")
}

fn list(missing: &[DevId]) -> String {
    let numbers: Vec<String> = missing.iter().map(|devid| format!("devid {devid}")).collect();
    numbers.join(", ")
}
