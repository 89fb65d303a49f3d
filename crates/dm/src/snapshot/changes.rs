//! What a snapshot knows of the changes since it was taken, for those outside of the tables.

use std::sync::{Arc, Weak};

use ashlar_block::{Extents, Sector, Sectors};

use super::state::Snapshot;

/// Where a snapshot and its origin may differ. It keeps nothing in use.
#[derive(Clone, Debug)]
pub struct Changes(Weak<Snapshot>);

impl Changes {
    pub(super) fn of(snapshot: &Arc<Snapshot>) -> Self {
        Self(Arc::downgrade(snapshot))
    }

    /// Where the snapshot and its origin hold the same in a range: [all states](ashlar_block::ExtentState::all) there. Elsewhere the origin was
    /// written since the snapshot was taken, or the snapshot itself; everywhere, if the snapshot is invalid, merged or removed. The
    /// answer may be for less than the range.
    pub fn same(&self, at: Sector, len: Sectors) -> Extents {
        match self.0.upgrade() {
            Some(snapshot) => snapshot.unchanged(at, len),
            None => Extents::data(at, len),
        }
    }
}
