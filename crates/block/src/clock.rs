//! The time that the current thread's runtime last reported.
//!
//! The block layer has no clock of its own, so that it runs on virtual time as well as on real:
//! the reactor (or the simulator) sets the time once per turn, which is precise enough for accounting.

use std::cell::Cell;

thread_local! {
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

/// Called by the runtime: sets the nanoseconds on its monotonic clock.
pub fn set_now_ns(now_ns: u64) {
    NOW_NS.set(now_ns);
}

/// Nanoseconds on the runtime's monotonic clock, as of the current turn.
pub fn now_ns() -> u64 {
    NOW_NS.get()
}
