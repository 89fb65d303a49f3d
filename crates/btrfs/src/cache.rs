//! A bounded cache of tree blocks, or of data derived from them, which also tracks blocks being read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::{Event, EventListener};
use lru::LruCache;

use crate::ondisk::node::{BlockExpectation, Node, NodeError, check_first_key, check_version};
use crate::units::Logical;

/// Memory that an entry takes in addition to its block.
const ENTRY_BYTES: usize = 128;

/// A type that can be cached.
pub(crate) trait CacheValue {
    /// Its size in memory, in bytes.
    fn bytes(&self) -> usize;

    /// Checks a cached block against what another pointer to it expects.
    ///
    /// # Errors
    /// The first mismatch.
    fn check_expected(&self, expected: &BlockExpectation) -> Result<(), NodeError>;
}

impl CacheValue for Node {
    fn bytes(&self) -> usize {
        Self::bytes(self).len()
    }

    fn check_expected(&self, expected: &BlockExpectation) -> Result<(), NodeError> {
        check_version(self.header().generation.get(), self.level(), expected)?;
        check_first_key(self.key(0), expected.first_key)
    }
}

/// A block in the cache.
enum Entry<T> {
    /// It was read from a mirror with a valid copy.
    Ready {
        block: Arc<T>,
        /// A walk has passed it and is not expected to need it again.
        is_spent: bool,
    },
    /// A task is reading it; the event fires when that ends.
    OnItsWay(Arc<Event>),
}

/// Result of a lookup.
pub(crate) enum Lookup<'a, T: CacheValue> {
    /// The block is cached.
    Ready(Arc<T>),
    /// Look up again after this event.
    Wait(EventListener),
    /// The block is not cached: read it and insert it.
    Read(ReadDuty<'a, T>),
}

/// Blocks by address, with their total size.
struct Entries<T> {
    by_address: LruCache<Logical, Entry<T>>,
    bytes: usize,
}

impl<T: CacheValue> Entries<T> {
    /// Bytes charged for an entry.
    fn cost(entry: &Entry<T>) -> usize {
        match entry {
            Entry::Ready { block, .. } => block.bytes() + ENTRY_BYTES,
            Entry::OnItsWay(_) => ENTRY_BYTES,
        }
    }

    fn put(&mut self, at: Logical, entry: Entry<T>) {
        self.bytes += Self::cost(&entry);
        if let Some(old) = self.by_address.put(at, entry) {
            self.bytes -= Self::cost(&old);
        }
    }

    fn pop(&mut self, at: Logical) {
        if let Some(old) = self.by_address.pop(&at) {
            self.bytes -= Self::cost(&old);
        }
    }

    /// Drops the least recently used entries until at most `max` bytes remain.
    fn shrink(&mut self, max: usize) {
        while self.bytes > max {
            let Some((_, old)) = self.by_address.pop_lru() else { return };
            self.bytes -= Self::cost(&old);
        }
    }
}

/// Tree blocks by address; the least recently used are dropped.
pub(crate) struct Cache<T> {
    entries: Mutex<Entries<T>>,
    max_bytes: usize,
}

impl<T: CacheValue> Cache<T> {
    /// A cache of at most `max_bytes` bytes.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let entries = Entries { by_address: LruCache::unbounded(), bytes: 0 };
        Self { entries: Mutex::new(entries), max_bytes }
    }

    fn entries(&self) -> MutexGuard<'_, Entries<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up the block at `at`; if it is neither cached nor being read, the caller must read it.
    pub(crate) fn look_up(&self, at: Logical) -> Lookup<'_, T> {
        let mut entries = self.entries();
        match entries.by_address.get_mut(&at) {
            Some(Entry::Ready { block, is_spent }) => {
                *is_spent = false;
                Lookup::Ready(Arc::clone(block))
            }
            Some(Entry::OnItsWay(event)) => Lookup::Wait(event.listen()),
            None => {
                let event = Arc::new(Event::new());
                entries.put(at, Entry::OnItsWay(Arc::clone(&event)));
                entries.shrink(self.max_bytes);
                Lookup::Read(ReadDuty { cache: self, at, event, block: None })
            }
        }
    }

    /// Whether the block at `at` is cached or being read.
    pub(crate) fn contains(&self, at: Logical) -> bool {
        self.entries().by_address.contains(&at)
    }

    /// Inserts a block that was read along the way, if there is room or dropping spent blocks makes room.
    pub(crate) fn offer(&self, at: Logical, block: Arc<T>) {
        let mut entries = self.entries();
        let entry = Entry::Ready { block, is_spent: false };
        let cost = Entries::cost(&entry);
        while entries.bytes + cost > self.max_bytes {
            match entries.by_address.peek_lru() {
                Some((_, Entry::Ready { is_spent: true, .. })) => {}
                Some(_) | None => return,
            }
            let room = entries.bytes - 1;
            entries.shrink(room);
        }
        if !entries.by_address.contains(&at) {
            entries.put(at, entry);
        }
    }

    /// Marks the block at `at` as walked over: it is dropped next.
    pub(crate) fn spend(&self, at: Logical) {
        let mut entries = self.entries();
        if let Some(Entry::Ready { is_spent, .. }) = entries.by_address.peek_mut(&at) {
            *is_spent = true;
            entries.by_address.demote(&at);
        }
    }

    /// Bytes in use, and the limit.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        (self.entries().bytes, self.max_bytes)
    }

    /// Drops all entries.
    pub(crate) fn clear(&self) {
        let mut entries = self.entries();
        entries.by_address.clear();
        entries.bytes = 0;
    }
}

