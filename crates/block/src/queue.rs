//! The queue in front of a driver: merges bios into requests and bounds those in flight.

use std::future::ready;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::bio::{Bio, Op};
use crate::device::{BlockDevice, IoFuture, LocalFuture};
use crate::disk::{DEFAULT_IO_TIMEOUT_MS, Disk};
use crate::dispatch::Dispatch;
pub use crate::dispatch::ReadMemory;
use crate::extent::Extents;
use crate::patience;
use crate::plug;
use crate::request::{Request, RequestId};
use crate::runtime::Runtime;
use crate::status::Status;
use crate::sync::sharded_arc::{ShardHandle, ShardedArc};
use crate::units::{Sector, Sectors};

/// A driver: the bottom of the stack.
pub trait Driver: Send + Sync + 'static {
    /// Starts a request. The driver must end it with [`Request::complete`], on the calling thread, at
    /// once or later; until then the memory of its segments belongs to the driver. Requests fit the
    /// limits of the driver's [`Disk`].
    fn queue_rq(&self, rq: Request);

    /// No more requests follow in this batch (the kernel's `commit_rqs`).
    fn commit_rqs(&self) {}

    /// A request ([`Request::id`]) of the calling thread has reached its deadline. Its submitters get the timeout, and do not
    /// wait for it any more; the driver keeps its memory until it completes it, sooner if it can cancel it.
    fn abort(&self, _id: RequestId) {}

    /// Where the next request, a read of `len` bytes on a queue with a deadline, is to be read to.
    fn read_memory(&self, _len: usize) -> ReadMemory {
        ReadMemory::Queue
    }

    /// A read of the calling thread into its submitters' memory has reached its deadline. If true, the driver does not touch
    /// that memory any more, and keeps the request as after [`Self::abort`]; if false, it is about to end the request, or has to be
    /// asked again a little later.
    fn revoke(&self, _id: RequestId) -> bool {
        false
    }

    /// What is known of a range without reading it; see [`BlockDevice::extents`].
    ///
    /// # Errors
    /// The device failed: nothing is known.
    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(ready(Ok(Extents::data(at, len))))
    }

    /// The open file that holds the data; see [`BlockDevice::lend`].
    ///
    /// # Errors
    /// As there.
    fn lend(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Releases the driver's system resources; see [`BlockDevice::release`].
    fn release(&self) {}

    /// Whether an operation may take [`SLOW`] times the deadline: its amount of work is not known from the request.
    fn is_slow(&self, op: Op) -> bool {
        matches!(op, Op::Discard | Op::WriteZeroes)
    }
}

/// The factor of the deadline for slow operations.
pub const SLOW: u64 = 10;

struct Inner<D> {
    disk: Disk,
    driver: D,
    /// Of a queue with a deadline.
    runtime: Option<Arc<dyn Runtime>>,
}

impl<D: Driver> Dispatch for ShardHandle<Inner<D>> {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn issue(&self, rq: Request) {
        self.driver.queue_rq(rq);
    }

    fn commit(&self) {
        self.driver.commit_rqs();
    }

    fn abort(&self, id: RequestId) {
        self.driver.abort(id);
    }

    fn read_memory(&self, len: usize) -> ReadMemory {
        self.driver.read_memory(len)
    }

    fn revoke(&self, id: RequestId) -> bool {
        self.driver.revoke(id)
    }

    fn timeout_ns(&self, op: Op) -> Option<u64> {
        let timeout_ns = u64::from(self.disk.io_timeout_ms()?) * 1_000_000;
        Some(if self.driver.is_slow(op) { timeout_ns * SLOW } else { timeout_ns })
    }

    fn runtime(&self) -> Option<&Arc<dyn Runtime>> {
        self.runtime.as_ref()
    }
}

/// A block device that consists of a driver with a queue in front.
pub struct Queue<D> {
    id: usize,
    inner: ShardedArc<Inner<D>>,
}

impl<D: Driver> Queue<D> {
    /// A queue for `driver`, with the name, size and limits of `disk`. It waits for the driver as long as that takes.
    pub fn new(disk: Disk, driver: D) -> Self {
        Self::with(disk, driver, None)
    }

    /// As [`Self::new`], for a driver whose device may stop responding: each request has a deadline, at first
    /// [`DEFAULT_IO_TIMEOUT_MS`] ([`Disk::set_io_timeout_ms`] changes it), in time that the thread has [lived](crate::patience). At the deadline the
    /// request fails with [`Status::Timeout`](crate::status::Status::Timeout), and the driver keeps its memory; so reads go
    /// to memory of the queue and are copied when they end, unless the driver can [release](Driver::revoke) their memory.
    pub fn with_deadline(disk: Disk, driver: D, runtime: Arc<dyn Runtime>) -> Self {
        disk.begin_timeouts(DEFAULT_IO_TIMEOUT_MS);
        Self::with(disk, driver, Some(runtime))
    }

    fn with(disk: Disk, driver: D, runtime: Option<Arc<dyn Runtime>>) -> Self {
        // Numbers index the threads' contexts and are never reused; an idle context is a few
        // words.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let inner = ShardedArc::new(Arc::new(Inner { disk, driver, runtime }));
        Self { id: NEXT.fetch_add(1, Relaxed), inner }
    }

    /// A function with which a driver notes that its device may have lost acknowledged writes although no request failed. It
    /// does nothing once the queue was dropped.
    pub fn loss_reporter(&self) -> impl Fn() + Send + Sync + use<D>
    where
        D: 'static,
    {
        let queue = self.inner.downgrade();
        move || {
            if let Some(inner) = queue.upgrade() {
                inner.disk.note_loss();
            }
        }
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.inner.driver
    }
}

impl<D: Driver> BlockDevice for Queue<D> {
    fn disk(&self) -> &Disk {
        &self.inner.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        IoFuture::completion(plug::add(self.id, self.inner.handle(), bio))
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        let extents = self.inner.driver.extents(at, len);
        let Some((runtime, timeout_ms)) =
            self.inner.runtime.as_ref().zip(self.inner.disk.io_timeout_ms())
        else {
            return extents;
        };
        let timeout = Duration::from_millis(timeout_ms.into());
        Box::pin(async move {
            let deadline = pin!(patience::wait(timeout, |step| runtime.sleep(step)));
            match select(extents, deadline).await {
                Either::Left((extents, _)) => extents,
                Either::Right(_) => Err(Status::Timeout),
            }
        })
    }

    fn lend(&self) -> io::Result<OwnedFd> {
        self.inner.driver.lend()
    }

    fn release(&self) {
        self.inner.driver.release();
    }

    fn is_queue(&self) -> bool {
        true
    }
}
