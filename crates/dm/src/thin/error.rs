//! What can be wrong with a pool.

use ashlar_block::{Sectors, Status};
use thiserror::Error;

use super::ondisk;

/// Why a pool, or something of it, cannot be read. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ThinError {
    /// The metadata device could not be read.
    #[error("cannot read block {block} of the thin pool's metadata on {device}: {status}")]
    Read {
        /// The metadata device.
        device: String,
        /// The block, of 4 KiB.
        block: u64,
        /// What the device said.
        status: Status,
    },
    /// The superblock is not one that can be used.
    #[error("the thin pool's superblock on {device} cannot be used: {fault}")]
    Superblock {
        /// The metadata device.
        device: String,
        /// What is wrong with it.
        fault: SuperblockFault,
    },
    /// A device is smaller than the pool says.
    #[error(
        "{device} has {size} sectors, but the thin pool on it has {blocks} blocks of {block} sectors: \
         look for what shortened it before the pool is repaired"
    )]
    TooSmall {
        /// The metadata or data device.
        device: String,
        /// Its size.
        size: Sectors,
        /// Blocks that should be there.
        blocks: u64,
        /// Sectors in a block.
        block: Sectors,
    },
    /// A node of a tree is damaged.
    #[error(
        "block {block} of the thin pool's metadata on {device} is damaged: {fault}; thin_check shows \
         all that is, thin_repair (LVM's lvconvert --repair) rescues the rest"
    )]
    Node {
        /// The metadata device.
        device: String,
        /// The block, of 4 KiB.
        block: u64,
        /// What is wrong with it.
        fault: NodeFault,
    },
    /// The pool has no such device.
    #[error("the thin pool on {device} has no device {id}")]
    NoDevice {
        /// The metadata device.
        device: String,
        /// The device.
        id: u32,
    },
}

/// What is wrong with a superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SuperblockFault {
    /// Nothing is there.
    #[error("it is all zeroes, so no pool was ever made there")]
    Zeroes,
    /// Something else is there.
    #[error("it has no magic number, {found} stands in its place; is this the metadata device?")]
    Magic {
        /// What is there.
        found: u64,
    },
    /// It belongs somewhere else.
    #[error("it belongs to block {found}; run thin_check, then thin_repair")]
    Block {
        /// Where it belongs.
        found: u64,
    },
    /// It is damaged.
    #[error(
        "its checksum is {found:#010x}, but should be {wanted:#010x}; run thin_check, then thin_repair"
    )]
    Checksum {
        /// What is there.
        found: u32,
        /// What should be.
        wanted: u32,
    },
    /// A version that nobody knew.
    #[error("it has version {found}, only 1 and 2 are known")]
    Version {
        /// What is there.
        found: u32,
    },
    /// It needs something that nobody knew.
    #[error("it has incompatible features {found:#x}, of which none is known")]
    Features {
        /// What is there.
        found: u32,
    },
    /// The kernel wants a check first.
    #[error(
        "an error happened while the pool was in use (needs_check is set): run thin_check, and \
         thin_repair if it says so, before the pool is used"
    )]
    NeedsCheck,
    /// Metadata blocks of another size.
    #[error("its metadata blocks have {found} sectors, but there are only such of 8")]
    MetadataBlock {
        /// What is there.
        found: u32,
    },
    /// An impossible size of data blocks.
    #[error(
        "its data blocks have {found} sectors, which is no multiple of {min} up to {max}",
        min = ondisk::MIN_DATA_BLOCK, max = ondisk::MAX_DATA_BLOCK
    )]
    DataBlock {
        /// What is there.
        found: u32,
    },
    /// Another size of data blocks than was expected.
    #[error("its data blocks have {found} sectors, {wanted} were expected: is it another pool's?")]
    OtherDataBlock {
        /// What is there.
        found: Sectors,
        /// What should be.
        wanted: Sectors,
    },
    /// A device of impossible size.
    #[error("it says that the {what} device has {found} blocks; run thin_check, then thin_repair")]
    Size {
        /// Metadata or data.
        what: &'static str,
        /// What is there.
        found: u64,
    },
    /// A tree begins outside of the metadata.
    #[error("it has {what} in block {found}, of {blocks}; run thin_check, then thin_repair")]
    Root {
        /// Which tree.
        what: &'static str,
        /// Where it should begin.
        found: u64,
        /// Metadata blocks there are.
        blocks: u64,
    },
}

/// What is wrong with a node of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NodeFault {
    /// It belongs somewhere else.
    #[error("it belongs to block {found}")]
    Block {
        /// Where it belongs.
        found: u64,
    },
    /// Bits have changed.
    #[error("its checksum is {found:#010x}, but should be {wanted:#010x}")]
    Checksum {
        /// What is there.
        found: u32,
        /// What should be.
        wanted: u32,
    },
    /// Neither has it children nor is it a leaf.
    #[error("its flags are {found:#x}, but must be 1 or 2")]
    Flags {
        /// What is there.
        found: u32,
    },
    /// Its values have another size.
    #[error("its values have {found} bytes, but must have {wanted}")]
    ValueSize {
        /// What is there.
        found: u32,
        /// What should be.
        wanted: usize,
    },
    /// It has more than its block has room for.
    #[error("it has {entries} entries of at most {max}, which is more than a block can have")]
    Entries {
        /// Entries in use.
        entries: u32,
        /// Entries there is room for, it says.
        max: u32,
    },
    /// Only a tree of one node may have none.
    #[error("it has no entries, but a node above it or children")]
    Empty,
    /// Keys must ascend.
    #[error("its key {index} is not greater than the one before")]
    Order {
        /// Which key.
        index: usize,
    },
    /// The node above says what may be in it.
    #[error("its keys are not those that the node above says: this way trees have cycles")]
    Keys,
    /// It points outside of the metadata.
    #[error("its entry {index} leads to metadata block {found}, which there is not")]
    Child {
        /// Which entry.
        index: usize,
        /// Where it leads.
        found: u64,
    },
    /// It points outside of the data.
    #[error("its entry {index} leads to data block {found}, which there is not")]
    DataBlock {
        /// Which entry.
        index: usize,
        /// Where it leads.
        found: u64,
    },
    /// No tree has so many levels.
    #[error("more than {0} levels of nodes lead to it")]
    Depth(usize),
    /// Devices have 24 bits.
    #[error("its key {index} is device {found}, but there are only 2^24")]
    Device {
        /// Which key.
        index: usize,
        /// What is there.
        found: u64,
    },
}
