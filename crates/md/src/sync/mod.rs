//! Resync, recovery, check and repair.

use ashlar_block::Sectors;

/// What the array's own I/O is doing and may do.
#[derive(Default)]
pub(crate) struct Control {}

/// Units of sync I/O: windows of 1 MiB.
pub(crate) const WINDOW: Sectors = Sectors(2048);
