//! From an inode to its names.

use std::sync::Arc;

use ashlar_files::{Name, PATH_BYTES_MAX};

use crate::error::TreeError;
use crate::ondisk::items::{InodeExtrefs, InodeRefs};
use crate::ondisk::key::{Key, item, objectid};
use crate::path::{Path, Root};
use crate::roots::damaged;
use crate::volume::FileSystem;

/// Maximum number of names reported for an inode.
pub const NAMES_MAX: usize = 1000;

/// Maximum directory nesting: a name has at least one byte.
const DEPTH_MAX: usize = PATH_BYTES_MAX / 2;

/// A name of a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileName {
    /// Path from the root directory of its subvolume, without a leading slash.
    pub path: Name,
    /// Path of the subvolume from the first subvolume's root directory; empty for the first
    /// subvolume, `None` if the subvolume is in no directory because it is being removed.
    pub subvolume: Option<Name>,
}

impl FileName {
    /// The path from the first subvolume's root directory, as a mount with `subvolid=5` shows it;
    /// if the subvolume is in no directory, from the subvolume's root directory.
    pub fn full(&self) -> Name {
        let before = self.subvolume.as_ref().map_or(&[][..], |name| &name.0);
        let parts = [before, &self.path.0].into_iter().filter(|part| !part.is_empty());
        let mut all = Vec::new();
        for part in parts {
            all.push(b'/');
            all.extend_from_slice(part);
        }
        Name(if all.is_empty() { b"/".to_vec() } else { all })
    }
}

/// The names of an inode of a subvolume, at most [`NAMES_MAX`]; empty if it was unlinked.
///
/// # Errors
/// A tree is damaged, or directories form a cycle.
pub async fn names_of(
    fs: &Arc<FileSystem>,
    subvolume: u64,
    inode: u64,
) -> Result<Vec<FileName>, TreeError> {
    let Some(found) = fs.subvolume(subvolume).await? else { return Ok(Vec::new()) };
    let place = subvolume_path(fs, subvolume).await?;
    let (root, top) = (found.root, found.root_dirid);
    if inode == top {
        return Ok(vec![FileName { path: Name(Vec::new()), subvolume: place }]);
    }
    let mut all = Vec::new();
    for (parent, name) in links(fs, root, inode, NAMES_MAX).await? {
        let Some(mut path) = directory_path(fs, root, top, parent).await? else { continue };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        all.push(FileName { path: Name(path), subvolume: place.clone() });
    }
    all.sort();
    Ok(all)
}

/// Path of a subvolume from the first one's root directory; empty for the first one, `None` if it
/// is in no directory.
///
/// # Errors
/// A tree is damaged, or subvolumes form a cycle.
pub async fn subvolume_path(fs: &Arc<FileSystem>, id: u64) -> Result<Option<Name>, TreeError> {
    let (mut id, mut path) = (id, Vec::new());
    for _ in 0..DEPTH_MAX {
        if id == objectid::FS_TREE {
            return Ok(Some(Name(path)));
        }
        let Some(place) = fs.subvolume(id).await?.and_then(|found| found.place) else {
            return Ok(None);
        };
        let Some(outer) = fs.subvolume(place.outer).await? else { return Ok(None) };
        let before = directory_path(fs, outer.root, outer.root_dirid, place.dirid).await?;
        let Some(mut before) = before else { return Ok(None) };
        for part in [&place.name, &path].into_iter().filter(|part| !part.is_empty()) {
            if !before.is_empty() {
                before.push(b'/');
            }
            before.extend_from_slice(part);
        }
        if before.len() > PATH_BYTES_MAX {
            break;
        }
        (path, id) = (before, place.outer);
    }
    let key = Key::new(id, item::ROOT_BACKREF, 0);
    let why = "subvolumes are within each other in a circle, or too deep".to_owned();
    Err(TreeError::Item { tree: objectid::ROOT_TREE, key, why })
}

/// The path of a directory from the root directory `top`; `None` if the chain of parents breaks.
async fn directory_path(
    fs: &Arc<FileSystem>,
    root: Root,
    top: u64,
    directory: u64,
) -> Result<Option<Vec<u8>>, TreeError> {
    let (mut names, mut bytes, mut at) = (Vec::new(), 0, directory);
    while at != top {
        let Some((parent, name)) = links(fs, root, at, 1).await?.pop() else { return Ok(None) };
        bytes += name.len() + 1;
        if bytes > PATH_BYTES_MAX {
            let key = Key::new(directory, item::INODE_REF, 0);
            let why = "directories are within each other in a circle, or too deep".to_owned();
            return Err(TreeError::Item { tree: root.id, key, why });
        }
        names.push(name);
        at = parent;
    }
    names.reverse();
    Ok(Some(names.join(&b'/')))
}

/// Parent directories and names of an inode, at most `most` of them.
async fn links(
    fs: &Arc<FileSystem>,
    root: Root,
    inode: u64,
    most: usize,
) -> Result<Vec<(u64, Vec<u8>)>, TreeError> {
    let mut all = Vec::new();
    let mut path = Path::new(fs, root);
    let mut more = path.search(Key::new(inode, item::INODE_REF, 0)).await?;
    while more && all.len() < most {
        let Some((key, data)) = path.item() else { break };
        let wrong = |why| damaged(root.id, key, &why);
        match (key.objectid == inode, key.kind) {
            (true, item::INODE_REF) => {
                for link in InodeRefs::new(data) {
                    all.push((key.offset, link.map_err(wrong)?.name.to_vec()));
                }
            }
            (true, item::INODE_EXTREF) => {
                for link in InodeExtrefs::new(data) {
                    let link = link.map_err(wrong)?;
                    all.push((link.parent, link.name.to_vec()));
                }
            }
            _ => break,
        }
        more = path.next().await?;
    }
    all.truncate(most);
    Ok(all)
}
