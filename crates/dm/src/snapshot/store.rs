//! The exception store of a running snapshot: allocates chunks of the COW device, and decides what
//! is written when. It does no I/O: [`Snapshot`](super::state::Snapshot) does.
//!
//! New chunks are allocated in order, and exceptions are committed in that order, whatever the
//! order in which their copies finish: so the exceptions on disk have no holes. One commit runs at
//! a time; it takes all finished exceptions, and meanwhile others accumulate.

use std::collections::BTreeMap;
use std::sync::Arc;

use ashlar_block::{Buffer, Sector, Sectors};
use zerocopy::{FromBytes, IntoBytes};

use super::exceptions::PendingException;
use super::ondisk::{Exception, Geometry};

/// Exceptions are written at least in whole pages, unless chunks are smaller.
const PAGE_BYTES: usize = 4096;

/// The area of exceptions that is being filled.
pub(super) struct Area {
    /// Its number.
    pub(super) number: u64,
    /// Number of its exceptions on disk.
    pub(super) committed: usize,
    /// All its slots.
    pub(super) entries: Vec<Exception>,
    /// On disk, a torn write left data after the end of the list. It must be erased before the list reaches it.
    pub(super) stale: bool,
}

impl Area {
    /// The first area of a new store.
    pub(super) fn first(geometry: Geometry) -> Self {
        let entries = vec![Exception::default(); geometry.per_area() as usize];
        Self { number: 0, committed: 0, entries, stale: false }
    }
}

enum Medium {
    Transient,
    Persistent(Area),
}

/// See the module text.
pub(super) struct Store {
    geometry: Geometry,
    medium: Medium,
    /// The next free chunk of the COW device.
    next_free: u64,
    /// How much is in use when it exceeds the next full percentage.
    next_percent: u64,
    /// Sequence numbers: the next to allocate, and the next to commit.
    prepared: u64,
    next: u64,
    /// Number of exceptions in the running commit.
    in_commit: u64,
    finished: BTreeMap<u64, Arc<PendingException>>,
    committing: bool,
}

/// A write to the COW device.
pub(super) struct AreaWrite {
    pub(super) at: Sector,
    pub(super) data: Buffer,
}

/// Exceptions to commit together, and their writes, in this order.
pub(super) struct Batch {
    pub(super) exceptions: Vec<Arc<PendingException>>,
    /// Written first, durably.
    pub(super) clean: Option<AreaWrite>,
    /// This area will be full: the chunk of the next area, to be zeroed before.
    pub(super) next_area: Option<Sector>,
    /// The exceptions, with PREFLUSH and FUA. None in a transient store.
    pub(super) write: Option<AreaWrite>,
}

/// Consecutive chunks whose copies are consecutive too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) old: u64,
    pub(super) new: u64,
    pub(super) len: u64,
}

impl Run {
    /// Each chunk, and its copy.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let Self { old, new, len } = *self;
        (0..len).map(move |n| (old + n, new + n))
    }
}

/// The end of the list, where merging starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ListEnd {
    /// The list is empty.
    Nothing,
    /// The last exception is in an area that must be read first.
    InArea(u64),
    /// These end the list, the last one first. They are in one area.
    Runs(Vec<Run>),
}

impl Store {
    /// A store in memory only.
    pub(super) fn transient(geometry: Geometry) -> Self {
        Self::new(geometry, Medium::Transient, 0)
    }

    /// A store with this on-disk state.
    pub(super) fn persistent(geometry: Geometry, area: Area, next_free: u64) -> Self {
        Self::new(geometry, Medium::Persistent(area), next_free)
    }

    fn new(geometry: Geometry, medium: Medium, next_free: u64) -> Self {
        let finished = BTreeMap::new();
        let (next_percent, prepared, next, in_commit, committing) = (0, 0, 0, 0, false);
        Self {
            geometry,
            medium,
            next_free,
            next_percent,
            prepared,
            next,
            in_commit,
            finished,
            committing,
        }
    }

    /// Whether it is on disk.
    pub(super) fn is_persistent(&self) -> bool {
        matches!(self.medium, Medium::Persistent(_))
    }

