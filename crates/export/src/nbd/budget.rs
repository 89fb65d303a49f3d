//! The memory that the requests of all connections may hold together, and their sessions of TLS.
//!
//! One budget is shared by all threads. A connection takes its memory in pieces (see [`admission`](super::admission)),
//! so that most requests touch no shared state; taking a piece is one atomic addition. A lock is taken only while
//! memory is short: requests then wait in a queue and are served in order of arrival, so that smaller ones do not keep
//! overtaking a large one.
//!
//! A session holds its memory as long as the connection lasts, so all of them have a part of the budget only: a request of any length
//! gets its memory once others have ended.
//!
//! No wake-up is lost: a waiting task increments `waiting` and then reads `used`; a releasing task subtracts from
//! `used` and then reads `waiting`. Both are sequentially consistent, so at least one of the two sees the other.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use ashlar_engine::memory::available_bytes;
use ashlar_nbd::tls::SESSION_BYTES;

/// Smallest budget, bytes: enough for the longest requests to make progress.
pub const MIN_BUDGET_BYTES: usize = 64 << 20;
/// Largest default budget, bytes.
const MAX_DEFAULT_BYTES: u64 = 1 << 30;
/// The default budget is the available memory divided by this.
const DEFAULT_PART: u64 = 4;
/// What sessions of TLS may hold is the budget divided by this.
const SESSIONS_PART: usize = 4;

/// See the module text.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
    /// What of it is for sessions of TLS, those included that wait for their memory.
    sessions: AtomicUsize,
    /// Connections that share it.
    sharers: AtomicUsize,
    /// Length of the queue.
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    bytes: usize,
    waker: Waker,
}

impl Default for Budget {
    /// A quarter of the memory that is available to the process, at most 1 GiB.
    fn default() -> Self {
        let part = available_bytes().map_or(0, |bytes| bytes / DEFAULT_PART);
        Self::new(part.min(MAX_DEFAULT_BYTES) as usize)
    }
}

impl Budget {
    /// A budget of `limit` bytes, but at least [`MIN_BUDGET_BYTES`].
    pub fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(MIN_BUDGET_BYTES),
            used: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            sharers: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            queue: Mutex::default(),
        }
    }

    /// The limit, bytes.
    pub fn limit_bytes(&self) -> usize {
        self.limit
    }

    /// The memory held, bytes.
    pub fn used_bytes(&self) -> usize {
        self.used.load(SeqCst)
    }

    /// Whether a request waits for memory.
    pub(crate) fn is_short(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }

    /// The most that one request takes, bytes. So while a request waits more than half is held, and the requests of some connection
    /// hold at least [`Self::fair_share`].
    pub(crate) fn most_at_once(&self) -> usize {
        self.limit / 2
    }

    /// The share of each connection if half of the budget, without what sessions hold, is spread evenly, bytes.
    pub(crate) fn fair_share(&self) -> usize {
        let half = (self.limit / 2).saturating_sub(self.sessions.load(SeqCst));
        half / self.sharers.load(SeqCst).max(1)
    }

    /// The most sessions of TLS at a time.
    pub(crate) fn most_sessions(&self) -> usize {
        self.limit / SESSIONS_PART / SESSION_BYTES
    }

    /// Takes the memory of a session of TLS when it is its turn; `None` if there are [`Self::most_sessions`].
    pub(crate) async fn session(self: &Arc<Self>) -> Option<SessionMemory> {
        let most = self.most_sessions() * SESSION_BYTES;
        let fits = |held: usize| held.checked_add(SESSION_BYTES).filter(|sum| *sum <= most);
        self.sessions.fetch_update(SeqCst, SeqCst, fits).ok()?;
        let mut memory = SessionMemory { budget: Arc::clone(self), is_taken: false };
        if !self.try_take(SESSION_BYTES) {
            self.take(SESSION_BYTES).await;
        }
        memory.is_taken = true;
        Some(memory)
    }

    /// Adds a connection to the sharers.
    pub(crate) fn join(&self) {
        self.sharers.fetch_add(1, SeqCst);
    }

    /// Removes a connection from the sharers.
    pub(crate) fn leave(&self) {
        self.sharers.fetch_sub(1, SeqCst);
    }

    /// Takes `bytes` if they are free and no request waits.
    pub(crate) fn try_take(&self, bytes: usize) -> bool {
        !self.is_short() && self.add(bytes)
    }

    /// Takes `bytes`, even beyond the limit.
    pub(crate) fn take_beyond_limit(&self, bytes: usize) {
        self.used.fetch_add(bytes, SeqCst);
    }

    /// Takes `bytes`, at most [`Self::most_at_once`], when it is this request's turn.
    pub(crate) fn take(&self, bytes: usize) -> Turn<'_> {
        debug_assert!(bytes <= self.most_at_once());
        Turn { budget: self, bytes, number: None }
    }

    /// Releases `bytes`.
    pub(crate) fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, SeqCst);
        if self.is_short() {
            self.serve(&mut self.queue());
        }
    }

    fn add(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(SeqCst, SeqCst, fits).is_ok()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No code panics while it holds the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the requests at the head of the queue their memory, while it suffices.
    fn serve(&self, queue: &mut Queue) {
        while queue.waiting.front().is_some_and(|first| self.add(first.bytes)) {
            // A waker only puts its task into a reactor's list.
            if let Some(first) = queue.waiting.pop_front() {
                first.waker.wake();
            }
        }
        self.waiting.store(queue.waiting.len(), SeqCst);
    }
}

/// The memory of a session of TLS, until it is dropped.
#[derive(Debug)]
pub(crate) struct SessionMemory {
    budget: Arc<Budget>,
    is_taken: bool,
}

