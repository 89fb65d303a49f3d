//! From a tree block upwards to the roots that reach it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::extent_tree::{ExtentTreeItem, extent_from, references};
use crate::error::TreeError;
use crate::ondisk::items::BackRef;
use crate::ondisk::key::Key;
use crate::ondisk::node::{BlockExpectation, Node};
use crate::path::Root;
use crate::units::Logical;
use crate::volume::FileSystem;

/// Maximum number of tree blocks followed upwards for an extent.
pub const BLOCKS_MAX: usize = 10_000;
/// Maximum number of tree block references followed for an extent.
const REFERENCES_MAX: usize = 100_000;

/// Follows blocks upwards and remembers what it found, since leaves share ancestors.
pub(super) struct UpwardWalk<'a> {
    fs: &'a Arc<FileSystem>,
    extents: Root,
    /// For each block, the blocks above it, and the trees that have it as their root.
    known: BTreeMap<Logical, Parents>,
    first_key: Option<Key>,
    /// References that may still be followed.
    left: usize,
    cut_off: bool,
}

/// What is directly above a block.
#[derive(Clone, Default)]
struct Parents {
    blocks: Vec<(Logical, u8)>,
    roots: Vec<u64>,
}

impl<'a> UpwardWalk<'a> {
    pub(super) fn new(fs: &'a Arc<FileSystem>, extents: Root) -> Self {
        Self {
            fs,
            extents,
            known: BTreeMap::new(),
            first_key: None,
            left: REFERENCES_MAX,
            cut_off: false,
        }
    }

    /// Whether there may be more roots than were found.
    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off
    }

    /// The first key of the last block that was asked for.
    pub(super) fn first_key(&self) -> Option<Key> {
        self.first_key
    }

    /// The trees whose roots reach the block, in order.
    pub(super) async fn roots_of(&mut self, at: Logical, level: u8) -> Result<Vec<u64>, TreeError> {
        let mut roots = BTreeSet::new();
        let mut seen = BTreeSet::from([at]);
        let mut waiting = vec![(at, level)];
        self.first_key = match self.node(at, level).await {
            Some(node) => node.key(0),
            None => None,
        };
        while let Some((block, level)) = waiting.pop() {
            let above = match self.known.get(&block) {
                Some(above) => above.clone(),
                None => {
                    if self.known.len() >= BLOCKS_MAX {
                        self.cut_off = true;
                        break;
                    }
                    let above = self.above(block, level).await?;
                    self.known.insert(block, above.clone());
                    above
                }
            };
            roots.extend(above.roots);
            for (parent, level) in above.blocks {
                if block == at && self.first_key.is_none() {
                    self.first_key = self.key_of(parent, level, at).await;
                }
                if seen.insert(parent) {
                    waiting.push((parent, level));
                }
            }
        }
        Ok(roots.into_iter().collect())
    }

    async fn node(&self, at: Logical, level: u8) -> Option<Arc<Node>> {
        let expected = BlockExpectation { at, level: Some(level), ..BlockExpectation::default() };
        self.fs.node(expected).await.ok()
    }

    /// The key that a parent stores for a block that cannot be read.
    async fn key_of(&self, parent: Logical, level: u8, at: Logical) -> Option<Key> {
        let node = self.node(parent, level).await?;
        let mut pointers = (0..node.len()).filter_map(|slot| node.pointer(slot));
        pointers.find(|pointer| pointer.at == at).map(|pointer| pointer.key)
    }

    /// What is directly above a block.
    async fn above(&mut self, at: Logical, level: u8) -> Result<Parents, TreeError> {
        let mut above = Parents::default();
        let found = extent_from(self.fs, self.extents, at.0).await?;
        let Some(found) = found.filter(|found: &ExtentTreeItem| found.key.objectid == at.0) else {
            // A tree block without its own item: the extent tree is damaged.
            self.cut_off = true;
            return Ok(above);
        };
        let (refs, all) = references(self.fs, self.extents, &found).await?;
        self.cut_off |= !all;
        let key = self.node(at, level).await.and_then(|node| node.key(0));
        for back_ref in refs {
            match self.left.checked_sub(1) {
                Some(left) => self.left = left,
                None => {
                    self.cut_off = true;
                    break;
                }
            }
            match back_ref {
                BackRef::SharedBlock { parent } if level < u8::MAX => {
                    above.blocks.push((parent, level + 1));
                }
                BackRef::TreeBlock { root } => {
                    self.in_tree(root, at, level, key, &mut above).await?
                }
                BackRef::SharedBlock { .. }
                | BackRef::ExtentData { .. }
                | BackRef::SharedData { .. }
                | BackRef::Owner { .. } => {}
            }
        }
        Ok(above)
    }

    /// Adds what is above a block in a tree that contains it.
    async fn in_tree(
        &mut self,
        id: u64,
        at: Logical,
        level: u8,
        key: Option<Key>,
        above: &mut Parents,
    ) -> Result<(), TreeError> {
        let Some(root) = self.fs.root(id).await? else {
            // The tree is being removed, or is being relocated.
            self.cut_off = true;
            return Ok(());
        };
        if root.at == at {
            above.roots.push(id);
            return Ok(());
        }
        let Some(key) = key else {
            // The block cannot be read; all that is known is that it is in this tree.
            above.roots.push(id);
            self.cut_off = true;
            return Ok(());
        };
        match self.parent_in(root, at, level, key).await {
            Some(parent) => above.blocks.push((parent, level + 1)),
            None => {
                above.roots.push(id);
                self.cut_off = true;
            }
        }
        Ok(())
    }

    /// The block of a tree that points to the block with this first key.
    async fn parent_in(&self, root: Root, at: Logical, level: u8, key: Key) -> Option<Logical> {
        let mut node = self.fs.node(root.expected()).await.ok()?;
        while node.level() > level + 1 {
            let slot = node.search(key).unwrap_or_else(|slot| slot.saturating_sub(1));
            node = self.fs.node(node.child(slot)?).await.ok()?;
        }
        let slot = node.search(key).unwrap_or_else(|slot| slot.saturating_sub(1));
        node.pointer(slot).filter(|pointer| pointer.at == at)?;
        Some(Logical(node.header().bytenr.get()))
    }
}
