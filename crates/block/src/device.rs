//! A block device, and the future of an I/O on it.

use std::cell::{Cell, RefCell};
use std::future::{Future, ready};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Context, Poll, Waker};

use crate::bio::Bio;
#[cfg(doc)]
use crate::bio::CopyNumber;
use crate::disk::Disk;
use crate::extent::Extents;
pub use crate::future::LocalFuture;
use crate::stats::Account;
use crate::status::{BioResult, Status};
use crate::sync::uncancellable::Uncancellable;
use crate::units::{Sector, Sectors};

/// A block device: a driver with its queue, or a layer over other devices.
///
/// Devices are shared by all reactor threads; the futures that they return belong to the calling
/// thread. Only a [`Gateway`](crate::gateway::Gateway) calls `submit_bio`, and it has checked the
/// bio before: it lies within the capacity, is aligned, not empty, within the limits, and needs no
/// capability that the device lacks.
pub trait BlockDevice: Send + Sync + 'static {
    /// Name, capacity, limits, settings, counters.
    fn disk(&self) -> &Disk;

    /// Starts the I/O (now, or when first polled); the future returns its status. A layer must match
    /// every [`Op`](crate::bio::Op) explicitly.
    ///
    /// Dropping the future does not stop started I/O, but later parts (further pieces of a split bio,
    /// the flush after an emulated FUA write) are not started: like a failed bio, it may have happened
    /// in part.
    fn submit_bio(&self, bio: Bio) -> IoFuture<'_>;

    /// How many copies of the range a read can name, from 1 on; at least 1, at most
    /// [`CopyNumber::MAX`]. Where parts of the range have different numbers (stripes on unlike
    /// devices), the largest: a read of a copy that some part lacks fails with
    /// [`Status::Invalid`], and a shorter one may succeed.
    ///
    /// The answer is of the moment: members fail and return. A number belongs to the same place as
    /// long as the members do not change. Layers ask their lower devices for each part, so ask for
    /// the range of one I/O.
    fn copies(&self, _at: Sector, _len: Sectors) -> u16 {
        1
    }

    /// What is known of a range without reading it: consecutive parts from `at` on, at least one, none beyond the range. If the
    /// answer ends before the range, ask again from there. Changes in flight may be in the answer or not.
    ///
    /// # Errors
    /// The device failed: nothing is known.
    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(ready(Ok(Extents::data(at, len))))
    }

    /// Whether the device may still execute a change of data that it did not answer in time. Queues notice this of their
    /// requests; layers ask their lower devices.
    fn holds_changes(&self) -> bool {
        self.disk().holds_changes()
    }

    /// The open file or device of this machine that holds the data, for a process that uses it in this one's place. It shares the
    /// claim and the lock; an image is accessed through the page cache from now on, also here.
    ///
    /// # Errors
    /// Unsupported: the data are elsewhere. Otherwise those of dup(2) and fcntl(2).
    fn lend(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Releases the device's system resources, such as an open file with its claim and its lock, although there are references to
    /// the device. For a device that nothing uses any more: I/O in flight ends as usual, later I/O fails. Layers do not pass this
    /// on: their lower devices may have other users.
    fn release(&self) {}

    /// Whether the device is a queue: it fires the trace points of completions and notes the losses of its cache itself,
    /// for its requests. For layers the gateway does both, for its bios.
    fn is_queue(&self) -> bool {
        false
    }
}

/// How many ended completions a thread keeps.
const MAX_SPARE: usize = 256;

thread_local! {
    /// Ended completions for reuse, so that a bio allocates none.
    static SPARE: RefCell<Vec<Rc<Completion>>> = const { RefCell::new(Vec::new()) };
}

/// Passes the result of a bio from a driver to the future that waits on the same thread.
#[derive(Default)]
pub struct Completion {
    result: Cell<Option<BioResult>>,
    waker: Cell<Option<Waker>>,
}

impl Completion {
    /// That of a new I/O.
    pub(crate) fn take() -> Rc<Self> {
        SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
    }

