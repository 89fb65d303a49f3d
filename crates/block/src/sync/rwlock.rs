//! A readers-writer lock for futures: first come, first served. There may be several groups of readers, who exclude each other.
//!
//! A library's lock does not fit: with two waiting readers and a new writer, the common one lets the
//! readers wake each other in turn while the writer holds the lock, so the reactor
//! never runs out of runnable tasks and never flushes the plug in which the writer's bio
//! waits (found by the simulator); and its mutex reads the machine's clock.
//!
//! The lock is handed over: the releasing task takes the next waiters out of the queue, in order,
//! and makes them holders before it wakes them. So a waiter is woken once, and a newcomer cannot
//! overtake. The inner mutex is held for a few instructions and never while a waker is called.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

/// The lock; it contains no data.
#[derive(Default)]
pub struct RwLock {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    holders: Holders,
    queue: VecDeque<Waiter>,
    next_id: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Holders {
    #[default]
    Nobody,
    /// The group, and how many of it.
    Shared(Group, usize),
    Alone,
}

/// The number of a group of readers.
type Group = u8;

/// The group of [`RwLock::read`].
const READERS: Group = 0;

struct Waiter {
    id: u64,
    /// The group with which the lock is shared; `None` to be alone.
    group: Option<Group>,
    waker: Waker,
}

type Wakers = SmallVec<[Waker; 4]>;

impl State {
    fn try_take(&mut self, group: Option<Group>) -> bool {
        let taken = match (self.holders, group) {
            (Holders::Nobody, Some(group)) => Holders::Shared(group, 1),
            (Holders::Shared(here, n), Some(group)) if here == group => {
                Holders::Shared(here, n + 1)
            }
            (Holders::Nobody, None) => Holders::Alone,
            (Holders::Shared(..) | Holders::Alone, _) => return false,
        };
        self.holders = taken;
        true
    }

    /// Makes as many waiters as possible at the head of the queue holders.
    fn hand_over(&mut self) -> Wakers {
        let mut wakers = Wakers::new();
        while let Some(first) = self.queue.front() {
            if !self.try_take(first.group) {
                break;
            }
            wakers.extend(self.queue.pop_front().map(|waiter| waiter.waker));
        }
        wakers
    }

    fn release(&mut self) -> Wakers {
        self.holders = match self.holders {
            Holders::Shared(group, n) if n > 1 => Holders::Shared(group, n - 1),
            Holders::Shared(..) | Holders::Alone | Holders::Nobody => Holders::Nobody,
        };
        self.hand_over()
    }
}

impl RwLock {
    /// A free lock.
    pub fn new() -> Self {
        Self::default()
    }

    /// Acquires the lock, shared with other readers.
    pub fn read(&self) -> Acquisition<'_> {
        self.share(READERS)
    }

    /// Acquires the lock, shared with others of the same group alone. That of [`Self::read`] has the number 0.
    pub fn share(&self, group: u8) -> Acquisition<'_> {
        Acquisition { lock: self, group: Some(group), stage: Stage::New }
    }

    /// Acquires the lock exclusively.
    pub fn write(&self) -> Acquisition<'_> {
        Acquisition { lock: self, group: None, stage: Stage::New }
    }
}

#[derive(Clone, Copy)]
enum Stage {
    New,
    /// In the queue under this number, or removed from it as a new holder.
    Waiting(u64),
    Done,
}

/// A future that acquires the lock.
#[must_use = "the lock is taken when this is awaited"]
pub struct Acquisition<'a> {
    lock: &'a RwLock,
    group: Option<Group>,
    stage: Stage,
}

