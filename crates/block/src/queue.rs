//! The queue in front of a driver: merges bios into requests and bounds those in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::bio::Bio;
use crate::device::{BlockDevice, IoFuture};
use crate::disk::Disk;
use crate::plug::{self, Dispatch};
use crate::request::Request;

/// A driver: the bottom of the stack.
pub trait Driver: Send + Sync + 'static {
    /// Starts a request. The driver must end it with [`Request::complete`], on the calling thread, at
    /// once or later; until then the memory of its segments belongs to the driver. Requests fit the
    /// limits of the driver's [`Disk`].
    fn queue_rq(&self, rq: Request);

    /// No more requests follow in this batch (the kernel's `commit_rqs`).
    fn commit_rqs(&self) {}
}

struct Inner<D> {
    disk: Disk,
    driver: D,
}

impl<D: Driver> Dispatch for Inner<D> {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn issue(&self, rq: Request) {
        self.driver.queue_rq(rq);
    }

    fn commit(&self) {
        self.driver.commit_rqs();
    }
}

/// A block device that consists of a driver with a queue in front.
pub struct Queue<D> {
    id: usize,
    inner: Arc<Inner<D>>,
}

impl<D: Driver> Queue<D> {
    /// A queue for `driver`, with the name, size and limits of `disk`.
    pub fn new(disk: Disk, driver: D) -> Self {
        // Numbers index the threads' contexts and are never reused; an idle context is a few
        // words.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Self { id: NEXT.fetch_add(1, Relaxed), inner: Arc::new(Inner { disk, driver }) }
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
        IoFuture::completion(plug::add(self.id, &self.inner, bio))
    }

    fn is_queue(&self) -> bool {
        true
    }
}
