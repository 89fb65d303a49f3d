//! Prints what is on the devices in the format of `btrfs inspect-internal` and `btrfs filesystem
//! usage` of btrfs-progs 6.2, so that scripts can parse both.
//!
//! Text is written to a sink as it is produced, because trees are larger than memory. Names are
//! arbitrary bytes, written as they are. Times are in UTC. What cannot be read is left out, counted
//! and logged; what can be read but is invalid becomes one line that begins with `invalid`.

mod chunks;
mod df;
mod items;
mod names;
mod owners;
mod show;
mod size;
mod space;
mod subvolume;
mod subvolumes;
mod superblock;
mod time;
mod tree;
mod usage;

use std::io;

use thiserror::Error;

pub use chunks::chunks;
pub use df::{device_usage, df};
pub(crate) use items::{Sizes, invalid};
pub(crate) use names::tree_title;
pub use names::{key, object, tree_id};
pub use owners::owners;
pub use show::show;
pub use size::SizeForm;
pub use space::{Allocation, Space, allocations, spaces};
pub use subvolume::{subvolume, subvolume_with};
pub use subvolumes::{ListedSubvolume, SubvolumeKey, SubvolumeList};
pub use superblock::{
    SuperblockKind, SuperblockTextError, superblock, superblock_at, superblock_heading,
    superblock_of,
};
pub use tree::{DumpCounts, block, tree, trees};
pub use usage::usage;

use crate::error::TreeError;

/// Destination of the text.
pub type Sink<'a> = &'a mut dyn io::Write;

/// Why the text ends early.
#[derive(Debug, Error)]
pub enum InspectError {
    /// A required tree cannot be read.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Writing to the sink failed.
    #[error("cannot write: {0}")]
    Io(#[from] io::Error),
}
