//! A bounded cache of tree blocks, or of what is kept of them, with blocks on their way in it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::{Event, EventListener};
use lru::LruCache;

use crate::ondisk::node::{Expected, Node, NodeError, check_first_key, check_version};
use crate::units::Logical;

/// Bytes that an entry takes beside its block.
const ENTRY_BYTES: usize = 128;

/// What can be cached.
pub(crate) trait Cached {
    /// Bytes of memory that it takes.
    fn bytes(&self) -> usize;

    /// Checks what another pointer to it expects, of a block that was let in under the first.
    ///
    /// # Errors
    /// The first thing that is wrong.
    fn check_expected(&self, expected: &Expected) -> Result<(), NodeError>;
}

impl Cached for Node {
    fn bytes(&self) -> usize {
        Self::bytes(self).len()
    }

    fn check_expected(&self, expected: &Expected) -> Result<(), NodeError> {
        check_version(self.header().generation.get(), self.level(), expected)?;
        check_first_key(self.key(0), expected.first_key)
    }
}

/// A block in the cache.
enum Entry<T> {
    /// It has been read, from a mirror on which it is good.
    Ready {
        block: Arc<T>,
        /// A walk has been over it, and is not expected to need it again.
        is_spent: bool,
    },
    /// Somebody reads it; the event says that this is over.
    OnItsWay(Arc<Event>),
}

/// What the cache says about a block.
pub(crate) enum Lookup<'a, T: Cached> {
    /// Here it is.
    Ready(Arc<T>),
    /// Look again when this has ended.
    Wait(EventListener),
    /// Nobody has it: read it, and put it in.
    Read(Reading<'a, T>),
}

/// Blocks by their addresses, with the bytes that they take.
struct Entries<T> {
    by_address: LruCache<Logical, Entry<T>>,
    bytes: usize,
}

impl<T: Cached> Entries<T> {
    /// Bytes that are accounted for an entry.
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

    /// Drops the least recently used ones until no more than `max` bytes are left.
    fn shrink(&mut self, max: usize) {
        while self.bytes > max {
            let Some((_, old)) = self.by_address.pop_lru() else { return };
            self.bytes -= Self::cost(&old);
        }
    }
}

/// Tree blocks by their addresses, the least recently used ones dropped.
pub(crate) struct Cache<T> {
    entries: Mutex<Entries<T>>,
    max_bytes: usize,
}

impl<T: Cached> Cache<T> {
    /// A cache that takes so many bytes at most.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let entries = Entries { by_address: LruCache::unbounded(), bytes: 0 };
        Self { entries: Mutex::new(entries), max_bytes }
    }

    fn entries(&self) -> MutexGuard<'_, Entries<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block at `at`; if nobody has it, the caller is the one to read it.
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
                Lookup::Read(Reading { cache: self, at, event, block: None })
            }
        }
    }

    /// Whether the block at `at` is here or on its way.
    pub(crate) fn contains(&self, at: Logical) -> bool {
        self.entries().by_address.contains(&at)
    }

    /// Puts in a block that was come by, if there is room for it or blocks that are spent make some.
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

    /// The block at `at` has been walked over: it is the next one to be dropped.
    pub(crate) fn spend(&self, at: Logical) {
        let mut entries = self.entries();
        if let Some(Entry::Ready { is_spent, .. }) = entries.by_address.peek_mut(&at) {
            *is_spent = true;
            entries.by_address.demote(&at);
        }
    }

    /// Bytes that it takes, and bytes that it may take.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        (self.entries().bytes, self.max_bytes)
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        let mut entries = self.entries();
        entries.by_address.clear();
        entries.bytes = 0;
    }
}

/// The duty to read a block. Dropped without [`Self::done`], the block is nobody's again.
pub(crate) struct Reading<'a, T: Cached> {
    cache: &'a Cache<T>,
    at: Logical,
    event: Arc<Event>,
    block: Option<Arc<T>>,
}

impl<T: Cached> Reading<'_, T> {
    /// Puts the block in.
    pub(crate) fn done(mut self, block: Arc<T>) {
        self.block = Some(block);
    }
}

impl<T: Cached> Drop for Reading<'_, T> {
    fn drop(&mut self) {
        {
            let mut entries = self.cache.entries();
            // While it was read it may have been dropped as the oldest, or another has it by now.
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

    /// So many bytes.
    struct Block(usize);

    impl Cached for Block {
        fn bytes(&self) -> usize {
            self.0 - ENTRY_BYTES
        }

        fn check_expected(&self, _: &Expected) -> Result<(), NodeError> {
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
        // What is used again is not spent.
        cache.spend(Logical(2));
        assert!(matches!(cache.look_up(Logical(2)), Lookup::Ready(_)));
        cache.offer(Logical(6), Arc::new(Block(300)));
        assert_eq!(has(&cache, [1, 2, 5, 6]), [true, true, true, false]);
        cache.spend(Logical(5));
        read(&cache, 7, 400);
        assert_eq!(has(&cache, [1, 2, 5, 7]), [true, true, false, true]);
    }
}