    /// Allocates a chunk of a COW device of `total` chunks: its sequence number and its number.
    /// None if there is no room for it or for its commit.
    pub(super) fn prepare(&mut self, total: u64) -> Option<(u64, u64)> {
        if self.next_free >= total {
            return None;
        }
        if let Medium::Persistent(area) = &self.medium {
            let per_area = self.geometry.per_area();
            let under_way = self.prepared - self.next + self.in_commit;
            let place = area.number * per_area + area.committed as u64 + under_way;
            // A full area must be followed by an empty one, or the list has no end: the kernel
            // detects this too late, and then the snapshot is invalid.
            let fills = (place + 1).is_multiple_of(per_area);
            if fills && self.geometry.area_chunk(place / per_area + 1) >= total {
                return None;
            }
        }
        let given = (self.prepared, self.next_free);
        self.prepared += 1;
        self.next_free += 1;
        if self.is_persistent() && self.geometry.is_metadata(self.next_free) {
            self.next_free += 1;
        }
        Some(given)
    }

    /// Whether the use exceeds another full percentage of a COW device of `total` chunks since this was last true.
    pub(super) fn uses_another_percent(&mut self, total: u64) -> bool {
        if self.next_free < self.next_percent {
            return false;
        }
        let (used, total) = (u128::from(self.next_free), u128::from(total.max(1)));
        let next = ((used * 100).saturating_sub(1) / total + 1) * total / 100 + 1;
        self.next_percent = u64::try_from(next).unwrap_or(u64::MAX);
        true
    }

    /// Adds an exception whose copy is done. True if the caller must commit, with [`Self::next_batch`].
    pub(super) fn finish(&mut self, exception: Arc<PendingException>) -> bool {
        self.finished.insert(exception.sequence, exception);
        !std::mem::replace(&mut self.committing, true)
    }

    /// The next batch; with none, the caller's commits are done. Each batch ends with [`Self::committed`].
    pub(super) fn next_batch(&mut self) -> Option<Batch> {
        let room = match &self.medium {
            Medium::Transient => usize::MAX,
            Medium::Persistent(area) => area.entries.len() - area.committed,
        };
        let mut exceptions = Vec::new();
        while exceptions.len() < room
            && let Some(exception) = self.finished.remove(&self.next)
        {
            self.next += 1;
            exceptions.push(exception);
        }
        if exceptions.is_empty() {
            self.committing = false;
            return None;
        }
        self.in_commit = exceptions.len() as u64;
        let mut batch = Batch { exceptions, clean: None, next_area: None, write: None };
        if let Medium::Persistent(area) = &mut self.medium {
            let at = self.geometry.sector(self.geometry.area_chunk(area.number));
            if std::mem::take(&mut area.stale) {
                let data = Buffer::from_slice(area.entries.as_bytes());
                batch.clean = Some(AreaWrite { at, data });
            }
            let places = area.committed..area.committed + batch.exceptions.len();
            for (entry, exception) in area.entries[places.clone()].iter_mut().zip(&batch.exceptions)
            {
                *entry = Exception::new(exception.old, exception.new);
            }
            if places.end == area.entries.len() {
                let next = self.geometry.area_chunk(area.number + 1);
                batch.next_area = Some(self.geometry.sector(next));
            }
            batch.write = Some(part(at, &area.entries, places.start, places.end));
        }
        Some(batch)
    }

    /// Ends the last batch: it is on disk, or will never be.
    pub(super) fn committed(&mut self) {
        let count = std::mem::take(&mut self.in_commit) as usize;
        let Medium::Persistent(area) = &mut self.medium else { return };
        area.committed += count;
        if area.committed == area.entries.len() {
            area.number += 1;
            area.committed = 0;
            area.entries.fill(Exception::default());
        }
    }

    /// Whether data on the COW device that may not be durable is needed.
    pub(super) fn needs_cache(&self) -> bool {
        match self.medium {
            Medium::Transient => self.prepared > 0,
            Medium::Persistent(_) => self.prepared - self.next + self.in_commit > 0,
        }
    }

    /// Sectors allocated, and sectors of metadata among them.
    pub(super) fn usage(&self) -> (Sectors, Sectors) {
        let chunk = self.geometry.chunk().0;
        let metadata = match &self.medium {
            Medium::Transient => 0,
            Medium::Persistent(area) => area.number + 2,
        };
        (Sectors(self.next_free * chunk), Sectors(metadata * chunk))
    }

