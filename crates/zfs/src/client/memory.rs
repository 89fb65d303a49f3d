//! The memory of this process's buffers, which workers read.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use ashlar_block::buffer::{self, BLOCK_SIZES};
use ashlar_engine::slabs::{SharedMemory, Slabs};

use crate::protocol::Command;

/// Address space for the buffers of each size: the maximum in flight.
const REGION_BYTES: usize = 4 << 30;
/// Memory kept for future buffers, besides each thread's cache.
const KEEP_BYTES: usize = 64 << 20;

/// The command and the descriptor that share the memory with a worker. After the first call, new
/// buffers use this memory.
///
/// `None` if the memory is not available: the kernel then copies the data of requests, which takes longer.
pub(super) fn share() -> Option<(Command, OwnedFd)> {
    static SHARED: OnceLock<Option<SharedMemory>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| match Slabs::shared(&BLOCK_SIZES, REGION_BYTES, KEEP_BYTES) {
        Ok((slabs, shared)) => {
            // Leaked, because buffers may outlive everything.
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
