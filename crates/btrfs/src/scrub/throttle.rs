//! Limits bytes per second.
//!
//! Bytes read are a debt, which time pays off at the rate of the limit; the next read waits until
//! it is paid. Sleeps last at least one slice of a second, with more slices at higher rates (as in
//! the kernel's `scrub_throttle`); reads that fell due during a slice follow at once after it. So
//! the rate does not depend on the size of a read, and a changed limit takes effect at the next
//! slice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ashlar_block::Runtime;

/// Approximate minimum of bytes per slice.
const SLICE_BYTES: u64 = 16 << 20;
/// Maximum number of slices per second.
const SLICES_MAX: u64 = 64;
/// Longest sleep between checks for cancellation and changes of the limit.
const NAP_NS: u64 = 100_000_000;
/// Nanoseconds per second.
const SECOND_NS: u64 = 1_000_000_000;

/// Read debt of a device.
pub(super) struct Throttle {
    limit: Option<Arc<AtomicU64>>,
    /// In bytes times nanoseconds per second; negative values are credit.
    debt: i128,
    /// Time of the last update of `debt`.
    at_ns: u64,
}

impl Throttle {
    /// A limit of `limit` bytes per second; zero or `None` means no limit.
    pub(super) const fn new(limit: Option<Arc<AtomicU64>>) -> Self {
        Self { limit, debt: 0, at_ns: 0 }
    }

    /// Waits until `bytes` more may be read, or until `stop` is set.
    pub(super) async fn wait(&mut self, bytes: u64, runtime: &Arc<dyn Runtime>, stop: &AtomicBool) {
        let Some(limit) = &self.limit else { return };
        while !stop.load(Ordering::Relaxed) {
            let limit = limit.load(Ordering::Relaxed);
            let now = runtime.now_ns();
            let slices = (limit / SLICE_BYTES).clamp(1, SLICES_MAX);
            let (limit, slice_ns) = (i128::from(limit), SECOND_NS / slices);
            let paid = i128::from(now.saturating_sub(self.at_ns)) * limit;
            let savings = i128::from(slice_ns) * limit;
            // Unused allowance expires, except for one slice, which covers a sleep.
            self.debt = (self.debt - paid).max(if slices == 1 { 0 } else { -savings });
            self.at_ns = now;
            if limit == 0 {
                self.debt = 0;
                return;
            }
            if self.debt <= 0 {
                self.debt += i128::from(bytes) * i128::from(SECOND_NS);
                return;
            }
            let due_ns = u64::try_from(self.debt / limit + 1).unwrap_or(NAP_NS);
            let sleep_ns = if slices == 1 { due_ns } else { due_ns.max(slice_ns) };
            runtime.sleep(Duration::from_nanos(sleep_ns.min(NAP_NS))).await;
        }
    }
}
