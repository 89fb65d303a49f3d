//! The files of a file system that is not mounted, whatever its format: what listing and extraction need.
//!
//! # Theory
//!
//! A format implements [`Tree`]. The rest of this crate, and all who use it, know directories, names, pieces of contents and reasons
//! why something is lost, and no format.
//!
//! What a format promises, so that its users need not check it:
//!
//! - A directory's entries have valid names ([`is_name`]): a path made of them stays below the directory. An invalid name is an error
//!   of its own.
//! - A walk ends: a directory is an entry of one directory only, and never contains itself. What says otherwise is an error, too.
//! - Two names of one file are the same [`Place`]; two files are two places.
//! - The pieces of a file are in order and without gaps, of bounded size, and right: what a checksum contradicts is
//!   [`Piece::Lost`].
//!
//! A tree may contain others, with inode numbers of their own (subvolumes, snapshots): they are directories in it, and are crossed like
//! these.

#![forbid(unsafe_code)]

mod error;
mod kind;
mod name;
mod text;
mod tree;
mod walk;

pub use error::FileError;
pub use kind::{FileType, mode};
pub use name::{Name, PATH_BYTES_MAX, is_name};
pub use text::{size, utc};
pub use tree::{Answer, Contents, Entries, Entry, LossReason, Piece, Place, Stat, Time, Tree};
pub use walk::{Walk, trimmed};
