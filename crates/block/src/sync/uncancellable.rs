//! Operations that run to their end even if their caller stops waiting.
//!
//! A future may be dropped at any await, for example because an export's connection broke. The I/O that
//! it started continues, and its consequences must not be lost: a failed member is recorded, barrier and
//! active state are held until the last copy is written, and a pass is returned only when nothing is in
//! flight. So operations that change data or a device live in an [`Uncancellable`], which hands their
//! remainder to the runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use tracing::debug;

use crate::future::LocalFuture;
use crate::runtime::Runtime;
use crate::status::Status;

/// See the module text.
#[must_use = "futures do nothing unless polled"]
pub struct Uncancellable<'a, T: 'static> {
    left: Option<LocalFuture<'static, Result<T, Status>>>,
    runtime: &'a Arc<dyn Runtime>,
}

impl<'a, T: 'static> Uncancellable<'a, T> {
    /// Runs `work` on `device`, which the caller holds, to its end on the current reactor.
    pub fn new<D: 'static, F>(
        runtime: &'a Arc<dyn Runtime>,
        device: &Weak<D>,
        work: impl FnOnce(Arc<D>) -> F + 'static,
    ) -> Self
    where
        F: Future<Output = Result<T, Status>>,
    {
        // The caller holds the device, so the upgrade succeeds.
        let device = device.upgrade();
        Self::of(runtime, async move {
            match device {
                Some(device) => work(device).await,
                None => Err(Status::Offline),
            }
        })
    }

    /// Runs `work`, which holds what it needs, to its end on the current reactor.
    pub fn of(
        runtime: &'a Arc<dyn Runtime>,
        work: impl Future<Output = Result<T, Status>> + 'static,
    ) -> Self {
        Self { left: Some(Box::pin(work)), runtime }
    }
}

impl<T: 'static> Future for Uncancellable<'_, T> {
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

impl<T: 'static> Drop for Uncancellable<'_, T> {
    fn drop(&mut self) {
        let Some(future) = self.left.take() else { return };
        self.runtime.spawn(Box::pin(async move {
            if let Err(status) = future.await {
                debug!(%status, "an operation failed whose caller stopped waiting");
            }
        }));
    }
}
