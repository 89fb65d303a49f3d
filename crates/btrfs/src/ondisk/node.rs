//! Tree blocks: header, then items (level 0) or pointers.

use std::ops::Range;

use ashlar_block::ondisk_layout;
use thiserror::Error;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::key::{DiskKey, Key};
use crate::csum::{Checksum, ChecksumKind, MAX_SIZE};
use crate::units::Logical;

/// Maximum number of levels of a tree (`BTRFS_MAX_LEVEL`).
pub const MAX_LEVEL: u8 = 8;

/// `struct btrfs_header`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Checksum of everything after this field.
    pub csum: [u8; MAX_SIZE],
    /// Identity of the file system, or of its metadata if that has a separate one.
    pub fsid: [u8; 16],
    /// Address of the block in the file system's space.
    pub bytenr: U64,
    /// The lower 56 bits: `written` and the like; the upper 8: the back reference version.
    pub flags: U64,
    /// Identity of the chunk tree.
    pub chunk_tree_uuid: [u8; 16],
    /// The transaction that wrote it.
    pub generation: U64,
    /// The tree for which it was created.
    pub owner: U64,
    /// Number of items or pointers that follow.
    pub nritems: U32,
    /// 0 is a leaf.
    pub level: u8,
}

ondisk_layout!(Header, 101, {
    csum: 0, fsid: 32, bytenr: 48, flags: 56, chunk_tree_uuid: 64, generation: 80, owner: 88,
    nritems: 96, level: 100,
});

/// Bytes of a [`Header`].
pub const HEADER_SIZE: usize = size_of::<Header>();

/// `struct btrfs_item`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskItem {
    /// The key.
    pub key: DiskKey,
    /// Offset of the data from the end of the block's header.
    pub offset: U32,
    /// Length of the data.
    pub size: U32,
}

ondisk_layout!(DiskItem, 25, { key: 0, offset: 17, size: 21 });

/// `struct btrfs_key_ptr`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KeyPtr {
    /// The first key below.
    pub key: DiskKey,
    /// Address of the block.
    pub blockptr: U64,
    /// The transaction that wrote it.
    pub generation: U64,
}

ondisk_layout!(KeyPtr, 33, { key: 0, blockptr: 17, generation: 25 });

/// A pointer to a block one level down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// The first key below.
    pub key: Key,
    /// Address of the block.
    pub at: Logical,
    /// The transaction that wrote it.
    pub generation: u64,
}

/// What is known about a block before it is read. `None` is not checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockExpectation {
    /// Its address.
    pub at: Logical,
    /// Its generation.
    pub generation: Option<u64>,
    /// Its level.
    pub level: Option<u8>,
    /// Its first key.
    pub first_key: Option<Key>,
}

/// The file system that blocks belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Checksum algorithm.
    pub csum: ChecksumKind,
    /// `fsid` of headers.
    pub metadata_uuid: Uuid,
    /// `chunk_tree_uuid` of headers; `None` until the chunk tree has been read.
    pub chunk_tree_uuid: Option<Uuid>,
    /// Size of a tree block in bytes.
    pub nodesize: u32,
}

/// What is wrong with a tree block, in the order in which a scrub checks.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NodeError {
    /// It is another block.
    #[error("bad bytenr: it says {found}, wanted {wanted}")]
    Bytenr {
        /// The stored value.
        found: u64,
        /// The actual address.
        wanted: Logical,
    },
    /// It belongs to another file system.
    #[error("bad fsid {found}, wanted {wanted}")]
    Fsid {
        /// The stored value.
        found: Uuid,
        /// The file system's.
        wanted: Uuid,
    },
    /// It belongs to another file system.
    #[error("bad chunk tree uuid {found}, wanted {wanted}")]
    ChunkTree {
        /// The stored value.
        found: Uuid,
        /// The file system's.
        wanted: Uuid,
    },
    /// The checksum does not match.
    #[error("bad checksum: it is {computed}, stored is {stored}")]
    Checksum {
        /// Checksum of the bytes.
        computed: Checksum,
        /// The stored value.
        stored: Checksum,
    },
    /// It is an older or newer version.
    #[error("bad generation {found}, wanted {wanted}")]
    Generation {
        /// The stored value.
        found: u64,
        /// From the parent's pointer.
        wanted: u64,
    },
    /// It has another level.
    #[error("bad level {found}, wanted {wanted}")]
    Level {
        /// The stored value.
        found: u8,
        /// The parent's level minus one.
        wanted: u8,
    },
    /// It begins with another key.
    #[error("bad first key {found}, wanted {wanted}")]
    FirstKey {
        /// The stored value.
        found: Key,
        /// From the parent's pointer.
        wanted: Key,
    },
    /// Its contents are invalid.
    #[error("corrupt contents: {what} (slot {slot})")]
    Contents {
        /// The broken rule.
        what: &'static str,
        /// The slot.
        slot: usize,
    },
}

