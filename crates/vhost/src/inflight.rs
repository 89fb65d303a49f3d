//! The inflight region: memory that the front end keeps for its next back end, with the requests that a queue has taken from its ring.
//!
//! The layout is the one of split rings in the vhost-user document ("Inflight I/O tracking"). Each step of a request leaves it so that the
//! next process finds exactly the requests that the guest still waits for:
//!
//! | step | change | if the process ends after it |
//! |---|---|---|
//! | taken | the counter, then `inflight` = 1 | submitted again |
//! | executed | `next` = `last_batch_head`, then `last_batch_head` | submitted again |
//! | used | the index of the used ring | the region's `used_idx` differs: as many requests, from `last_batch_head` on, are done |
//! | noted | `inflight` = 0, then `used_idx` | nothing |
//!
//! The requests that become used by one change of the index are a batch: a list from `last_batch_head` on, by `next`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use ashlar_engine::memfd::Memfd;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

use crate::memory::{self, BadMemory};

/// The head of a queue's part: features, version, number of descriptors, head of the last batch, index of the used ring.
const HEAD_BYTES: usize = 16;
const VERSION_AT: usize = 8;
const DESCRIPTORS_AT: usize = 10;
const LAST_BATCH_AT: usize = 12;
const USED_AT: usize = 14;
/// A descriptor's state: `inflight`, the next of its batch, its counter.
const STATE_BYTES: usize = 16;
const NEXT_IN_STATE: usize = 6;
const COUNTER_IN_STATE: usize = 8;
/// Queues do not share cache lines.
const ALIGN: usize = 64;
const VERSION: u16 = 1;

/// Bytes of a queue's part.
const fn queue_bytes(queue_size: u16) -> usize {
    (HEAD_BYTES + STATE_BYTES * queue_size as usize).next_multiple_of(ALIGN)
}

/// Bytes of a region.
pub(crate) const fn region_bytes(queues: u16, queue_size: u16) -> usize {
    queue_bytes(queue_size) * queues as usize
}

/// A new region, full of zeroes: its file, for the front end.
///
/// # Errors
/// Those of [`Memfd::new`].
pub(crate) fn new_region(queues: u16, queue_size: u16) -> Result<OwnedFd, rustix::io::Errno> {
    let len = region_bytes(queues, queue_size);
    Ok(Memfd::new(c"ashlar-vhost-inflight", len)?.file)
}

/// The region of a connection.
pub(crate) struct Inflight {
    mapping: MmapRegion<()>,
    queues: u16,
    queue_size: u16,
}

impl Inflight {
    /// Maps the region that a front end keeps.
    ///
    /// # Errors
    /// It is not memory, or too short.
    pub(crate) fn map(
        file: OwnedFd,
        offset: u64,
        size: u64,
        queues: u16,
        queue_size: u16,
    ) -> Result<(Arc<Self>, bool), BadMemory> {
        let least = region_bytes(queues, queue_size) as u64;
        if size < least {
            return Err(BadMemory::BeyondFile { size: least, offset, file: size });
        }
        let (mapping, is_sealed) = memory::map(file, offset, size)?;
        Ok((Arc::new(Self { mapping, queues, queue_size }), is_sealed))
    }

    /// The part of a queue; `None` if the region has none for it, or another back end has made it.
    pub(crate) fn queue(self: &Arc<Self>, index: u16, size: u16) -> Option<InflightQueue> {
        if index >= self.queues || size > self.queue_size {
            return None;
        }
        let start = queue_bytes(self.queue_size) * usize::from(index);
        let queue = InflightQueue { region: Arc::clone(self), start, size, counter: 0 };
        let is_same = queue.load::<u16>(DESCRIPTORS_AT) == size;
        match queue.load::<u16>(VERSION_AT) {
            VERSION if is_same => {}
            // A driver may choose another size at its next start, when nothing is in flight.
            VERSION if (0..self.queue_size).any(|head| queue.is_taken(head)) => return None,
            0 | VERSION => {
                queue.store(DESCRIPTORS_AT, size);
                queue.store(VERSION_AT, VERSION);
            }
            _ => return None,
        }
        Some(queue)
    }
}

/// The part of one queue.
pub(crate) struct InflightQueue {
    region: Arc<Inflight>,
    /// Where it begins.
    start: usize,
    /// Descriptors.
    size: u16,
    /// That of the next request.
    counter: u64,
}

impl InflightQueue {
    // The accesses are aligned and within the region: `map` and `queue` have checked its size and theirs.
    fn load<T: vm_memory::AtomicAccess + Default>(&self, at: usize) -> T {
        let slice = self.region.mapping.as_volatile_slice();
        slice.load(self.start + at, Acquire).unwrap_or_default()
    }

    fn store<T: vm_memory::AtomicAccess>(&self, at: usize, value: T) {
        let slice = self.region.mapping.as_volatile_slice();
        if let Err(error) = slice.store(value, self.start + at, Release) {
            tracing::error!(%error, "writing the inflight region");
        }
    }

