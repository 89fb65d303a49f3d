//! The volatile cache of a device: how often it may have lost acknowledged writes, and which of its users know.
//!
//! A disk that fails to flush its cache drops it, and reports that once, to the submitter of that flush: the next flush
//! succeeds with nothing left to make durable (Linux tells page-cache users apart in the same way, `lib/errseq.c`). All
//! other users of the disk have to learn of it too. So each device counts its losses, and each [`Gateway`] is an opener
//! with a cursor: its flush fails if the device lost something since the opener's last flush. Every opener gets
//! every loss reported once.
//!
//! | event | is counted by |
//! |---|---|
//! | a flush fails | the queue at the bottom, at completion; for a layer, the gateway to it |
//! | a write with FUA fails, unless its status says that the write itself failed | the queue |
//! | any I/O fails because the device is offline or did not answer | the queue |
//! | the connection to a device breaks, and a new one is made before any request fails | its driver: [`Queue::loss_reporter`] |
//! | a layer that answers for its devices has lost data on one of them | the layer: [`Disk::note_loss`] |
//!
//! What a layer's user has lost shows in the layer's flush, which passes the layer's gateways to the devices below; so
//! nothing is passed on to the devices above at completion.
//!
//! Two threads may flush at a time. If the device drops its cache in one of the flushes, and the other succeeds because
//! nothing is left, then the successful one may be seen first. So a flush ends only once all commands that may have lost the
//! cache, and were issued before the flush ended, have ended too.
//!
//! [`Gateway`]: crate::gateway::Gateway
//! [`Disk::note_loss`]: crate::disk::Disk::note_loss
//! [`Queue::loss_reporter`]: crate::queue::Queue::loss_reporter

use std::future::poll_fn;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use smallvec::SmallVec;

use crate::bio::{Flags, Op};
use crate::status::{BioResult, Status};
use crate::sync::lock;

/// The cache of one device.
#[derive(Default)]
pub(crate) struct Cache {
    losses: Losses,
    state: Mutex<State>,
}

/// Losses so far; on a cache line that seldom changes, because reads look at it.
#[derive(Default)]
#[repr(align(128))]
struct Losses(AtomicU64);

#[derive(Default)]
struct State {
    /// The losses that some opener knows of.
    told: u64,
    /// The number of the next command that may lose the cache.
    next: u64,
    /// Those in flight.
    in_flight: SmallVec<[u64; 4]>,
    /// Flushes that wait for the end of some of them.
    waiting: Vec<Waker>,
}

impl Cache {
    /// Counts a loss.
    pub(crate) fn note_loss(&self) {
        self.losses.0.fetch_add(1, SeqCst);
    }

    /// The losses so far.
    #[inline]
    pub(crate) fn losses(&self) -> u64 {
        self.losses.0.load(SeqCst)
    }

    /// The cursor of a new opener. A loss that no opener knows of yet is news to it, too: another opener may have
    /// written for it before.
    pub(crate) fn open(&self) -> Cursor {
        Cursor(AtomicU64::new(lock(&self.state).told))
    }

    /// Issues a command that may lose the cache.
    fn begin(&self) -> u64 {
        let mut state = lock(&self.state);
        let number = state.next;
        state.next += 1;
        state.in_flight.push(number);
        number
    }

