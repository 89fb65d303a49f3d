//! Handles to a shared object that threads clone without contention.
//!
//! Each I/O that must outlive its caller's reference to a device needs a handle of its own. A count of
//! references that all threads change is one cache line that travels between them with each I/O. So there
//! is one handle for each shard of threads, with a count of its own, which holds the object.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::shard::{SHARDS, thread_shard};

/// The handle of one shard; on cache lines of its own, as is its count.
#[repr(align(128))]
pub struct ShardHandle<T>(Arc<T>);

impl<T> Deref for ShardHandle<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// The handles to a `T`, which lives until this and all clones of handles have been dropped.
pub struct ShardedArc<T> {
    shared: Arc<T>,
    handles: [Arc<ShardHandle<T>>; SHARDS],
}

impl<T> ShardedArc<T> {
    /// The handles to `shared`.
    pub fn new(shared: Arc<T>) -> Self {
        let handles = std::array::from_fn(|_| Arc::new(ShardHandle(Arc::clone(&shared))));
        Self { shared, handles }
    }

    /// The handle of the calling thread.
    #[inline]
    pub fn handle(&self) -> &Arc<ShardHandle<T>> {
        &self.handles[thread_shard()]
    }

    /// A handle that does not keep the object alive.
    pub fn downgrade(&self) -> Weak<T> {
        Arc::downgrade(&self.shared)
    }

    /// A clone of the handle of the calling thread.
    #[inline]
    pub fn handle_clone(&self) -> Arc<ShardHandle<T>> {
        Arc::clone(self.handle())
    }
}

impl<T> Deref for ShardedArc<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_lives_until_the_last_handle_is_gone() {
        let object = Arc::new(7);
        let sharded = ShardedArc::new(Arc::clone(&object));
        let held = sharded.handle_clone();
        assert_eq!((*sharded, **held), (7, 7));
        drop(sharded);
        assert_eq!((**held, Arc::strong_count(&object)), (7, 2));
        drop(held);
        assert_eq!(Arc::strong_count(&object), 1);
    }
}
