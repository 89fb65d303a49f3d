//! Deadlines of a process that may stand still.
//!
//! A thread may stand still for any time: with its process (SIGSTOP, a debugger, a frozen container), with its machine (a
//! virtual machine that is paused or moved), or because it gets no processor. Meanwhile it takes no answers, and where the
//! machine stands still, nothing answers. Such time must not count.
//!
//! So a deadline is not a moment. It is a number of **steps** that the thread lives through: it sleeps for the length of a step,
//! wakes, takes the answers that have come, and only then counts the step, once, however late it woke. A stop of any length
//! costs at most one step. A device that never answers is noticed after all steps, also by a thread that is late each time.

use std::time::Duration;

/// The steps of a deadline.
const STEPS: u64 = 32;
/// The least length of a step.
const LEAST_NS: u64 = 1_000_000;

/// The length of a step of a deadline.
pub(crate) const fn step_ns(deadline_ns: u64) -> u64 {
    let step_ns = deadline_ns / STEPS;
    if step_ns > LEAST_NS { step_ns } else { LEAST_NS }
}

/// Ends when the thread has lived through `duration`, which it sleeps by `sleep`.
pub async fn wait<S: Future<Output = ()>>(duration: Duration, sleep: impl Fn(Duration) -> S) {
    let whole_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let step = Duration::from_nanos(step_ns(whole_ns));
    let mut left = duration;
    while !left.is_zero() {
        let now = left.min(step);
        sleep(now).await;
        left -= now;
    }
}
