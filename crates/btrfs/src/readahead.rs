//! Path readahead: siblings of the block that a descent is about to read (`btrfs_path::reada`).
//!
//! Consecutive leaves of a tree were often written together and are close on disk. A walk that asks
//! for them one by one waits for the disk each time; with readahead they are merged into a few
//! large reads. The rules are the kernel's (`reada_for_search` in `fs/btrfs/ctree.c`).

use std::sync::Arc;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tracing::trace;

use crate::ondisk::node::{BlockExpectation, Node};
use crate::units::Logical;
use crate::volume::FileSystem;
pub use crate::volume::TreeReads;

/// Maximum distance of a sibling from the wanted block, in bytes of the file system's space.
const NEAR_BYTES: u64 = 64 << 10;
/// Bytes read ahead at a time.
const FORWARD_BYTES: u64 = 64 << 10;
/// Like [`FORWARD_BYTES`], for [`Reada::ForwardAlways`].
const FORWARD_ALWAYS_BYTES: u64 = 128 << 10;
/// Maximum number of siblings examined.
const SCANNED: usize = 32;

/// How a path reads ahead. The names are those of the kernel's `READA_*`, in lower case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reada {
    /// Not at all.
    #[default]
    None,
    /// Leaves before the wanted one, of the same object, for backward walks.
    Back,
    /// Leaves after the wanted one.
    Forward,
    /// Blocks after the wanted one on every level, twice as many.
    ForwardAlways,
    /// Leaves after the wanted one at any distance, of both trees that a scrub needs, together.
    /// Only for scrubs (`sweep.rs`): a path alone reads nothing ahead in this mode. The kernel has
    /// no equivalent.
    Scan,
}

impl Reada {
    /// All of them, in the kernel's order; the last one is not the kernel's.
    pub const ALL: [Self; 5] =
        [Self::None, Self::Back, Self::Forward, Self::ForwardAlways, Self::Scan];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Back => "back",
            Self::Forward => "forward",
            Self::ForwardAlways => "forward-always",
            Self::Scan => "scan",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reada| reada.name() == name)
    }
}

/// What is read ahead, and how it is cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blocks {
    /// Whole tree blocks.
    Nodes,
    /// Leaves of the extent tree, cached as their extents.
    ExtentLeaves,
}

impl Blocks {
    /// Whether the block at `at` is cached or being read.
    pub(crate) fn has(self, fs: &FileSystem, at: Logical) -> bool {
        match self {
            Self::Nodes => fs.has_node(at),
            Self::ExtentLeaves => fs.has_extent_leaf(at),
        }
    }

    /// Reads a block into the cache, unless it is there or being read.
    pub(crate) async fn read(self, fs: &FileSystem, expected: BlockExpectation) {
        if self.has(fs, expected.at) {
            return;
        }
        fs.count_ahead();
        let read = match self {
            Self::Nodes => fs.node(expected).await.map(drop),
            Self::ExtentLeaves => fs.extent_leaf(expected, None).await.map(drop),
        };
        // The walk that needs the block gets the error itself.
        if let Err(error) = read {
            trace!(%error, "readahead");
        }
    }
}

/// Starts reads of blocks near the one that `slot` of `node` points to, unless that one is cached:
/// then the walk does not wait for the disk, and the previous readahead still serves.
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
    let object = |block: &BlockExpectation| block.first_key.map(|key| key.objectid);
    let beside = |step: usize| match reada {
        Reada::Back => slot.checked_sub(step),
        Reada::None | Reada::Forward | Reada::ForwardAlways | Reada::Scan => slot.checked_add(step),
    };
    let is_wanted = |next: &BlockExpectation| {
        reada == Reada::ForwardAlways || next.at.0.abs_diff(wanted.at.0) <= NEAR_BYTES
    };
    let ahead: Vec<BlockExpectation> = (1..=SCANNED)
        .map_while(|step| beside(step).and_then(|slot| node.child(slot)))
        .take_while(|next| reada != Reada::Back || object(next) == object(&wanted))
        .filter(|next| is_wanted(next) && !kind.has(fs, next.at))
        .take(blocks)
        .collect();
    if ahead.is_empty() {
        return;
    }
    let fs = Arc::clone(fs);
    // One task, so that the reads are submitted in sequence and merged.
    fs.clone().runtime().spawn(Box::pin(async move {
        join_all(ahead.into_iter().map(|expected| kind.read(&fs, expected))).await;
    }));
}