impl<'a> Future for Acquisition<'a> {
    type Output = Guard<'a>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Guard<'a>> {
        let (lock, group) = (self.lock, self.group);
        let mut state = super::lock(&lock.state);
        let held = match self.stage {
            Stage::New if state.queue.is_empty() => state.try_take(group),
            Stage::New => false,
            Stage::Waiting(id) => match state.queue.iter_mut().find(|waiter| waiter.id == id) {
                Some(waiter) => {
                    waiter.waker.clone_from(cx.waker());
                    return Poll::Pending;
                }
                None => true,
            },
            Stage::Done => panic!("polled after its end"),
        };
        if held {
            self.stage = Stage::Done;
            return Poll::Ready(Guard { lock });
        }
        let id = state.next_id;
        state.next_id += 1;
        state.queue.push_back(Waiter { id, group, waker: cx.waker().clone() });
        self.stage = Stage::Waiting(id);
        Poll::Pending
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        let Stage::Waiting(id) = self.stage else { return };
        let mut state = super::lock(&self.lock.state);
        let place = state.queue.iter().position(|waiter| waiter.id == id);
        let (waiter, wakers) = match place {
            // The waiters after this one may have waited only for it.
            Some(at) => (state.queue.remove(at), state.hand_over()),
            // It became a holder, and was dropped before it was polled.
            None => (None, state.release()),
        };
        drop(state);
        drop(waiter);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Holds the lock until dropped.
#[must_use = "the lock is released when this is dropped"]
pub struct Guard<'a> {
    lock: &'a RwLock,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let wakers = super::lock(&self.lock.state).release();
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn poll<'a>(acquire: &mut Acquisition<'a>, count: &Arc<Count>) -> Option<Guard<'a>> {
        let waker = Waker::from(Arc::clone(count));
        match Pin::new(acquire).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    fn try_now<'a>(mut acquire: Acquisition<'a>) -> Option<Guard<'a>> {
        poll(&mut acquire, &Arc::default())
    }

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let lock = RwLock::new();
        let (a, b) = (try_now(lock.read()), try_now(lock.read()));
        assert!(a.is_some() && b.is_some() && try_now(lock.write()).is_none());
        drop(a);
        assert!(try_now(lock.write()).is_none());
        drop(b);
        let w = try_now(lock.write());
        assert!(w.is_some() && try_now(lock.read()).is_none() && try_now(lock.write()).is_none());
        drop(w);
        assert!(try_now(lock.read()).is_some());
    }

    #[test]
    fn groups_of_readers_exclude_each_other_and_take_turns() {
        let lock = RwLock::new();
        let (a, b) = (try_now(lock.share(1)), try_now(lock.share(1)));
        assert!(a.is_some() && b.is_some());
        assert!(try_now(lock.read()).is_none() && try_now(lock.write()).is_none());
        let count = Arc::default();
        let (mut reader, mut late) = (lock.read(), lock.share(1));
        assert!(poll(&mut reader, &count).is_none());
        // Not before the reader that waits, although its group has the lock.
        assert!(poll(&mut late, &count).is_none());
        drop((a, b));
        let reader = poll(&mut reader, &count).unwrap();
        assert!(try_now(lock.read()).is_none() && poll(&mut late, &count).is_none());
        drop(reader);
        assert!(poll(&mut late, &count).is_some());
    }

    #[test]
    fn waiters_are_served_in_order_and_woken_once() {
        let lock = RwLock::new();
        let first = try_now(lock.write()).unwrap();
        let counts: Vec<Arc<Count>> = (0..5).map(|_| Arc::default()).collect();
        let mut waiters = [lock.read(), lock.read(), lock.write(), lock.read(), lock.write()];
        for (waiter, count) in waiters.iter_mut().zip(&counts) {
            assert!(poll(waiter, count).is_none());
        }
        let woken = || counts.iter().map(|c| c.0.load(Relaxed)).collect::<Vec<_>>();
        drop(first);
        assert_eq!(woken(), [1, 1, 0, 0, 0]);
        // A new reader does not overtake the writer, although readers hold the lock.
        assert!(try_now(lock.read()).is_none());
        let a = poll(&mut waiters[0], &counts[0]).unwrap();
        let b = poll(&mut waiters[1], &counts[1]).unwrap();
        assert!(poll(&mut waiters[2], &counts[2]).is_none());
        drop((a, b));
        assert_eq!(woken(), [1, 1, 1, 0, 0]);
        drop(poll(&mut waiters[2], &counts[2]).unwrap());
        assert_eq!(woken(), [1, 1, 1, 1, 0]);
    }

    #[test]
    fn waiters_that_give_up_block_nobody() {
        let lock = RwLock::new();
        let reader = try_now(lock.read()).unwrap();
        let count = Arc::default();
        let (mut writer, mut late) = (lock.write(), lock.read());
        assert!(poll(&mut writer, &count).is_none() && poll(&mut late, &count).is_none());
        drop(writer);
        assert_eq!(count.0.load(Relaxed), 1);
        let late = poll(&mut late, &count).unwrap();
        // A waiter that is dropped after the lock was handed to it passes it on.
        let mut handed = lock.write();
        assert!(poll(&mut handed, &count).is_none());
        drop((reader, late));
        assert!(try_now(lock.read()).is_none());
        drop(handed);
        assert!(try_now(lock.write()).is_some());
    }
}
