//! Operations that run to their end even if their caller stops waiting.
//!
//! A future may be dropped at any await, for example because an export's connection broke. The members' I/O continues,
//! and its consequences must not be lost: recording a failed member, and holding the barrier
//! and the active state until the last copy is written. So writes, flushes, corrections and
//! the stop of an array live in a [`Finish`], which hands their remainder to the runtime.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ashlar_block::{LocalFuture, Runtime, Status};
use tracing::debug;

/// See the module text.
pub(crate) struct Finish<'a, T: 'static> {
    left: Option<LocalFuture<'static, Result<T, Status>>>,
    runtime: &'a dyn Runtime,
}

impl<'a, T: 'static> Finish<'a, T> {
    /// Runs `future` to its end, on the current reactor.
    pub(crate) fn new(
        runtime: &'a dyn Runtime,
        future: impl Future<Output = Result<T, Status>> + 'static,
    ) -> Self {
        Self { left: Some(Box::pin(future)), runtime }
    }
}

impl<T: 'static> Future for Finish<'_, T> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.left else { return Poll::Pending };
        let done = future.as_mut().poll(cx);
        if done.is_ready() {
            self.left = None;
        }
        done
    }
}

impl<T: 'static> Drop for Finish<'_, T> {
    fn drop(&mut self) {
        let Some(future) = self.left.take() else { return };
        self.runtime.spawn(Box::pin(async move {
            if let Err(status) = future.await {
                debug!(%status, "an operation failed that nobody waits for");
            }
        }));
    }
}
