//! What the gate needs of the machine, so that a model checker's can stand in for std's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ashlar_block::stats;

use super::Waiters;

/// A set of such things.
pub(crate) trait Primitives {
    /// Words that I/O is counted in.
    const SHARDS: usize;
    /// The word of the calling thread, below [`Self::SHARDS`].
    fn shard() -> usize;
    /// A word.
    type Word: Word;
    /// The lock around those who wait.
    type Lock: Lock;
}

/// A 64-bit atomic. Changes acquire and release, the load acquires.
pub(crate) trait Word: Default {
    /// What it holds.
    fn load(&self) -> u64;
    /// Adds `n`; what it held before.
    fn add(&self, n: u64) -> u64;
    /// Takes `n` away; what it held before.
    fn sub(&self, n: u64) -> u64;
}

/// A lock that is held for a few instructions.
pub(crate) trait Lock: Default {
    /// Does `work` under the lock.
    fn with<R>(&self, work: impl FnOnce(&mut Waiters) -> R) -> R;
}

/// std's.
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
        // No panic comes between two changes that belong together.
        work(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
