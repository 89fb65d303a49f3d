//! Making tasks of futures, and queueing those that are woken.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_task::{Builder, Runnable, Task};

use crate::mailbox::{Mailbox, Message};
use crate::reactor::{self, ReactorCore};

/// A future that leaves the register when it is dropped.
struct RegisteredFuture<F> {
    core: Rc<ReactorCore>,
    place: usize,
    future: F,
}

impl<F: Future> Future for RegisteredFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: `future` is pinned with its container: it is never moved out, and drop() does not
        // touch it.
        unsafe { self.map_unchecked_mut(|this| &mut this.future) }.poll(cx)
    }
}

impl<F> Drop for RegisteredFuture<F> {
    fn drop(&mut self) {
        let waker = self.core.tasks.borrow_mut().all.try_remove(self.place);
        drop(waker);
    }
}

impl ReactorCore {
    /// Makes a task of `future`; a panic in it reaches the task that awaits it. It runs after the tasks queued before
    /// it.
    pub(crate) fn spawn<F>(self: &Rc<Self>, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let place = self.tasks.borrow_mut().all.insert(None);
        let future = RegisteredFuture { core: Rc::clone(self), place, future };
        let mailbox = Arc::clone(&self.mailbox);
        let schedule = move |task: Runnable| schedule(&mailbox, task);
        // SAFETY: the future is not Send, so its Runnable must be used and dropped on this thread only. Only schedule()
        // gets Runnables: it queues them here, where the reactor runs or drops them, or mails them here, or leaks them.
        // `schedule` itself is Send, Sync and 'static, and the future is 'static.
        let (runnable, task) = unsafe {
            Builder::new().propagate_panic(true).spawn_unchecked(move |()| future, schedule)
        };
        if let Some(waker) = self.tasks.borrow_mut().all.get_mut(place) {
            *waker = Some(runnable.waker());
        }
        runnable.schedule();
        task
    }
}

/// Queues a woken task on its reactor; callable from any thread.
fn schedule(mailbox: &Arc<Mailbox>, task: Runnable) {
    if let Some(core) = reactor::try_current().filter(|core| Arc::ptr_eq(&core.mailbox, mailbox)) {
        return core.tasks.borrow_mut().push(task);
    }
    if let Err(Message::Run(task)) = reactor::send(mailbox, Message::Run(task)) {
        // The reactor has ended. The task must not be dropped on this thread, and its own thread no longer serves it.
        // All futures were dropped before it refused tasks, so only an empty shell leaks.
        std::mem::forget(task);
    }
}
