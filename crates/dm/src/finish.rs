//! Operations that run to their end although whoever waits for them goes away.
//!
//! A future may be dropped at any await: an export's connection broke. What it started below goes on
//! all the same. If its leave were given back then, a suspension would be told that nothing is in
//! flight while a write still is, and it could land in a device after a snapshot of that was taken.
//! So what changes data, and what changes the device, lives in a [`Finish`], which hands what is left
//! of it to the runtime.

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
    /// Has `future` run to its end, on the current reactor.
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
