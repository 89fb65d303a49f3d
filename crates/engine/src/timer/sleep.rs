//! Waiting for a time, and for others no longer than that.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use ashlar_block::patience;

use super::{Key, now_ns};
use crate::reactor::{self, ReactorCore};

/// See [`sleep`].
#[must_use = "a sleep does nothing unless awaited"]
pub struct Sleep {
    core: Rc<ReactorCore>,
    deadline: u64,
    key: Option<Key>,
}

/// Waits for `duration` of `CLOCK_MONOTONIC`, on the current reactor.
///
/// # Panics
/// Outside a reactor's thread.
pub fn sleep(duration: Duration) -> Sleep {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Sleep { core: reactor::current(), deadline: now_ns().saturating_add(nanos), key: None }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let core = Rc::clone(&self.core);
        let mut timers = core.timers.borrow_mut();
        match self.key {
            Some(key) => match timers.waiting.get_mut(&key) {
                Some(waker) => waker.clone_from(cx.waker()),
                None => return Poll::Ready(()),
            },
            None if self.deadline <= now_ns() => return Poll::Ready(()),
            None => self.key = Some(timers.insert(self.deadline, cx.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            // The waker must be dropped after the borrow: it may hold the last reference to its task.
            let waker = self.core.timers.borrow_mut().waiting.remove(&key);
            drop(waker);
        }
    }
}

/// `future`'s output, or `None` if the thread has lived through `limit` first: see [`patience`].
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut limit = std::pin::pin!(patience::wait(limit, sleep));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        limit.as_mut().poll(cx).map(|()| None)
    })
    .await
}
