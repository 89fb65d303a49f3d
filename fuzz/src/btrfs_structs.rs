//! Btrfs's superblocks, tree blocks, chunks and items from a hostile disk: never a panic, never an unbounded loop or
//! allocation, and accepted structures are consistent.
//!
//! Input: a byte for the kind, then the structure's bytes; for an item first its key (17 bytes). The checksums of
//! superblocks and tree blocks are corrected.

use ashlar_btrfs::csum::ChecksumKind;
use ashlar_btrfs::inspect::{self, SuperblockKind};
use ashlar_btrfs::ondisk::chunk::{Chunk, system_chunks};
use ashlar_btrfs::ondisk::items::{
    BalanceItem, BlockGroup, CsumItem, DevExtent, DevStats, DirEntries, DirLogItem, ExtentItem,
    FileExtent, FreeSpaceBitmap, FreeSpaceHeader, FreeSpaceInfo, InodeExtrefs, InodeItem,
    InodeRefs, QgroupInfoItem, QgroupLimitItem, RootItem, RootRef, keyed_ref, raid_stripe,
    uuid_subvolumes,
};
use ashlar_btrfs::ondisk::key::{DiskKey, Key, item};
use ashlar_btrfs::ondisk::node::{BlockExpectation, HEADER_SIZE, Identity, Node, header};
use ashlar_btrfs::ondisk::superblock::{OFFSETS, SUPERBLOCK_SIZE, Superblock};
use ashlar_btrfs::units::Logical;
use uuid::Uuid;
use zerocopy::FromBytes;

/// The input is a superblock.
pub const SUPERBLOCK: u8 = 0;
/// The input is a tree block.
pub const NODE: u8 = 1;
/// The input is the chunk array of a superblock.
pub const CHUNKS: u8 = 2;
/// The input is an item.
pub const ITEM: u8 = 3;

const SECTOR: u32 = 4096;

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    let Some((what, rest)) = data.split_first() else { return false };
    match what % 4 {
        SUPERBLOCK => superblock(rest),
        NODE => node(rest),
        CHUNKS => system_chunks(rest, SECTOR).is_ok_and(|all| {
            all.iter().for_each(chunk);
            !all.is_empty()
        }),
        _ => item(rest),
    }
}

