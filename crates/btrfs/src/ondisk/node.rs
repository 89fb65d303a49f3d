//! Tree blocks: header, and items (level 0) or pointers.

use std::ops::Range;

use thiserror::Error;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::key::{DiskKey, Key};
use super::ondisk_layout;
use crate::csum::{Checksum, ChecksumKind, MAX_SIZE};
use crate::units::Logical;

/// Levels a tree has at most (`BTRFS_MAX_LEVEL`).
pub const MAX_LEVEL: u8 = 8;

/// `struct btrfs_header`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Of everything behind this field.
    pub csum: [u8; MAX_SIZE],
    /// The file system's, or its metadata's if that has one of its own.
    pub fsid: [u8; 16],
    /// Where the block is, in bytes of the file system's space.
    pub bytenr: U64,
    /// The lower 56 bits: `written` and the like; the upper 8: the version of back references.
    pub flags: U64,
    /// The chunk tree's.
    pub chunk_tree_uuid: [u8; 16],
    /// The transaction that wrote it.
    pub generation: U64,
    /// The tree that it was made for.
    pub owner: U64,
    /// How many items or pointers follow.
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
    /// From the end of the block's header to the data.
    pub offset: U32,
    /// Bytes of data.
    pub size: U32,
}

ondisk_layout!(DiskItem, 25, { key: 0, offset: 17, size: 21 });

/// `struct btrfs_key_ptr`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KeyPtr {
    /// The first key below.
    pub key: DiskKey,
    /// Where the block is.
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
    /// Where the block is.
    pub at: Logical,
    /// The transaction that wrote it.
    pub generation: u64,
}

/// What is known of a block before it is read. What is `None` is not checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expected {
    /// Its place.
    pub at: Logical,
    /// Its transaction.
    pub generation: Option<u64>,
    /// Its level.
    pub level: Option<u8>,
    /// Its first key.
    pub first_key: Option<Key>,
}

/// The file system that blocks belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The checksums' algorithm.
    pub csum: ChecksumKind,
    /// What headers have in `fsid`.
    pub metadata_uuid: Uuid,
    /// What headers have in `chunk_tree_uuid`; `None` until the chunk tree has been read.
    pub chunk_tree_uuid: Option<Uuid>,
    /// Bytes of a tree block.
    pub nodesize: u32,
}

/// What is wrong with a tree block. The order is that in which a scrub looks.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NodeError {
    /// It is another block.
    #[error("bad bytenr: it says {found}, wanted {wanted}")]
    Bytenr {
        /// As stored.
        found: u64,
        /// Where it is.
        wanted: Logical,
    },
    /// It is of another file system.
    #[error("bad fsid {found}, wanted {wanted}")]
    Fsid {
        /// As stored.
        found: Uuid,
        /// The file system's.
        wanted: Uuid,
    },
    /// It is of another file system.
    #[error("bad chunk tree uuid {found}, wanted {wanted}")]
    ChunkTree {
        /// As stored.
        found: Uuid,
        /// The file system's.
        wanted: Uuid,
    },
    /// It is damaged.
    #[error("bad checksum: it is {computed}, stored is {stored}")]
    Checksum {
        /// Of the bytes.
        computed: Checksum,
        /// As stored.
        stored: Checksum,
    },
    /// It is an old version, or a newer one.
    #[error("bad generation {found}, wanted {wanted}")]
    Generation {
        /// As stored.
        found: u64,
        /// The parent's pointer's.
        wanted: u64,
    },
    /// It is of another level.
    #[error("bad level {found}, wanted {wanted}")]
    Level {
        /// As stored.
        found: u8,
        /// The parent's less one.
        wanted: u8,
    },
    /// It begins elsewhere.
    #[error("bad first key {found}, wanted {wanted}")]
    FirstKey {
        /// As stored.
        found: Key,
        /// The parent's pointer's.
        wanted: Key,
    },
    /// Its contents are impossible.
    #[error("corrupt contents: {what} (slot {slot})")]
    Contents {
        /// Which rule is broken.
        what: &'static str,
        /// Where.
        slot: usize,
    },
}

/// A tree block that has been checked: every accessor is in range.
#[derive(Clone, Debug)]
pub struct Node {
    bytes: Box<[u8]>,
}

impl Node {
    /// Takes a block after checking all of it: what a scrub checks ([`check_header`]), and that keys
    /// ascend, items are within the block and do not overlap.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn new(bytes: Box<[u8]>, id: &Identity, expected: &Expected) -> Result<Self, NodeError> {
        check_header(&bytes, id, expected)?;
        let node = Self::of_checked_header(bytes)?;
        check_first_key(node.key(0), expected.first_key)?;
        Ok(node)
    }

    /// The same for a block that has passed [`check_header`].
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(crate) fn of_checked_header(bytes: Box<[u8]>) -> Result<Self, NodeError> {
        let node = Self { bytes };
        node.check_contents()?;
        Ok(node)
    }

    /// Checks that all its keys are smaller than the one at which the next block begins.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn check_end(&self, end: Option<Key>) -> Result<(), NodeError> {
        let last = self.len().checked_sub(1).and_then(|last| self.key(last));
        check_end(last, self.len(), end)
    }

    /// All of its bytes.
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

    /// Items or pointers.
    pub fn len(&self) -> usize {
        self.header().nritems.get() as usize
    }

    /// Whether it has no items.
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

    /// The block that `slot` of a block above the leaves points to.
    pub(crate) fn child(&self, slot: usize) -> Option<Expected> {
        let pointer = self.pointer(slot)?;
        Some(Expected {
            at: pointer.at,
            generation: Some(pointer.generation),
            level: Some(self.level() - 1),
            first_key: Some(pointer.key),
        })
    }

    /// The first slot whose key is not below `key`, and whether it is the key itself.
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

/// Where the data of an item is within its block.
fn data_range(item: &DiskItem) -> Option<Range<usize>> {
    let start = HEADER_SIZE.checked_add(item.offset.get() as usize)?;
    Some(start..start.checked_add(item.size.get() as usize)?)
}

/// The first `count` slots behind the header; fewer if they do not fit.
fn slots<T: FromBytes + Immutable + KnownLayout + Unaligned>(bytes: &[u8], count: usize) -> &[T] {
    let body = bytes.get(HEADER_SIZE..).unwrap_or(&[]);
    let count = count.min(body.len() / size_of::<T>());
    <[T]>::ref_from_prefix_with_elems(body, count).map_or(&[], |(slots, _)| slots)
}

/// The header of a tree block; `None` if there are too few bytes.
pub fn header(bytes: &[u8]) -> Option<&Header> {
    Header::ref_from_prefix(bytes).ok().map(|(header, _)| header)
}

/// Checks what a scrub checks of a tree block: address, file system, chunk tree, checksum,
/// generation, level. Contents are not looked at.
///
/// # Errors
/// The first thing that is wrong, in the kernel's order.
pub fn check_header(bytes: &[u8], id: &Identity, expected: &Expected) -> Result<(), NodeError> {
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

/// Checks that a block is of the transaction and level that are expected.
///
/// # Errors
/// It is not.
pub(crate) fn check_version(
    generation: u64,
    level: u8,
    expected: &Expected,
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

/// Checks that a block begins with the key that its parent has for it. No parent points to an empty leaf.
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

/// Checks that the last of a block's `items` is below the key at which the next block begins.
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
