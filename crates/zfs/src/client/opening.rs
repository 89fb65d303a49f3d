//! A volume that is opened in its worker, shut, and opened again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use ashlar_block::bio::Op;
use ashlar_block::status::Status;
use ashlar_block::units::Sector;

use super::worker::Worker;

/// One opening of a volume in the worker. Each channel belongs to one opening: late events of an
/// earlier opening cannot affect a new one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Opening {
    /// Its identity in this process, not 0.
    id: u32,
    /// The volume's number in the worker.
    pub(super) number: u32,
}

impl Opening {
    /// A new, unique opening.
    fn new(number: u32) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        Self { id: LAST.fetch_add(1, Relaxed).wrapping_add(1), number }
    }

    fn pack(self) -> u64 {
        u64::from(self.id) << 32 | u64::from(self.number)
    }

    /// `None` for [`SHUT`].
    fn unpack(packed: u64) -> Option<Self> {
        let this = Self { id: (packed >> 32) as u32, number: packed as u32 };
        (packed != SHUT).then_some(this)
    }
}

/// No opening.
const SHUT: u64 = 0;

/// The state shared by a volume's channels.
pub(super) struct Volume {
    pub(super) worker: Arc<Worker>,
    /// Its device's name, for the log.
    name: String,
    /// The packed [`Opening`]; while the volume is not open, requests are refused.
    opening: AtomicU64,
    errors: AtomicU64,
}

impl Volume {
    /// A volume that `worker` has opened as `number`.
    pub(super) fn new(worker: Arc<Worker>, number: u32, name: &str) -> Self {
        let opening = AtomicU64::new(Opening::new(number).pack());
        Self { worker, name: name.to_owned(), opening, errors: AtomicU64::new(0) }
    }

    /// Its device's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its present opening.
    pub(super) fn opening(&self) -> Option<Opening> {
        Opening::unpack(self.opening.load(Relaxed))
    }

    /// Ends the present opening. Returns its number in the worker.
    pub(super) fn shut(&self) -> Option<u32> {
        Some(Opening::unpack(self.opening.swap(SHUT, Relaxed))?.number)
    }

    /// The worker has opened it as `number`.
    pub(super) fn reopen(&self, number: u32) {
        self.opening.store(Opening::new(number).pack(), Relaxed);
    }

    /// Logs failed requests, in powers of two.
    pub(super) fn failed(&self, op: Op, sector: Sector, status: Status) {
        let count = self.errors.fetch_add(1, Relaxed) + 1;
        if status != Status::NotSupported && count.is_power_of_two() {
            tracing::error!(volume = self.name, ?op, sector = sector.0, %status, errors = count, "I/O failed");
        }
    }
}
