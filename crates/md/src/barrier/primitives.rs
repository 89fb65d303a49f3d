//! The synchronisation primitives of the barrier, which a model checker can replace.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::bucket::Waiters;

/// A set of synchronisation primitives.
pub trait Primitives {
    /// Buckets of the barrier: a power of two, 65,536 at most.
    const BUCKETS: usize;
    /// The word that counts I/O.
    type Word: Word;
    /// The lock around the waiters.
    type Lock: Lock;
}

/// A 64-bit atomic. Changes acquire and release, the load acquires.
pub trait Word: Default {
    /// The value.
    fn load(&self) -> u64;
    /// Adds `n`; returns the previous value.
    fn add(&self, n: u64) -> u64;
    /// Subtracts `n`; returns the previous value.
    fn sub(&self, n: u64) -> u64;
    /// Replaces the value by what `next` returns, unless that is `None`. Returns the previous value,
    /// as an error if it was not replaced.
    fn update(&self, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64>;
}

/// A lock that is held for a few instructions.
pub trait Lock: Default {
    /// Runs `work` under the lock.
    fn with<R>(&self, work: impl FnOnce(&mut Waiters) -> R) -> R;
}

/// The primitives of std.
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
        // A poisoned lock is consistent: no panic can occur between two changes that belong together.
        work(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
