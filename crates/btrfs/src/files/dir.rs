//! Directories, entry by entry.

use ashlar_files::{Answer, Entries, Entry, FileError, Name, is_name};

use super::inodes::{Inodes, Link, kind_of};
use crate::error::TreeError;
use crate::ondisk::items::DirEntries;
use crate::ondisk::key::{Key, item};
use crate::path::{Path, Root};
use crate::readahead::Reada;
use crate::roots::damaged;

/// Reads a directory in the order of the kernel's `readdir`. After an error it continues with the next entry.
#[derive(Debug)]
pub(super) struct Directory<'a> {
    inodes: &'a Inodes,
    /// Its tree and inode; `None` for an empty directory without an inode.
    directory: Option<(Root, u64)>,
    /// The first key not yet read; `None` at the end.
    next: Option<Key>,
}

impl<'a> Directory<'a> {
    pub(super) fn new(inodes: &'a Inodes, directory: Option<(Root, u64)>) -> Self {
        let next = directory.map(|(_, inode)| Key::new(inode, item::DIR_INDEX, 0));
        Self { inodes, directory, next }
    }

    async fn read(&mut self) -> Result<Option<Entry>, FileError> {
        let (Some((tree, inode)), Some(from)) = (self.directory, self.next) else {
            return Ok(None);
        };
        let mut path = Path::new(&self.inodes.fs, tree).with_reada(Reada::Forward);
        let is_ours = |key: &Key| (key.objectid, key.kind) == (inode, item::DIR_INDEX);
        match path.search(from).await {
            Ok(true) => {}
            Ok(false) => {
                self.next = None;
                return Ok(None);
            }
            Err(error) => {
                self.next = path.resume().filter(|key| *key > from && is_ours(key));
                return Err(error.into());
            }
        }
        let Some((key, data)) = path.item().filter(|(key, _)| is_ours(key)) else {
            self.next = None;
            return Ok(None);
        };
        self.next = key.next().filter(is_ours);
        // There is one entry per index.
        let entry = match DirEntries::new(data).next() {
            Some(Ok(entry)) => entry,
            Some(Err(why)) => return Err(damaged(tree.id, key, &why).into()),
            None => {
                let why = "it is empty".to_owned();
                let tree = tree.id;
                return Err(TreeError::Item { tree, key, why }.into());
            }
        };
        let (name, kind, location) = (entry.name.to_vec(), kind_of(entry.kind), entry.location);
        if !is_name(&name) {
            return Err(FileError::BadName { tree: tree.id, inode, name: Name(name) });
        }
        let link = Link { tree, directory: inode, name: &name, index: Some(key.offset) };
        let place = self.inodes.place(link, location, kind).await?;
        Ok(Some(Entry { name, kind, place }))
    }
}

impl Entries for Directory<'_> {
    fn next(&mut self) -> Answer<'_, Option<Entry>> {
        Box::pin(self.read())
    }
}
