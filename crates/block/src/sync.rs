//! Synchronisation: the primitives of parts that need no lock, a gate and a lock for futures, and operations that
//! run to their end.
//!
//! A part that counts I/O in atomic words and keeps its waiters in a list takes its words, and the lock
//! around the list, from a set of [`Primitives`]: std's ([`Std`]) or, in tests, loom's. The module
//! `model`, which only the feature `testing` builds, runs the threads of such a test in all
//! interleavings.

pub mod flow;
pub mod gate;
pub mod rwlock;
pub mod sharded_arc;
pub mod uncancellable;

use std::future::poll_fn;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use event_listener::Event;

use crate::shard;

/// Waits until `done` is true. Whatever makes it true notifies `event` afterwards.
pub async fn until(event: &Event, done: impl Fn() -> bool) {
    while !done() {
        // Checked again, so that no notification in between is missed.
        let listener = event.listen();
        if !done() {
            listener.await;
        }
    }
}

/// Lets the other runnable tasks run once.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A set of primitives.
pub trait Primitives {
    /// A word that counts.
    type Word: Word;
    /// A lock around a `T`.
    type Lock<T: Default>: Lock<T>;
}

/// An atomic integer. Changes acquire and release, the load acquires, [`Self::set`] releases.
pub trait Word<T: Copy = u64>: Default {
    /// The value.
    fn load(&self) -> T;
    /// Stores a value. Other threads that change the word at the same time lose what they did, so it is for words that one
    /// thread changes.
    fn set(&self, value: T) {
        self.swap(value);
    }
    /// Adds `n`; returns the previous value.
    fn add(&self, n: T) -> T;
    /// Subtracts `n`; returns the previous value.
    fn sub(&self, n: T) -> T;
    /// Replaces the value by what `next` returns, unless that is `None`. Returns the previous value,
    /// as an error if it was not replaced.
    fn update(&self, next: impl FnMut(T) -> Option<T>) -> Result<T, T>;
    /// Replaces the value; returns the previous one.
    fn swap(&self, value: T) -> T {
        match self.update(|_| Some(value)) {
            Ok(previous) | Err(previous) => previous,
        }
    }
}

/// Adds `n` to a word, modulo 2^64; returns the previous value. `alone`: no other thread changes the word, so a load and a
/// store are enough.
#[inline]
pub(crate) fn count<W: Word>(word: &W, n: u64, alone: bool) -> u64 {
    if !alone {
        return word.add(n);
    }
    let before = word.load();
    word.set(before.wrapping_add(n));
    before
}

/// A lock that is held for a few instructions.
pub trait Lock<T>: Default {
    /// Runs `work` under the lock.
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R;
}

/// Locks a mutex that is held for a few instructions, even if a thread has panicked with it: such code panics at no point between
/// two changes that belong together.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Primitives, and the number of words in which threads count their I/O.
pub trait Shards: Primitives {
    /// Number of words.
    const SHARDS: usize;
    /// The word of the calling thread, below [`Self::SHARDS`].
    fn shard() -> usize;
    /// Whether one thread has the word alone.
    fn is_own(shard: usize) -> bool;
}

impl Shards for Std {
    const SHARDS: usize = shard::SHARDS;

    #[inline]
    fn shard() -> usize {
        shard::thread_shard()
    }

    #[inline]
    fn is_own(shard: usize) -> bool {
        shard::is_own(shard)
    }
}

/// The primitives of std.
#[derive(Debug)]
pub struct Std;

impl Primitives for Std {
    type Word = AtomicU64;
    type Lock<T: Default> = Mutex<T>;
}

/// Makes words of atomic integers, std's or loom's.
macro_rules! words {
    ($($atomic:ident: $value:ty),*) => {$(
        impl Word<$value> for $atomic {
            #[inline]
            fn load(&self) -> $value {
                self.load(Ordering::Acquire)
            }
            #[inline]
            fn set(&self, value: $value) {
                self.store(value, Ordering::Release);
            }
            #[inline]
            fn add(&self, n: $value) -> $value {
                self.fetch_add(n, Ordering::AcqRel)
            }
            #[inline]
            fn sub(&self, n: $value) -> $value {
                self.fetch_sub(n, Ordering::AcqRel)
            }
            #[inline]
            fn update(&self, next: impl FnMut($value) -> Option<$value>) -> Result<$value, $value> {
                self.fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            }
            #[inline]
            fn swap(&self, value: $value) -> $value {
                self.swap(value, Ordering::AcqRel)
            }
        }
    )*};
}

words!(AtomicU8: u8, AtomicU32: u32, AtomicU64: u64);

impl<T: Default> Lock<T> for Mutex<T> {
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut lock(self))
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod model;