impl Drop for SessionMemory {
    fn drop(&mut self) {
        self.budget.sessions.fetch_sub(SESSION_BYTES, SeqCst);
        if self.is_taken {
            self.budget.give(SESSION_BYTES);
        }
    }
}

/// A place in the queue for memory: ends when the memory was taken. Dropped earlier, it takes none.
pub(crate) struct Turn<'a> {
    budget: &'a Budget,
    bytes: usize,
    /// Set once it is in the queue; if it is no longer in the queue, the memory was taken.
    number: Option<u64>,
}

impl Future for Turn<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut queue = this.budget.queue();
        let number = *this.number.get_or_insert_with(|| {
            let number = queue.next;
            queue.next += 1;
            let (bytes, waker) = (this.bytes, cx.waker().clone());
            queue.waiting.push_back(Waiter { number, bytes, waker });
            number
        });
        this.budget.waiting.store(queue.waiting.len(), SeqCst);
        this.budget.serve(&mut queue);
        if let Some(waiting) = queue.waiting.iter_mut().find(|waiting| waiting.number == number) {
            waiting.waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        // From here on the caller owns the memory.
        this.bytes = 0;
        Poll::Ready(())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut queue = self.budget.queue();
        let before = queue.waiting.len();
        queue.waiting.retain(|waiting| waiting.number != number);
        let was_served = queue.waiting.len() == before;
        self.budget.waiting.store(queue.waiting.len(), SeqCst);
        drop(queue);
        // Either it was served but not polled again, or requests behind it may proceed.
        self.budget.give(if was_served { self.bytes } else { 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const LIMIT: usize = MIN_BUDGET_BYTES;
    const MIB: usize = 1 << 20;

    #[test]
    fn requests_that_wait_are_served_in_the_order_of_coming() {
        let budget = Budget::new(0);
        assert!(budget.try_take(LIMIT - MIB) && !budget.try_take(2 * MIB));
        let (mut large, mut small) = (budget.take(8 * MIB), budget.take(MIB));
        assert!((&mut large).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        // There would be room, but other requests came first.
        assert!(budget.is_short() && !budget.try_take(1));
        budget.give(6 * MIB);
        assert!((&mut large).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        budget.give(MIB);
        assert!((&mut large).now_or_never().is_some() && (&mut small).now_or_never().is_none());
        budget.give(MIB);
        assert!((&mut small).now_or_never().is_some() && !budget.is_short());
        assert_eq!(budget.used_bytes(), LIMIT);
        drop((large, small));
        assert_eq!(budget.used_bytes(), LIMIT, "the memory is the caller's");
    }

    #[test]
    fn a_request_that_waits_no_more_lets_the_next_one_go_and_keeps_nothing() {
        let budget = Budget::new(0);
        assert!(budget.try_take(LIMIT - MIB));
        let (mut large, mut small) = (budget.take(8 * MIB), budget.take(MIB));
        assert!((&mut large).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        drop(large);
        assert!((&mut small).now_or_never().is_some());
        // Served, but not polled again.
        let mut last = budget.take(MIB);
        assert!((&mut last).now_or_never().is_none());
        budget.give(LIMIT);
        assert_eq!(budget.used_bytes(), MIB);
        drop(last);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn sessions_have_a_part_of_the_budget_and_wait_for_it_like_requests() {
        let budget = Arc::new(Budget::new(0));
        budget.join();
        let share = budget.fair_share();
        let session = || budget.session().now_or_never().map(|taken| taken.unwrap());
        let first = session().unwrap();
        assert_eq!(
            (budget.used_bytes(), share - budget.fair_share()),
            (SESSION_BYTES, SESSION_BYTES)
        );
        assert!(budget.try_take(LIMIT - SESSION_BYTES));
        let mut waiting = Box::pin(budget.session());
        assert!((&mut waiting).now_or_never().is_none() && budget.is_short());
        // The client has gone.
        drop(waiting);
        assert_eq!((budget.used_bytes(), budget.is_short()), (LIMIT, false));
        let mut waiting = Box::pin(budget.session());
        assert!((&mut waiting).now_or_never().is_none());
        drop(first);
        let first = (&mut waiting).now_or_never().unwrap().unwrap();
        assert_eq!(budget.used_bytes(), LIMIT);
        budget.give(LIMIT - SESSION_BYTES);
        let mut all: Vec<_> = std::iter::from_fn(|| budget.session().now_or_never()?).collect();
        assert_eq!(all.len() + 1, LIMIT / 4 / SESSION_BYTES);
        // The longest request waits for no session.
        assert!(budget.try_take(budget.most_at_once()) && budget.fair_share() > 0);
        budget.give(budget.most_at_once());
        all.pop();
        assert!(session().is_some());
        drop((all, first));
        assert_eq!((budget.used_bytes(), budget.fair_share()), (0, share));
    }

    #[test]
    fn threads_that_take_and_give_end_with_nothing_held() {
        let budget = Budget::new(0);
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let budget = &budget;
                scope.spawn(move || {
                    for round in 0..5000 {
                        let bytes = (thread * 7 + round) % 31 * MIB + 1;
                        if !budget.try_take(bytes) {
                            block_on(budget.take(bytes));
                        }
                        assert!(budget.used_bytes() <= LIMIT);
                        budget.give(bytes);
                    }
                });
            }
        });
        assert!(budget.used_bytes() == 0 && !budget.is_short());
    }

    fn block_on(turn: Turn<'_>) {
        struct Unpark(std::thread::Thread);
        impl std::task::Wake for Unpark {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
        let mut turn = std::pin::pin!(turn);
        while turn.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            std::thread::park();
        }
    }
}
