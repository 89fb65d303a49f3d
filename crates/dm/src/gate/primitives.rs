//! The gate's primitives, so that a model checker can replace std's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ashlar_block::stats;

use super::Waiters;

/// A set of primitives.
pub(crate) trait Primitives {
    /// Number of words in which I/O is counted.
    const SHARDS: usize;
    /// The word of the calling thread, below [`Self::SHARDS`].
    fn shard() -> usize;
    /// A word.
    type Word: Word;
    /// The lock around the waiters.
    type Lock: Lock;
}

/// A 64-bit atomic. Changes acquire and release, the load acquires.
pub(crate) trait Word: Default {
    /// Its value.
    fn load(&self) -> u64;
    /// Adds `n`; returns the previous value.
    fn add(&self, n: u64) -> u64;
    /// Subtracts `n`; returns the previous value.
    fn sub(&self, n: u64) -> u64;
}

/// A lock that is held for a few instructions.
pub(crate) trait Lock: Default {
    /// Does `work` under the lock.
    fn with<R>(&self, work: impl FnOnce(&mut Waiters) -> R) -> R;
}

/// std's primitives.
#[derive(Debug)]
pub(crate) struct Std;

impl Primitives for Std {
    const SHARDS: usize = stats::SHARDS;

    #[inline]
    fn shard() -> usize {
        stats::thread_shard()
    }

    type Word = AtomicU64;
    type Lock = Mutex<Waiters>;
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn add(&self, n: u64) -> u64 {
        self.fetch_add(n, Ordering::AcqRel)
    }

    #[inline]
    fn sub(&self, n: u64) -> u64 {
        self.fetch_sub(n, Ordering::AcqRel)
    }
}

impl Lock for Mutex<Waiters> {
    fn with<R>(&self, work: impl FnOnce(&mut Waiters) -> R) -> R {
        // A panic cannot leave the waiters inconsistent.
        work(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
