//! Thin metadata from a hostile disk: never a panic, never an unbounded loop or allocation, and every mapping that is
//! listed can be looked up.
//!
//! Input: one byte of flags, then changes of a pool made by the kernel: five bytes each, for the block, the offset and
//! the value to add to the byte there.

use ashlar_block::{Sector, Sectors};
use ashlar_dm::thin::ondisk::{BLOCK_BYTES, Block, node_checksum, superblock_checksum};
use ashlar_dm::thin::{Options, ThinError, ThinPool};
use ashlar_sim::{Media, Sim, SimDisk};

/// Checksums are corrected, so that the code after that check is reached.
const RESEAL: u8 = 1;
/// The cache has room for one node, so that every lookup reads.
const FORGETFUL: u8 = 2;

const BLOCKS: usize = 1024;

static POOL: &[u8] = include_bytes!("../../tests/images/dm-thin/odd.metadata");

/// The number of the pool's blocks that are in use.
pub fn blocks() -> usize {
    POOL.len() / BLOCK_BYTES
}

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    let Some((flags, changes)) = data.split_first() else { return false };
    let mut image = POOL.to_vec();
    let used = blocks();
    let mut changed = Vec::new();
    for [block, high, low, add, _] in changes.as_chunks::<5>().0 {
        let block = usize::from(*block) % used;
        let at = usize::from(u16::from_be_bytes([*high, *low])) % BLOCK_BYTES;
        let byte = &mut image[block * BLOCK_BYTES + at];
        *byte = byte.wrapping_add(*add);
        changed.push(block);
    }
    if flags & RESEAL != 0 {
        changed.iter().for_each(|block| seal(&mut image[block * BLOCK_BYTES..], *block));
    }
    // The rest of the medium is zeroes, as it was on the pool's.
    let media = Media::new(Sectors(BLOCKS as u64 * 8));
    media.poke(Sector::ZERO, &image);
    let nodes = if flags & FORGETFUL != 0 { 1 } else { BLOCKS };
    let read = Sim::new(1).block_on(async move {
        let metadata = SimDisk::over("metadata", media).gateway();
        let data = SimDisk::new("data", Sectors(20 << 11)).gateway();
        let options = Options { unchecked: true, nodes, ..Options::default() };
        read(&ThinPool::open("pool", metadata, data, options).await?).await
    });
    assert!(read.as_ref().err().is_none_or(|error| !error.to_string().is_empty()));
    read.is_ok()
}

fn seal(image: &mut [u8], number: usize) {
    let Some(block) = image.first_chunk_mut::<BLOCK_BYTES>() else { return };
    let block: &mut Block = block;
    let sum = if number == 0 { superblock_checksum(block) } else { node_checksum(block) };
    block[..4].copy_from_slice(&sum.to_le_bytes());
}

async fn read(pool: &std::sync::Arc<ThinPool>) -> Result<(), ThinError> {
    for (id, details) in pool.devices().await? {
        assert_eq!(pool.details(id).await?, Some(details));
        let (mut blocks, mut last) = (0, None);
        let count = |run: ashlar_dm::thin::Mapping| {
            assert!(last.is_none_or(|last| run.block > last));
            last = Some(run.block + (run.len - 1));
            blocks += run.len;
        };
        pool.mappings(id, count).await?;
        assert!(blocks <= BLOCKS as u64 * 254);
    }
    Ok(())
}
