//! Directories, entry by entry.

use super::{FileError, Files, Link, Name, Place, is_name};
use crate::ondisk::items::{DirEntries, FileType};
use crate::ondisk::key::{Key, item};
use crate::path::Path;
use crate::readahead::Reada;
use crate::roots::damaged;

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// Type, according to the entry.
    pub kind: FileType,
    /// What it refers to.
    pub place: Place,
}

/// Reads a directory in the order of the kernel's `readdir`. After an error it continues with the next entry.
#[derive(Debug)]
pub struct Directory {
    files: Files,
    directory: Place,
    /// The first key not yet read; `None` at the end.
    next: Option<Key>,
}

impl Directory {
    pub(super) fn new(files: Files, directory: Place) -> Self {
        let next = match directory {
            Place::Inode { inode, .. } => Some(Key::new(inode, item::DIR_INDEX, 0)),
            Place::Empty => None,
        };
        Self { files, directory, next }
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// The tree or the entry is damaged; the entries after it can still be read.
    pub async fn next(&mut self) -> Result<Option<DirectoryEntry>, FileError> {
        let (Place::Inode { tree, inode }, Some(from)) = (self.directory, self.next) else {
            return Ok(None);
        };
        let mut path = Path::new(&self.files.fs, tree).with_reada(Reada::Forward);
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
                return Err(crate::error::TreeError::Item { tree, key, why }.into());
            }
        };
        let (name, kind, location) = (entry.name.to_vec(), entry.kind, entry.location);
        if !is_name(&name) {
            return Err(FileError::BadName { tree: tree.id, inode, name: Name(name) });
        }
        let link = Link { tree, directory: inode, name: &name, index: Some(key.offset) };
        let place = self.files.place(link, location, kind).await?;
        Ok(Some(DirectoryEntry { name, kind, place }))
    }
}
