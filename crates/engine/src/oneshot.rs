//! A value passed once from one thread to a task of another.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ashlar_block::sync::lock;

/// The sender was dropped without sending: its closure panicked, or its reactor ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the work was abandoned before it ended")]
pub struct ReceiveError;

struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
    closed: bool,
}

/// Sends the value, or closes the slot when dropped.
pub struct Sender<T>(Arc<Mutex<Slot<T>>>);

/// A future of the value that another thread sends.
#[must_use = "a result of another thread must be looked at"]
pub struct Receiver<T>(Arc<Mutex<Slot<T>>>);

/// A sender and its receiver.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let slot = Arc::new(Mutex::new(Slot { value: None, waker: None, closed: false }));
    (Sender(Arc::clone(&slot)), Receiver(slot))
}

impl<T> Sender<T> {
    /// Sends the value.
    pub fn send(self, value: T) {
        lock(&self.0).value = Some(value);
        // Dropping self wakes the receiver.
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        slot.closed = true;
        let waker = slot.waker.take();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, ReceiveError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.0);
        if let Some(value) = slot.value.take() {
            return Poll::Ready(Ok(value));
        }
        if slot.closed {
            return Poll::Ready(Err(ReceiveError));
        }
        if slot.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        let former = slot.waker.replace(cx.waker().clone());
        drop(slot);
        drop(former);
        Poll::Pending
    }
}