    fn state_at(head: u16) -> usize {
        HEAD_BYTES + STATE_BYTES * usize::from(head)
    }

    fn is_taken(&self, head: u16) -> bool {
        self.load::<u8>(Self::state_at(head)) != 0
    }

    /// What the former process has left, given the used ring's index: the heads to submit again, in their order. Requests that it has
    /// completed without noting it are noted.
    pub(crate) fn recover(&mut self, used: u16) -> Vec<u16> {
        let batch = used.wrapping_sub(self.load(USED_AT));
        let mut last: u16 = self.load(LAST_BATCH_AT);
        // More cannot be a batch: the ring has begun anew.
        for _ in (0..batch).filter(|_| batch <= self.size) {
            if last >= self.size {
                break;
            }
            self.store(Self::state_at(last), 0u8);
            last = self.load(Self::state_at(last) + NEXT_IN_STATE);
        }
        self.store(USED_AT, used);
        let is_taken = |head: &u16| self.is_taken(*head);
        let counter = |head: u16| self.load::<u64>(Self::state_at(head) + COUNTER_IN_STATE);
        let mut taken: Vec<(u64, u16)> =
            (0..self.size).filter(is_taken).map(|head| (counter(head), head)).collect();
        taken.sort_unstable();
        self.counter = taken.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        taken.into_iter().map(|(_, head)| head).collect()
    }

    /// Before a request is executed.
    pub(crate) fn take(&mut self, head: u16) {
        self.store(Self::state_at(head) + COUNTER_IN_STATE, self.counter);
        self.store(Self::state_at(head), 1u8);
        self.counter = self.counter.wrapping_add(1);
    }

    /// After a request was executed, before it is in the used ring.
    pub(crate) fn executed(&mut self, head: u16) {
        let last: u16 = self.load(LAST_BATCH_AT);
        self.store(Self::state_at(head) + NEXT_IN_STATE, last);
        self.store(LAST_BATCH_AT, head);
    }

    /// After the used ring's index has become `used`, by these requests.
    pub(crate) fn noted(&mut self, heads: &[u16], used: u16) {
        for head in heads {
            self.store(Self::state_at(*head), 0u8);
        }
        self.store(USED_AT, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Arc<Inflight> {
        let size = region_bytes(2, 8);
        Inflight::map(new_region(2, 8).unwrap(), 0, size as u64, 2, 8).unwrap().0
    }

    /// The next process sees the same memory.
    fn next(region: &Arc<Inflight>) -> InflightQueue {
        region.queue(1, 8).unwrap()
    }

    #[test]
    fn requests_are_submitted_again_in_their_order_until_they_are_used() {
        let region = region();
        let mut queue = next(&region);
        assert!(queue.recover(0).is_empty());
        for head in [5, 2, 7] {
            queue.take(head);
        }
        assert_eq!(next(&region).recover(0), [5, 2, 7]);
        queue.executed(2);
        // Not used yet.
        assert_eq!(next(&region).recover(0), [5, 2, 7]);
        // Used, but not noted.
        assert_eq!(next(&region).recover(1), [5, 7]);
        queue.noted(&[2], 1);
        assert_eq!(next(&region).recover(1), [5, 7]);
        // Later ones stay behind these.
        let mut later = next(&region);
        later.recover(1);
        later.take(0);
        assert_eq!(next(&region).recover(1), [5, 7, 0]);
        assert!(region.queue(0, 8).unwrap().recover(0).is_empty());
    }

    #[test]
    fn a_batch_is_done_as_a_whole_or_not_at_all() {
        let region = region();
        let mut queue = next(&region);
        for head in [5, 2, 7, 0] {
            queue.take(head);
        }
        queue.executed(2);
        queue.noted(&[2], 1);
        for head in [7, 5] {
            queue.executed(head);
        }
        // Not used yet.
        assert_eq!(next(&region).recover(1), [5, 7, 0]);
        // Used, and not noted, or noted in part.
        queue.store(InflightQueue::state_at(5), 0u8);
        assert_eq!(next(&region).recover(3), [0]);
        queue.noted(&[7, 5], 3);
        assert_eq!(next(&region).recover(3), [0]);
    }

    #[test]
    fn a_region_of_others_is_not_used_and_no_index_leaves_it() {
        let region = region();
        assert!(region.queue(2, 8).is_none() && region.queue(0, 16).is_none());
        let mut queue = next(&region);
        queue.take(7);
        assert!(region.queue(1, 4).is_none());
        queue.noted(&[7], 0);
        assert!(region.queue(1, 4).is_some());
        let queue = next(&region);
        queue.store(LAST_BATCH_AT, 999u16);
        assert!(next(&region).recover(3).is_empty());
        queue.store(VERSION_AT, 7u16);
        assert!(region.queue(1, 8).is_none());
        assert!(Inflight::map(new_region(1, 8).unwrap(), 0, 4096, 2, 8).is_err());
    }
}