    /// Ends the I/O. Only the first result counts.
    pub fn complete(&self, result: BioResult) {
        if self.result.get().is_none() {
            self.result.set(Some(result));
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }

    /// Has `waker` called at the end.
    fn wait(&self, waker: &Waker) {
        let kept = self.waker.take().filter(|kept| kept.will_wake(waker));
        self.waker.set(Some(kept.unwrap_or_else(|| waker.clone())));
    }
}

/// A bio in a request, and where its result goes.
pub(crate) struct QueuedBio {
    pub(crate) bio: Bio,
    pub(crate) completion: Rc<Completion>,
}

/// The completion that a future waits for.
struct Awaited(Rc<Completion>);

impl Drop for Awaited {
    fn drop(&mut self) {
        // Otherwise the I/O has not ended.
        if Rc::strong_count(&self.0) == 1 {
            drop((self.0.result.take(), self.0.waker.take()));
            let keep = |spare: &RefCell<Vec<_>>| {
                let mut spare = spare.borrow_mut();
                if spare.len() < MAX_SPARE {
                    spare.push(Rc::clone(&self.0));
                }
            };
            // While the thread ends, none is kept.
            let (Ok(()) | Err(_)) = SPARE.try_with(keep);
        }
    }
}

enum Inner<'a> {
    Ready(BioResult),
    Completion(Awaited),
    Boxed(LocalFuture<'a, BioResult>),
    Uncancellable(Uncancellable<'a, ()>),
}

/// The future of an I/O.
#[must_use = "an I/O's status must not be dropped"]
pub struct IoFuture<'a> {
    inner: Inner<'a>,
    account: Option<Account<'a>>,
}

impl<'a> IoFuture<'a> {
    /// An I/O that has ended.
    #[inline]
    pub fn ready(result: BioResult) -> Self {
        Self { inner: Inner::Ready(result), account: None }
    }

    /// An I/O that fails.
    #[inline]
    pub fn failed(status: Status) -> Self {
        Self::ready(Err(status))
    }

    /// An I/O whose driver completes `completion`.
    pub fn completion(completion: Rc<Completion>) -> Self {
        Self { inner: Inner::Completion(Awaited(completion)), account: None }
    }

    /// An I/O performed by a layer's future.
    #[inline]
    pub fn boxed(future: impl Future<Output = BioResult> + 'a) -> Self {
        Self { inner: Inner::Boxed(Box::pin(future)), account: None }
    }

    /// Counts `account` as done when the I/O ends: now, if it has ended. In place, because a future that was just made is slow to move.
    #[inline]
    pub fn account(&mut self, account: Account<'a>) {
        match self.inner {
            Inner::Ready(result) => account.note(result),
            Inner::Completion(_) | Inner::Boxed(_) | Inner::Uncancellable(_) => {
                self.account = Some(account)
            }
        }
    }

    /// The result of an I/O that ended while it was submitted: its submitter needs no future to wait for it.
    #[inline]
    pub fn result(&self) -> Option<BioResult> {
        match self.inner {
            Inner::Ready(result) => Some(result),
            Inner::Completion(_) | Inner::Boxed(_) | Inner::Uncancellable(_) => None,
        }
    }
}

/// An I/O that runs to its end even if this future is dropped.
impl<'a> From<Uncancellable<'a, ()>> for IoFuture<'a> {
    #[inline]
    fn from(work: Uncancellable<'a, ()>) -> Self {
        Self { inner: Inner::Uncancellable(work), account: None }
    }
}

impl Future for IoFuture<'_> {
    type Output = BioResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BioResult> {
        let result = match &mut self.inner {
            Inner::Ready(result) => *result,
            Inner::Completion(Awaited(completion)) => match completion.result.get() {
                Some(result) => result,
                None => {
                    completion.wait(cx.waker());
                    return Poll::Pending;
                }
            },
            Inner::Boxed(future) => task::ready!(future.as_mut().poll(cx)),
            Inner::Uncancellable(work) => task::ready!(Pin::new(work).poll(cx)),
        };
        if let Some(account) = &self.account {
            account.note(result);
        }
        self.account = None;
        Poll::Ready(result)
    }
}