    /// The end of the list: at most `runs` runs, with at most `chunks` chunks together.
    pub(super) fn last(&self, runs: usize, chunks: u64) -> ListEnd {
        let Medium::Persistent(area) = &self.medium else { return ListEnd::Nothing };
        if area.committed == 0 {
            return area.number.checked_sub(1).map_or(ListEnd::Nothing, ListEnd::InArea);
        }
        let follows = |run: &Run, old: u64, new: u64| {
            old.checked_add(1) == Some(run.old) && new.checked_add(1) == Some(run.new)
        };
        let mut found: Vec<Run> = Vec::new();
        for (entry, _) in area.entries[..area.committed].iter().rev().zip(0..chunks) {
            let (old, new) = (entry.old_chunk.get(), entry.new_chunk.get());
            let has_room = found.len() < runs;
            match found.last_mut() {
                Some(run) if follows(run, old, new) => {
                    *run = Run { old, new, len: run.len + 1 };
                }
                Some(_) | None if has_room => found.push(Run { old, new, len: 1 }),
                Some(_) | None => break,
            }
        }
        ListEnd::Runs(found)
    }

    /// Returns to a full area, with its on-disk contents.
    pub(super) fn go_back(&mut self, number: u64, bytes: &[u8]) {
        let Medium::Persistent(area) = &mut self.medium else { return };
        for (entry, bytes) in area.entries.iter_mut().zip(bytes.chunks(size_of::<Exception>())) {
            *entry = Exception::read_from_bytes(bytes).unwrap_or_default();
        }
        (area.number, area.committed, area.stale) = (number, area.entries.len(), false);
    }

    /// The write that removes the last `len` exceptions from the list; does not change this state yet.
    pub(super) fn without_last(&self, len: u64) -> Option<AreaWrite> {
        let Medium::Persistent(area) = &self.medium else { return None };
        let left = area.committed.checked_sub(len as usize)?;
        let mut entries = area.entries.clone();
        entries[left..].fill(Exception::default());
        let at = self.geometry.sector(self.geometry.area_chunk(area.number));
        Some(part(at, &entries, left, entries.len()))
    }

    /// Removes the last `len` exceptions, after they were removed on disk.
    pub(super) fn forget_last(&mut self, len: u64) {
        let Medium::Persistent(area) = &mut self.medium else { return };
        area.committed = area.committed.saturating_sub(len as usize);
        area.entries[area.committed..].fill(Exception::default());
        area.stale = false;
        // As in the kernel: as if all chunks had been committed in order.
        self.next_free = self.geometry.area_chunk(area.number) + area.committed as u64 + 1;
    }
}

