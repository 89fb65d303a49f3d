//! Shards: what threads count, each on cache lines of its own.
//!
//! A reactor's thread has a shard alone while there are free ones ([`OwnShard`]): it counts by a load and a store. All other
//! threads are spread over the remaining shards, which they change by atomic additions.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Number of shards.
pub const SHARDS: usize = 32;
/// The first of them are shared by threads.
const SHARED: usize = 16;
/// The number of shards that a thread may have alone.
pub(crate) const OWN_SHARDS: usize = SHARDS - SHARED;
/// No shard.
const NONE: usize = usize::MAX;

/// The shards that no thread has alone: bit `n` is shard `SHARED + n`.
static FREE: AtomicU32 = AtomicU32::new((1 << (SHARDS - SHARED)) - 1);

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(NONE) };
}

/// The current thread's shard, below [`SHARDS`].
#[inline]
pub fn thread_shard() -> usize {
    match SHARD.get() {
        NONE => join_shared(),
        shard => shard,
    }
}

#[cold]
fn join_shared() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let shard = NEXT.fetch_add(1, Ordering::Relaxed) % SHARED;
    SHARD.set(shard);
    shard
}

/// Whether one thread has the shard alone.
#[inline]
pub fn is_own(shard: usize) -> bool {
    shard >= SHARED
}

/// The index of the shard among those that one thread has alone, below [`OWN_SHARDS`]; `None` if it is not one of them.
#[inline]
pub(crate) fn own_shard(shard: usize) -> Option<usize> {
    shard.checked_sub(SHARED)
}

/// A shard that the current thread has alone, until this is dropped. The next thread that gets the shard sees all that this
/// one counted.
#[derive(Debug)]
pub struct OwnShard {
    shard: usize,
    previous: usize,
    /// It stays on its thread.
    _thread: PhantomData<*const ()>,
}

impl OwnShard {
    /// Takes a free shard for the current thread; `None` if no shard is free, or if the thread has one.
    pub fn take() -> Option<Self> {
        if SHARD.get() != NONE && is_own(SHARD.get()) {
            return None;
        }
        let without_first = |free: u32| (free != 0).then(|| free & (free - 1));
        let free = FREE.fetch_update(Ordering::AcqRel, Ordering::Acquire, without_first).ok()?;
        let shard = SHARED + free.trailing_zeros() as usize;
        Some(Self { shard, previous: SHARD.replace(shard), _thread: PhantomData })
    }
}

impl Drop for OwnShard {
    fn drop(&mut self) {
        SHARD.set(self.previous);
        FREE.fetch_or(1 << (self.shard - SHARED), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Barrier, Mutex};

    use super::*;

    #[test]
    fn threads_own_different_shards_until_none_is_free() {
        let (seen, barrier) = (Mutex::new(Vec::new()), Barrier::new(SHARDS));
        std::thread::scope(|scope| {
            for _ in 0..SHARDS {
                scope.spawn(|| {
                    let shared = thread_shard();
                    let own = OwnShard::take();
                    assert!(!is_own(shared) && own.is_some() == is_own(thread_shard()));
                    assert!(own.is_none() || OwnShard::take().is_none(), "one for each thread");
                    seen.lock().unwrap().extend(own.is_some().then(thread_shard));
                    barrier.wait();
                    drop(own);
                    assert_eq!(thread_shard(), shared);
                });
            }
        });
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen.len(), seen.iter().collect::<BTreeSet<_>>().len());
        // Tests that run at the same time may have some.
        assert!((1..=SHARDS - SHARED).contains(&seen.len()), "{seen:?}");
    }
}