/// A checked tree block: every accessor is in range.
#[derive(Clone, Debug)]
pub struct Node {
    bytes: Box<[u8]>,
}

impl Node {
    /// Takes a block after checking all of it: what a scrub checks ([`check_header`]), and that
    /// keys ascend and items are within the block without overlap.
    ///
    /// # Errors
    /// The first failed check.
    pub fn new(
        bytes: Box<[u8]>,
        id: &Identity,
        expected: &BlockExpectation,
    ) -> Result<Self, NodeError> {
        check_header(&bytes, id, expected)?;
        let node = Self::of_checked_header(bytes)?;
        check_first_key(node.key(0), expected.first_key)?;
        Ok(node)
    }

    /// Like [`Self::new`], for a block that has passed [`check_header`], without the check of the first key.
    ///
    /// # Errors
    /// The first failed check.
    pub(crate) fn of_checked_header(bytes: Box<[u8]>) -> Result<Self, NodeError> {
        let node = Self { bytes };
        node.check_contents()?;
        Ok(node)
    }

    /// Checks that all its keys are smaller than `end`, at which the next block begins.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn check_end(&self, end: Option<Key>) -> Result<(), NodeError> {
        let last = self.len().checked_sub(1).and_then(|last| self.key(last));
        check_end(last, self.len(), end)
    }

    /// The whole block.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its header.
    pub fn header(&self) -> &Header {
        header(&self.bytes).expect("checked when it was made")
    }

    /// 0 is a leaf.
    pub fn level(&self) -> u8 {
        self.header().level
    }

    /// Number of items or pointers.
    pub fn len(&self) -> usize {
        self.header().nritems.get() as usize
    }

    /// Whether it has no items or pointers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn items(&self) -> &[DiskItem] {
        slots(&self.bytes, self.len())
    }

    fn pointers(&self) -> &[KeyPtr] {
        slots(&self.bytes, self.len())
    }

    /// The key in `slot`.
    pub fn key(&self, slot: usize) -> Option<Key> {
        match self.level() {
            0 => self.items().get(slot).map(|item| Key::from(&item.key)),
            _ => self.pointers().get(slot).map(|pointer| Key::from(&pointer.key)),
        }
    }

    /// The item in `slot` of a leaf.
    pub fn item(&self, slot: usize) -> Option<(Key, &[u8])> {
        if self.level() != 0 {
            return None;
        }
        let item = self.items().get(slot)?;
        Some((Key::from(&item.key), self.bytes.get(data_range(item)?)?))
    }

    /// The pointer in `slot` of a block above the leaves.
    pub fn pointer(&self, slot: usize) -> Option<Pointer> {
        if self.level() == 0 {
            return None;
        }
        let pointer = self.pointers().get(slot)?;
        Some(Pointer {
            key: Key::from(&pointer.key),
            at: Logical(pointer.blockptr.get()),
            generation: pointer.generation.get(),
        })
    }

    /// The child block at `slot`, in a block above the leaves.
    pub(crate) fn child(&self, slot: usize) -> Option<BlockExpectation> {
        let pointer = self.pointer(slot)?;
        Some(BlockExpectation {
            at: pointer.at,
            generation: Some(pointer.generation),
            level: Some(self.level() - 1),
            first_key: Some(pointer.key),
        })
    }

    /// The slot of `key` as `Ok`, or else of the first larger key as `Err`.
    pub fn search(&self, key: Key) -> Result<usize, usize> {
        match self.level() {
            0 => self.items().binary_search_by(|item| Key::from(&item.key).cmp(&key)),
            _ => self.pointers().binary_search_by(|item| Key::from(&item.key).cmp(&key)),
        }
    }

    fn check_contents(&self) -> Result<(), NodeError> {
        let wrong = |what, slot| Err(NodeError::Contents { what, slot });
        let level = self.level();
        if level >= MAX_LEVEL {
            return wrong("a level that no tree has", 0);
        }
        let count = self.len();
        let slot_size = if level == 0 { size_of::<DiskItem>() } else { size_of::<KeyPtr>() };
        let slots_end = count.checked_mul(slot_size).and_then(|n| n.checked_add(HEADER_SIZE));
        let Some(slots_end) = slots_end.filter(|end| *end <= self.bytes.len()) else {
            return wrong("more items than fit", count);
        };
        if level > 0 && count == 0 {
            return wrong("no pointers", 0);
        }
        let mut last: Option<Key> = None;
        let mut data_from = self.bytes.len();
        for slot in 0..count {
            let key = self.key(slot).expect("slots are within the block");
            if last.is_some_and(|last| last >= key) {
                return wrong("keys that do not ascend", slot);
            }
            last = Some(key);
            if level == 0 {
                // Data is packed from the end of the block downwards, without gaps.
                let range = data_range(&self.items()[slot]);
                let Some(range) = range.filter(|range| range.end == data_from) else {
                    return wrong("item data that is not beside the one before", slot);
                };
                if range.start < slots_end {
                    return wrong("item data over the list of items", slot);
                }
                data_from = range.start;
            } else if self.pointers()[slot].blockptr.get() == 0 {
                return wrong("a pointer to nothing", slot);
            }
        }
        Ok(())
    }
}

