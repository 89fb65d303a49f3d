//! From an address in the file system's space to the files and trees that use it.
//!
//! The extent tree stores for each extent what refers to it: a tree and an inode, or a leaf. These are
//! not all references, because trees share blocks: a leaf belongs to each tree whose root leads to it.
//! So leaves are followed upwards, block by block, to the roots. The work is bounded by
//! [`OWNERS_MAX`] and [`BLOCKS_MAX`]; a result says whether a limit cut it off.

mod extent_tree;
mod names;
mod tree;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use extent_tree::OWNERS_MAX;
use extent_tree::{ExtentTreeItem, extent_from, first_extent, references};
pub use names::{FileName, NAMES_MAX, names_of, subvolume_path};
pub use tree::BLOCKS_MAX;

use crate::error::TreeError;
use crate::ondisk::items::{BackRef, Compression, ExtentItem, FileExtent, FileExtentBody};
use crate::ondisk::key::{Key, item, objectid};
use crate::ondisk::node::{BlockExpectation, Node};
use crate::path::{Path, Root};
use crate::readahead::Reada;
use crate::roots::{damaged, is_subvolume};
use crate::units::Logical;
use crate::volume::FileSystem;

/// Maximum number of file items examined for an extent.
const ITEMS_MAX: usize = 1_000_000;

/// An extent and its owners.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedExtent {
    /// Its start.
    pub start: Logical,
    /// Its length in bytes.
    pub length: u64,
    /// Its owners.
    pub owners: Owners,
    /// Whether there may be more owners than listed: a limit was reached, or something could not be read.
    pub more: bool,
}

/// The owners of an extent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Owners {
    /// Parts of files, ordered by tree, inode and offset.
    Data(Vec<FilePart>),
    /// The extent is a block of these trees.
    Tree {
        /// Its level.
        level: u8,
        /// Its first key, if known.
        first_key: Option<Key>,
        /// The trees, in order.
        roots: Vec<u64>,
    },
}

impl Owners {
    /// Whether there is an owner.
    pub fn is_any(&self) -> bool {
        match self {
            Self::Data(parts) => !parts.is_empty(),
            Self::Tree { roots, .. } => !roots.is_empty(),
        }
    }
}

/// A part of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FilePart {
    /// The subvolume.
    pub root: u64,
    /// The inode in that subvolume.
    pub inode: u64,
    /// File offset of the first requested byte. For a compressed extent: start of the part, as
    /// single compressed bytes have no file offset.
    pub offset: u64,
}

/// The extents that overlap `start..start + len`, and the owners of these bytes.
///
/// # Errors
/// The tree of extents is damaged.
pub async fn owners(
    fs: &Arc<FileSystem>,
    start: Logical,
    len: u64,
) -> Result<Vec<OwnedExtent>, TreeError> {
    let tree = fs.need_root(objectid::EXTENT_TREE).await?;
    let end = start.0.saturating_add(len.max(1));
    let mut all = Vec::new();
    let mut next = first_extent(fs, tree, start).await?;
    while let Some(found) = next.filter(|found| found.key.objectid < end) {
        if found.end(fs) > start.0 {
            all.push(owned(fs, tree, &found, start.0..end).await?);
        }
        if all.len() >= OWNERS_MAX {
            break;
        }
        next = extent_from(fs, tree, found.key.objectid.saturating_add(1)).await?;
    }
    Ok(all)
}

async fn owned(
    fs: &Arc<FileSystem>,
    tree: Root,
    found: &ExtentTreeItem,
    wanted: std::ops::Range<u64>,
) -> Result<OwnedExtent, TreeError> {
    let key = found.key;
    let (start, length) = (Logical(key.objectid), found.length(fs));
    let it = ExtentItem::parse(key, &found.data).map_err(|why| damaged(tree.id, key, &why))?;
    let (is_data, level, first_key) = (it.is_data(), it.level, it.first_key);
    let mut up = tree::UpwardWalk::new(fs, tree);
    if !is_data {
        let roots = up.roots_of(start, level.unwrap_or(0)).await?;
        // The item stores the first key from when the block was created.
        let first_key = up.first_key().or(first_key);
        let owners = Owners::Tree { level: level.unwrap_or(0), first_key, roots };
        return Ok(OwnedExtent { start, length, owners, more: up.is_cut_off() });
    }
    let (refs, mut all_refs) = references(fs, tree, found).await?;
    let extent = Extent { start, wanted };
    let mut items = ITEMS_MAX;
    // Every leaf with file parts that use the extent.
    let mut leaves: BTreeMap<Logical, Arc<Node>> = BTreeMap::new();
    for back_ref in refs {
        if leaves.len() >= OWNERS_MAX {
            all_refs = false;
            break;
        }
        match back_ref {
            BackRef::SharedData { parent, .. } => {
                let expected =
                    BlockExpectation { at: parent, level: Some(0), ..BlockExpectation::default() };
                match fs.node(expected).await {
                    Ok(node) => drop(leaves.insert(parent, node)),
                    Err(_) => all_refs = false,
                }
            }
            BackRef::ExtentData { root, objectid, offset, count } => {
                let file = FilePart { root, inode: objectid, offset };
                all_refs &= extent.leaves(fs, file, count, &mut leaves, &mut items).await;
            }
            BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. } | BackRef::Owner { .. } => {}
        }
    }
    let mut parts = std::collections::BTreeSet::new();
    for (at, node) in &leaves {
        let within: Vec<(u64, u64)> = extent.parts(fs, node).collect();
        if within.is_empty() {
            continue;
        }
        let roots = up.roots_of(*at, 0).await?;
        for root in roots.into_iter().filter(|root| is_subvolume(*root)) {
            for (inode, offset) in &within {
                if parts.len() < OWNERS_MAX {
                    parts.insert(FilePart { root, inode: *inode, offset: *offset });
                } else {
                    all_refs = false;
                }
            }
        }
    }
    let owners = Owners::Data(parts.into_iter().collect());
    Ok(OwnedExtent { start, length, owners, more: up.is_cut_off() || !all_refs })
}

