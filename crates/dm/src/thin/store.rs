//! The nodes of a pool's trees: read when they are wanted, and kept for as long as there is room.
//!
//! A cache of as many places as nodes may be kept. A node has one place, by its number: whoever wants
//! another one of that place takes it. Finding a node there takes no lock, so that reads of mapped data
//! cost a few comparisons, on however many threads. Nothing is written, so no node is ever out of date.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use ashlar_block::{Gateway, Sector};

use super::error::{NodeFault, ThinError};
use super::node::{Bounds, Node, Tree};
use super::ondisk::{BLOCK, Block};

/// Levels of nodes that are followed. The largest metadata there is needs 5.
const MAX_DEPTH: usize = 16;

/// The metadata device, with the nodes that were read last.
pub(super) struct Store {
    metadata: Gateway,
    bounds: Bounds,
    places: Box<[ArcSwapOption<Node>]>,
}

/// On the way from the root of a tree to the leaf that has a key, if any has.
#[derive(Clone, Copy)]
pub(super) struct Descent {
    tree: Tree,
    key: u64,
    /// The node that is wanted next.
    block: u64,
    depth: usize,
    /// Its keys are at least this,
    low: u64,
    /// and below this.
    high: Option<u64>,
}

/// Where a descent ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// At an entry of the leaf.
    At(usize),
    /// At none. There is no key below this one either; none at all if that is missing.
    Gap(Option<u64>),
}

impl Descent {
    pub(super) fn new(tree: Tree, root: u64, key: u64) -> Self {
        Self { tree, key, block: root, depth: 0, low: 0, high: None }
    }

    /// Goes on from the node that was wanted.
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
    /// Keeps at most `nodes` nodes, of some 2 KiB each.
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

    /// Follows the descent for as long as its nodes are kept, and has `take` look at the end of it.
    /// Without a result [`Descent::block`] must be read.
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

    /// Follows the descent to its end, and has `take` look at it.
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

    /// Reads a node, and keeps it.
    async fn read(&self, tree: Tree, block: u64) -> Result<Arc<Node>, ThinError> {
        let bytes = read_block(&self.metadata, block).await?;
        let node = Node::parse(&bytes, tree, block, self.bounds).map_err(self.fault(block))?;
        let node = Arc::new(node);
        self.place(block).store(Some(node.clone()));
        Ok(node)
    }

    /// Visits the leaves of a tree, with ascending keys. Reads every node once, and keeps none of them.
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
