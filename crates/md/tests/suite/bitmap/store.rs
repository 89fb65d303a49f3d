//! A store for tests of single operations, which either end at once or wait until the test ends them.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ashlar_block::{BioResult, LocalFuture, Status};
use ashlar_md::internals::bitmap::Store;

/// A future that the test ends with a result.
#[derive(Clone, Default)]
pub(crate) struct Signal(Rc<SignalState>);

#[derive(Default)]
struct SignalState {
    result: Cell<Option<BioResult>>,
    waker: Cell<Option<Waker>>,
}

impl Signal {
    pub(crate) fn end(&self, result: BioResult) {
        self.0.result.set(Some(result));
        if let Some(waker) = self.0.waker.take() {
            waker.wake();
        }
    }

    /// Whether no task waits for it any more.
    pub(crate) fn is_orphan(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    pub(crate) async fn wait(self) -> BioResult {
        poll_fn(|cx| {
            self.0.waker.set(Some(cx.waker().clone()));
            self.0.result.get().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// An operation submitted to a [`ManualStore`] store.
pub(crate) enum StoreOperation {
    Write { offset: usize, bytes: Vec<u8> },
    Flush,
}

/// One member's bitmap, and the submitted operations that have not ended.
#[derive(Default)]
pub(crate) struct ManualStore {
    pub(crate) area: RefCell<Vec<u8>>,
    pub(crate) asked: RefCell<Vec<(StoreOperation, Signal)>>,
    pub(crate) writes: Cell<usize>,
    pub(crate) flushes: Cell<usize>,
    /// Operations end at once.
    pub(crate) automatic: Cell<bool>,
}

impl ManualStore {
    /// A store whose operations end at once.
    pub(crate) fn automatic() -> Self {
        let store = Self::default();
        store.automatic.set(true);
        store
    }

    fn ask(&self, asked: StoreOperation) -> LocalFuture<'_, BioResult> {
        let signal = Signal::default();
        self.asked.borrow_mut().push((asked, signal.clone()));
        if self.automatic.get() {
            self.end_next(Ok(()));
        }
        Box::pin(signal.wait())
    }

    /// Ends the oldest operation; false if there was none.
    pub(crate) fn end_next(&self, result: Result<(), Status>) -> bool {
        if self.asked.borrow().is_empty() {
            return false;
        }
        let (asked, signal) = self.asked.borrow_mut().remove(0);
        if let (StoreOperation::Write { offset, bytes }, Ok(())) = (asked, result) {
            let mut area = self.area.borrow_mut();
            let end = (offset + bytes.len()).max(area.len());
            area.resize(end, 0);
            area[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        signal.end(result);
        true
    }
}

impl Store for ManualStore {
    fn write<'a>(&'a self, offset: u64, bytes: &'a [u8]) -> LocalFuture<'a, BioResult> {
        assert!(offset.is_multiple_of(512) && bytes.len().is_multiple_of(512) && !bytes.is_empty());
        self.writes.set(self.writes.get() + 1);
        self.ask(StoreOperation::Write { offset: offset as usize, bytes: bytes.to_vec() })
    }

    fn flush_data(&self) -> LocalFuture<'_, BioResult> {
        self.flushes.set(self.flushes.get() + 1);
        self.ask(StoreOperation::Flush)
    }
}

/// Polls once, ignoring wake-ups.
pub(crate) fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a future that does not have to wait.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    match poll(std::pin::pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("has to wait"),
    }
}