/// The extent looked for in leaves, and the requested range of bytes.
struct Extent {
    start: Logical,
    wanted: std::ops::Range<u64>,
}

impl Extent {
    /// Adds the leaves of tree `root` in which `inode` refers to the extent such that the extent's
    /// first byte would be at `offset` of the file; looks at `items` items at most. Returns whether
    /// all were found.
    async fn leaves(
        &self,
        fs: &Arc<FileSystem>,
        file: FilePart,
        count: u32,
        leaves: &mut BTreeMap<Logical, Arc<Node>>,
        items: &mut usize,
    ) -> bool {
        let FilePart { root, inode, offset } = file;
        let Ok(Some(root)) = fs.root(root).await else { return false };
        // A negative offset wraps around: the part at the start of the file begins within the
        // extent, not at its first byte.
        let from = if offset > i64::MAX as u64 { 0 } else { offset };
        let mut path = Path::new(fs, root).with_reada(Reada::Forward);
        let mut left = count;
        let mut more = match path.search(Key::new(inode, item::EXTENT_DATA, from)).await {
            Ok(more) => more,
            Err(_) => return false,
        };
        while more && left > 0 && leaves.len() < OWNERS_MAX {
            let Some((key, data)) = path.item() else { break };
            if (key.objectid, key.kind) != (inode, item::EXTENT_DATA) {
                break;
            }
            match items.checked_sub(1) {
                Some(left) => *items = left,
                None => return false,
            }
            if self.is_in(fs, data).is_some_and(|at| key.offset.wrapping_sub(at) == offset) {
                left -= 1;
                if let Some((node, _)) = path.leaf() {
                    leaves.insert(Logical(node.header().bytenr.get()), Arc::clone(node));
                }
            }
            more = match path.next().await {
                Ok(more) => more,
                Err(_) => return false,
            };
        }
        left == 0 || leaves.len() < OWNERS_MAX
    }

    /// Offset in the extent at which a file part begins; `None` if the part is of another extent.
    fn is_in(&self, fs: &FileSystem, data: &[u8]) -> Option<u64> {
        match FileExtent::parse(data, fs.sectorsize()).ok()?.body {
            FileExtentBody::Regular(it) | FileExtentBody::Prealloc(it) => {
                (it.at == Some(self.start)).then_some(it.offset)
            }
            FileExtentBody::Inline(_) => None,
        }
    }

    /// The file parts in a leaf that have requested bytes, as inode and offset.
    fn parts<'a>(
        &'a self,
        fs: &'a FileSystem,
        node: &'a Node,
    ) -> impl Iterator<Item = (u64, u64)> + 'a {
        (0..node.len()).filter_map(move |slot| {
            let (key, data) = node.item(slot)?;
            if key.kind != item::EXTENT_DATA {
                return None;
            }
            let extent = FileExtent::parse(data, fs.sectorsize()).ok()?;
            let it = match extent.body {
                FileExtentBody::Regular(it) | FileExtentBody::Prealloc(it) => it,
                FileExtentBody::Inline(_) => return None,
            };
            if it.at != Some(self.start) {
                return None;
            }
            if extent.compression != Compression::None {
                return Some((key.objectid, key.offset));
            }
            let first = self.start.0.checked_add(it.offset)?;
            let end = first.checked_add(it.num_bytes)?;
            let from = first.max(self.wanted.start);
            (from < end.min(self.wanted.end))
                .then(|| (key.objectid, key.offset.saturating_add(from - first)))
        })
    }
}
