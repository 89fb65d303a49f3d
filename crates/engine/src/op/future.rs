//! Submitting operations, and their futures.

use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use ashlar_block::request::RequestId;
use io_uring::{opcode, squeue};

use super::{IGNORED, KeptMemory, OperationOwner, Payload, State, discard};
use crate::reactor::ReactorCore;

impl ReactorCore {
    /// Submits an operation whose end is reported to `owner`.
    ///
    /// # Safety
    /// All memory that `entry` names must be owned by `owner`, at addresses that do not change when
    /// the box moves, or be static; its descriptor must stay open as long as `owner` exists.
    pub(crate) unsafe fn submit_callback(
        &self,
        entry: squeue::Entry,
        owner: Box<dyn OperationOwner<Self>>,
    ) {
        let key =
            self.ops.borrow_mut().insert(State::Callback(owner), KeptMemory::Nothing, None, false);
        // SAFETY: the table holds `owner` until the completion is harvested.
        unsafe { self.push(entry.user_data(key)) }
    }

    /// Submits an operation as a future.
    ///
    /// # Safety
    /// All memory that `entry` names must be owned by `payload`, at addresses that do not change
    /// when it moves, or be static; its descriptor must be `fd`'s, or stay open forever.
    pub(crate) unsafe fn submit<T: Payload>(
        self: &Rc<Self>,
        entry: squeue::Entry,
        payload: T,
        fd: Option<Rc<OwnedFd>>,
        cancellable: bool,
    ) -> Op<T> {
        let state = State::Waiting(None);
        let key = self.ops.borrow_mut().insert(state, payload.into_keep(), fd, cancellable);
        // SAFETY: the table holds payload and descriptor until the completion is harvested,
        // whatever happens to the future.
        unsafe { self.push(entry.user_data(key)) }
        Op { core: Rc::clone(self), key, collected: false, payload: PhantomData }
    }

    /// Asks the kernel to cancel the operation of a request that has reached its deadline.
    pub(crate) fn cancel_request(&self, id: RequestId) {
        let key = self.ops.borrow().of_request(id);
        if let Some(key) = key {
            self.cancel(key);
        }
    }

    /// Asks the kernel to cancel an operation. Its completion still arrives.
    pub(crate) fn cancel(&self, key: u64) {
        let entry = opcode::AsyncCancel::new(key).build().user_data(IGNORED);
        // SAFETY: a cancel names no memory and no descriptor.
        unsafe { self.push(entry) }
    }
}

/// An operation in flight. Ends with the kernel's result and the payload.
///
/// It was submitted when it was created. Dropping it asks the kernel to cancel waits (poll, accept, receive, connect;
/// data received meanwhile are lost); all other operations run to their end.
#[must_use = "an operation's result is in its output"]
pub struct Op<T: Payload> {
    core: Rc<ReactorCore>,
    key: u64,
    collected: bool,
    payload: PhantomData<fn() -> T>,
}

impl<T: Payload> Future for Op<T> {
    type Output = (io::Result<usize>, T);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.collected, "operation polled after its end");
        let core = Rc::clone(&self.core);
        let mut ops = core.ops.borrow_mut();
        let slot = ops.get(self.key).expect("an operation keeps its slot until collected");
        match &mut slot.state {
            State::Waiting(Some(waker)) => waker.clone_from(cx.waker()),
            State::Waiting(none) => *none = Some(cx.waker().clone()),
            State::Done(result) => {
                let result = *result;
                let slot = ops.take(self.key).expect("found just now");
                self.collected = true;
                let result = if result < 0 {
                    Err(io::Error::from_raw_os_error(-result))
                } else {
                    Ok(result as usize)
                };
                let payload = T::from_keep(slot.keep).expect("a slot returns what it was given");
                return Poll::Ready((result, payload));
            }
            State::Orphaned | State::Callback(_) => unreachable!("the future is here"),
        }
        Poll::Pending
    }
}

impl<T: Payload> Drop for Op<T> {
    fn drop(&mut self) {
        if self.collected {
            return;
        }
        let mut ops = self.core.ops.borrow_mut();
        let Some(slot) = ops.get(self.key) else { return };
        if let State::Done(result) = slot.state {
            let slot = ops.take(self.key);
            drop(ops);
            if let Some(slot) = slot {
                discard(slot.keep, result);
            }
            return;
        }
        let former = std::mem::replace(&mut slot.state, State::Orphaned);
        let cancellable = slot.cancellable;
        drop(ops);
        drop(former);
        if cancellable {
            self.core.cancel(self.key);
        }
    }
}
