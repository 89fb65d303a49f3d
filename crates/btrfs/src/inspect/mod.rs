//! What is on the devices, in words: those of `btrfs inspect-internal` and `btrfs filesystem usage` of
//! btrfs-progs 6.2, so that scripts for the one read the other.
//!
//! Text goes to a sink as it comes into being: trees are larger than memory. Names are bytes of any
//! kind, and are written as they are. Times are in UTC. What cannot be read is left out, counted and
//! logged; what can be read and makes no sense is one line that begins with `invalid`.

mod chunks;
mod items;
mod names;
mod space;
mod superblock;
mod time;
mod tree;
mod usage;

use std::io;

use thiserror::Error;

pub use chunks::chunks;
pub use names::{key, object, tree_id};
pub use space::{Allocation, Space, allocations, spaces};
pub use superblock::{SuperblockKind, superblock, superblock_heading, superblock_of};
pub use time::utc;
pub use tree::{Dumped, block, tree, trees};
pub use usage::usage;

use crate::error::TreeError;

/// Where the text goes.
pub type Sink<'a> = &'a mut dyn io::Write;

/// Why a text ends early.
#[derive(Debug, Error)]
pub enum InspectError {
    /// A tree that is needed cannot be read.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The sink takes no more.
    #[error("cannot write: {0}")]
    Io(#[from] io::Error),
}
