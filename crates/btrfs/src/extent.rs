//! A range of the file system's space that is in use.

use crate::error::TreeError;
use crate::ondisk::items::{BackRef, ExtentItem};
use crate::ondisk::key::{Key, item, objectid};
use crate::units::Logical;

/// A range in use according to the extent tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its first byte.
    pub start: Logical,
    /// Its length in bytes: whole sectors, at least one.
    pub length: u64,
    /// The transaction that created it.
    pub generation: u64,
    /// What it holds.
    pub kind: ExtentKind,
}

/// Content of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// Data.
    Data,
    /// A tree block.
    Tree {
        /// Its level.
        level: Option<u8>,
        /// The tree that the first inline reference names.
        owner: Option<u64>,
    },
}

impl Extent {
    /// The first byte after it; parsing checked that this does not overflow.
    pub const fn end(&self) -> Logical {
        Logical(self.start.0 + self.length)
    }

    /// Parses an item of a file system with sectors and tree blocks of these sizes; `None` if it is not an extent.
    pub(crate) fn parse(
        key: Key,
        bytes: &[u8],
        sectorsize: u32,
        nodesize: u32,
    ) -> Option<Result<Self, TreeError>> {
        if !matches!(key.kind, item::EXTENT_ITEM | item::METADATA_ITEM) {
            return None;
        }
        let wrong =
            |why: String| Some(Err(TreeError::Item { tree: objectid::EXTENT_TREE, key, why }));
        let parsed = match ExtentItem::parse(key, bytes) {
            Ok(parsed) => parsed,
            Err(error) => return wrong(error.to_string()),
        };
        let nodesize = u64::from(nodesize);
        let length = if key.kind == item::METADATA_ITEM { nodesize } else { key.offset };
        let start = Logical(key.objectid);
        let sector = u64::from(sectorsize);
        let whole = length > 0 && length.is_multiple_of(sector) && start.0.is_multiple_of(sector);
        if !whole || start.checked_add(length).is_none() {
            return wrong(format!("a length of {length} bytes"));
        }
        let kind = if parsed.is_data() {
            ExtentKind::Data
        } else if length != nodesize {
            return wrong(format!("a tree block of {length} bytes"));
        } else {
            let owner = parsed.inline.clone().find_map(|back_ref| match back_ref {
                Ok(BackRef::TreeBlock { root }) => Some(root),
                Ok(_) | Err(_) => None,
            });
            ExtentKind::Tree { level: parsed.level, owner }
        };
        Some(Ok(Self { start, length, generation: parsed.generation, kind }))
    }
}