    fn end(&self, number: u64, loses: bool) {
        if loses {
            self.note_loss();
        }
        let mut state = lock(&self.state);
        state.in_flight.retain(|other| *other != number);
        let waiting = mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The losses so far, once all commands that may lose the cache, and were issued so far, have ended.
    pub(crate) async fn settled_losses(&self) -> u64 {
        self.settled().await;
        self.losses()
    }

    /// Waits until all commands that may lose the cache, and were issued so far, have ended.
    async fn settled(&self) {
        let before = lock(&self.state).next;
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            if state.in_flight.iter().all(|number| *number >= before) {
                return Poll::Ready(());
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

/// The losses of a device that one opener knows of.
pub(crate) struct Cursor(AtomicU64);

impl Cursor {
    /// The losses that the opener knows of.
    #[inline]
    pub(crate) fn known(&self) -> u64 {
        self.0.load(SeqCst)
    }

    /// The losses so far do not concern the opener.
    pub(crate) fn acknowledge(&self, cache: &Cache) {
        self.0.fetch_max(cache.losses(), SeqCst);
    }

    /// The opener knows of as many losses as another one of the same device.
    pub(crate) fn follow(&self, other: &Self) {
        self.0.fetch_max(other.known(), SeqCst);
    }

    /// Ends a flush of the opener that began when it knew of `known` losses. Returns whether there were more until now; the
    /// opener knows of them then.
    pub(crate) async fn check_and_advance(&self, cache: &Cache, known: u64) -> bool {
        let losses = cache.settled_losses().await;
        let mut state = lock(&cache.state);
        state.told = state.told.max(losses);
        drop(state);
        self.0.fetch_max(losses, SeqCst);
        losses != known
    }
}

/// Whether a command may lose the cache, if it fails.
pub(crate) fn is_at_risk(op: Op, flags: Flags) -> bool {
    op == Op::Flush || flags.contains(Flags::FUA)
}

/// Whether a flush or a FUA write that failed may have lost the cache. Not if the device refused it; nor if the data of a
/// write did not get as far as the cache. An I/O error says neither.
pub(crate) fn loses(op: Op, status: Status) -> bool {
    match status {
        Status::Medium | Status::Protection | Status::NoSpace => op == Op::Flush,
        Status::NotSupported | Status::Invalid | Status::ReadOnly | Status::Again => false,
        Status::Timeout
        | Status::Transport
        | Status::Target
        | Status::Resource
        | Status::Io
        | Status::Offline
        | Status::Conflict => true,
    }
}

/// A command in flight that may lose the cache. Dropped without a result, it has.
pub(crate) struct CacheLossGuard {
    cache: Arc<Cache>,
    number: u64,
    loses: bool,
}

impl CacheLossGuard {
    /// Issues such a command to the device of `cache`.
    pub(crate) fn new(cache: &Arc<Cache>) -> Self {
        Self { cache: Arc::clone(cache), number: cache.begin(), loses: true }
    }

    /// Ends the command.
    pub(crate) fn end(mut self, op: Op, result: BioResult) {
        self.loses = result.is_err_and(|status| loses(op, status));
    }
}

impl Drop for CacheLossGuard {
    fn drop(&mut self) {
        self.cache.end(self.number, self.loses);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Wake};

    use super::*;

    fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn each_opener_is_told_of_each_loss_once() {
        let cache = Cache::default();
        let (one, other) = (cache.open(), cache.open());
        let told = |cursor: &Cursor| ready(cursor.check_and_advance(&cache, cursor.known()));
        assert_eq!((told(&one), told(&other)), (Some(false), Some(false)));
        cache.note_loss();
        let late = cache.open();
        assert_eq!((told(&one), told(&one)), (Some(true), Some(false)));
        assert_eq!((told(&other), told(&other)), (Some(true), Some(false)));
        // Opened before any opener knew.
        assert_eq!(told(&late), Some(true));
        assert_eq!(told(&cache.open()), Some(false));
    }

    #[test]
    fn all_flushes_of_an_opener_that_overlap_a_loss_are_told() {
        let cache = Cache::default();
        let opener = cache.open();
        let (first, second) = (opener.known(), opener.known());
        cache.note_loss();
        assert_eq!(ready(opener.check_and_advance(&cache, first)), Some(true));
        assert_eq!(ready(opener.check_and_advance(&cache, second)), Some(true));
        assert_eq!(ready(opener.check_and_advance(&cache, opener.known())), Some(false));
    }

    /// A waker is counted: each clone of it has a reference.
    struct Counted;

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_flush_that_is_polled_often_waits_once() {
        let cache = Cache::default();
        let (before, counted) = (cache.begin(), Arc::new(Counted));
        let waker = Waker::from(Arc::clone(&counted));
        let mut settled = [Box::pin(cache.settled()), Box::pin(cache.settled())];
        for _ in 0..100 {
            for settled in &mut settled {
                assert!(settled.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            }
        }
        assert_eq!(Arc::strong_count(&counted), 2 + 1, "the cache keeps one");
        cache.end(before, false);
        assert_eq!(Arc::strong_count(&counted), 2);
    }

    #[test]
    fn a_flush_waits_for_the_results_of_commands_that_were_issued_before_its_end() {
        for loses in [false, true] {
            let cache = Cache::default();
            let opener = cache.open();
            let (before, known) = (cache.begin(), opener.known());
            let mut ending = pin!(opener.check_and_advance(&cache, known));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(ending.as_mut().poll(&mut cx).is_pending());
            // Issued after the flush ended: it does not matter.
            let _after = cache.begin();
            cache.end(before, loses);
            assert_eq!(ending.as_mut().poll(&mut cx), Poll::Ready(loses));
        }
    }
}
