//! Why something could not be found or listed.

use thiserror::Error;

use super::kind::FileType;
use super::name::{Name, PATH_BYTES_MAX};

/// Why something could not be found or listed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FileError {
    /// The file system is damaged there, or cannot be read.
    #[error("{0}")]
    Damaged(String),
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
        found: FileType,
        /// What it should be.
        wanted: FileType,
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
    /// An entry for the root directory of its own tree, which is in no directory.
    #[error("the entry {name} leads back to the root directory of its subvolume")]
    Root {
        /// Its name here.
        name: Name,
    },
    /// An inode is missing.
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
