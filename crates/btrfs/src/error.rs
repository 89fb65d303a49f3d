//! Why a file system cannot be used.

use std::cmp::Ordering;

use ashlar_block::Status;
use thiserror::Error;
use uuid::Uuid;

use crate::chunk_map::MapError;
use crate::ondisk::chunk::ChunkError;
use crate::ondisk::key::Key;
use crate::ondisk::node::NodeError;
use crate::ondisk::superblock::SuperblockError;
use crate::units::{DevId, Logical, Physical};
use crate::volume::Owner;

/// Why bytes of the file system's space could not be read from a mirror.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ReadError {
    /// No chunk has these bytes.
    #[error("no chunk has the address {0}")]
    Unmapped(Logical),
    /// The device is not there.
    #[error("device {0} is missing")]
    Missing(DevId),
    /// The device failed.
    #[error("device {devid}: {status}")]
    Device {
        /// Which.
        devid: DevId,
        /// How.
        status: Status,
    },
    /// Too many parts of a row with parity are lost.
    #[error("the row of {0} has lost more than its parity can give back")]
    Row(Logical),
    /// No item of the RAID stripe tree has the address.
    #[error("the RAID stripe tree does not say where {0} is")]
    NoStripe(Logical),
    /// The RAID stripe tree is damaged where it should say that.
    #[error("the RAID stripe tree does not say where it is: {0}")]
    StripeTree(Box<TreeError>),
}

/// Why a tree block could not be had.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TreeError {
    /// It could not be read from any mirror; the last reason.
    #[error("cannot read the tree block at {at}: {why}")]
    Read {
        /// Where it is.
        at: Logical,
        /// Why.
        why: ReadError,
    },
    /// It is damaged on each mirror that could be read; the last reason.
    #[error("the tree block at {at} is damaged: {why}")]
    Damaged {
        /// Where it is.
        at: Logical,
        /// How.
        why: NodeError,
    },
    /// An item says what cannot be.
    #[error("the item {key} of tree {tree} is damaged: {why}")]
    Item {
        /// Of which tree.
        tree: u64,
        /// Which item.
        key: Key,
        /// What is wrong with it.
        why: String,
    },
    /// The tree is not there.
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
    /// A device without a good superblock.
    #[error("{name}: {why}")]
    Superblock {
        /// The device.
        name: String,
        /// What is wrong with its first superblock.
        why: SuperblockError,
    },
    /// A device that cannot be read.
    #[error("{name}: cannot read the superblock: {status}")]
    Read {
        /// The device.
        name: String,
        /// How it failed.
        status: Status,
    },
    /// Devices of two file systems.
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
        /// That one's file system.
        wanted: Uuid,
    },
    /// The first superblock is gone, and the others contradict each other.
    #[error(
        "{name}: there is no first superblock, and the copy at {} is of {}, that at {} of {}: which of them is a leftover cannot be told",
        .first.0, .first.1, .second.0, .second.1
    )]
    Copies {
        /// The device.
        name: String,
        /// Where one copy is, and whose it says that the device is.
        first: (Physical, Owner),
        /// The other.
        second: (Physical, Owner),
    },
    /// One device twice.
    #[error(
        "{} (generation {}) and {} (generation {}) are both device {devid} of the file system: {}",
        .first.0, .first.1, .second.0, .second.1, leave_out(.first, .second)
    )]
    Twice {
        /// One, and its generation.
        first: (String, u64),
        /// The other, and its generation.
        second: (String, u64),
        /// Their number.
        devid: DevId,
    },
    /// A device that another was to be replaced with.
    #[error(
        "{name} is the target of a replacement that was not finished, and no device of the file system yet: leave it out"
    )]
    ReplaceTarget {
        /// The device.
        name: String,
    },
    /// A device that was away while others were written.
    #[error(
        "{name} missed transactions: its generation is {generation}, that of the file system is {newest}. It may hold old data that no checksum tells from new"
    )]
    Stale {
        /// The device.
        name: String,
        /// Its last transaction.
        generation: u64,
        /// That of the file system.
        newest: u64,
    },
    /// A file system on devices of its own and those of a seed.
    #[error(
        "the file system was grown on a seed (device {devid} is of the file system {seed}), which is not supported yet"
    )]
    Sprout {
        /// A device of the seed.
        devid: DevId,
        /// The seed's identity.
        seed: Uuid,
    },
    /// A device that was replaced by another.
    #[error("{name} was device {devid} once, and another disk is by now")]
    Replaced {
        /// The device.
        name: String,
        /// The number it had.
        devid: DevId,
    },
    /// Features that are not known, or known and not supported.
    #[error("the file system uses what ashlar does not know: {0}")]
    Features(String),
    /// Features with which it can only be read.
    #[error("the file system cannot be written: {0}")]
    ReadOnlyFeatures(String),
    /// Devices are not there.
    #[error("{} of {total} devices missing: {}", .missing.len(), list(.missing))]
    Missing {
        /// Which.
        missing: Vec<DevId>,
        /// How many there should be.
        total: u64,
    },
    /// The chunks cannot be.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// The chunks cannot be.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A tree that is needed cannot be read.
    #[error("{tree}: {why}")]
    Tree {
        /// Which.
        tree: &'static str,
        /// Why.
        why: TreeError,
    },
}

/// What to do about two devices of one number.
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
