//! From a directory entry to what it names, if that names the entry back.

use std::cell::Cell;
use std::sync::Arc;

use ashlar_files::{FileError, FileType, Name, Place};

use crate::ondisk::items::{self, InodeItem, InodeRefs, RootRef};
use crate::ondisk::key::{Key, item, objectid};
use crate::path::{Path, Root};
use crate::roots::{Subvolume, damaged, is_subvolume};
use crate::volume::FileSystem;

/// The root directory of every subvolume. Root items name it too (`root_dirid`), but kernels use this number.
pub(super) const ROOT_DIRECTORY: u64 = objectid::FIRST_FREE;

/// A directory entry, without its target.
#[derive(Clone, Copy)]
pub(super) struct Link<'a> {
    pub(super) tree: Root,
    /// The directory's inode.
    pub(super) directory: u64,
    pub(super) name: &'a [u8],
    /// The entry's index in the directory; `None` if found by name.
    pub(super) index: Option<u64>,
}

impl Link<'_> {
    /// Whether a back reference to this directory, with this name and index, names this entry.
    fn is(&self, name: &[u8], index: u64) -> bool {
        self.name == name && self.index.is_none_or(|ours| ours == index)
    }
}

/// The type that a directory entry says. No file has that of an extended attribute.
pub(super) const fn kind_of(kind: items::FileType) -> FileType {
    match kind {
        items::FileType::Unknown | items::FileType::Xattr => FileType::Unknown,
        items::FileType::Regular => FileType::Regular,
        items::FileType::Directory => FileType::Directory,
        items::FileType::CharacterDevice => FileType::CharacterDevice,
        items::FileType::BlockDevice => FileType::BlockDevice,
        items::FileType::Fifo => FileType::Fifo,
        items::FileType::Socket => FileType::Socket,
        items::FileType::Symlink => FileType::Symlink,
    }
}

/// The inodes of a subvolume and of those nested in it.
#[derive(Clone, Debug)]
pub(super) struct Inodes {
    pub(super) fs: Arc<FileSystem>,
    top: Subvolume,
    /// The tree of the last place: mostly that of the next one, too.
    last: Cell<Root>,
}

impl Inodes {
    pub(super) fn new(fs: &Arc<FileSystem>, top: Subvolume) -> Self {
        let last = Cell::new(top.root);
        Self { fs: Arc::clone(fs), top, last }
    }

    /// The root directory of the first subvolume.
    pub(super) fn root(&self) -> Place {
        Place::Inode { tree: self.top.id, inode: ROOT_DIRECTORY }
    }

    /// The tree of a place.
    pub(super) async fn tree(&self, id: u64) -> Result<Root, FileError> {
        let last = self.last.get();
        if last.id == id {
            return Ok(last);
        }
        let found = self.fs.subvolume(id).await?.ok_or(FileError::NoSubvolume(id))?;
        self.last.set(found.root);
        Ok(found.root)
    }

    /// The inode of a file of this type, with its tree and number.
    pub(super) async fn need(
        &self,
        at: Place,
        wanted: FileType,
    ) -> Result<(Root, u64, InodeItem), FileError> {
        let Place::Inode { tree, inode } = at else {
            return Err(FileError::Kind { found: FileType::Directory, wanted });
        };
        let tree = self.tree(tree).await?;
        let it = self.inode(tree, inode).await?;
        match FileType::of(it.mode.get()) {
            found if found == wanted => Ok((tree, inode, it)),
            found => Err(FileError::Kind { found, wanted }),
        }
    }

    /// Target of a directory entry.
    pub(super) async fn place(
        &self,
        link: Link<'_>,
        location: Key,
        kind: FileType,
    ) -> Result<Place, FileError> {
        if location.kind == item::ROOT_ITEM {
            return self.inner(link, location.objectid).await;
        }
        let (tree, inode) = (link.tree, location.objectid);
        if location.kind != item::INODE_ITEM {
            return Err(FileError::NoInode { tree: tree.id, inode });
        }
        if inode == ROOT_DIRECTORY {
            return Err(FileError::Root { name: Name(link.name.to_vec()) });
        }
        if kind == FileType::Directory && !self.is_only_entry(link, inode).await? {
            return Err(FileError::Elsewhere { name: Name(link.name.to_vec()) });
        }
        Ok(Place::Inode { tree: tree.id, inode })
    }

    /// Whether a directory's back reference names this as its one entry.
    async fn is_only_entry(&self, at: Link<'_>, inode: u64) -> Result<bool, FileError> {
        let mut path = Path::new(&self.fs, at.tree);
        if !path.search(Key::new(inode, item::INODE_REF, 0)).await? {
            return Ok(false);
        }
        let Some((key, data)) = path.item() else { return Ok(false) };
        let first = InodeRefs::new(data).next();
        Ok((key.objectid, key.kind, key.offset) == (inode, item::INODE_REF, at.directory)
            && first.is_some_and(|link| link.is_ok_and(|link| at.is(link.name, link.index))))
    }

    /// The root directory of a subvolume that has an entry in a directory; an empty directory if
    /// the subvolume is elsewhere, as in a snapshot.
    async fn inner(&self, at: Link<'_>, id: u64) -> Result<Place, FileError> {
        let (outer, directory) = (at.tree.id, at.directory);
        let roots = self.fs.tree_root();
        let key = Key::new(outer, item::ROOT_REF, id);
        let mut path = Path::new(&self.fs, roots);
        if !path.search(key).await? || path.key() != Some(key) {
            return Ok(Place::Empty);
        }
        let Some((_, data)) = path.item() else { return Ok(Place::Empty) };
        let link = RootRef::parse(data).map_err(|why| damaged(roots.id, key, &why))?;
        if link.dirid != directory || link.name != at.name {
            return Ok(Place::Empty);
        }
        let is_entry = at.is(link.name, link.sequence);
        let found = self.fs.subvolume(id).await?.filter(|it| it.id != self.top.id && is_entry);
        let is_here = |it: &Subvolume| {
            let place = it.place.as_ref();
            place.is_some_and(|place| {
                place.outer == outer && place.dirid == directory && place.name == at.name
            })
        };
        match found.filter(|it| is_subvolume(it.id) && it.id != objectid::FS_TREE && is_here(it)) {
            Some(it) => Ok(Place::Inode { tree: it.id, inode: ROOT_DIRECTORY }),
            None => Err(FileError::Elsewhere { name: Name(at.name.to_vec()) }),
        }
    }

    /// An inode.
    pub(super) async fn inode(&self, tree: Root, inode: u64) -> Result<InodeItem, FileError> {
        let key = Key::new(inode, item::INODE_ITEM, 0);
        let mut path = Path::new(&self.fs, tree);
        let found = path.search(key).await? && path.key() == Some(key);
        let Some((_, data)) = path.item().filter(|_| found) else {
            return Err(FileError::NoInode { tree: tree.id, inode });
        };
        let it = InodeItem::parse(data).map_err(|why| damaged(tree.id, key, &why))?;
        Ok(it.clone())
    }
}
