//! The superblock of a pool, checked.

use ashlar_block::Sectors;
use zerocopy::FromBytes;

use super::error::SuperblockFault;
use super::ondisk::{
    BLOCK, Block, DiskSuperblock, MAGIC, MAX_DATA_BLOCK, MIN_DATA_BLOCK, NEEDS_CHECK, VERSIONS,
    superblock_checksum,
};

/// A pool's superblock.
///
/// Invariants: the roots of the trees are in the metadata, and not in block 0; sizes in bytes fit in 64 bits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// 1 or 2.
    pub version: u32,
    /// Whether the kernel requires `thin_check` before it writes to the pool.
    pub needs_check: bool,
    /// Incremented with every snapshot.
    pub time: u32,
    /// For pool managers: LVM's `transaction_id` of the pool.
    pub transaction_id: u64,
    /// The block with the copy of the superblock made for a metadata snapshot.
    pub metadata_snapshot: Option<u64>,
    /// Blocks of the metadata device.
    pub metadata_blocks: u64,
    /// Number of used blocks.
    pub metadata_used: u64,
    /// Blocks of the data device.
    pub data_blocks: u64,
    /// Number of used blocks.
    pub data_used: u64,
    /// Sectors per block of the data device.
    pub data_block: Sectors,
    /// Root of the tree of devices.
    pub(super) devices: u64,
    /// Root of the tree of their details.
    pub(super) details: u64,
}

impl Superblock {
    /// Reads the superblock at the start of the metadata device.
    ///
    /// # Errors
    /// The superblock is unusable. A needed check is not an error.
    pub fn parse(block: &Block) -> Result<Self, SuperblockFault> {
        let Ok((disk, _)) = DiskSuperblock::ref_from_prefix(block) else {
            return Err(SuperblockFault::Zeroes);
        };
        check_identity(block, disk)?;
        let (data_map, metadata_map) = (&disk.data_space_map, &disk.metadata_space_map);
        let data_block = Sectors(disk.data_block_size.get().into());
        if !(MIN_DATA_BLOCK..=MAX_DATA_BLOCK).contains(&data_block)
            || !data_block.0.is_multiple_of(MIN_DATA_BLOCK.0)
        {
            return Err(SuperblockFault::DataBlock { found: disk.data_block_size.get() });
        }
        let metadata_blocks = size("metadata", metadata_map.nr_blocks.get(), BLOCK)?;
        let data_blocks = size("data", data_map.nr_blocks.get(), data_block)?;
        let root = |what, found: u64| {
            if found != 0 && found < metadata_blocks {
                return Ok(found);
            }
            Err(SuperblockFault::Root { what, found, blocks: metadata_blocks })
        };
        let held = disk.held_root.get();
        Ok(Self {
            version: disk.version.get(),
            needs_check: disk.flags.get() & NEEDS_CHECK != 0,
            time: disk.time.get(),
            transaction_id: disk.trans_id.get(),
            metadata_snapshot: match held {
                0 => None,
                held => Some(root("the metadata snapshot", held)?),
            },
            metadata_blocks,
            metadata_used: metadata_map.nr_allocated.get(),
            data_blocks,
            data_used: data_map.nr_allocated.get(),
            data_block,
            devices: root("the tree of devices", disk.data_mapping_root.get())?,
            details: root("the tree of details", disk.device_details_root.get())?,
        })
    }
}

/// In the kernel's order, except for an unused device or one without metadata.
fn check_identity(block: &Block, disk: &DiskSuperblock) -> Result<(), SuperblockFault> {
    if block.iter().all(|byte| *byte == 0) {
        return Err(SuperblockFault::Zeroes);
    }
    let found = disk.magic.get();
    if found != MAGIC {
        return Err(SuperblockFault::Magic { found });
    }
    let found = disk.blocknr.get();
    if found != 0 {
        return Err(SuperblockFault::Block { found });
    }
    let (found, wanted) = (disk.csum.get(), superblock_checksum(block));
    if found != wanted {
        return Err(SuperblockFault::Checksum { found, wanted });
    }
    let found = disk.version.get();
    if !VERSIONS.contains(&found) {
        return Err(SuperblockFault::Version { found });
    }
    let found = disk.incompat_flags.get();
    if found != 0 {
        return Err(SuperblockFault::Features { found });
    }
    let found = disk.metadata_block_size.get();
    if u64::from(found) != BLOCK.0 {
        return Err(SuperblockFault::MetadataBlock { found });
    }
    Ok(())
}

/// A number of blocks whose size in bytes fits in 64 bits.
fn size(what: &'static str, blocks: u64, block: Sectors) -> Result<u64, SuperblockFault> {
    // A mapping has 40 bits for the data block; the kernel allows fewer metadata blocks than that.
    let possible = blocks <= 1 << 40 && blocks.checked_mul(block.bytes()).is_some();
    if possible { Ok(blocks) } else { Err(SuperblockFault::Size { what, found: blocks }) }
}
