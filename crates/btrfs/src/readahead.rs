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
use crate::volume::FileSystem;

/// How far from the wanted block a sibling may be, in bytes of the file system's space.
const NEAR_BYTES: u64 = 64 << 10;
/// Bytes that are read ahead at a time.
const FORWARD_BYTES: u64 = 64 << 10;
/// The same for [`Reada::ForwardAlways`].
const FORWARD_ALWAYS_BYTES: u64 = 128 << 10;
/// Siblings that are looked at.
const SCANNED: usize = 32;
/// Bytes that are read ahead at a time, and siblings that are looked at, by [`Reada::Scan`]: so many that a
/// disk's head, on its way to the tree and back, loses little of the time that it takes to read the data
/// that they describe.
const SCAN_BYTES: u64 = 8 << 20;
const SCAN_SCANNED: usize = 512;

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
    /// Leaves behind the wanted one, wherever they are, as many as a walk over the whole tree can use. The
    /// kernel has nothing like it.
    Scan,
}

/// Starts reads of blocks beside the one that `slot` of `node` points to, unless that one is in
/// memory already: then the walk is not waiting for the disk, and the last readahead still serves.
pub(crate) fn around(fs: &Arc<FileSystem>, node: &Node, slot: usize, reada: Reada) {
    let is_leaf_parent = node.level() == 1;
    let (bytes, scanned) = match reada {
        Reada::None => return,
        Reada::Back | Reada::Forward | Reada::Scan if !is_leaf_parent => return,
        Reada::Back | Reada::Forward => (FORWARD_BYTES, SCANNED),
        Reada::ForwardAlways => (FORWARD_ALWAYS_BYTES, SCANNED),
        Reada::Scan => (SCAN_BYTES, SCAN_SCANNED),
    };
    let Some(wanted) = node.child(slot).filter(|wanted| !fs.has_node(wanted.at)) else { return };
    let blocks = (bytes / u64::from(fs.nodesize())) as usize;
    let object = |block: &Expected| block.first_key.map(|key| key.objectid);
    let beside = |step: usize| match reada {
        Reada::Back => slot.checked_sub(step),
        Reada::None | Reada::Forward | Reada::ForwardAlways | Reada::Scan => slot.checked_add(step),
    };
    let is_wanted = |next: &Expected| match reada {
        Reada::None | Reada::Back | Reada::Forward => next.at.0.abs_diff(wanted.at.0) <= NEAR_BYTES,
        Reada::ForwardAlways | Reada::Scan => true,
    };
    let mut ahead: Vec<Expected> = (1..=scanned)
        .map_while(|step| beside(step).and_then(|slot| node.child(slot)))
        .take_while(|next| reada != Reada::Back || object(next) == object(&wanted))
        .filter(|next| is_wanted(next) && !fs.has_node(next.at))
        .take(blocks)
        .collect();
    if reada == Reada::Scan {
        // The wanted one among them: neighbours are merged, and a head goes one way.
        ahead.push(wanted);
        ahead.sort_unstable_by_key(|next| next.at);
    }
    start(fs, ahead);
}

/// Reads blocks into the cache, in this order; nobody waits for them.
fn start(fs: &Arc<FileSystem>, blocks: Vec<Expected>) {
    if blocks.is_empty() {
        return;
    }
    let reader = Arc::clone(fs);
    // One task, so that the reads are submitted one after the other, and merged.
    fs.runtime().spawn(Box::pin(async move {
        let reads = blocks.into_iter().map(|expected| reader.node(expected));
        for read in join_all(reads).await {
            // Whoever needs the block gets the error when asking for it.
            if let Err(error) = read {
                trace!(%error, "readahead");
            }
        }
    }));
}
