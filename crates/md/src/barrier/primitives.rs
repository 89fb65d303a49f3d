//! The synchronisation primitives of the barrier, which a model checker can replace.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::bucket::Waiters;

/// A set of such things.
pub trait Primitives {
    /// Buckets of the barrier: a power of two, 65,536 at most.
    const BUCKETS: usize;
    /// The word that I/O counts itself in.
    type Word: Word;
    /// The lock around those who wait.
    type Lock: Lock;
}

/// A 64-bit atomic. Changes acquire and release, the load acquires.
pub trait Word: Default {
    /// What it holds.
    fn load(&self) -> u64;
    /// Adds `n`; what it held before.
    fn add(&self, n: u64) -> u64;
    /// Takes `n` away; what it held before.
    fn sub(&self, n: u64) -> u64;
    /// Puts what `next` makes of it, if anything; what it held before, as an error if it stays.
    fn update(&self, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64>;
}

/// A lock that is held for a few instructions.
pub trait Lock: Default {
    /// Does `work` under the lock.
    fn with<R>(&self, work: impl FnOnce(&mut Waiters) -> R) -> R;
}

/// std's.
#[derive(Debug)]
pub struct Std;

impl Primitives for Std {
    const BUCKETS: usize = 1024;
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

    fn update(&self, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
    }
}

impl Lock for Mutex<Waiters> {
    fn with<R>(&self, work: impl FnOnce(&mut Waiters) -> R) -> R {
        // No panic comes between two changes that belong together.
        work(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
