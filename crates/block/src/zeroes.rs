//! Write-zeroes that may be refused ([`Flags::REFUSABLE`]): **`NotSupported` means that nothing was written.**
//!
//! The submitter of a hole then assumes that its data are still there, and a mirror that its copies are the same. So what is sent as
//! several parts is refused by all of them or by none: limits are asked first, and where one part is refused although others
//! were not, all parts are sent again as write-zeroes that may not be refused. That is slow, but happens once: a device that refuses a
//! fast write-zeroes, and has done none, has no fast ones from then on. For some servers of NBD that is the only way to learn it.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::bio::{Bio, Flags, Op};
use crate::disk::Disk;
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

/// Sends a bio of any operation as parts to several `devices`, by `send`, and returns the parts' results. Of a write-zeroes that may be
/// refused, all parts are refused, or none.
pub async fn all_or_none<'d, R: AsRef<[BioResult]> + FromIterator<BioResult>>(
    mut devices: impl Iterator<Item = &'d Disk>,
    bio: Bio,
    send: impl AsyncFn(Bio) -> R,
) -> R {
    if !bio.is_refusable() {
        return send(bio).await;
    }
    if devices.any(|device| !device.takes_zeroes(bio.flags)) {
        return std::iter::once(Err(Status::NotSupported)).collect();
    }
    let results = send(bio.clone()).await;
    let is_refused = |result: &BioResult| *result == Err(Status::NotSupported);
    if results.as_ref().iter().all(is_refused) || !results.as_ref().iter().any(is_refused) {
        return results;
    }
    send(bio.insisting()).await
}

impl Bio {
    /// Whether it is a write-zeroes that may be refused.
    pub fn is_refusable(&self) -> bool {
        self.op == Op::WriteZeroes && self.flags.intersects(Flags::REFUSABLE)
    }

    /// The same bio, but if it is a write-zeroes, it may not be refused: where nothing else helps, zeroes are written.
    #[must_use]
    pub fn insisting(mut self) -> Self {
        self.flags -= Flags::REFUSABLE;
        self
    }
}
