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

/// The URIs of the images that are about to be closed; empty for those whose disk was dropped.
static CLOSING: Mutex<Vec<String>> = Mutex::new(Vec::new());
static CLOSED: Condvar = Condvar::new();

/// An image that is about to be closed: counts itself, however its thread ends.
pub(crate) struct Counted(String);

impl Counted {
    /// Counts the image with this URI, or one that nobody waits for.
    pub(crate) fn new(uri: String) -> Self {
        lock(&CLOSING).push(uri.clone());
        Self(uri)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut closing = lock(&CLOSING);
        if let Some(at) = closing.iter().position(|uri| *uri == self.0) {
            closing.swap_remove(at);
        }
        drop(closing);
        CLOSED.notify_all();
    }
}

/// Runs `close` on a thread of its own.
pub(crate) fn on_thread(counted: Counted, close: impl FnOnce() + Send + 'static) {
    ffi::at_exit(wait);
    let work = move || {
        close();
        drop(counted);
    };
    if let Err(error) = thread::Builder::new().name("ashlar-rbd-close".to_owned()).spawn(work) {
        tracing::error!(%error, "no thread to close an image: it stays locked until half a minute after this process ends");
    }
}

/// Waits until a disk of the image `uri` that was released is closed, but not longer than `patience`. Blocks.
///
/// Until then it may still execute writes, and has the lock.
pub(crate) fn wait_for(uri: &str, patience: Duration) {
    let is_open = |closing: &mut Vec<String>| closing.iter().any(|other| other == uri);
    let waited = CLOSED.wait_timeout_while(lock(&CLOSING), patience, is_open);
    drop(waited.map_err(PoisonError::into_inner));
}

/// Waits until all images are closed, but not longer than [`PATIENCE`].
extern "C" fn wait() {
    let closing = lock(&CLOSING);
    let waited = CLOSED.wait_timeout_while(closing, PATIENCE, |closing| !closing.is_empty());
    drop(waited.map_err(PoisonError::into_inner));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_waited_for_until_it_is_closed() {
        let counted = Counted::new("rbd:pool/image".to_owned());
        wait_for("rbd:pool/other", Duration::MAX);
        let waiting = thread::spawn(|| {
            wait_for("rbd:pool/image", Duration::MAX);
            lock(&CLOSING).iter().any(|uri| uri == "rbd:pool/image")
        });
        let another = Counted::new(String::new());
        drop(another);
        thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        drop(counted);
        assert!(!waiting.join().unwrap());
        // It is not waited for longer than that.
        let _stuck = Counted::new("rbd:pool/image".to_owned());
        wait_for("rbd:pool/image", Duration::from_millis(1));
    }
}
