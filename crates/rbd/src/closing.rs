//! Closing images: on threads of their own, for which the process waits before it ends.
//!
//! An image that is not closed stays locked until the cluster misses its client, for about half a minute. And closing takes some
//! round trips to the cluster, so a reactor cannot do it.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ashlar_block::sync::lock;

use crate::ffi;

/// How long the process's end waits. Closing takes some hundredths of a second where the cluster answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// The number of images that are being closed.
static CLOSING: Mutex<usize> = Mutex::new(0);
static CLOSED: Condvar = Condvar::new();

/// Counts itself, however its thread ends.
struct Counted;

impl Counted {
    fn new() -> Self {
        *lock(&CLOSING) += 1;
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *lock(&CLOSING) -= 1;
        CLOSED.notify_all();
    }
}

/// Runs `close` on a thread of its own.
pub(crate) fn on_thread(close: impl FnOnce() + Send + 'static) {
    ffi::at_exit(wait);
    let counted = Counted::new();
    let work = move || {
        close();
        drop(counted);
    };
    if let Err(error) = thread::Builder::new().name("ashlar-rbd-close".to_owned()).spawn(work) {
        tracing::error!(%error, "no thread to close an image: it stays locked until this process ends, and half a minute more");
    }
}

/// Waits until all images are closed, but not longer than [`PATIENCE`].
extern "C" fn wait() {
    let closing = lock(&CLOSING);
    let waited = CLOSED.wait_timeout_while(closing, PATIENCE, |closing| *closing > 0);
    drop(waited.map_err(PoisonError::into_inner));
}
