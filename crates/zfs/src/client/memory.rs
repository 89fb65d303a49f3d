//! The memory that buffers of this process are in, as workers read it.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use ashlar_block::buffer::{self, BLOCK_SIZES};
use ashlar_engine::slabs::{Shared, Slabs};

use crate::protocol::Command;

/// Address space for the buffers of each size: what is in flight at most.
const REGION_BYTES: usize = 4 << 30;
/// What is kept for buffers to come, besides what each thread has.
const KEEP_BYTES: usize = 64 << 20;

/// The command that lends the memory to a worker, with what goes along. From the first time on buffers are in such memory.
///
/// `None` if it cannot be had: the kernel moves the data of requests, which takes longer.
pub(super) fn share() -> Option<(Command, OwnedFd)> {
    static SHARED: OnceLock<Option<Shared>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| match Slabs::shared(&BLOCK_SIZES, REGION_BYTES, KEEP_BYTES) {
        Ok((slabs, shared)) => {
            // Buffers may outlive everything.
            let set = buffer::set_source(Box::leak(Box::new(slabs)));
            set.is_ok().then_some(shared)
        }
        Err(errno) => {
            tracing::warn!(%errno, "no memory to share with the workers of pools: writes take longer");
            None
        }
    });
    let shared = shared.as_ref()?;
    let file = shared.file.try_clone().ok()?;
    Some((Command::Share { address: shared.address, len_bytes: shared.len_bytes }, file))
}
