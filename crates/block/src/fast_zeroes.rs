//! Whether a device has the fast write-zeroes that its limits promise: one that refuses such a write, and has done none, has no fast
//! ones from then on. For some servers of NBD that is the only way to learn it.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::bio::Flags;
use crate::status::{BioResult, Status};

/// What a device's answers say about its fast write-zeroes.
#[derive(Debug, Default)]
pub(crate) struct FastZeroes(AtomicU8);

/// It has done one.
const DONE: u8 = 1;
/// It has refused one, and has done none.
const REFUSED: u8 = 2;

impl FastZeroes {
    /// Whether the device only claims to have them.
    pub(crate) fn are_refused(&self) -> bool {
        self.0.load(Relaxed) == REFUSED
    }

    /// Notes a result.
    pub(crate) fn note(&self, flags: Flags, result: BioResult) {
        // Devices that are fast because they free the range are slow where it must stay allocated.
        if !flags.contains(Flags::FAST) || flags.contains(Flags::NOUNMAP) {
            return;
        }
        match result {
            Ok(()) => self.0.store(DONE, Relaxed),
            // It fails if the device has done one, which is what counts.
            Err(Status::NotSupported) => {
                let (Ok(_) | Err(_)) = self.0.compare_exchange(0, REFUSED, Relaxed, Relaxed);
            }
            Err(_) => {}
        }
    }

    /// The device has other limits now.
    pub(crate) fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}