fn superblock(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    bytes.resize(SUPERBLOCK_SIZE, 0);
    let sum = ChecksumKind::Crc32c.compute(&bytes[32..]);
    bytes[..4].copy_from_slice(sum.as_bytes());
    let raw = inspect::superblock_of(&bytes).expect("enough bytes");
    let mut text = Vec::new();
    inspect::superblock(&mut text, raw, SuperblockKind::Full).expect("memory takes all");
    assert!(text.len() < 1 << 20, "the text does not end");
    match Superblock::parse(&bytes, OFFSETS[0]) {
        Ok(found) => {
            assert!(found.nodesize.get() >= found.sectorsize.get());
            if let Ok(all) = system_chunks(found.sys_chunks(), found.sectorsize.get()) {
                all.iter().for_each(chunk);
            }
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

fn node(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    bytes.resize(SECTOR as usize, 0);
    let sum = ChecksumKind::Crc32c.compute(&bytes[32..]);
    bytes[..4].copy_from_slice(sum.as_bytes());
    let head = header(&bytes).expect("enough bytes");
    let identity = Identity {
        csum: ChecksumKind::Crc32c,
        metadata_uuid: Uuid::from_bytes(head.fsid),
        chunk_tree_uuid: None,
        nodesize: SECTOR,
    };
    let expected =
        BlockExpectation { at: Logical(head.bytenr.get()), ..BlockExpectation::default() };
    let Ok(node) = Node::new(bytes.into_boxed_slice(), &identity, &expected) else { return false };
    let keys: Vec<Key> = (0..node.len()).filter_map(|slot| node.key(slot)).collect();
    assert!(keys.len() == node.len() && keys.is_sorted_by(|a, b| a < b));
    let mut data = 0;
    for (slot, key) in keys.iter().enumerate() {
        assert_eq!(node.search(*key), Ok(slot));
        match node.item(slot) {
            Some((_, body)) => {
                data += body.len();
                parse(*key, body);
            }
            None => assert!(node.pointer(slot).is_some()),
        }
    }
    assert!(data + HEADER_SIZE <= node.bytes().len());
    true
}

/// The mapping from an address to a device and back must agree.
fn chunk(chunk: &Chunk) {
    assert!(chunk.length > 0 && chunk.end() > chunk.start && !chunk.stripes.is_empty());
    let last = chunk.length - 1;
    for at in [0, last / 2, last].map(|offset| Logical(chunk.start.0 + offset)) {
        for mirror in chunk.all_mirrors() {
            // The last row of a chunk whose length is not a multiple of a row is beyond its part of a device.
            if let Some(place) = chunk.locate(at, mirror) {
                let offset = place.at.0 - chunk.stripes[place.stripe].offset.0;
                let _content = chunk.content(place.stripe, offset);
                assert!(place.len > 0 && place.len <= chunk.end().0 - at.0);
            }
        }
    }
}

fn item(bytes: &[u8]) -> bool {
    let Ok((key, body)) = DiskKey::ref_from_prefix(bytes) else { return false };
    parse(Key::from(key), body)
}

/// Whether the body is valid for the key.
fn parse(key: Key, body: &[u8]) -> bool {
    /// There cannot be more entries than bytes.
    fn count<T, E>(entries: impl Iterator<Item = Result<T, E>>, body: &[u8]) -> bool {
        let all: Vec<Result<T, E>> = entries.collect();
        assert!(all.len() <= body.len());
        all.iter().all(Result::is_ok)
    }
    match key.kind {
        item::INODE_ITEM => InodeItem::parse(body).is_ok(),
        item::INODE_REF => count(InodeRefs::new(body), body),
        item::INODE_EXTREF => count(InodeExtrefs::new(body), body),
        item::DIR_ITEM | item::DIR_INDEX | item::XATTR_ITEM => count(DirEntries::new(body), body),
        item::DIR_LOG_ITEM | item::DIR_LOG_INDEX => DirLogItem::parse(body).is_ok(),
        item::EXTENT_DATA => FileExtent::parse(body, SECTOR).is_ok(),
        item::EXTENT_CSUM => {
            CsumItem::parse(key, body, ChecksumKind::Crc32c, SECTOR).is_ok_and(|sums| {
                assert!(sums.iter().all(|(at, sum)| sums.get(at) == Some(sum)));
                true
            })
        }
        item::ROOT_ITEM => RootItem::parse(body).is_ok(),
        item::ROOT_REF | item::ROOT_BACKREF => RootRef::parse(body).is_ok(),
        item::EXTENT_ITEM | item::METADATA_ITEM => {
            ExtentItem::parse(key, body).is_ok_and(|extent| count(extent.inline, body))
        }
        item::BLOCK_GROUP_ITEM => BlockGroup::parse(key, body).is_ok(),
        item::FREE_SPACE_INFO => FreeSpaceInfo::parse(body).is_ok(),
        item::FREE_SPACE_BITMAP => FreeSpaceBitmap::parse(key, body, SECTOR).is_ok_and(|bitmap| {
            assert!(bitmap.ranges().count() <= body.len() * 8);
            true
        }),
        item::DEV_EXTENT => DevExtent::parse(key, body).is_ok(),
        item::CHUNK_ITEM => Chunk::parse(Logical(key.offset), body, SECTOR).is_ok_and(|found| {
            chunk(&found);
            true
        }),
        item::RAID_STRIPE => raid_stripe(body).is_ok(),
        item::QGROUP_INFO => QgroupInfoItem::parse(body).is_ok(),
        item::QGROUP_LIMIT => QgroupLimitItem::parse(body).is_ok(),
        item::TEMPORARY_ITEM => BalanceItem::parse(body).is_ok(),
        item::PERSISTENT_ITEM => DevStats::parse(body).is_ok(),
        item::UUID_SUBVOL | item::UUID_RECEIVED_SUBVOL => uuid_subvolumes(body).is_ok(),
        0 => FreeSpaceHeader::parse(body).is_ok(),
        _ => keyed_ref(key, body).is_some_and(|found| found.is_ok()),
    }
}
