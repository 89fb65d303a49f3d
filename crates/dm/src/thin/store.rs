//! The nodes of a pool's trees: read on demand, and cached.
//!
//! A cache with a fixed number of slots. The block number of a node determines its slot, and a new
//! node replaces the old one in its slot. Look-ups take no lock, so a read of mapped data costs a
//! few comparisons, on any number of threads. Nothing is written, so cached nodes never become
//! stale.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use ashlar_block::{Gateway, Sector};

use super::error::{NodeFault, ThinError};
use super::node::{Bounds, Node, Tree};
use super::ondisk::{BLOCK, Block};

/// Maximum depth of trees. The largest possible metadata needs 5.
const MAX_DEPTH: usize = 16;

/// The metadata device, with cached nodes.
pub(super) struct Store {
    metadata: Gateway,
    bounds: Bounds,
    places: Box<[ArcSwapOption<Node>]>,
}

/// The state of a search for a key, from the root of a tree to the leaf.
#[derive(Clone, Copy)]
pub(super) struct Descent {
    tree: Tree,
    key: u64,
    /// The next node to visit.
    block: u64,
    depth: usize,
    /// The node's keys must be at least this,
    low: u64,
    /// and below this.
    high: Option<u64>,
}

/// The result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The index of the key in the leaf.
    At(usize),
    /// The key does not exist. The next existing key is this; `None` if no later key exists.
    Gap(Option<u64>),
}

impl Descent {
    pub(super) fn new(tree: Tree, root: u64, key: u64) -> Self {
        Self { tree, key, block: root, depth: 0, low: 0, high: None }
    }

    /// Continues from the requested node.
    fn step(&mut self, node: &Node) -> Result<Option<End>, NodeFault> {
        node.check_place(self.depth == 0, self.low, self.high)?;
        let (keys, up_to) = (node.keys(), node.up_to(self.key));
        let next = keys.get(up_to).copied().or(self.high);
        let Some(index) = up_to.checked_sub(1) else { return Ok(Some(End::Gap(next))) };
        if node.is_leaf() {
            return Ok(Some(if keys[index] == self.key { End::At(index) } else { End::Gap(next) }));
        }
        self.depth += 1;
        if self.depth == MAX_DEPTH {
            return Err(NodeFault::Depth(MAX_DEPTH));
        }
        (self.low, self.high, self.block) = (keys[index], next, node.values()[index]);
        Ok(None)
    }
}

impl Store {
    /// Caches at most `nodes` nodes, of about 2 KiB each.
    pub(super) fn new(metadata: Gateway, bounds: Bounds, nodes: usize) -> Self {
        let all = usize::try_from(bounds.metadata_blocks).unwrap_or(usize::MAX);
        let places = (0..nodes.min(all).max(1)).map(|_| ArcSwapOption::empty()).collect();
        Self { metadata, bounds, places }
    }

    pub(super) fn device(&self) -> &str {
        self.metadata.disk().name()
    }

    fn place(&self, block: u64) -> &ArcSwapOption<Node> {
        &self.places[(block % self.places.len() as u64) as usize]
    }

    fn fault(&self, block: u64) -> impl Fn(NodeFault) -> ThinError {
        move |fault| ThinError::Node { device: self.device().to_owned(), block, fault }
    }

    /// Continues the descent as long as its nodes are cached, and calls `take` at its end. Without
    /// a result, [`Descent::block`] must be read.
    pub(super) fn try_find<T>(
        &self,
        descent: &mut Descent,
        take: impl Fn(&Node, End) -> T,
    ) -> Result<Option<T>, ThinError> {
        loop {
            let guard = self.place(descent.block).load();
            let wanted =
                |node: &&Arc<Node>| node.block() == descent.block && node.tree() == descent.tree;
            let Some(node) = guard.as_ref().filter(wanted) else { return Ok(None) };
            let end = descent.step(node).map_err(self.fault(node.block()))?;
            if let Some(end) = end {
                return Ok(Some(take(node, end)));
            }
        }
    }

    /// Follows the descent to its end, and calls `take` there.
    pub(super) async fn find<T>(
        &self,
        mut descent: Descent,
        take: impl Fn(&Node, End) -> T,
    ) -> Result<T, ThinError> {
        loop {
            if let Some(found) = self.try_find(&mut descent, &take)? {
                return Ok(found);
            }
            let node = self.read(descent.tree, descent.block).await?;
            let end = descent.step(&node).map_err(self.fault(node.block()))?;
            if let Some(end) = end {
                return Ok(take(&node, end));
            }
        }
    }

    /// Reads a node, and caches it.
    async fn read(&self, tree: Tree, block: u64) -> Result<Arc<Node>, ThinError> {
        let bytes = read_block(&self.metadata, block).await?;
        let node = Node::parse(&bytes, tree, block, self.bounds).map_err(self.fault(block))?;
        let node = Arc::new(node);
        self.place(block).store(Some(node.clone()));
        Ok(node)
    }

    /// Visits the leaves of a tree, in ascending order of keys. Reads every node once, and caches none.
    pub(super) async fn walk(
        &self,
        tree: Tree,
        root: u64,
        mut visit: impl FnMut(&Node),
    ) -> Result<(), ThinError> {
        let mut ahead = vec![(0, 0, None, root)];
        while let Some((depth, low, high, block)) = ahead.pop() {
            let fault = self.fault(block);
            let bytes = read_block(&self.metadata, block).await?;
            let node = Node::parse(&bytes, tree, block, self.bounds).map_err(&fault)?;
            node.check_place(depth == 0, low, high).map_err(&fault)?;
            if node.is_leaf() {
                visit(&node);
                continue;
            }
            let below = depth + 1;
            if below == MAX_DEPTH {
                return Err(fault(NodeFault::Depth(MAX_DEPTH)));
            }
            let mut high = high;
            for (low, child) in node.keys().iter().zip(node.values()).rev() {
                ahead.push((below, *low, high, *child));
                high = Some(*low);
            }
        }
        Ok(())
    }
}

/// Reads a block of the metadata device.
pub(super) async fn read_block(metadata: &Gateway, block: u64) -> Result<Box<Block>, ThinError> {
    let device = || metadata.disk().name().to_owned();
    let read = metadata.read(Sector(block * BLOCK.0), BLOCK).await;
    let buffer = read.map_err(|status| ThinError::Read { device: device(), block, status })?;
    let bytes = buffer.as_slice().try_into().map(Box::new);
    bytes.map_err(|_| ThinError::Read { device: device(), block, status: ashlar_block::Status::Io })
}
