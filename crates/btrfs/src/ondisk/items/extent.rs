//! Extents: their reference counts and references.

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemError, exact, prefix};
use crate::ondisk::key::{DiskKey, Key, item};
use crate::ondisk::node::MAX_LEVEL;
use crate::units::Logical;

/// Type of keyed references before Linux 2.6.31 (`BTRFS_EXTENT_REF_V0_KEY`).
const EXTENT_REF_V0: u8 = 180;

/// `struct btrfs_extent_item`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskExtentItem {
    /// Number of references, inline and keyed.
    pub refs: U64,
    /// The transaction that created it.
    pub generation: U64,
    /// [`ExtentFlags`]
    pub flags: U64,
}

ondisk_layout!(DiskExtentItem, 24, { refs: 0, generation: 8, flags: 16 });

bitflags::bitflags! {
    /// Content of an extent (`BTRFS_EXTENT_FLAG_*`, `BTRFS_BLOCK_FLAG_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct ExtentFlags: u64 {
        /// Data.
        const DATA = 1 << 0;
        /// A tree block.
        const TREE_BLOCK = 1 << 1;
        /// References to the blocks below name this block, not its tree.
        const FULL_BACKREF = 1 << 8;
    }
}

/// `struct btrfs_tree_block_info`: in the `EXTENT_ITEM` of a tree block.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskTreeBlockInfo {
    /// The block's first key.
    pub key: DiskKey,
    /// The block's level.
    pub level: u8,
}

ondisk_layout!(DiskTreeBlockInfo, 18, { key: 0, level: 17 });

/// `struct btrfs_extent_inline_ref`. An inline `EXTENT_DATA_REF` has its struct in place of
/// `offset`; an inline `SHARED_DATA_REF` has its struct after it.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskInlineRef {
    /// The type of the equivalent keyed reference.
    pub kind: u8,
    /// The key offset of the equivalent keyed reference.
    pub offset: U64,
}

ondisk_layout!(DiskInlineRef, 9, { kind: 0, offset: 1 });

/// `struct btrfs_extent_data_ref`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskExtentDataRef {
    /// The tree.
    pub root: U64,
    /// The inode.
    pub objectid: U64,
    /// File offset at which the extent's first byte would be.
    pub offset: U64,
    /// Number of file parts.
    pub count: U32,
}

ondisk_layout!(DiskExtentDataRef, 28, { root: 0, objectid: 8, offset: 16, count: 24 });

/// `struct btrfs_shared_data_ref`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskSharedDataRef {
    /// Number of file parts in the leaf.
    pub count: U32,
}

ondisk_layout!(DiskSharedDataRef, 4, { count: 0 });

/// A reference to an extent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BackRef {
    /// From a tree to one of its own blocks.
    TreeBlock {
        /// The tree.
        root: u64,
    },
    /// From a tree block to one below it.
    SharedBlock {
        /// The block above.
        parent: Logical,
    },
    /// From parts of a file.
    ExtentData {
        /// The tree.
        root: u64,
        /// The inode.
        objectid: u64,
        /// File offset at which the extent's first byte would be; negative values wrap around.
        offset: u64,
        /// Number of parts.
        count: u32,
    },
    /// From file parts in a leaf.
    SharedData {
        /// The leaf.
        parent: Logical,
        /// Number of parts.
        count: u32,
    },
    /// Not a reference: the tree charged for the extent, with simple quotas.
    Owner {
        /// The tree.
        root: u64,
    },
}

impl BackRef {
    /// How many of the extent's references it stands for.
    pub const fn count(&self) -> u64 {
        match self {
            Self::TreeBlock { .. } | Self::SharedBlock { .. } => 1,
            Self::ExtentData { count, .. } | Self::SharedData { count, .. } => *count as u64,
            Self::Owner { .. } => 0,
        }
    }

    fn of_data(disk: &DiskExtentDataRef) -> Self {
        Self::ExtentData {
            root: disk.root.get(),
            objectid: disk.objectid.get(),
            offset: disk.offset.get(),
            count: disk.count.get(),
        }
    }
}

