//! Where a tree begins.

use crate::ondisk::node::BlockExpectation;
use crate::units::Logical;

/// The root of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// The tree.
    pub id: u64,
    /// Address of the topmost block.
    pub at: Logical,
    /// The transaction that wrote that block.
    pub generation: u64,
    /// Level of that block.
    pub level: u8,
}

impl Root {
    /// Its topmost block.
    pub(crate) const fn expected(&self) -> BlockExpectation {
        BlockExpectation {
            at: self.at,
            generation: Some(self.generation),
            level: Some(self.level),
            first_key: None,
        }
    }
}
