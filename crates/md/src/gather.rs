//! Requests of several tasks that one of them performs together.
//!
//! The first one *leads*: it takes all that have come until it begins, performs them, and appoints the next leader. So the more
//! requests wait, the more are performed at a time.

use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use ashlar_block::Status;
use ashlar_block::sync::lock;
use smallvec::SmallVec;

/// What is performed together.
pub(crate) type Batch<T, R> = SmallVec<[Arc<Request<T, R>>; 1]>;

/// See the module text.
pub(crate) struct Gather<T, R>(Mutex<Waiting<T, R>>);

struct Waiting<T, R> {
    requests: Batch<T, R>,
    /// One of them, or one that is being performed, leads.
    led: bool,
}

/// A request, and its result of the type `R`.
pub(crate) struct Request<T, R> {
    pub(crate) what: T,
    turn: Mutex<Turn<R>>,
}

enum Turn<R> {
    Waits(Option<Waker>),
    Leads,
    Ended(Option<Result<R, Status>>),
}

impl<T, R> Request<T, R> {
    fn turn(&self, next: Turn<R>) {
        let mut turn = lock(&self.turn);
        if let Turn::Waits(Some(waker)) = mem::replace(&mut *turn, next) {
            drop(turn);
            waker.wake();
        }
    }

    /// Waits until it has been performed (its result), or leads (`None`).
    async fn its_turn(&self) -> Option<Result<R, Status>> {
        poll_fn(|cx| match &mut *lock(&self.turn) {
            Turn::Waits(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Turn::Leads => Poll::Ready(None),
            Turn::Ended(result) => Poll::Ready(Some(result.take().unwrap_or(Err(Status::Io)))),
        })
        .await
    }
}

/// The requests that a leader performs.
pub(crate) struct Lead<'a, T, R> {
    gather: &'a Gather<T, R>,
    own: Arc<Request<T, R>>,
    batch: Batch<T, R>,
}

impl<T, R> Lead<'_, T, R> {
    /// Takes what waits, in the order in which it came, as long as `fits` says so. The leader's own request comes first if it was not taken.
    pub(crate) fn take(&mut self, mut fits: impl FnMut(&T) -> bool) -> &[Arc<Request<T, R>>] {
        let mut waiting = lock(&self.gather.0);
        let taken = waiting.requests.iter().take_while(|request| fits(&request.what)).count();
        self.batch.extend(waiting.requests.drain(..taken));
        &self.batch
    }

    /// Ends those that were taken, with a result for each of them; returns the leader's own one.
    pub(crate) fn end(
        mut self,
        results: impl IntoIterator<Item = Result<R, Status>>,
    ) -> Result<R, Status> {
        let mut own = Err(Status::Io);
        for (request, result) in self.batch.drain(..).zip(results) {
            match Arc::ptr_eq(&request, &self.own) {
                true => own = result,
                false => request.turn(Turn::Ended(Some(result))),
            }
        }
        own
    }
}

impl<T, R> Drop for Lead<'_, T, R> {
    fn drop(&mut self) {
        // None is left, unless the leader was dropped halfway, as the reactor ended.
        for request in self.batch.drain(..) {
            request.turn(Turn::Ended(Some(Err(Status::Offline))));
        }
        let next = {
            let mut waiting = lock(&self.gather.0);
            waiting.led = !waiting.requests.is_empty();
            waiting.requests.first().cloned()
        };
        if let Some(next) = next {
            next.turn(Turn::Leads);
        }
    }
}

impl<T, R> Default for Gather<T, R> {
    fn default() -> Self {
        Self(Mutex::new(Waiting { requests: Batch::new(), led: false }))
    }
}

impl<T, R> Gather<T, R> {
    /// Waits until `what` was performed by another task, which returns its result, or leads.
    pub(crate) async fn join(&self, what: T) -> Result<Lead<'_, T, R>, Result<R, Status>> {
        let own = Arc::new(Request { what, turn: Mutex::new(Turn::Waits(None)) });
        let leads = {
            let mut waiting = lock(&self.0);
            waiting.requests.push(Arc::clone(&own));
            !mem::replace(&mut waiting.led, true)
        };
        if !leads && let Some(result) = own.its_turn().await {
            return Err(result);
        }
        Ok(Lead { gather: self, own, batch: Batch::new() })
    }
}