/// An extent.
#[derive(Clone, Debug)]
pub struct ExtentItem<'a> {
    /// References, inline and keyed.
    pub refs: u64,
    /// The transaction that made it.
    pub generation: u64,
    /// What it holds: data or a tree block, and not both.
    pub flags: ExtentFlags,
    /// The level of the tree block.
    pub level: Option<u8>,
    /// The first key of the tree block, which only `EXTENT_ITEM`s tell.
    pub first_key: Option<Key>,
    /// The references that are in the item itself.
    pub inline: BackRefs<'a>,
}

const ITEM: &str = "extent item";

impl<'a> ExtentItem<'a> {
    /// Takes the body of an `EXTENT_ITEM` or a `METADATA_ITEM`.
    ///
    /// # Errors
    /// It is cut off, or of the old form; it holds neither data nor a tree block; or has a level that
    /// no block has.
    pub fn parse(key: Key, bytes: &'a [u8]) -> Result<Self, ItemError> {
        let skinny = key.kind == item::METADATA_ITEM;
        if !skinny && bytes.len() == size_of::<U32>() {
            return Err(ItemError::V0);
        }
        let (disk, rest) = prefix::<DiskExtentItem>(ITEM, bytes)?;
        let wrong = |field, value| Err(ItemError::Field { item: ITEM, field, value });
        let flags = ExtentFlags::from_bits_retain(disk.flags.get());
        let of_data = flags.contains(ExtentFlags::DATA);
        let of_block = flags.contains(ExtentFlags::TREE_BLOCK);
        if of_data == of_block || (skinny && of_data) {
            return wrong("flags", flags.bits());
        }
        let (level, first_key, rest) = if skinny {
            (Some(key.offset), None, rest)
        } else if of_block {
            let (info, rest) = prefix::<DiskTreeBlockInfo>(ITEM, rest)?;
            (Some(info.level.into()), Some(Key::from(&info.key)), rest)
        } else {
            (None, None, rest)
        };
        let level = match level {
            Some(level) if level >= u64::from(MAX_LEVEL) => return wrong("level", level),
            Some(level) => Some(level as u8),
            None => None,
        };
        let (refs, generation) = (disk.refs.get(), disk.generation.get());
        let inline = BackRefs { rest, of_data };
        Ok(Self { refs, generation, flags, level, first_key, inline })
    }

    /// Whether it holds data.
    pub const fn is_data(&self) -> bool {
        self.flags.contains(ExtentFlags::DATA)
    }
}

/// The references that are in an extent's item itself.
#[derive(Clone, Debug)]
pub struct BackRefs<'a> {
    rest: &'a [u8],
    of_data: bool,
}

impl BackRefs<'_> {
    fn take(&mut self) -> Result<BackRef, ItemError> {
        const ITEM: &str = "inline ref";
        let bytes = std::mem::take(&mut self.rest);
        let (disk, rest) = prefix::<DiskInlineRef>(ITEM, bytes)?;
        let offset = disk.offset.get();
        let (back_ref, rest) = match (disk.kind, self.of_data) {
            (item::TREE_BLOCK_REF, false) => (BackRef::TreeBlock { root: offset }, rest),
            (item::SHARED_BLOCK_REF, false) => {
                (BackRef::SharedBlock { parent: Logical(offset) }, rest)
            }
            (item::EXTENT_DATA_REF, true) => {
                let (data, rest) = prefix::<DiskExtentDataRef>(ITEM, &bytes[1..])?;
                (BackRef::of_data(data), rest)
            }
            (item::SHARED_DATA_REF, true) => {
                let (data, rest) = prefix::<DiskSharedDataRef>(ITEM, rest)?;
                let (parent, count) = (Logical(offset), data.count.get());
                (BackRef::SharedData { parent, count }, rest)
            }
            (item::EXTENT_OWNER_REF, _) => (BackRef::Owner { root: offset }, rest),
            (EXTENT_REF_V0, _) => return Err(ItemError::V0),
            (kind, _) => {
                return Err(ItemError::Field { item: ITEM, field: "type", value: kind.into() });
            }
        };
        self.rest = rest;
        Ok(back_ref)
    }
}

