//! Bytes per second.
//!
//! What is read is a debt that time pays off at the rate of the limit; more is read once it is paid.
//! Sleeps are a slice of a second long at least, more of them the higher the rate (as the kernel's
//! `scrub_throttle`), and what a slice is too long for is read at once after it. So the rate is kept
//! whatever the size of a read, and a changed limit is felt at the next slice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ashlar_block::Runtime;

/// The bytes of one slice are about this many at least.
const SLICE_BYTES: u64 = 16 << 20;
/// A second has at most so many slices.
const SLICES_MAX: u64 = 64;
/// The longest sleep before it is looked again whether the scrub was cancelled or the limit changed.
const NAP_NS: u64 = 100_000_000;
/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// What a device has read and not paid for.
pub(super) struct Throttle {
    limit: Option<Arc<AtomicU64>>,
    /// Bytes times nanoseconds of a second; below zero there is something to be spent.
    debt: i128,
    /// When the debt was this.
    at_ns: u64,
}

impl Throttle {
    /// At most `limit` bytes per second; zero, or `None`, is no limit.
    pub(super) const fn new(limit: Option<Arc<AtomicU64>>) -> Self {
        Self { limit, debt: 0, at_ns: 0 }
    }

    /// Waits until `bytes` more may be read, or `stop` is set.
    pub(super) async fn wait(&mut self, bytes: u64, runtime: &Arc<dyn Runtime>, stop: &AtomicBool) {
        let Some(limit) = &self.limit else { return };
        while !stop.load(Ordering::Relaxed) {
            let limit = limit.load(Ordering::Relaxed);
            let now = runtime.now_ns();
            let slices = (limit / SLICE_BYTES).clamp(1, SLICES_MAX);
            let (limit, slice_ns) = (i128::from(limit), SECOND_NS / slices);
            let paid = i128::from(now.saturating_sub(self.at_ns)) * limit;
            let savings = i128::from(slice_ns) * limit;
            // What was not read in time is not read later, but for the slice of a sleep.
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
