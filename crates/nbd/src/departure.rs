//! The end of a disk's use: all of its connections leave, and none is opened.
//!
//! A server may still execute what it got from a connection that was left before it had answered. A new disk of the same export knows nothing of
//! these commands: an old write could replace what the new disk has written. So no disk of an export is opened while the
//! server has a connection of a former one; a connection stays as long as it waits for answers to changes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use ashlar_block::sync::{lock, until};
use event_listener::Event;

use crate::uri::Uri;

/// Disks that are no longer used, and had requests in flight at that time perhaps.
static FORMER: Mutex<Vec<(Uri, Arc<Departure>)>> = Mutex::new(Vec::new());
static LEFT: Condvar = Condvar::new();

/// Whether a disk is no longer used, and its connections.
#[derive(Default)]
pub(crate) struct Departure {
    has_begun: AtomicBool,
    begun: Event,
    connections: AtomicUsize,
}

impl Departure {
    /// The disk is no longer used.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, SeqCst);
        self.begun.notify(usize::MAX);
    }

    /// As [`Self::begin`], of a disk of this export that may still have requests in flight.
    pub(crate) fn begin_in_flight(self: &Arc<Self>, uri: &Uri) {
        let mut former = lock(&FORMER);
        forget(&mut former);
        if !self.has_begun.load(SeqCst) {
            former.push((uri.identity(), Arc::clone(self)));
        }
        drop(former);
        self.begin();
    }

    /// Whether the disk is no longer used.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Relaxed)
    }

    /// Returns once the disk is no longer used.
    pub(crate) async fn begun(&self) {
        until(&self.begun, || self.has_begun.load(SeqCst)).await;
    }

    /// Counts a connection of the disk until the result is dropped.
    pub(crate) fn count(self: &Arc<Self>) -> Counted {
        self.connections.fetch_add(1, SeqCst);
        Counted(Arc::clone(self))
    }
}

/// A connection of a disk that has not ended.
pub(crate) struct Counted(Arc<Departure>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, SeqCst);
        if self.0.has_begun.load(SeqCst) {
            // Whoever has seen the connection waits by now.
            drop(lock(&FORMER));
            LEFT.notify_all();
        }
    }
}

/// Forgets those without connections.
fn forget(former: &mut Vec<(Uri, Arc<Departure>)>) {
    former.retain(|(_, departure)| departure.connections.load(SeqCst) > 0);
}

/// Waits until no former disk of this export has a connection, but not longer than `patience`; whether that is so. Blocks.
pub(crate) fn wait(uri: &Uri, patience: Duration) -> bool {
    let uri = uri.identity();
    let is_there = |former: &mut Vec<(Uri, Arc<Departure>)>| {
        forget(former);
        former.iter().any(|(other, _)| *other == uri)
    };
    match LEFT.wait_timeout_while(lock(&FORMER), patience, is_there) {
        Ok((_, waited)) => !waited.timed_out(),
        // A panic in the few instructions of another thread: nothing is known.
        Err(_) => false,
    }
}