/// Range of an item's data in its block.
fn data_range(item: &DiskItem) -> Option<Range<usize>> {
    let start = HEADER_SIZE.checked_add(item.offset.get() as usize)?;
    Some(start..start.checked_add(item.size.get() as usize)?)
}

/// The first `count` slots after the header; fewer if they do not fit.
fn slots<T: FromBytes + Immutable + KnownLayout + Unaligned>(bytes: &[u8], count: usize) -> &[T] {
    let body = bytes.get(HEADER_SIZE..).unwrap_or(&[]);
    let count = count.min(body.len() / size_of::<T>());
    <[T]>::ref_from_prefix_with_elems(body, count).map_or(&[], |(slots, _)| slots)
}

/// The header of a tree block; `None` if there are too few bytes.
pub fn header(bytes: &[u8]) -> Option<&Header> {
    Header::ref_from_prefix(bytes).ok().map(|(header, _)| header)
}

/// Checks of a tree block what a scrub checks: address, file system, chunk tree, checksum,
/// generation, level. Contents are not checked.
///
/// # Errors
/// The first failed check, in the kernel's order.
pub fn check_header(
    bytes: &[u8],
    id: &Identity,
    expected: &BlockExpectation,
) -> Result<(), NodeError> {
    let short = NodeError::Contents { what: "too few bytes", slot: 0 };
    let Some(header) = header(bytes).filter(|_| bytes.len() == id.nodesize as usize) else {
        return Err(short);
    };
    let found = header.bytenr.get();
    if found != expected.at.0 {
        return Err(NodeError::Bytenr { found, wanted: expected.at });
    }
    let (found, wanted) = (Uuid::from_bytes(header.fsid), id.metadata_uuid);
    if found != wanted {
        return Err(NodeError::Fsid { found, wanted });
    }
    let found = Uuid::from_bytes(header.chunk_tree_uuid);
    if let Some(wanted) = id.chunk_tree_uuid
        && found != wanted
    {
        return Err(NodeError::ChunkTree { found, wanted });
    }
    let computed = id.csum.compute(&bytes[MAX_SIZE..]);
    if !computed.is(&header.csum) {
        let stored = Checksum::stored(id.csum, &header.csum);
        return Err(NodeError::Checksum { computed, stored });
    }
    check_version(header.generation.get(), header.level, expected)
}

/// Checks that a block has the expected generation and level.
///
/// # Errors
/// It does not.
pub(crate) fn check_version(
    generation: u64,
    level: u8,
    expected: &BlockExpectation,
) -> Result<(), NodeError> {
    if let Some(wanted) = expected.generation
        && generation != wanted
    {
        return Err(NodeError::Generation { found: generation, wanted });
    }
    if let Some(wanted) = expected.level
        && level != wanted
    {
        return Err(NodeError::Level { found: level, wanted });
    }
    Ok(())
}

/// Checks that a block begins with the key in its parent. No parent points to an empty leaf.
///
/// # Errors
/// It does not.
pub(crate) fn check_first_key(found: Option<Key>, wanted: Option<Key>) -> Result<(), NodeError> {
    match (wanted, found) {
        (Some(_), None) => {
            Err(NodeError::Contents { what: "no items, and its parent has a key for it", slot: 0 })
        }
        (Some(wanted), Some(found)) if found != wanted => {
            Err(NodeError::FirstKey { found, wanted })
        }
        (Some(_), Some(_)) | (None, _) => Ok(()),
    }
}

/// Checks that the last key of a block is below `end`, at which the next block begins.
///
/// # Errors
/// It is not.
pub(crate) fn check_end(
    last: Option<Key>,
    items: usize,
    end: Option<Key>,
) -> Result<(), NodeError> {
    match (last, end) {
        (Some(last), Some(end)) if last >= end => {
            let (what, slot) = ("keys that belong into the next block", items.saturating_sub(1));
            Err(NodeError::Contents { what, slot })
        }
        (Some(_) | None, _) => Ok(()),
    }
}
