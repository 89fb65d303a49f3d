//! Descent into trees: from a root to an item, and from item to item.
//!
//! A hostile tree cannot keep a walk going without end: a block is accepted only with the level,
//! generation and first key in its parent's pointer, and only if its last key is below the parent's
//! next key. So the keys of a walk ascend, no block is met twice, and depth is limited by the
//! levels.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::TreeError;
use crate::ondisk::key::Key;
use crate::ondisk::node::{BlockExpectation, MAX_LEVEL, Node};
use crate::readahead::{self, Blocks, Reada};
pub use crate::root::Root;
use crate::volume::FileSystem;

/// A block of the path, and the slot that leads to the next one.
struct Step {
    node: Arc<Node>,
    slot: usize,
    /// All keys below are smaller than this.
    end: Option<Key>,
}

/// A position in a tree.
///
/// If a future of it is dropped before completion, the path is at no item: search again.
pub struct Path<'a> {
    fs: &'a Arc<FileSystem>,
    root: Root,
    reada: Reada,
    /// Lowest level of the path.
    floor: u8,
    /// From the root to the leaf; empty if at no item.
    steps: SmallVec<[Step; MAX_LEVEL as usize]>,
    /// After an error: the first key that cannot be in the unreadable block.
    resume: Option<Key>,
}

impl<'a> Path<'a> {
    /// A path into the tree, not yet at an item.
    pub fn new(fs: &'a Arc<FileSystem>, root: Root) -> Self {
        Self { fs, root, reada: Reada::None, floor: 0, steps: SmallVec::new(), resume: None }
    }

    /// A path that ends above the leaves, where pointers take the place of items ([`Self::child`]);
    /// `None` if the root is a leaf.
    pub(crate) fn above_leaves(fs: &'a Arc<FileSystem>, root: Root) -> Option<Self> {
        (root.level > 0).then(|| Self { floor: 1, ..Self::new(fs, root) })
    }

    /// Sets how to read ahead.
    pub fn with_reada(mut self, reada: Reada) -> Self {
        self.reada = reada;
        self
    }

    /// The tree.
    pub fn root(&self) -> Root {
        self.root
    }

    /// The current item.
    pub fn item(&self) -> Option<(Key, &[u8])> {
        let leaf = self.steps.last()?;
        leaf.node.item(leaf.slot)
    }

    /// The key of the current item.
    pub fn key(&self) -> Option<Key> {
        self.item().map(|(key, _)| key)
    }

    /// The block of the current item, and its slot there. A leaf, except for a path above the leaves.
    pub fn leaf(&self) -> Option<(&Arc<Node>, usize)> {
        self.steps.last().map(|leaf| (&leaf.node, leaf.slot))
    }

    /// For a path above the leaves: the block that the current pointer leads to, and the first key
    /// of the next one.
    pub(crate) fn child(&self) -> Option<(BlockExpectation, Option<Key>)> {
        let step = self.steps.last()?;
        let expected = step.node.child(step.slot)?;
        Some((expected, step.node.key(step.slot + 1).or(step.end)))
    }

    /// After an error: the first key that is not in the unreadable block. `None` if nothing follows.
    pub fn resume(&self) -> Option<Key> {
        self.resume
    }

    /// Goes to the first item whose key is at least `key`; false if there is no such item. A path above the
    /// leaves goes to the pointer to the leaf in which `key` belongs.
    ///
    /// # Errors
    /// A block on the way cannot be read from any mirror; the path is then at no item.
    pub async fn search(&mut self, key: Key) -> Result<bool, TreeError> {
        // The current leaf often contains the key. A search dropped midway leaves a block above the
        // leaves here.
        let floor = self.floor;
        if let Some(leaf) = self.steps.last_mut().filter(|step| step.node.level() == floor) {
            let in_leaf = leaf.node.key(0).is_some_and(|first| first <= key)
                && leaf.end.is_none_or(|end| key < end);
            if in_leaf {
                leaf.slot = slot_of(&leaf.node, key);
                return self.settle().await;
            }
        }
        self.steps.clear();
        self.resume = None;
        let node = self.fs.node(self.root.expected()).await?;
        self.steps.push(Step { node, slot: 0, end: None });
        self.descend(Some(key)).await?;
        self.settle().await
    }

