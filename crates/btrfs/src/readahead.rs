//! Path readahead: siblings of the block that a descent is about to read (`btrfs_path::reada`).
//!
//! Leaves that follow each other in a tree were often written together, and are near each other on
//! the disk. A walk that asks for them one by one waits for the disk each time; a walk that reads
//! ahead has them merged into a few large reads. The rules are the kernel's (`reada_for_search` in
//! `fs/btrfs/ctree.c`).

use std::sync::Arc;

use futures_util::future::join_all;
use tracing::trace;

use crate::ondisk::node::{Expected, Node};
use crate::units::Logical;
use crate::volume::FileSystem;

/// How far from the wanted block a sibling may be, in bytes of the file system's space.
const NEAR_BYTES: u64 = 64 << 10;
/// Bytes that are read ahead at a time.
const FORWARD_BYTES: u64 = 64 << 10;
/// The same for [`Reada::ForwardAlways`].
const FORWARD_ALWAYS_BYTES: u64 = 128 << 10;
/// Siblings that are looked at.
const SCANNED: usize = 32;
/// How a path reads ahead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reada {
    /// Not at all.
    #[default]
    None,
    /// Leaves before the wanted one, of the same object, for walks backwards.
    Back,
    /// Leaves behind the wanted one.
    Forward,
    /// Blocks behind the wanted one on every level, twice as many.
    ForwardAlways,
    /// Leaves behind the wanted one, wherever they are, those of both trees that a scrub needs together. Only
    /// scrubs have it (`sweep.rs`): a path by itself reads nothing ahead. The kernel has nothing like it.
    Scan,
}

/// What is read ahead, and where it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blocks {
    /// Tree blocks as they are.
    Nodes,
    /// Leaves of the extent tree, of which the extents are kept.
    ExtentLeaves,
}

impl Blocks {
    /// Whether the block at `at` is in memory, or on its way there.
    pub(crate) fn has(self, fs: &FileSystem, at: Logical) -> bool {
        match self {
            Self::Nodes => fs.has_node(at),
            Self::ExtentLeaves => fs.has_extent_leaf(at),
        }
    }

    /// Reads a block into the cache.
    pub(crate) async fn read(self, fs: &FileSystem, expected: Expected) {
        let read = match self {
            Self::Nodes => fs.node(expected).await.map(drop),
            Self::ExtentLeaves => fs.extent_leaf(expected, None).await.map(drop),
        };
        // Whoever needs the block gets the error when asking for it.
        if let Err(error) = read {
            trace!(%error, "readahead");
        }
    }
}

/// Starts reads of blocks beside the one that `slot` of `node` points to, unless that one is in
/// memory already: then the walk is not waiting for the disk, and the last readahead still serves.
pub(crate) fn around(fs: &Arc<FileSystem>, node: &Node, slot: usize, reada: Reada, kind: Blocks) {
    let is_leaf_parent = node.level() == 1;
    let bytes = match reada {
        Reada::None | Reada::Scan => return,
        Reada::Back | Reada::Forward if !is_leaf_parent => return,
        Reada::Back | Reada::Forward => FORWARD_BYTES,
        Reada::ForwardAlways => FORWARD_ALWAYS_BYTES,
    };
    let Some(wanted) = node.child(slot).filter(|wanted| !kind.has(fs, wanted.at)) else { return };
    let blocks = (bytes / u64::from(fs.nodesize())) as usize;
    let object = |block: &Expected| block.first_key.map(|key| key.objectid);
    let beside = |step: usize| match reada {
        Reada::Back => slot.checked_sub(step),
        Reada::None | Reada::Forward | Reada::ForwardAlways | Reada::Scan => slot.checked_add(step),
    };
    let is_wanted = |next: &Expected| {
        reada == Reada::ForwardAlways || next.at.0.abs_diff(wanted.at.0) <= NEAR_BYTES
    };
    let ahead: Vec<Expected> = (1..=SCANNED)
        .map_while(|step| beside(step).and_then(|slot| node.child(slot)))
        .take_while(|next| reada != Reada::Back || object(next) == object(&wanted))
        .filter(|next| is_wanted(next) && !kind.has(fs, next.at))
        .take(blocks)
        .collect();
    if ahead.is_empty() {
        return;
    }
    let fs = Arc::clone(fs);
    // One task, so that the reads are submitted one after the other, and merged.
    fs.clone().runtime().spawn(Box::pin(async move {
        join_all(ahead.into_iter().map(|expected| kind.read(&fs, expected))).await;
    }));
}