/// The duty to read a block. If dropped without [`Self::done`], another task may read the block.
pub(crate) struct ReadDuty<'a, T: CacheValue> {
    cache: &'a Cache<T>,
    at: Logical,
    event: Arc<Event>,
    block: Option<Arc<T>>,
}

impl<T: CacheValue> ReadDuty<'_, T> {
    /// Inserts the block.
    pub(crate) fn done(mut self, block: Arc<T>) {
        self.block = Some(block);
    }
}

impl<T: CacheValue> Drop for ReadDuty<'_, T> {
    fn drop(&mut self) {
        {
            let mut entries = self.cache.entries();
            // Meanwhile the entry may have been dropped as the oldest, or another task has inserted one.
            let ours = |entry: &Entry<T>| match entry {
                Entry::OnItsWay(event) => Arc::ptr_eq(event, &self.event),
                Entry::Ready { .. } => false,
            };
            let is_ours = entries.by_address.peek(&self.at).is_some_and(ours);
            match self.block.take() {
                Some(block) => {
                    entries.put(self.at, Entry::Ready { block, is_spent: false });
                    entries.shrink(self.cache.max_bytes);
                }
                None if is_ours => entries.pop(self.at),
                None => {}
            }
        }
        self.event.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block of this many bytes.
    struct Block(usize);

    impl CacheValue for Block {
        fn bytes(&self) -> usize {
            self.0 - ENTRY_BYTES
        }

        fn check_expected(&self, _: &BlockExpectation) -> Result<(), NodeError> {
            Ok(())
        }
    }

    fn read(cache: &Cache<Block>, at: u64, bytes: usize) {
        match cache.look_up(Logical(at)) {
            Lookup::Read(reading) => reading.done(Arc::new(Block(bytes))),
            Lookup::Ready(_) | Lookup::Wait(_) => panic!("somebody has {at}"),
        }
    }

    fn has(cache: &Cache<Block>, all: impl IntoIterator<Item = u64>) -> Vec<bool> {
        all.into_iter().map(|at| cache.contains(Logical(at))).collect()
    }

    #[test]
    fn a_block_that_could_not_be_read_is_nobodys_again() {
        let cache: Cache<Block> = Cache::new(1000);
        let Lookup::Read(reading) = cache.look_up(Logical(1)) else { panic!("nobody has it") };
        assert!(matches!(cache.look_up(Logical(1)), Lookup::Wait(_)));
        assert!(cache.contains(Logical(1)));
        drop(reading);
        assert!(!cache.contains(Logical(1)));
        assert!(matches!(cache.look_up(Logical(1)), Lookup::Read(_)));
        assert_eq!(cache.bytes(), (0, 1000));
    }

    #[test]
    fn it_never_holds_more_than_it_may() {
        let cache = Cache::new(1000);
        let readings = [1, 2, 3].map(|at| cache.look_up(Logical(at)));
        assert_eq!(cache.bytes().0, 3 * ENTRY_BYTES);
        drop(readings);
        assert_eq!(cache.bytes().0, 0);
        for at in 0..100 {
            read(&cache, at, 200 + at as usize % 3 * 100);
            assert!(cache.bytes().0 <= 1000, "{at}");
        }
        assert_eq!(has(&cache, 95..100), [false, false, true, true, true]);
        read(&cache, 200, 1001);
        assert_eq!((cache.contains(Logical(200)), cache.bytes().0), (false, 0));
    }

    #[test]
    fn what_is_spent_goes_first_and_nothing_else_makes_room_for_offers() {
        let cache = Cache::new(1000);
        (1..=4).for_each(|at| read(&cache, at, 250));
        cache.offer(Logical(5), Arc::new(Block(250)));
        assert_eq!(has(&cache, 1..=5), [true, true, true, true, false]);
        cache.spend(Logical(3));
        cache.spend(Logical(4));
        cache.offer(Logical(5), Arc::new(Block(300)));
        assert_eq!(has(&cache, 1..=5), [true, true, false, false, true]);
        // A block that is used again is no longer spent.
        cache.spend(Logical(2));
        assert!(matches!(cache.look_up(Logical(2)), Lookup::Ready(_)));
        cache.offer(Logical(6), Arc::new(Block(300)));
        assert_eq!(has(&cache, [1, 2, 5, 6]), [true, true, true, false]);
        cache.spend(Logical(5));
        read(&cache, 7, 400);
        assert_eq!(has(&cache, [1, 2, 5, 7]), [true, true, false, true]);
    }
}
