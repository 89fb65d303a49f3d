//! Disks of a pool that its worker gets as open files: partitions of images, and all disks of a worker in a sandbox.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::protocol::Command;

/// Files with parts that are pool members in this process. A worker locks the file, and the lock
/// belongs to the open file description: workers that get the same descriptor share the lock.
static OPEN: Mutex<BTreeMap<PathBuf, Weak<OwnedFd>>> = Mutex::new(BTreeMap::new());

/// A part of a file that is a pool member.
#[derive(Clone, Debug)]
pub struct DiskPart {
    /// The disk's path in the pool's configuration: absolute, and need not exist.
    pub path: PathBuf,
    file: Arc<OwnedFd>,
    offset_bytes: u64,
    /// `None`: up to the end of the file.
    size_bytes: Option<u64>,
}

impl DiskPart {
    /// A part of the file or device at `file`.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn new(path: PathBuf, file: &Path, offset_bytes: u64, size_bytes: u64) -> io::Result<Self> {
        let file = opened(file)?;
        Ok(Self { path, file, offset_bytes, size_bytes: Some(size_bytes) })
    }

    /// A part of an open file or device: from an offset, of a size or up to its end.
    pub fn of(path: PathBuf, file: OwnedFd, offset_bytes: u64, size_bytes: Option<u64>) -> Self {
        Self { path, file: Arc::new(file), offset_bytes, size_bytes }
    }

    /// The command that tells a worker about the part, with its descriptor.
    pub(super) fn command(&self, read_only: bool) -> io::Result<(Command, OwnedFd)> {
        let Self { path, file, offset_bytes, size_bytes } = self;
        let (offset_bytes, size_bytes) = (*offset_bytes, *size_bytes);
        let command = Command::Part { path: path.clone(), offset_bytes, size_bytes, read_only };
        Ok((command, file.as_fd().try_clone_to_owned()?))
    }
}

/// Opens a file, or returns the open one.
fn opened(path: &Path) -> io::Result<Arc<OwnedFd>> {
    let path = std::fs::canonicalize(path)?;
    // A panic cannot leave the map inconsistent.
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|_, file| file.strong_count() > 0);
    if let Some(file) = open.get(&path).and_then(Weak::upgrade) {
        return Ok(file);
    }
    let file = Arc::new(OwnedFd::from(File::open(&path)?));
    open.insert(path, Arc::downgrade(&file));
    Ok(file)
}
