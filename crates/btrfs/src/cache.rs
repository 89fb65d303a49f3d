//! A bounded cache of tree blocks, with blocks on their way in it.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::{Event, EventListener};
use lru::LruCache;

use crate::ondisk::node::Node;
use crate::units::Logical;

/// A block in the cache.
enum Entry {
    /// It has been read, from a mirror on which it is good.
    Ready(Arc<Node>),
    /// Somebody reads it; the event says that this is over.
    OnItsWay(Arc<Event>),
}

/// What the cache says about a block.
pub(crate) enum Lookup<'a> {
    /// Here it is.
    Ready(Arc<Node>),
    /// Look again when this has ended.
    Wait(EventListener),
    /// Nobody has it: read it, and put it in.
    Read(Reading<'a>),
}

/// Tree blocks by their addresses, the least recently used ones dropped.
pub(crate) struct NodeCache {
    entries: Mutex<LruCache<Logical, Entry>>,
}

impl NodeCache {
    /// A cache for at most so many blocks (one at least).
    pub(crate) fn new(blocks: usize) -> Self {
        let blocks = NonZeroUsize::new(blocks).unwrap_or(NonZeroUsize::MIN);
        Self { entries: Mutex::new(LruCache::new(blocks)) }
    }

    fn entries(&self) -> MutexGuard<'_, LruCache<Logical, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block at `at`; if nobody has it, the caller is the one to read it.
    pub(crate) fn look_up(&self, at: Logical) -> Lookup<'_> {
        let mut entries = self.entries();
        match entries.get(&at) {
            Some(Entry::Ready(node)) => Lookup::Ready(Arc::clone(node)),
            Some(Entry::OnItsWay(event)) => Lookup::Wait(event.listen()),
            None => {
                let event = Arc::new(Event::new());
                entries.put(at, Entry::OnItsWay(Arc::clone(&event)));
                Lookup::Read(Reading { cache: self, at, event, node: None })
            }
        }
    }

    /// Whether the block at `at` is here or on its way.
    pub(crate) fn contains(&self, at: Logical) -> bool {
        self.entries().contains(&at)
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        self.entries().clear();
    }
}

/// The duty to read a block. Dropped without [`Self::done`], the block is nobody's again.
pub(crate) struct Reading<'a> {
    cache: &'a NodeCache,
    at: Logical,
    event: Arc<Event>,
    node: Option<Arc<Node>>,
}

impl Reading<'_> {
    /// Puts the block in.
    pub(crate) fn done(mut self, node: Arc<Node>) {
        self.node = Some(node);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        {
            let mut entries = self.cache.entries();
            // While it was read it may have been dropped as the oldest, or another has it by now.
            let ours = |entry: &Entry| match entry {
                Entry::OnItsWay(event) => Arc::ptr_eq(event, &self.event),
                Entry::Ready(_) => false,
            };
            let is_ours = entries.peek(&self.at).is_some_and(ours);
            match self.node.take() {
                Some(node) => drop(entries.put(self.at, Entry::Ready(node))),
                None if is_ours => drop(entries.pop(&self.at)),
                None => {}
            }
        }
        self.event.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_could_not_be_read_is_nobodys_again() {
        let cache = NodeCache::new(2);
        let Lookup::Read(reading) = cache.look_up(Logical(1)) else { panic!("nobody has it") };
        assert!(matches!(cache.look_up(Logical(1)), Lookup::Wait(_)));
        assert!(cache.contains(Logical(1)));
        drop(reading);
        assert!(!cache.contains(Logical(1)));
        assert!(matches!(cache.look_up(Logical(1)), Lookup::Read(_)));
    }

    #[test]
    fn it_never_holds_more_than_it_may() {
        let cache = NodeCache::new(2);
        let readings = [1, 2, 3].map(|at| cache.look_up(Logical(at)));
        assert!(!cache.contains(Logical(1)) && cache.contains(Logical(3)));
        drop(readings);
        assert_eq!(cache.entries().len(), 0);
    }
}
