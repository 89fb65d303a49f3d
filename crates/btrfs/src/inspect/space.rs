//! How the space is allocated, and how much of it is used.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::error::TreeError;
use crate::ondisk::chunk::BlockGroupFlags;
use crate::ondisk::items::{BlockGroup, RootItem};
use crate::ondisk::key::{Key, item, objectid};
use crate::ondisk::superblock::CompatRo;
use crate::path::Path;
use crate::readahead::Reada;
use crate::roots::damaged;
use crate::units::DevId;
use crate::volume::FileSystem;

/// All block groups of one kind and profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Content and profile.
    pub flags: BlockGroupFlags,
    /// Total size in bytes.
    pub total: u64,
    /// Bytes that are used.
    pub used: u64,
}

/// Space on a device of the chunks of one kind, profile and number of stripes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// The device.
    pub devid: DevId,
    /// Content and profile.
    pub flags: BlockGroupFlags,
    /// Number of stripes per chunk.
    pub stripes: usize,
    /// Chunk bytes in the file system's space, once per stripe on the device.
    pub logical: u64,
    /// Bytes on the device.
    pub physical: u64,
}

/// Order: data, mixed, metadata, system; within each, profiles by their bits.
pub(super) fn in_order(a: BlockGroupFlags, b: BlockGroupFlags) -> Ordering {
    let kinds = BlockGroupFlags::DATA | BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
    let rank = |flags: BlockGroupFlags| {
        let is_system = flags.contains(BlockGroupFlags::SYSTEM);
        (is_system, (flags & kinds).bits(), (flags - kinds).bits())
    };
    rank(a).cmp(&rank(b))
}

/// The block groups, by kind and profile.
///
/// # Errors
/// The tree that contains them cannot be read or is damaged.
pub async fn spaces(fs: &Arc<FileSystem>) -> Result<Vec<Space>, TreeError> {
    let own = fs.superblock().compat_ro().contains(CompatRo::BLOCK_GROUP_TREE);
    let tree = if own { objectid::BLOCK_GROUP_TREE } else { objectid::EXTENT_TREE };
    let root = fs.need_root(tree).await?;
    let mut path = Path::new(fs, root).with_reada(Reada::Forward);
    let mut all: Vec<Space> = Vec::new();
    for chunk in fs.chunks().iter() {
        // In the extent tree they are far apart, so search for each.
        let wanted = Key::new(chunk.start.0, item::BLOCK_GROUP_ITEM, 0);
        if !path.search(wanted).await? {
            continue;
        }
        let Some((key, data)) = path.item() else { continue };
        if (key.objectid, key.kind) != (wanted.objectid, wanted.kind) {
            continue;
        }
        let group = BlockGroup::parse(key, data).map_err(|why| damaged(tree, key, &why))?;
        let space = match all.iter_mut().find(|space| space.flags == group.flags) {
            Some(space) => space,
            None => {
                all.push(Space { flags: group.flags, total: 0, used: 0 });
                all.last_mut().expect("it was just put there")
            }
        };
        space.total = space.total.saturating_add(group.length);
        space.used = space.used.saturating_add(group.used);
    }
    all.sort_by(|a, b| in_order(a.flags, b.flags));
    Ok(all)
}

/// Space of chunks on devices, by kind, profile and number of stripes.
pub fn allocations(fs: &FileSystem) -> Vec<Allocation> {
    let mut all: Vec<Allocation> = Vec::new();
    for chunk in fs.chunks().iter() {
        let (flags, stripes) = (chunk.flags, chunk.stripes.len());
        for on in &chunk.stripes {
            let is_it = |it: &&mut Allocation| {
                (it.flags, it.devid, it.stripes) == (flags, on.devid, stripes)
            };
            let it = match all.iter_mut().find(is_it) {
                Some(it) => it,
                None => {
                    let devid = on.devid;
                    all.push(Allocation { devid, flags, stripes, logical: 0, physical: 0 });
                    all.last_mut().expect("it was just put there")
                }
            };
            it.logical = it.logical.saturating_add(chunk.length);
            it.physical = it.physical.saturating_add(chunk.stripe_length());
        }
    }
    all.sort_by(|a, b| in_order(a.flags, b.flags));
    all
}

/// Bytes of a tree's blocks; zero if there is no such tree.
pub(super) async fn tree_bytes(fs: &Arc<FileSystem>, id: u64) -> Result<u64, TreeError> {
    let tree = fs.tree_root();
    let mut path = Path::new(fs, tree);
    if !path.search_back(Key::new(id, item::ROOT_ITEM, u64::MAX)).await? {
        return Ok(0);
    }
    match path.item() {
        Some((key, data)) if (key.objectid, key.kind) == (id, item::ROOT_ITEM) => {
            let found = RootItem::parse(data).map_err(|why| damaged(tree.id, key, &why))?;
            Ok(found.disk.bytes_used.get())
        }
        Some(_) | None => Ok(0),
    }
}
