//! A walk over the leaves of the extent tree.

use std::sync::Arc;

use crate::error::TreeError;
use crate::extent_leaf::ExtentLeaf;
use crate::ondisk::key::Key;
use crate::path::{Path, Root};
use crate::readahead::{self, Blocks, Reada};
use crate::sweep::Sweep;
use crate::units::Logical;
use crate::volume::FileSystem;

/// A leaf that cannot be read: the error, and the first key that cannot be in it.
pub(crate) struct LostLeaf {
    pub(crate) error: TreeError,
    pub(crate) resume: Option<Key>,
}

/// A position among the leaves of the extent tree.
pub(crate) struct Leaves<'a> {
    fs: &'a Arc<FileSystem>,
    root: Root,
    /// Path to the pointer to the leaf; `None` if the root is the only leaf.
    above: Option<Path<'a>>,
    reada: Reada,
    sweep: Option<Arc<Sweep<'a>>>,
    /// The current leaf and its address.
    current: Option<(Logical, Arc<ExtentLeaf>)>,
}

impl<'a> Leaves<'a> {
    /// Starts without a current leaf.
    pub(crate) fn new(fs: &'a Arc<FileSystem>, root: Root, reada: Reada) -> Self {
        let above = Path::above_leaves(fs, root);
        Self { fs, root, above, reada, sweep: None, current: None }
    }

    /// Lets `sweep` read ahead.
    pub(crate) fn with_sweep(mut self, sweep: Option<Arc<Sweep<'a>>>) -> Self {
        self.sweep = sweep;
        self
    }

    /// The leaf in which `key` belongs; `None` if the tree is empty.
    ///
    /// # Errors
    /// A block on the way, or the leaf, cannot be read from any mirror.
    pub(crate) async fn with(&mut self, key: Key) -> Result<Option<Arc<ExtentLeaf>>, LostLeaf> {
        if let Some(above) = &mut self.above
            && let Err(error) = above.search(key).await
        {
            return Err(LostLeaf { error, resume: above.resume() });
        }
        self.load().await
    }

    /// The leaf after the current one; `None` if that is the last.
    ///
    /// # Errors
    /// As for [`Self::with`].
    pub(crate) async fn next(&mut self) -> Result<Option<Arc<ExtentLeaf>>, LostLeaf> {
        let Some(above) = &mut self.above else { return Ok(None) };
        match above.next().await {
            Ok(true) => self.load().await,
            Ok(false) => Ok(None),
            Err(error) => Err(LostLeaf { error, resume: above.resume() }),
        }
    }

    /// The leaf with the last key below `key`; `None` if no key is below it.
    ///
    /// # Errors
    /// As for [`Self::with`].
    pub(crate) async fn before(&mut self, key: Key) -> Result<Option<Arc<ExtentLeaf>>, LostLeaf> {
        if let Some(above) = &mut self.above {
            let found = match above.search(key).await {
                // A leaf that begins with `key` has no smaller key.
                Ok(true) if above.child().is_some_and(|(leaf, _)| leaf.first_key >= Some(key)) => {
                    above.prev().await
                }
                found => found,
            };
            match found {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => return Err(LostLeaf { error, resume: above.resume() }),
            }
        }
        let leaf = self.load().await?;
        Ok(leaf.filter(|leaf| leaf.first_key() < Some(key)))
    }

    /// Loads the leaf at the current position of the path.
    async fn load(&mut self) -> Result<Option<Arc<ExtentLeaf>>, LostLeaf> {
        let (expected, end) = match &self.above {
            None => (self.root.expected(), None),
            Some(above) => match above.child() {
                Some(child) => child,
                None => return Ok(None),
            },
        };
        match &self.current {
            // If two pointers lead to the same leaf, one of them is wrong.
            Some((at, leaf))
                if *at == expected.at
                    && expected.first_key.is_none_or(|key| leaf.first_key() == Some(key)) =>
            {
                return Ok(Some(Arc::clone(leaf)));
            }
            Some((at, _)) if self.sweep.is_some() => self.fs.spend_extent_leaf(*at),
            Some(_) | None => {}
        }
        self.current = None;
        if let Some(sweep) = &self.sweep
            && !self.fs.has_extent_leaf(expected.at)
        {
            let key = expected.first_key.unwrap_or(Key::MIN);
            sweep.run(key, Logical(key.objectid)).await;
        }
        if let Some((parent, slot)) = self.above.as_ref().and_then(Path::leaf) {
            readahead::around(self.fs, parent, slot, self.reada, Blocks::ExtentLeaves);
        }
        match self.fs.extent_leaf(expected, end).await {
            Ok(leaf) => {
                self.current = Some((expected.at, Arc::clone(&leaf)));
                Ok(Some(leaf))
            }
            Err(error) => Err(LostLeaf { error, resume: end }),
        }
    }
}