    /// Goes to the last item whose key is at most `key`; false if there is no such item.
    ///
    /// # Errors
    /// A block on the way cannot be read from any mirror; the path is then at no item.
    pub async fn search_back(&mut self, key: Key) -> Result<bool, TreeError> {
        if self.search(key).await? && self.key() == Some(key) {
            return Ok(true);
        }
        if self.steps.is_empty() {
            return self.last().await;
        }
        self.prev().await
    }

    /// Goes to the next item; false after the last one.
    ///
    /// # Errors
    /// As for [`Self::search`].
    pub async fn next(&mut self) -> Result<bool, TreeError> {
        match self.steps.last_mut() {
            Some(leaf) => leaf.slot += 1,
            None => return Ok(false),
        }
        self.settle().await
    }

    /// Goes to the previous item; false before the first one.
    ///
    /// # Errors
    /// As for [`Self::search`].
    pub async fn prev(&mut self) -> Result<bool, TreeError> {
        while let Some(step) = self.steps.last_mut() {
            if step.slot > 0 {
                step.slot -= 1;
                break;
            }
            self.steps.pop();
        }
        if self.steps.is_empty() {
            return Ok(false);
        }
        self.descend_last().await
    }

    /// Goes to the last item of the tree.
    async fn last(&mut self) -> Result<bool, TreeError> {
        let node = self.fs.node(self.root.expected()).await?;
        if node.is_empty() {
            return Ok(false);
        }
        self.steps.clear();
        let slot = node.len() - 1;
        self.steps.push(Step { node, slot, end: None });
        self.descend_last().await
    }

    /// Descends from the lowest step to the last item below it.
    async fn descend_last(&mut self) -> Result<bool, TreeError> {
        while self.descend_one().await? {
            if let Some(step) = self.steps.last_mut() {
                step.slot = step.node.len().saturating_sub(1);
            }
        }
        Ok(self.steps.last().is_some_and(|step| step.slot < step.node.len()))
    }

    /// Descends from the lowest step to the leaf that contains `key`, or the first leaf if `None`.
    async fn descend(&mut self, key: Option<Key>) -> Result<(), TreeError> {
        loop {
            if let (Some(step), Some(key)) = (self.steps.last_mut(), key) {
                step.slot = slot_of(&step.node, key);
            }
            if !self.descend_one().await? {
                return Ok(());
            }
        }
    }

    /// Descends one level; false at the lowest level.
    async fn descend_one(&mut self) -> Result<bool, TreeError> {
        let Some(step) = self.steps.last().filter(|step| step.node.level() > self.floor) else {
            return Ok(false);
        };
        let Some(expected) = step.node.child(step.slot) else { return Ok(false) };
        let end = step.node.key(step.slot + 1).or(step.end);
        readahead::around(self.fs, &step.node, step.slot, self.reada, Blocks::Nodes);
        match self.fs.node_below(expected, end).await {
            Ok(node) => {
                self.steps.push(Step { node, slot: 0, end });
                Ok(true)
            }
            Err(error) => {
                self.steps.clear();
                self.resume = end;
                Err(error)
            }
        }
    }

    /// If past the end of a leaf, moves to the first item of the next one.
    async fn settle(&mut self) -> Result<bool, TreeError> {
        loop {
            match self.steps.last_mut() {
                None => return Ok(false),
                Some(step) if step.slot < step.node.len() => {
                    if step.node.level() == self.floor {
                        return Ok(true);
                    }
                    self.descend(None).await?;
                }
                Some(_) => {
                    self.steps.pop();
                    if let Some(parent) = self.steps.last_mut() {
                        parent.slot += 1;
                    }
                }
            }
        }
    }
}

/// The slot of the first item not below `key`, or of the pointer to the block where `key` belongs.
fn slot_of(node: &Node, key: Key) -> usize {
    match node.search(key) {
        Ok(slot) => slot,
        Err(slot) if node.level() > 0 => slot.saturating_sub(1),
        Err(slot) => slot,
    }
}
