//! Reading files from the file system without mounting it.
//!
//! A [`Files`] shows one subvolume and those nested in it, which are crossed like directories.
//! Nothing is trusted: a directory is entered only if its back reference names this entry (parent,
//! name and index), and never if it is the root directory of its subvolume. A cycle of directories
//! can only be entered through its root directory, so a walk ends and meets no directory twice
//! without remembering any. An invalid name is an error of its own; every sector of data with a
//! checksum is verified, and the next mirror is tried if it is wrong.
//!
//! The `fsync` log is not replayed: files are as of the last commit, and [`Files::open`] warns about it.

mod dir;
mod read;
mod verify;
mod walk;

use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use tracing::warn;

pub use dir::{Directory, DirectoryEntry};
pub use read::{LossReason, Piece, Reader};
pub use walk::{Walk, trimmed};

use crate::error::{ReadError, TreeError};
use crate::ondisk::items::{
    DirEntries, FileExtent, FileExtentBody, FileType, InodeItem, InodeRefs, RootRef, name_hash,
};
use crate::ondisk::key::{Key, item, objectid};
use crate::path::{Path, Root};
use crate::roots::{Subvolume, damaged, is_subvolume};
use crate::volume::FileSystem;

/// Maximum path length in bytes: deeper directories are not entered.
pub const PATH_BYTES_MAX: usize = 64 << 10;

/// The root directory of every subvolume. Root items name it too (`root_dirid`), but kernels use this number.
const ROOT_DIRECTORY: u64 = objectid::FIRST_FREE;

/// A directory entry, without its target.
#[derive(Clone, Copy)]
struct Link<'a> {
    tree: Root,
    /// The directory's inode.
    directory: u64,
    name: &'a [u8],
    /// The entry's index in the directory; `None` if found by name.
    index: Option<u64>,
}

impl Link<'_> {
    /// Whether a back reference to this directory, with this name and index, names this entry.
    fn is(&self, name: &[u8], index: u64) -> bool {
        self.name == name && self.index.is_none_or(|ours| ours == index)
    }
}

/// Target of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// An inode.
    Inode {
        /// The subvolume's tree.
        tree: Root,
        /// Its number in the tree.
        inode: u64,
    },
    /// Where a nested subvolume was when a snapshot was taken: an empty directory in the snapshot.
    Empty,
}

/// Why something could not be found or listed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FileError {
    /// A tree is damaged.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// There is no such name.
    #[error("no such file or directory")]
    NotFound,
    /// There is no such subvolume.
    #[error("there is no subvolume {0}")]
    NoSubvolume(u64),
    /// The path continues after something that is not a directory.
    #[error("{0} is not a directory")]
    NotADirectory(Name),
    /// It is not of the requested type.
    #[error("it is {found}, not {wanted}")]
    Kind {
        /// What it is.
        found: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// An invalid name.
    #[error("{name} in the directory {inode} of tree {tree} cannot be a name")]
    BadName {
        /// The tree.
        tree: u64,
        /// The directory.
        inode: u64,
        /// The name.
        name: Name,
    },
    /// A directory whose back reference names another place.
    #[error(
        "the back reference of the directory {name} names another place: it has two names or contains itself"
    )]
    Elsewhere {
        /// Its name here.
        name: Name,
    },
    /// An entry for the root directory of its own subvolume, which is in no directory.
    #[error("the entry {name} leads back to the root directory of its subvolume")]
    Root {
        /// Its name here.
        name: Name,
    },
    /// An inode item is missing.
    #[error("the inode {inode} of tree {tree} does not exist")]
    NoInode {
        /// The tree.
        tree: u64,
        /// The inode.
        inode: u64,
    },
    /// The target of a link cannot be read.
    #[error("cannot read what the link leads to: {0}")]
    Target(String),
    /// The path is too long.
    #[error("the path is longer than {PATH_BYTES_MAX} bytes")]
    TooLong,
}

/// A name or path: arbitrary bytes. Displayed as text; control characters, bytes that are not UTF-8
/// and backslashes are shown as `\xNN`, which [`Name::from_shown`] reads back.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub Vec<u8>);

impl Name {
    /// The name that is displayed as `text`.
    pub fn from_shown(text: &[u8]) -> Self {
        let mut name = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some((&first, more)) = rest.split_first() {
            let (byte, behind) =
                escaped_byte(rest).map_or((first, more), |byte| (byte, &rest[4..]));
            name.push(byte);
            rest = behind;
        }
        Self(name)
    }
}

