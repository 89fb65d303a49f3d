//! What a format implements, and the data that it answers with.

use std::fmt::Debug;
use std::future::ready;

use ashlar_block::LocalFuture;
use thiserror::Error;

use super::error::FileError;
use super::kind::FileType;
use super::name::PATH_BYTES_MAX;

/// The answer to a question about files.
pub type Answer<'a, T> = LocalFuture<'a, Result<T, FileError>>;

/// Target of a name: who has the same place is the same file, under whatever name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// An inode.
    Inode {
        /// The number of its tree: the subvolume, where a format has several.
        tree: u64,
        /// Its number in the tree.
        inode: u64,
    },
    /// An empty directory without an inode, such as the place of a subvolume in a snapshot of the outer one.
    Empty,
}

/// What an inode says about its file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Type and permissions.
    pub mode: u32,
    /// The names that it has.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// Bytes of its contents, with holes.
    pub size: u64,
    /// Bytes that are allocated for the contents.
    pub allocated: u64,
    /// Major and minor number of a device node.
    pub device: (u64, u64),
    /// Last access.
    pub accessed: Time,
    /// Last change of the contents.
    pub modified: Time,
}

impl Stat {
    /// The type of the file.
    pub const fn kind(&self) -> FileType {
        FileType::of(self.mode)
    }
}

/// A time since 1970; before, `seconds` is negative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Time {
    /// Seconds, rounded down.
    pub seconds: i64,
    /// Nanoseconds after these, fewer than 10^9.
    pub nanoseconds: u32,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// Type, according to the entry.
    pub kind: FileType,
    /// What it refers to.
    pub place: Place,
}

/// A part of a file's contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Bytes.
    Data {
        /// Offset in the file.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Zeroes that are not stored.
    Hole {
        /// Offset in the file.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Bytes that cannot be read.
    Lost {
        /// Offset in the file.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The reason.
        why: LossReason,
    },
}

impl Piece {
    /// The offset of the piece after it.
    pub fn end(&self) -> u64 {
        match self {
            Self::Data { offset, bytes } => offset + bytes.len() as u64,
            Self::Hole { offset, len } | Self::Lost { offset, len, .. } => offset + len,
        }
    }
}

/// Why bytes of a file are lost.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LossReason {
    /// No copy can be read; the last reason.
    #[error("{0}")]
    Read(String),
    /// They are wrong on every copy that can be read.
    #[error("no mirror has bytes that match the checksum")]
    Checksum,
    /// Their checksums cannot be read.
    #[error("its checksums cannot be read: {0}")]
    Sums(String),
    /// The bytes are right, but cannot be decompressed.
    #[error("{0}")]
    Decompress(String),
    /// What says where they are is damaged.
    #[error("{0}")]
    Extent(String),
}

/// A directory that is being read, in the order of the kernel's `readdir`.
pub trait Entries: Debug {
    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// The directory or the entry is damaged; the entries after it can still be read.
    fn next(&mut self) -> Answer<'_, Option<Entry>>;
}

/// A file that is being read from its beginning to its end.
pub trait Contents: Debug {
    /// File size in bytes.
    fn size(&self) -> u64;

    /// The next piece; `None` at the end. Pieces are in order and without gaps.
    fn next(&mut self) -> LocalFuture<'_, Option<Piece>>;
}

/// A directory with all that is below it, and with it the trees in it.
pub trait Tree: Debug {
    /// Its root directory.
    fn root(&self) -> Place;

    /// Looks up a name in a directory.
    ///
    /// # Errors
    /// The name does not exist; `directory` is not a directory; or the file system is damaged.
    fn look_up<'a>(&'a self, directory: Place, name: &'a [u8]) -> Answer<'a, Place>;

    /// The entries of a directory.
    ///
    /// # Errors
    /// It is not a directory, or its inode cannot be read.
    fn entries(&self, directory: Place) -> Answer<'_, Box<dyn Entries + '_>>;

    /// Its inode; `None` for [`Place::Empty`].
    ///
    /// # Errors
    /// The inode cannot be read.
    fn stat(&self, at: Place) -> Answer<'_, Option<Stat>>;

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// It is not a symbolic link, or its target cannot be read.
    fn target(&self, at: Place) -> Answer<'_, Vec<u8>>;

    /// The extended attributes that any file system can have: names and values.
    ///
    /// # Errors
    /// The file system is damaged.
    fn attributes(&self, at: Place) -> Answer<'_, Vec<(Vec<u8>, Vec<u8>)>>;

    /// The contents of a file, piece by piece.
    ///
    /// # Errors
    /// It is not a file, or its inode cannot be read.
    fn read(&self, at: Place) -> Answer<'_, Box<dyn Contents + '_>>;

    /// Whether the tree of this number is a snapshot of another.
    ///
    /// # Errors
    /// The file system is damaged.
    fn is_snapshot(&self, tree: u64) -> Answer<'_, bool> {
        let _ = tree;
        Box::pin(ready(Ok(false)))
    }

    /// File type.
    ///
    /// # Errors
    /// Its inode cannot be read.
    fn kind(&self, at: Place) -> Answer<'_, FileType> {
        Box::pin(async move {
            let stat = self.stat(at).await?;
            Ok(stat.map_or(FileType::Directory, |stat| stat.kind()))
        })
    }

    /// Resolves `path` from the root directory. Symbolic links are not followed.
    ///
    /// # Errors
    /// The path does not exist, or the file system is damaged.
    fn resolve<'a>(&'a self, path: &'a [u8]) -> Answer<'a, Place> {
        Box::pin(async move {
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
        })
    }
}
