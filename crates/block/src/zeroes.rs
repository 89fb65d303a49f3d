//! Write-zeroes that may be refused ([`Flags::REFUSABLE`]): **`NotSupported` means that nothing was written.**
//!
//! The submitter of a hole then assumes that its data are still there, and a mirror that its copies are the same. So what is sent as
//! several parts is refused by all of them or by none: limits are asked first, and where one part is refused although others
//! were not, all parts are sent again as write-zeroes that may not be refused. That is slow, but happens once: a device that refuses a
//! fast write-zeroes, and has done none, has no fast ones from then on (`fast_zeroes.rs`).

use crate::bio::{Bio, Flags, Op};
use crate::disk::Disk;
use crate::status::{BioResult, Status};

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
