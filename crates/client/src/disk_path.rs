//! What is known of a disk before it is opened: what its path stands for (a file or device of this machine, a RAM disk, or the URI of a disk
//! on another machine), which disk it is, and the access that is wanted.

use std::fmt;
use std::fs::{File, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ashlar_control::error::{Error, Result};

/// The access mode for disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read without a lock, even when others use the disk.
    Look,
    /// Read, with no writers.
    Read,
    /// Write, with no other users.
    Write,
}

/// What a URI is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkDisk<'a> {
    /// An export of an NBD server.
    Nbd(&'a str),
    /// An image of a Ceph cluster.
    Rbd(&'a str),
}

impl<'a> NetworkDisk<'a> {
    /// What a path is of, if it is a URI.
    pub fn at(path: &'a Path) -> Option<Self> {
        let text = path.to_str()?;
        if ashlar_nbd::is_uri(text) {
            Some(Self::Nbd(text))
        } else if ashlar_rbd::is_uri(text) {
            Some(Self::Rbd(text))
        } else {
            None
        }
    }

    /// What it is, however the URI is written; `None` for an invalid one.
    pub fn identity(self) -> Option<Identity> {
        match self {
            Self::Nbd(uri) => {
                ashlar_nbd::Uri::parse(uri).ok().map(|uri| Identity::Export(uri.identity()))
            }
            Self::Rbd(uri) => {
                ashlar_rbd::Uri::parse(uri).ok().map(|uri| Identity::Image(uri.identity()))
            }
        }
    }
}

/// A path that a user gave in a directory.
pub fn in_directory(directory: &Path, path: &str) -> PathBuf {
    if is_no_file(Path::new(path)) { path.into() } else { directory.join(path) }
}

/// Whether something exists at a path, or the path is the URI of a network disk, which may exist.
pub fn may_exist(path: &Path) -> bool {
    path.exists() || is_on_network(path)
}

/// Whether a path is the URI of a disk on another machine. Opening such a disk again when it is gone makes a new connection.
pub fn is_on_network(path: &Path) -> bool {
    NetworkDisk::at(path).is_some()
}

/// The path as seen from any directory.
///
/// # Errors
/// The current directory is gone.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    // An empty path is refused where it is used.
    if is_no_file(path) || path.as_os_str().is_empty() {
        return Ok(path.to_owned());
    }
    std::path::absolute(path).map_err(|error| Error::new("cannot find", path.display(), error))
}

/// Whether a path stands for a disk that is not a file of this machine.
pub fn is_no_file(path: &Path) -> bool {
    is_ram(path) || is_on_network(path)
}

/// Whether a path stands for a RAM disk.
pub fn is_ram(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with(RAM))
}

/// The prefix of a path that stands for a RAM disk.
pub const RAM: &str = "ram:";

/// Identifies a disk.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Identity {
    /// A device, by its number.
    Device(u64),
    /// A file, by its file system and inode.
    File(u64, u64),
    /// An export of an NBD server.
    Export(ashlar_nbd::Uri),
    /// An image of a Ceph cluster.
    Image(ashlar_rbd::Identity),
}

/// A text that no other disk has, the same for each run of each program.
impl fmt::Display for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(number) => write!(out, "device {number}"),
            Self::File(device, inode) => write!(out, "file {device} {inode}"),
            Self::Export(export) => write!(out, "export {export:?}"),
            Self::Image(image) => write!(out, "image {image:?}"),
        }
    }
}

/// The identity of the disk at `path`; `None` if it cannot be determined.
pub fn identity(path: &Path) -> Option<Identity> {
    if let Some(disk) = NetworkDisk::at(path) {
        return disk.identity();
    }
    std::fs::metadata(path).ok().map(|metadata| identity_by(&metadata))
}

/// The identity of an open disk.
pub fn identity_of(fd: &OwnedFd) -> Option<Identity> {
    let file = File::from(fd.try_clone().ok()?);
    file.metadata().ok().map(|metadata| identity_by(&metadata))
}

fn identity_by(metadata: &Metadata) -> Identity {
    if metadata.file_type().is_block_device() {
        Identity::Device(metadata.rdev())
    } else {
        Identity::File(metadata.dev(), metadata.ino())
    }
}

/// Whether two paths are the same disk. RAM disks are identified by their names only.
pub fn is_same(a: &Path, b: &Path) -> bool {
    a == b || identity(a).is_some_and(|identity| Some(identity) == self::identity(b))
}

/// Major and minor number of the block device at `path`; `None` if it is not one.
pub fn device_number(path: &Path) -> Option<(u32, u32)> {
    match identity(path)? {
        Identity::Device(number) => Some((rustix::fs::major(number), rustix::fs::minor(number))),
        Identity::File(..) | Identity::Export(_) | Identity::Image(_) => None,
    }
}
