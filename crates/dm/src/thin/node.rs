//! Nodes of the trees in a pool's metadata.

use core::cmp::Ordering;

use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::error::NodeFault;
use super::ondisk::{BLOCK_BYTES, Block, DiskDetails, INTERNAL, LEAF, NodeHeader, node_checksum};

const HEADER: usize = size_of::<NodeHeader>();
/// Bytes of a key, and of a child pointer.
const WORD: usize = size_of::<u64>();

/// The tree of a node. All have keys of 64 bits and the same internal nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tree {
    /// From a device to the root of its mappings.
    Devices,
    /// From a block of the device to the data block, and the time when it was mapped.
    Mappings,
    /// From a device to its details.
    Details,
}

/// The bounds of numbers in the trees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Blocks of the metadata device.
    pub metadata_blocks: u64,
    /// Blocks of the data device.
    pub data_blocks: u64,
}

/// A node that is consistent in itself: its keys ascend, and its targets exist.
/// [`Node::check_place`] checks whether it may be where it was found.
#[derive(Debug)]
pub struct Node {
    block: u64,
    tree: Tree,
    is_leaf: bool,
    keys: Box<[u64]>,
    values: Box<[u64]>,
    details: Box<[DiskDetails]>,
}

impl Node {
    /// Parses the node of `tree` in block number `block`.
    ///
    /// # Errors
    /// The defect of the node.
    pub fn parse(bytes: &Block, tree: Tree, block: u64, bounds: Bounds) -> Result<Self, NodeFault> {
        let Ok((header, _)) = NodeHeader::read_from_prefix(bytes) else {
            return Err(NodeFault::Empty);
        };
        let is_leaf = check_header(bytes, &header, tree, block)?;
        let (entries, max) = (header.nr_entries.get() as usize, header.max_entries.get() as usize);
        let keys_at = &bytes[HEADER..];
        let values_at = &keys_at[WORD * max..];
        let keys = words(keys_at, entries);
        if let Some(index) = (1..keys.len()).find(|index| keys[index - 1] >= keys[*index]) {
            return Err(NodeFault::Order { index });
        }
        let (mut values, mut details) = (Box::default(), Box::default());
        match (is_leaf, tree) {
            (true, Tree::Details) => {
                let found = <[DiskDetails]>::ref_from_prefix_with_elems(values_at, entries);
                details = found.map_or(Box::default(), |(found, _)| found.into());
            }
            (true, Tree::Devices | Tree::Mappings) | (false, _) => {
                values = words(values_at, entries)
            }
        }
        let node = Self { block, tree, is_leaf, keys, values, details };
        node.check_entries(bounds)?;
        Ok(node)
    }

    fn check_entries(&self, bounds: Bounds) -> Result<(), NodeFault> {
        let mappings = self.is_leaf && self.tree == Tree::Mappings;
        for (index, found) in self.values.iter().copied().enumerate() {
            if mappings && found >> 24 >= bounds.data_blocks {
                return Err(NodeFault::DataBlock { index, found: found >> 24 });
            }
            if !mappings && (found == 0 || found >= bounds.metadata_blocks) {
                return Err(NodeFault::Child { index, found });
            }
        }
        if self.tree != Tree::Mappings
            && let Some(found) = self.keys.last().copied().filter(|key| *key >= 1 << 24)
        {
            return Err(NodeFault::Device { index: self.keys.len() - 1, found });
        }
        Ok(())
    }

    /// Checks that the node may be where it was found: its keys are from `low` up to below `high`,
    /// and it is not empty unless it is the whole tree.
    ///
    /// So every visited node has keys that no other node has, and a walk ends: there are no cycles,
    /// and no node is visited twice.
    ///
    /// # Errors
    /// [`NodeFault::Empty`] or [`NodeFault::Keys`].
    pub fn check_place(&self, is_root: bool, low: u64, high: Option<u64>) -> Result<(), NodeFault> {
        let (Some(first), Some(last)) = (self.keys.first(), self.keys.last()) else {
            return if is_root && self.is_leaf { Ok(()) } else { Err(NodeFault::Empty) };
        };
        let within = *first >= low && high.is_none_or(|high| *last < high);
        if within { Ok(()) } else { Err(NodeFault::Keys) }
    }

    /// Its block number.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// Its tree.
    pub fn tree(&self) -> Tree {
        self.tree
    }

    /// Whether it is a leaf.
    pub fn is_leaf(&self) -> bool {
        self.is_leaf
    }

    /// All keys, ascending.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// A number per key: the child, or in a leaf the value. A leaf of details has none.
    pub fn values(&self) -> &[u64] {
        &self.values
    }

    /// The details for each key of a leaf of details.
    pub fn details(&self) -> &[DiskDetails] {
        &self.details
    }

    /// The number of entries with keys up to `key`.
    pub fn up_to(&self, key: u64) -> usize {
        self.keys.partition_point(|k| *k <= key)
    }

    /// The number of entries from `index` on, at most `max`, that are consecutive in key and data block.
    pub fn run(&self, index: usize, max: u64) -> u64 {
        let entries = self.keys.iter().zip(&self.values).skip(index);
        let mut entries = entries.map(|(key, value)| (*key, value >> 24)).zip(1..=max);
        let Some(((first_key, first_block), mut len)) = entries.next() else { return 0 };
        for ((key, block), count) in entries {
            if key - first_key != len || block.wrapping_sub(first_block) != len {
                break;
            }
            len = count;
        }
        len
    }
}

/// Checks the header; returns whether the node is a leaf.
fn check_header(
    bytes: &Block,
    header: &NodeHeader,
    tree: Tree,
    block: u64,
) -> Result<bool, NodeFault> {
    let (found, wanted) = (header.csum.get(), node_checksum(bytes));
    if found != wanted {
        return Err(NodeFault::Checksum { found, wanted });
    }
    let found = header.blocknr.get();
    if found != block {
        return Err(NodeFault::Block { found });
    }
    let is_leaf = match header.flags.get() {
        INTERNAL => false,
        LEAF => true,
        found => return Err(NodeFault::Flags { found }),
    };
    let wanted = match tree {
        Tree::Details if is_leaf => size_of::<DiskDetails>(),
        Tree::Details | Tree::Devices | Tree::Mappings => WORD,
    };
    let found = header.value_size.get();
    if found as usize != wanted {
        return Err(NodeFault::ValueSize { found, wanted });
    }
    let (entries, max) = (header.nr_entries.get(), header.max_entries.get());
    let room = (BLOCK_BYTES - HEADER) / (WORD + wanted);
    match (entries.cmp(&max), max as usize <= room) {
        (Ordering::Less | Ordering::Equal, true) => Ok(is_leaf),
        (Ordering::Less | Ordering::Equal | Ordering::Greater, _) => {
            Err(NodeFault::Entries { entries, max })
        }
    }
}

fn words(bytes: &[u8], count: usize) -> Box<[u64]> {
    let found = <[U64]>::ref_from_prefix_with_elems(bytes, count);
    found.map_or(Box::default(), |(words, _)| words.iter().map(|word| word.get()).collect())
}
