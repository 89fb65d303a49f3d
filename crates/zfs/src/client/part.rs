//! Disks of a pool that are parts of files: partitions of images.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::protocol::Command;

/// Files of which parts are disks of pools of this process. A worker locks the file, and the lock belongs to the open file: what is opened
/// once and handed to all workers, these share.
static OPEN: Mutex<BTreeMap<PathBuf, Weak<OwnedFd>>> = Mutex::new(BTreeMap::new());

/// A part of a file that is a disk of a pool.
#[derive(Clone, Debug)]
pub struct Part {
    /// What the disk is called in the pool's configuration: an absolute path, which need not be there.
    pub path: PathBuf,
    file: Arc<OwnedFd>,
    offset_bytes: u64,
    size_bytes: u64,
}

impl Part {
    /// A part of the file or device at `file`.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn new(path: PathBuf, file: &Path, offset_bytes: u64, size_bytes: u64) -> io::Result<Self> {
        let file = opened(file)?;
        Ok(Self { path, file, offset_bytes, size_bytes })
    }

    /// What tells a worker of it, with the descriptor that goes along.
    pub(super) fn command(&self, read_only: bool) -> io::Result<(Command, OwnedFd)> {
        let Self { path, file, offset_bytes, size_bytes } = self;
        let (offset_bytes, size_bytes) = (*offset_bytes, *size_bytes);
        let command = Command::Part { path: path.clone(), offset_bytes, size_bytes, read_only };
        Ok((command, file.as_fd().try_clone_to_owned()?))
    }
}

/// Opens a file, or has it as it is open already.
fn opened(path: &Path) -> io::Result<Arc<OwnedFd>> {
    let path = std::fs::canonicalize(path)?;
    // Inserting and removing do not panic in between.
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|_, file| file.strong_count() > 0);
    if let Some(file) = open.get(&path).and_then(Weak::upgrade) {
        return Ok(file);
    }
    let file = Arc::new(OwnedFd::from(File::open(&path)?));
    open.insert(path, Arc::downgrade(&file));
    Ok(file)
}
