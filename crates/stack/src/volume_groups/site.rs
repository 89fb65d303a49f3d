//! What volume groups use of the stack: where devices are made, and how.

use std::sync::Arc;

use ashlar_block::Runtime;
use ashlar_lvm::activate;

use crate::devices::Devices;
use crate::findings::Others;

/// Where devices are made, and how.
pub(crate) struct Site<'a> {
    pub(crate) devices: &'a Devices,
    pub(crate) runtime: &'a Arc<dyn Runtime>,
    pub(crate) options: activate::Options,
    pub(crate) others: &'a Others,
}
