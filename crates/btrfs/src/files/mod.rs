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
mod inodes;
mod read;
mod verify;

use std::sync::Arc;

use ashlar_files::{
    Answer, Contents, Entries, FileError, FileType, LossReason, Name, Place, Stat, Time, Tree,
};
use tracing::warn;

use self::dir::Directory;
use self::inodes::{Inodes, Link, kind_of};
use self::read::Reader;
use crate::error::{ReadError, TreeError};
use crate::ondisk::items::{
    DirEntries, FileExtent, FileExtentBody, InodeItem, Timespec, name_hash,
};
use crate::ondisk::key::{Key, item};
use crate::path::Path;
use crate::roots::damaged;
use crate::volume::FileSystem;

/// Major and minor number of a device, from `rdev` of its inode, in the kernel's internal `dev_t` format.
const fn device_numbers(rdev: u64) -> (u64, u64) {
    (rdev >> 20, rdev & 0xfffff)
}

fn time(time: &Timespec) -> Time {
    // No number of a damaged inode is more than a second.
    let nanoseconds = time.nsec.get().min(999_999_999);
    Time { seconds: time.sec.get() as i64, nanoseconds }
}

fn stat(inode: &InodeItem) -> Stat {
    Stat {
        mode: inode.mode.get(),
        links: inode.nlink.get(),
        uid: inode.uid.get(),
        gid: inode.gid.get(),
        size: inode.size.get(),
        allocated: inode.nbytes.get(),
        device: device_numbers(inode.rdev.get()),
        accessed: time(&inode.atime),
        modified: time(&inode.mtime),
    }
}

/// The files of a subvolume and of those nested in it.
#[derive(Clone, Debug)]
pub struct Files {
    inodes: Inodes,
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
        Ok(Self { inodes: Inodes::new(fs, top) })
    }

    fn fs(&self) -> &Arc<FileSystem> {
        &self.inodes.fs
    }
}

impl Tree for Files {
    fn root(&self) -> Place {
        self.inodes.root()
    }

    fn look_up<'a>(&'a self, directory: Place, name: &'a [u8]) -> Answer<'a, Place> {
        Box::pin(async move {
            let Place::Inode { tree, inode } = directory else { return Err(FileError::NotFound) };
            let tree = self.inodes.tree(tree).await?;
            if FileType::of(self.inodes.inode(tree, inode).await?.mode.get()) != FileType::Directory
            {
                return Err(FileError::NotADirectory(Name(name.to_vec())));
            }
            let key = Key::new(inode, item::DIR_ITEM, name_hash(name));
            let mut path = Path::new(self.fs(), tree);
            if !path.search(key).await? || path.key() != Some(key) {
                return Err(FileError::NotFound);
            }
            let Some((_, data)) = path.item() else { return Err(FileError::NotFound) };
            for entry in DirEntries::new(data) {
                let entry = entry.map_err(|why| damaged(tree.id, key, &why))?;
                if entry.name == name {
                    let link = Link { tree, directory: inode, name, index: None };
                    let (location, kind) = (entry.location, kind_of(entry.kind));
                    return self.inodes.place(link, location, kind).await;
                }
            }
            Err(FileError::NotFound)
        })
    }

    fn entries(&self, directory: Place) -> Answer<'_, Box<dyn Entries + '_>> {
        Box::pin(async move {
            let directory = match directory {
                Place::Inode { .. } => {
                    let (tree, inode, _) = self.inodes.need(directory, FileType::Directory).await?;
                    Some((tree, inode))
                }
                Place::Empty => None,
            };
            let entries: Box<dyn Entries + '_> = Box::new(Directory::new(&self.inodes, directory));
            Ok(entries)
        })
    }

    fn stat(&self, at: Place) -> Answer<'_, Option<Stat>> {
        Box::pin(async move {
            let Place::Inode { tree, inode } = at else { return Ok(None) };
            let tree = self.inodes.tree(tree).await?;
            Ok(Some(stat(&self.inodes.inode(tree, inode).await?)))
        })
    }

    fn target(&self, at: Place) -> Answer<'_, Vec<u8>> {
        Box::pin(async move {
            let (tree, inode, _) = self.inodes.need(at, FileType::Symlink).await?;
            let key = Key::new(inode, item::EXTENT_DATA, 0);
            let mut path = Path::new(self.fs(), tree);
            let found = path.search(key).await? && path.key() == Some(key);
            let Some((_, data)) = path.item().filter(|_| found) else {
                return Err(FileError::Target("it is not there".to_owned()));
            };
            let extent = FileExtent::parse(data, self.fs().sectorsize());
            match extent.map_err(|why| damaged(tree.id, key, &why))?.body {
                // mkfs.btrfs --rootdir also stores the terminating zero byte.
                FileExtentBody::Inline(bytes) => {
                    Ok(bytes.strip_suffix(&[0]).unwrap_or(bytes).to_vec())
                }
                FileExtentBody::Regular(_) | FileExtentBody::Prealloc(_) => {
                    Err(FileError::Target("it is not inline".to_owned()))
                }
            }
        })
    }

    fn attributes(&self, at: Place) -> Answer<'_, Vec<(Vec<u8>, Vec<u8>)>> {
        Box::pin(async move {
            let Place::Inode { tree, inode } = at else { return Ok(Vec::new()) };
            let tree = self.inodes.tree(tree).await?;
            let mut all = Vec::new();
            let mut path = Path::new(self.fs(), tree);
            let mut more = path.search(Key::new(inode, item::XATTR_ITEM, 0)).await?;
            while more {
                let Some((key, data)) = path.item() else { break };
                if (key.objectid, key.kind) != (inode, item::XATTR_ITEM) {
                    break;
                }
                for entry in DirEntries::new(data) {
                    let entry = entry.map_err(|why| damaged(tree.id, key, &why))?;
                    // How btrfs compresses the file does not matter elsewhere.
                    if !entry.name.starts_with(b"btrfs.") {
                        all.push((entry.name.to_vec(), entry.data.to_vec()));
                    }
                }
                more = path.next().await?;
            }
            Ok(all)
        })
    }

    fn read(&self, at: Place) -> Answer<'_, Box<dyn Contents + '_>> {
        Box::pin(async move {
            let (tree, inode, it) = self.inodes.need(at, FileType::Regular).await?;
            let contents: Box<dyn Contents + '_> =
                Box::new(Reader::new(self.fs(), tree, inode, &it).await?);
            Ok(contents)
        })
    }

    fn is_snapshot(&self, tree: u64) -> Answer<'_, bool> {
        Box::pin(async move {
            let found = self.fs().subvolume(tree).await?;
            Ok(found.is_some_and(|found| found.parent_uuid.is_some()))
        })
    }
}

impl From<TreeError> for FileError {
    fn from(error: TreeError) -> Self {
        Self::Damaged(error.to_string())
    }
}

impl From<ReadError> for LossReason {
    fn from(error: ReadError) -> Self {
        Self::Read(error.to_string())
    }
}
