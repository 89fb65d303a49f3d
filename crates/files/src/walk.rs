//! A directory and all that is below it, entry by entry.

use super::error::FileError;
use super::kind::FileType;
use super::name::PATH_BYTES_MAX;
use super::tree::{Entries, Entry, Place, Tree};

/// Walks the entries of a directory in its order; if recursive, the entries of a directory follow its own. After an
/// error it continues with the next entry.
#[derive(Debug)]
pub struct Walk<'a> {
    tree: &'a dyn Tree,
    is_recursive: bool,
    /// The path of what was returned last. One for all open directories: there may be thousands, each with a long path.
    path: Vec<u8>,
    /// The open directories, with the lengths of their paths.
    open: Vec<(usize, Box<dyn Entries + 'a>)>,
    /// The directory at `path`, which is opened next.
    below: Option<Place>,
}

impl<'a> Walk<'a> {
    /// The entries of the directory `place`. If recursive, their paths begin with `top` and a slash; otherwise they are
    /// names.
    pub fn new(tree: &'a dyn Tree, place: Place, top: &[u8], is_recursive: bool) -> Self {
        let path = if is_recursive { top.to_vec() } else { Vec::new() };
        Self { tree, is_recursive, path, open: Vec::new(), below: Some(place) }
    }

    /// The path of the entry that was returned last, or of the directory in which an error occurred.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// A directory or an entry is damaged, or the path of a directory is too long.
    pub async fn next(&mut self) -> Result<Option<Entry>, FileError> {
        if let Some(place) = self.below.take() {
            if self.path.len() > PATH_BYTES_MAX {
                return Err(FileError::TooLong);
            }
            let listing = self.tree.entries(place).await?;
            self.open.push((self.path.len(), listing));
        }
        while let Some((len, listing)) = self.open.last_mut() {
            self.path.truncate(*len);
            let Some(entry) = listing.next().await? else {
                self.open.pop();
                continue;
            };
            if self.is_recursive {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&entry.name);
            // The entry's kind: only for a directory entry was it checked that this is the directory's only name.
            let is_opened = self.is_recursive && entry.kind == FileType::Directory;
            self.below = is_opened.then_some(entry.place);
            return Ok(Some(entry));
        }
        Ok(None)
    }
}

/// A path with one leading slash and no trailing slash.
pub fn trimmed(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    parts.flat_map(|part| [b"/", part].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_trimmed_to_one_slash_in_front_of_each_part() {
        assert_eq!(trimmed(b"//a/b//"), b"/a/b");
        assert_eq!(trimmed(b"/"), b"");
    }
}