/// The byte of an escape at the start of `text`.
fn escaped_byte(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"\\x")?.get(..2)?;
    let digits =
        std::str::from_utf8(digits).ok().filter(|it| it.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u8::from_str_radix(digits, 16).ok()
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escaped = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            bytes.iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))
        };
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c == '\\' || c.is_control() {
                    escaped(f, c.encode_utf8(&mut [0; 4]).as_bytes())?;
                } else {
                    fmt::Write::write_char(f, c)?;
                }
            }
            escaped(f, chunk.invalid())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether `name` is valid for a directory entry.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|b| matches!(b, 0 | b'/'))
}

/// File type in an inode's mode.
pub fn kind_of(mode: u32) -> FileType {
    // S_IFMT
    match mode & 0o170_000 {
        0o100_000 => FileType::Regular,
        0o040_000 => FileType::Directory,
        0o020_000 => FileType::CharacterDevice,
        0o060_000 => FileType::BlockDevice,
        0o010_000 => FileType::Fifo,
        0o140_000 => FileType::Socket,
        0o120_000 => FileType::Symlink,
        _ => FileType::Unknown,
    }
}

/// `kind` in words.
fn words(kind: FileType) -> &'static str {
    match kind {
        FileType::Unknown | FileType::Xattr => "something unknown",
        FileType::Regular => "a file",
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::Symlink => "a symbolic link",
    }
}

/// Major and minor number of a device, from `rdev` of its inode, in the kernel's internal `dev_t` format.
pub const fn device_numbers(rdev: u64) -> (u64, u64) {
    (rdev >> 20, rdev & 0xfffff)
}

/// The files of a subvolume and of those nested in it.
#[derive(Clone, Debug)]
pub struct Files {
    fs: Arc<FileSystem>,
    top: Subvolume,
}

impl Files {
    /// The files of a subvolume; 5 is the top-level one, which contains all others.
    ///
    /// # Errors
    /// There is no such subvolume, or the tree of roots is damaged.
    pub async fn open(fs: &Arc<FileSystem>, subvolume: u64) -> Result<Self, FileError> {
        if fs.log_root().is_some() {
            warn!(
                "the file system was not unmounted and has a log, which is not replayed: files may lack what was written by the last fsyncs"
            );
        }
        let top = fs.subvolume(subvolume).await?.ok_or(FileError::NoSubvolume(subvolume))?;
        Ok(Self { fs: Arc::clone(fs), top })
    }

    /// The file system.
    pub fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Its root directory.
    pub fn root(&self) -> Place {
        Place::Inode { tree: self.top.root, inode: ROOT_DIRECTORY }
    }