impl Iterator for BackRefs<'_> {
    type Item = Result<BackRef, ItemError>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.take())
    }
}

/// Parses a reference that is a separate item; `None` if the key is that of another item.
///
/// # Errors
/// The size is wrong, or the item is of the old form.
pub fn keyed_ref(key: Key, bytes: &[u8]) -> Option<Result<BackRef, ItemError>> {
    const ITEM: &str = "keyed ref";
    let empty = |back_ref| match bytes.len() {
        0 => Ok(back_ref),
        found => Err(ItemError::Size { item: ITEM, found, wanted: 0 }),
    };
    let parent = Logical(key.offset);
    Some(match key.kind {
        item::TREE_BLOCK_REF => empty(BackRef::TreeBlock { root: key.offset }),
        item::SHARED_BLOCK_REF => empty(BackRef::SharedBlock { parent }),
        item::EXTENT_DATA_REF => exact(ITEM, bytes).map(BackRef::of_data),
        item::SHARED_DATA_REF => exact::<DiskSharedDataRef>(ITEM, bytes)
            .map(|disk| BackRef::SharedData { parent, count: disk.count.get() }),
        EXTENT_REF_V0 => Err(ItemError::V0),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{counting, join};
    use super::*;

    /// The start of an item with these flags; 3 references, generation 4.
    fn head(flags: u64) -> Vec<u8> {
        [3, 4, flags].map(u64::to_le_bytes).concat()
    }

    const DATA: Key = Key::new(0x10_0000, item::EXTENT_ITEM, 0x4000);
    const BLOCK: Key = Key::new(0x20_0000, item::METADATA_ITEM, 1);
    const BLOCK_OLD: Key = Key::new(0x20_0000, item::EXTENT_ITEM, 0x4000);

    fn refs(key: Key, bytes: &[u8]) -> Vec<Result<BackRef, ItemError>> {
        ExtentItem::parse(key, bytes).unwrap().inline.collect()
    }

    #[test]
    fn references_to_data_follow_each_other() {
        let bytes = join(&[
            &head(1),
            &[172, 5, 1, 0, 0, 0, 0, 0, 0],
            &[178],
            &counting::<28>(),
            &[184, 0, 0, 0x30, 0, 0, 0, 0, 0, 9, 0, 0, 1],
        ]);
        let extent = ExtentItem::parse(DATA, &bytes).unwrap();
        assert_eq!((extent.refs, extent.generation, extent.level), (3, 4, None));
        assert!(extent.is_data() && extent.first_key.is_none());
        let wanted = [
            BackRef::Owner { root: 261 },
            BackRef::ExtentData {
                root: 0x0807_0605_0403_0201,
                objectid: 0x100f_0e0d_0c0b_0a09,
                offset: 0x1817_1615_1413_1211,
                count: 0x1c1b_1a19,
            },
            BackRef::SharedData { parent: Logical(0x30_0000), count: 0x0100_0009 },
        ];
        assert_eq!(refs(DATA, &bytes), wanted.map(Ok));
        assert_eq!(wanted.map(|back_ref| back_ref.count()), [0, 0x1c1b_1a19, 0x0100_0009]);
    }

    #[test]
    fn references_to_blocks_follow_each_other() {
        let inline = join(&[&[176], &5_u64.to_le_bytes(), &[182], &0x30_0000_u64.to_le_bytes()]);
        let wanted =
            [BackRef::TreeBlock { root: 5 }, BackRef::SharedBlock { parent: Logical(0x30_0000) }];
        let bytes = join(&[&head(0x102), &inline]);
        let extent = ExtentItem::parse(BLOCK, &bytes).unwrap();
        assert_eq!((extent.level, extent.first_key), (Some(1), None));
        assert_eq!(extent.flags, ExtentFlags::TREE_BLOCK | ExtentFlags::FULL_BACKREF);
        assert_eq!(refs(BLOCK, &bytes), wanted.map(Ok));

        let bytes = join(&[&head(2), &counting::<17>(), &[6], &inline]);
        let extent = ExtentItem::parse(BLOCK_OLD, &bytes).unwrap();
        let first = Key::new(0x0807_0605_0403_0201, 9, 0x1110_0f0e_0d0c_0b0a);
        assert_eq!((extent.level, extent.first_key), (Some(6), Some(first)));
        assert_eq!(refs(BLOCK_OLD, &bytes), wanted.map(Ok));
    }

    #[test]
    fn references_that_cannot_be_are_the_last() {
        for (key, flags, inline) in [
            (DATA, 1, join(&[&[178], &[1; 28]])),
            (DATA, 1, join(&[&[184], &[1; 12]])),
            (DATA, 1, join(&[&[172], &[1; 8]])),
            (BLOCK, 2, join(&[&[176], &[1; 8]])),
            (BLOCK, 2, join(&[&[182], &[1; 8]])),
        ] {
            for cut in 1..inline.len() {
                let all = refs(key, &join(&[&head(flags), &inline[..cut]]));
                assert!(matches!(all[..], [Err(ItemError::Short { .. })]), "{cut}: {all:?}");
            }
            let other = if flags == 1 { 176 } else { 178 };
            for kind in [0, 168, other, 255] {
                let all = refs(key, &join(&[&head(flags), &[kind], &[1; 28], &inline]));
                let [Err(ItemError::Field { value, .. })] = all[..] else { panic!("{all:?}") };
                assert_eq!(value, u64::from(kind));
            }
        }
        let all = refs(DATA, &join(&[&head(1), &[180], &[1; 28]]));
        assert_eq!(all, [Err(ItemError::V0)]);
    }

    #[test]
    fn extents_that_cannot_be_are_refused() {
        let error = |key, bytes: &[u8]| ExtentItem::parse(key, bytes).map(drop).unwrap_err();
        assert_eq!(error(DATA, &[1, 0, 0, 0]), ItemError::V0);
        for len in (0..24).filter(|len| *len != 4) {
            assert!(matches!(error(DATA, &head(1)[..len]), ItemError::Short { .. }), "{len}");
        }
        let flags = |value| ItemError::Field { item: "extent item", field: "flags", value };
        assert_eq!(error(DATA, &head(0)), flags(0));
        assert_eq!(error(DATA, &head(3)), flags(3));
        assert_eq!(error(BLOCK, &head(1)), flags(1));
        let level = |value| ItemError::Field { item: "extent item", field: "level", value };
        assert_eq!(error(Key { offset: 8, ..BLOCK }, &head(2)), level(8));
        assert_eq!(error(Key { offset: 1 << 40, ..BLOCK }, &head(2)), level(1 << 40));
        assert_eq!(error(BLOCK_OLD, &join(&[&head(2), &[0; 17], &[9]])), level(9));
        assert!(matches!(error(BLOCK_OLD, &join(&[&head(2), &[0; 17]])), ItemError::Short { .. }));
    }

    #[test]
    fn references_with_keys_say_the_same() {
        let of = |kind, bytes: &[u8]| keyed_ref(Key::new(0x10_0000, kind, 0x30_0000), bytes);
        let parent = Logical(0x30_0000);
        assert_eq!(of(176, b""), Some(Ok(BackRef::TreeBlock { root: 0x30_0000 })));
        assert_eq!(of(182, b""), Some(Ok(BackRef::SharedBlock { parent })));
        let data = DiskExtentDataRef::read_from_bytes(&counting::<28>()).unwrap();
        assert_eq!(of(178, data.as_bytes()), Some(Ok(BackRef::of_data(&data))));
        let shared = BackRef::SharedData { parent, count: 0x0403_0201 };
        assert_eq!(of(184, &[1, 2, 3, 4]), Some(Ok(shared)));
        assert_eq!(of(180, &[0; 20]), Some(Err(ItemError::V0)));
        assert_eq!(of(item::EXTENT_ITEM, &[]), None);
        for (kind, size) in [(176, 0), (182, 0), (178, 28), (184, 4)] {
            let found = size + 1;
            let wrong = ItemError::Size { item: "keyed ref", found, wanted: size };
            assert_eq!(of(kind, &vec![0; found]), Some(Err(wrong)));
        }
    }
}
