//! Defects of a pool.

use ashlar_block::{Sectors, Status};
use thiserror::Error;

use super::ondisk;

/// Why a pool, or a part of it, cannot be read. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ThinError {
    /// The metadata device could not be read.
    #[error("cannot read block {block} of the thin pool's metadata on {device}: {status}")]
    Read {
        /// The metadata device.
        device: String,
        /// The block, of 4 KiB.
        block: u64,
        /// The error.
        status: Status,
    },
    /// The superblock is unusable.
    #[error("the thin pool's superblock on {device} cannot be used: {fault}")]
    Superblock {
        /// The metadata device.
        device: String,
        /// The defect.
        fault: SuperblockFault,
    },
    /// A device is smaller than the pool expects.
    #[error(
        "{device} has {size} sectors, but the thin pool on it has {blocks} blocks of {block} sectors: \
         look for what shortened it before the pool is repaired"
    )]
    TooSmall {
        /// The metadata or data device.
        device: String,
        /// Its size.
        size: Sectors,
        /// The expected number of blocks.
        blocks: u64,
        /// Sectors per block.
        block: Sectors,
    },
    /// A node of a tree is damaged.
    #[error(
        "block {block} of the thin pool's metadata on {device} is damaged: {fault}; run thin_check \
         to list the damage, and thin_repair (LVM's lvconvert --repair) to rescue the rest"
    )]
    Node {
        /// The metadata device.
        device: String,
        /// The block, of 4 KiB.
        block: u64,
        /// The defect.
        fault: NodeFault,
    },
    /// The pool has no such device.
    #[error("the thin pool on {device} has no device {id}")]
    NoDevice {
        /// The metadata device.
        device: String,
        /// The device ID.
        id: u32,
    },
}

/// The defect of a superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SuperblockFault {
    /// The block is empty.
    #[error("it is all zeroes, so no pool was ever made there")]
    Zeroes,
    /// The block contains something else.
    #[error("it has no magic number, {found} stands in its place; is this the metadata device?")]
    Magic {
        /// The actual value.
        found: u64,
    },
    /// The block belongs elsewhere.
    #[error("it belongs to block {found}; run thin_check, then thin_repair")]
    Block {
        /// The block number in it.
        found: u64,
    },
    /// The block is damaged.
    #[error(
        "its checksum is {found:#010x}, but should be {wanted:#010x}; run thin_check, then thin_repair"
    )]
    Checksum {
        /// The stored checksum.
        found: u32,
        /// The correct checksum.
        wanted: u32,
    },
    /// An unknown version.
    #[error("it has version {found}, only 1 and 2 are known")]
    Version {
        /// The stored version.
        found: u32,
    },
    /// Unknown incompatible features.
    #[error("it has incompatible features {found:#x}, none of which is supported")]
    Features {
        /// The feature bits.
        found: u32,
    },
    /// The kernel requires a check first.
    #[error(
        "an error happened while the pool was in use (needs_check is set): run thin_check, and \
         thin_repair if it says so, before the pool is used"
    )]
    NeedsCheck,
    /// An unsupported size of metadata blocks.
    #[error("its metadata blocks have {found} sectors, but only 8 are supported")]
    MetadataBlock {
        /// The size in sectors.
        found: u32,
    },
    /// An invalid size of data blocks.
    #[error(
        "its data blocks have {found} sectors, which is not a multiple of {min} up to {max}",
        min = ondisk::MIN_DATA_BLOCK, max = ondisk::MAX_DATA_BLOCK
    )]
    DataBlock {
        /// The size in sectors.
        found: u32,
    },
    /// The size of data blocks is not the expected one.
    #[error("its data blocks have {found} sectors, {wanted} were expected: is it another pool's?")]
    OtherDataBlock {
        /// The actual size.
        found: Sectors,
        /// The expected size.
        wanted: Sectors,
    },
    /// An invalid size of a device.
    #[error("it says that the {what} device has {found} blocks; run thin_check, then thin_repair")]
    Size {
        /// Metadata or data.
        what: &'static str,
        /// The stored number of blocks.
        found: u64,
    },
    /// The root of a tree is outside of the metadata.
    #[error("it has {what} in block {found}, of {blocks}; run thin_check, then thin_repair")]
    Root {
        /// The tree.
        what: &'static str,
        /// The stored root.
        found: u64,
        /// Number of metadata blocks.
        blocks: u64,
    },
}

/// The defect of a node of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NodeFault {
    /// The block belongs elsewhere.
    #[error("it belongs to block {found}")]
    Block {
        /// The block number in it.
        found: u64,
    },
    /// The block is damaged.
    #[error("its checksum is {found:#010x}, but should be {wanted:#010x}")]
    Checksum {
        /// The stored checksum.
        found: u32,
        /// The correct checksum.
        wanted: u32,
    },
    /// The node is neither internal nor a leaf.
    #[error("its flags are {found:#x}, but must be 1 or 2")]
    Flags {
        /// The flags.
        found: u32,
    },
    /// The values have a wrong size.
    #[error("its values have {found} bytes, but must have {wanted}")]
    ValueSize {
        /// The stored size.
        found: u32,
        /// The correct size.
        wanted: usize,
    },
    /// There are more entries than fit in the block.
    #[error("it has {entries} entries of at most {max}, which is more than a block can have")]
    Entries {
        /// Number of entries.
        entries: u32,
        /// Stored maximum of entries.
        max: u32,
    },
    /// Only a tree with a single node may be empty.
    #[error("it has no entries, but a node above it or children")]
    Empty,
    /// Keys are not ascending.
    #[error("its key {index} is not greater than the one before")]
    Order {
        /// Index of the key.
        index: usize,
    },
    /// A key is outside the range given by the parent.
    #[error("its keys are outside the range that the node above gives: such trees may have cycles")]
    Keys,
    /// A child is outside of the metadata.
    #[error("its entry {index} points to metadata block {found}, which does not exist")]
    Child {
        /// Index of the entry.
        index: usize,
        /// The block that it points to.
        found: u64,
    },
    /// A data block is outside of the data device.
    #[error("its entry {index} points to data block {found}, which does not exist")]
    DataBlock {
        /// Index of the entry.
        index: usize,
        /// The block that it points to.
        found: u64,
    },
    /// The tree is too deep.
    #[error("more than {0} levels of nodes lead to it")]
    Depth(usize),
    /// The device ID has more than 24 bits.
    #[error("its key {index} is device {found}, but the highest is 2^24 - 1")]
    Device {
        /// Index of the key.
        index: usize,
        /// The device ID.
        found: u64,
    },
}
