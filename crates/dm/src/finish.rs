//! Operations that run to completion even if their future is dropped.
//!
//! A future may be dropped at any await, for example when an export's connection breaks. The I/O
//! that it started continues. If its pass were returned then, a suspension would see nothing in
//! flight although a write still is, and the write could reach a device after a snapshot of it was
//! taken. So operations that change data or the device are wrapped in a [`Finish`], which passes
//! the rest of a dropped operation to the runtime.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ashlar_block::{BioResult, LocalFuture, Runtime};
use tracing::debug;

/// See the module text.
pub(crate) struct Finish<'a> {
    left: Option<LocalFuture<'static, BioResult>>,
    runtime: &'a dyn Runtime,
}

impl<'a> Finish<'a> {
    /// Makes `future` run to completion, on the current reactor.
    pub(crate) fn new(
        runtime: &'a dyn Runtime,
        future: impl Future<Output = BioResult> + 'static,
    ) -> Self {
        Self { left: Some(Box::pin(future)), runtime }
    }
}

impl Future for Finish<'_> {
    type Output = BioResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BioResult> {
        let Some(future) = &mut self.left else { return Poll::Pending };
        let done = future.as_mut().poll(cx);
        if done.is_ready() {
            self.left = None;
        }
        done
    }
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let Some(future) = self.left.take() else { return };
        self.runtime.spawn(Box::pin(async move {
            if let Err(status) = future.await {
                debug!(%status, "an operation failed that nobody waits for");
            }
        }));
    }
}