/// The pages of an area with the slots `from..to`.
fn part(at: Sector, entries: &[Exception], from: usize, to: usize) -> AreaWrite {
    let bytes = entries.as_bytes();
    let page = PAGE_BYTES.min(bytes.len());
    let start = from * size_of::<Exception>() / page * page;
    let end = (to * size_of::<Exception>()).next_multiple_of(page).min(bytes.len());
    let at = at + Sectors::from_bytes_floor(start as u64);
    AreaWrite { at, data: Buffer::from_slice(&bytes[start..end]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(next_free: u64) -> Store {
        let geometry = Geometry::new(Sectors(8), Sectors(1)).unwrap();
        Store::persistent(geometry, Area::first(geometry), next_free)
    }

    fn exception(store: &mut Store, old: u64) -> Arc<PendingException> {
        let (sequence, new) = store.prepare(1000).unwrap();
        PendingException::new(old, new, sequence)
    }

    fn numbers(batch: &Batch) -> Vec<u64> {
        batch.exceptions.iter().map(|exception| exception.sequence).collect()
    }

    #[test]
    fn chunks_are_given_out_around_the_areas() {
        let mut store = store(2);
        let chunks: Vec<u64> = (0..514).map(|_| store.prepare(1000).unwrap().1).collect();
        assert_eq!((chunks[0], chunks[255], chunks[256], chunks[513]), (2, 257, 259, 517));
    }

    #[test]
    fn each_percent_is_noticed_once() {
        let mut store = store(2);
        let mut noticed = Vec::new();
        while store.prepare(1000).is_some() {
            noticed.extend(store.uses_another_percent(1000).then_some(store.next_free));
        }
        // The first chunk, and each that exceeds another percent.
        assert_eq!(noticed[..3], [3, 11, 21]);
        assert_eq!((noticed.len(), noticed.last()), (100, Some(&991)));
        // The device has grown: the next percentage is the last one that counts by the old size.
        noticed.clear();
        while store.next_free < 1060 {
            store.prepare(2000).unwrap();
            noticed.extend(store.uses_another_percent(2000).then_some(store.next_free));
        }
        assert_eq!(noticed, [1001, 1021, 1041]);
    }

    #[test]
    fn exceptions_are_committed_in_the_order_of_their_chunks() {
        let mut store = store(2);
        let all: Vec<_> = (0..5).map(|old| exception(&mut store, old)).collect();
        assert!(store.finish(Arc::clone(&all[1])));
        assert!(store.next_batch().is_none());
        assert!(store.finish(Arc::clone(&all[0])));
        let batch = store.next_batch().unwrap();
        assert_eq!(numbers(&batch), [0, 1]);
        // Exceptions that finish meanwhile are left to the running commit.
        assert!(!store.finish(Arc::clone(&all[2])) && !store.finish(Arc::clone(&all[4])));
        store.committed();
        assert_eq!(numbers(&store.next_batch().unwrap()), [2]);
        store.committed();
        assert!(store.next_batch().is_none());
        assert!(store.finish(Arc::clone(&all[3])));
        assert_eq!(numbers(&store.next_batch().unwrap()), [3, 4]);
    }

    #[test]
    fn a_batch_ends_with_its_area_and_zeroes_the_next() {
        let mut store = store(2);
        for old in 0..258 {
            let exception = exception(&mut store, old);
            assert_eq!(store.finish(exception), old == 0);
        }
        let batch = store.next_batch().unwrap();
        assert_eq!((batch.exceptions.len(), batch.next_area), (256, Some(Sector(258 * 8))));
        store.committed();
        let batch = store.next_batch().unwrap();
        assert_eq!((batch.exceptions.len(), batch.next_area), (2, None));
        assert_eq!(batch.write.unwrap().at, Sector(258 * 8));
        store.committed();
        assert_eq!(store.usage(), (Sectors(261 * 8), Sectors(3 * 8)));
    }

    #[test]
    fn an_area_is_not_filled_without_room_for_the_next() {
        let mut store = store(2);
        // Chunks 2 to 257 are data; the next area would be chunk 258.
        assert!((0..255).all(|_| store.prepare(258).is_some()));
        assert_eq!(store.prepare(258), None);
        assert!(store.prepare(259).is_some());
        assert_eq!(store.prepare(259), None);
    }

    #[test]
    fn what_a_torn_write_left_behind_is_erased_first() {
        let mut store = store(2);
        let Medium::Persistent(area) = &mut store.medium else { panic!("persistent") };
        area.stale = true;
        let one = exception(&mut store, 9);
        assert!(store.finish(one));
        let batch = store.next_batch().unwrap();
        let clean = batch.clean.unwrap();
        assert!(clean.data.as_slice().iter().all(|byte| *byte == 0));
        assert_eq!(clean.data.len(), 4096);
    }

    #[test]
    fn merging_goes_from_the_last_exception_to_the_first_in_runs() {
        let mut store = store(2);
        let olds = (0..254).chain([900, 901, 500]);
        for old in olds {
            let exception = exception(&mut store, old);
            store.finish(exception);
        }
        while store.next_batch().is_some() {
            store.committed();
        }
        let run = |old, new, len| Run { old, new, len };
        assert_eq!(store.last(9, 99), ListEnd::Runs(vec![run(500, 259, 1)]));
        assert!(store.without_last(2).is_none());
        store.forget_last(1);
        assert_eq!(store.last(9, 99), ListEnd::InArea(0));
        let full: Vec<_> = (0..254)
            .map(|n| Exception::new(n, n + 2))
            .chain([Exception::new(900, 256), Exception::new(901, 257)])
            .collect();
        store.go_back(0, full.as_bytes());
        assert_eq!(store.last(1, 99), ListEnd::Runs(vec![run(900, 256, 2)]));
        assert_eq!(store.last(9, 3), ListEnd::Runs(vec![run(900, 256, 2), run(253, 255, 1)]));
        assert_eq!(store.last(9, 999), ListEnd::Runs(vec![run(900, 256, 2), run(0, 2, 254)]));
        let write = store.without_last(2).unwrap();
        assert_eq!(write.data.as_slice()[253 * 16..254 * 16], full[253].as_bytes()[..]);
        assert!(write.data.as_slice()[254 * 16..].iter().all(|byte| *byte == 0));
        store.forget_last(2);
        assert_eq!(store.last(9, 99), ListEnd::Runs(vec![run(155, 157, 99)]));
        store.forget_last(99);
        store.forget_last(155);
        assert_eq!(
            (store.last(9, 99), store.usage()),
            (ListEnd::Nothing, (Sectors(16), Sectors(16)))
        );
    }
}
