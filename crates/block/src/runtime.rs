//! The interface of a runtime to the layers: time and tasks.

use std::time::Duration;

use crate::device::LocalFuture;

/// The reactor of the current thread, or the simulator.
///
/// The handle is shared by all threads; `sleep` and `spawn` act on the reactor of the thread that
/// calls, and panic on a thread that has none.
pub trait Runtime: Send + Sync + 'static {
    /// Nanoseconds on a monotonic clock.
    fn now_ns(&self) -> u64;

    /// Time since the Unix epoch, for time stamps on disk.
    fn wall_clock(&self) -> Duration;

    /// Ends after `duration`.
    fn sleep(&self, duration: Duration) -> LocalFuture<'static, ()>;

    /// Runs `task` on the current reactor, to its end.
    fn spawn(&self, task: LocalFuture<'static, ()>);

    /// Runs `work`, which keeps a processor busy and waits for nothing; ends when it has. A runtime with several
    /// processors does it beside the current reactor's tasks, any other at once.
    fn compute(&self, work: Box<dyn FnOnce() + Send>) -> LocalFuture<'static, ()> {
        work();
        Box::pin(std::future::ready(()))
    }
}
