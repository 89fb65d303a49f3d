//! What tasks use: time, and other tasks.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ashlar_block::{LocalFuture, Runtime};

use super::core::{DueAction, SchedulerCore, current};

/// The wall clock when a simulation begins: 2025-01-01 UTC.
const EPOCH: Duration = Duration::from_secs(1_735_689_600);

/// The runtime of the simulation on the current thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimRuntime;

impl Runtime for SimRuntime {
    fn now_ns(&self) -> u64 {
        current().now_ns()
    }

    fn wall_clock(&self) -> Duration {
        EPOCH + Duration::from_nanos(current().now_ns())
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<'static, ()> {
        let core = current();
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let at_ns = core.now_ns().saturating_add(nanos);
        Box::pin(Sleep { key: (at_ns, core.next_id()), core, registered: false })
    }

    fn spawn(&self, task: LocalFuture<'static, ()>) {
        current().spawn(task);
    }
}

struct Sleep {
    core: Rc<SchedulerCore>,
    key: (u64, u64),
    registered: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut due = self.core.due.borrow_mut();
        // Registered and no longer in the map: fired.
        if self.registered && !due.contains_key(&self.key) {
            return Poll::Ready(());
        }
        // A waker may own a task that owns a sleep, so drop it without a borrow held.
        let old = due.insert(self.key, DueAction::Wake(cx.waker().clone()));
        drop(due);
        drop(old);
        self.registered = true;
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let due = self.core.due.borrow_mut().remove(&self.key);
        drop(due);
    }
}

/// Starts a task of the current simulation whose result can be awaited; it continues if the handle
/// is dropped.
pub fn start<T: 'static>(task: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    let slot = Rc::new(Slot { value: Cell::new(None), waker: Cell::new(None) });
    let join = JoinHandle { slot: Rc::clone(&slot) };
    current().spawn(Box::pin(async move {
        slot.value.set(Some(task.await));
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }));
    join
}

struct Slot<T> {
    value: Cell<Option<T>>,
    waker: Cell<Option<Waker>>,
}

/// Returns the task's result.
pub struct JoinHandle<T> {
    slot: Rc<Slot<T>>,
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.slot.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                self.slot.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}
