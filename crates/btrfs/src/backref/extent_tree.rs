//! Extents as the extent tree has them, and what refers to each.

use std::sync::Arc;

use crate::error::TreeError;
use crate::ondisk::items::{BackRef, ExtentItem, keyed_ref};
use crate::ondisk::key::{Key, item};
use crate::path::{Path, Root};
use crate::readahead::Reada;
use crate::roots::damaged;
use crate::units::Logical;
use crate::volume::FileSystem;

/// Maximum number of file parts reported for an extent.
pub const OWNERS_MAX: usize = 1000;

/// An item of the extent tree.
pub(super) struct ExtentTreeItem {
    pub(super) key: Key,
    pub(super) data: Vec<u8>,
}

impl ExtentTreeItem {
    pub(super) fn length(&self, fs: &FileSystem) -> u64 {
        match self.key.kind {
            item::METADATA_ITEM => u64::from(fs.nodesize()),
            _ => self.key.offset,
        }
    }

    pub(super) fn end(&self, fs: &FileSystem) -> u64 {
        self.key.objectid.saturating_add(self.length(fs))
    }
}

const fn is_extent(kind: u8) -> bool {
    matches!(kind, item::EXTENT_ITEM | item::METADATA_ITEM)
}

/// The first extent that starts at or after `from`.
pub(super) async fn extent_from(
    fs: &Arc<FileSystem>,
    tree: Root,
    from: u64,
) -> Result<Option<ExtentTreeItem>, TreeError> {
    let mut path = Path::new(fs, tree);
    let mut more = path.search(Key::new(from, 0, 0)).await?;
    while more {
        let Some((key, data)) = path.item() else { break };
        if is_extent(key.kind) {
            return Ok(Some(ExtentTreeItem { key, data: data.to_vec() }));
        }
        more = path.next().await?;
    }
    Ok(None)
}

/// The extent that contains the byte at `start`, or else the first one after it.
pub(super) async fn first_extent(
    fs: &Arc<FileSystem>,
    tree: Root,
    start: Logical,
) -> Result<Option<ExtentTreeItem>, TreeError> {
    let mut path = Path::new(fs, tree);
    let mut from = Key::new(start.0, item::METADATA_ITEM, u64::MAX);
    // The items before may be references to an extent, or a block group.
    while path.search_back(from).await? {
        let Some(key) = path.key() else { break };
        let found = extent_from(fs, tree, key.objectid).await?;
        match found.filter(|found| found.key.objectid == key.objectid) {
            Some(found) if found.end(fs) > start.0 => return Ok(Some(found)),
            Some(_) => break,
            None => {}
        }
        let Some(before) = key.objectid.checked_sub(1) else { break };
        from = Key::new(before, u8::MAX, u64::MAX);
    }
    extent_from(fs, tree, start.0).await
}

/// All references to an extent, up to the limit; and whether these are all.
pub(super) async fn references(
    fs: &Arc<FileSystem>,
    tree: Root,
    found: &ExtentTreeItem,
) -> Result<(Vec<BackRef>, bool), TreeError> {
    let key = found.key;
    let it = ExtentItem::parse(key, &found.data).map_err(|why| damaged(tree.id, key, &why))?;
    let mut all = Vec::new();
    for back_ref in it.inline {
        all.push(back_ref.map_err(|why| damaged(tree.id, key, &why))?);
    }
    let mut path = Path::new(fs, tree).with_reada(Reada::Forward);
    let mut more = path.search(Key::new(key.objectid, item::TREE_BLOCK_REF, 0)).await?;
    while more {
        let Some((key, data)) = path.item().filter(|(it, _)| it.objectid == key.objectid) else {
            break;
        };
        if all.len() >= OWNERS_MAX {
            return Ok((all, false));
        }
        if let Some(back_ref) = keyed_ref(key, data) {
            all.push(back_ref.map_err(|why| damaged(tree.id, key, &why))?);
        }
        more = path.next().await?;
    }
    Ok((all, true))
}
