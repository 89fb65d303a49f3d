//! The interface of a runtime to the layers: time and tasks.

use std::time::Duration;

use crate::future::LocalFuture;

/// The reactor of the current thread, or the simulator.
///
/// The handle is shared by all threads; `sleep` and `spawn` act on the reactor of the calling thread,
/// and panic on a thread without one.
pub trait Runtime: Send + Sync + 'static {
    /// Nanoseconds on a monotonic clock, which is that of [`clock`](crate::clock) too.
    fn now_ns(&self) -> u64;

    /// Time since the Unix epoch, for time stamps on disk.
    fn wall_clock(&self) -> Duration;

    /// Ends after `duration`.
    fn sleep(&self, duration: Duration) -> LocalFuture<'static, ()>;

    /// Runs `task` on the current reactor, to its end.
    fn spawn(&self, task: LocalFuture<'static, ()>);

    /// Runs `work`, which computes without waiting; the future ends when it is done. A runtime with several
    /// processors runs it concurrently with the current reactor's tasks, any other at once.
    fn compute(&self, work: Box<dyn FnOnce() + Send>) -> LocalFuture<'static, ()> {
        work();
        Box::pin(std::future::ready(()))
    }
}