    /// Resolves `path` from the root directory. Symbolic links are not followed.
    ///
    /// # Errors
    /// The path does not exist, or a tree is damaged.
    pub async fn resolve(&self, path: &[u8]) -> Result<Place, FileError> {
        if path.len() > PATH_BYTES_MAX {
            return Err(FileError::TooLong);
        }
        let mut places = vec![self.root()];
        let mut place = self.root();
        for name in path.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => {
                    if places.len() > 1 {
                        places.pop();
                    }
                    place = places.last().copied().unwrap_or(self.root());
                }
                _ => {
                    place = self.look_up(place, name).await?;
                    places.push(place);
                }
            }
        }
        Ok(place)
    }

    /// Looks up a name in a directory.
    ///
    /// # Errors
    /// The name does not exist; `directory` is not a directory; or a tree is damaged.
    pub async fn look_up(&self, directory: Place, name: &[u8]) -> Result<Place, FileError> {
        let Place::Inode { tree, inode } = directory else { return Err(FileError::NotFound) };
        let kind = kind_of(self.inode(tree, inode).await?.mode.get());
        if kind != FileType::Directory {
            return Err(FileError::NotADirectory(Name(name.to_vec())));
        }
        let key = Key::new(inode, item::DIR_ITEM, name_hash(name));
        let mut path = Path::new(&self.fs, tree);
        if !path.search(key).await? || path.key() != Some(key) {
            return Err(FileError::NotFound);
        }
        let Some((_, data)) = path.item() else { return Err(FileError::NotFound) };
        for entry in DirEntries::new(data) {
            let entry = entry.map_err(|why| damaged(tree.id, key, &why))?;
            if entry.name == name {
                let link = Link { tree, directory: inode, name, index: None };
                let (location, kind) = (entry.location, entry.kind);
                return self.place(link, location, kind).await;
            }
        }
        Err(FileError::NotFound)
    }

    /// Target of a directory entry.
    async fn place(
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
        Ok(Place::Inode { tree, inode })
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
            Some(it) => Ok(Place::Inode { tree: it.root, inode: ROOT_DIRECTORY }),
            None => Err(FileError::Elsewhere { name: Name(at.name.to_vec()) }),
        }
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// It is not a directory, or its inode cannot be read.
    pub async fn list(&self, directory: Place) -> Result<Directory, FileError> {
        let kind = self.kind(directory).await?;
        if kind != FileType::Directory {
            return Err(FileError::Kind { found: words(kind), wanted: words(FileType::Directory) });
        }
        Ok(Directory::new(self.clone(), directory))
    }

    /// File type.
    ///
    /// # Errors
    /// Its inode cannot be read.
    pub async fn kind(&self, at: Place) -> Result<FileType, FileError> {
        Ok(match self.stat(at).await? {
            Some(inode) => kind_of(inode.mode.get()),
            None => FileType::Directory,
        })
    }

    /// Its inode; `None` for [`Place::Empty`].
    ///
    /// # Errors
    /// The inode cannot be read.
    pub async fn stat(&self, at: Place) -> Result<Option<InodeItem>, FileError> {
        match at {
            Place::Inode { tree, inode } => self.inode(tree, inode).await.map(Some),
            Place::Empty => Ok(None),
        }
    }

    async fn inode(&self, tree: Root, inode: u64) -> Result<InodeItem, FileError> {
        let key = Key::new(inode, item::INODE_ITEM, 0);
        let mut path = Path::new(&self.fs, tree);
        let found = path.search(key).await? && path.key() == Some(key);
        let Some((_, data)) = path.item().filter(|_| found) else {
            return Err(FileError::NoInode { tree: tree.id, inode });
        };
        let it = InodeItem::parse(data).map_err(|why| damaged(tree.id, key, &why))?;
        Ok(it.clone())
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// It is not a symbolic link, or its target cannot be read.
    pub async fn target(&self, at: Place) -> Result<Vec<u8>, FileError> {
        let kind = self.kind(at).await?;
        let Place::Inode { tree, inode } = at else {
            return Err(FileError::Kind { found: words(kind), wanted: words(FileType::Symlink) });
        };
        if kind != FileType::Symlink {
            return Err(FileError::Kind { found: words(kind), wanted: words(FileType::Symlink) });
        }
        let key = Key::new(inode, item::EXTENT_DATA, 0);
        let mut path = Path::new(&self.fs, tree);
        let found = path.search(key).await? && path.key() == Some(key);
        let Some((_, data)) = path.item().filter(|_| found) else {
            return Err(FileError::Target("it is not there".to_owned()));
        };
        let extent = FileExtent::parse(data, self.fs.sectorsize());
        match extent.map_err(|why| damaged(tree.id, key, &why))?.body {
            // mkfs.btrfs --rootdir also stores the terminating zero byte.
            FileExtentBody::Inline(bytes) => Ok(bytes.strip_suffix(&[0]).unwrap_or(bytes).to_vec()),
            FileExtentBody::Regular(_) | FileExtentBody::Prealloc(_) => {
                Err(FileError::Target("it is not inline".to_owned()))
            }
        }
    }

    /// The extended attributes: names and values.
    ///
    /// # Errors
    /// The tree is damaged.
    pub async fn attributes(&self, at: Place) -> Result<Vec<(Vec<u8>, Vec<u8>)>, FileError> {
        let Place::Inode { tree, inode } = at else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        let mut path = Path::new(&self.fs, tree);
        let mut more = path.search(Key::new(inode, item::XATTR_ITEM, 0)).await?;
        while more {
            let Some((key, data)) = path.item() else { break };
            if (key.objectid, key.kind) != (inode, item::XATTR_ITEM) {
                break;
            }
            for entry in DirEntries::new(data) {
                let entry = entry.map_err(|why| damaged(tree.id, key, &why))?;
                all.push((entry.name.to_vec(), entry.data.to_vec()));
            }
            more = path.next().await?;
        }
        Ok(all)
    }

    /// The contents of a file, piece by piece.
    ///
    /// # Errors
    /// It is not a file, or its inode cannot be read.
    pub async fn read(&self, at: Place) -> Result<Reader, FileError> {
        let kind = self.kind(at).await?;
        match at {
            Place::Inode { tree, inode } if kind == FileType::Regular => {
                let it = self.inode(tree, inode).await?;
                Reader::new(&self.fs, tree, inode, &it).await
            }
            Place::Inode { .. } | Place::Empty => {
                Err(FileError::Kind { found: words(kind), wanted: words(FileType::Regular) })
            }
        }
    }
}

impl From<ReadError> for LossReason {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}
