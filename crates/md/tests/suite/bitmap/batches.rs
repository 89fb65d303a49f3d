//! The number of writes of marks, and the writes that tasks wait for.

use std::pin::pin;
use std::task::Poll;

use ashlar_block::{Sector, Sectors, Status};
use ashlar_md::Bitmap;
use ashlar_md::internals::bitmap::{Contents, Kind};
use futures_util::future::join_all;

use crate::bitmap::chunks;
use crate::bitmap::store::{ManualStore, now, poll};

/// A bitmap of 4,000 chunks with its superblock written, and its store.
fn running(kind: Kind) -> (Bitmap, ManualStore) {
    let bitmap = crate::bitmap::bitmap(kind, 4000, 8, Contents::InSync);
    let store = ManualStore::automatic();
    now(bitmap.write_super(1, &store)).unwrap();
    store.automatic.set(false);
    store.writes.set(0);
    (bitmap, store)
}

const KINDS: [Kind; 2] = [Kind::Classic, Kind::Lockless];

#[test]
fn no_write_begins_before_the_superblock_is_written() {
    for kind in KINDS {
        let bitmap = crate::bitmap::bitmap(kind, 10, 8, Contents::NeedsSync);
        let store = ManualStore::automatic();
        assert!(bitmap.try_begin(Sector(0), Sectors(8)).is_none());
        assert_eq!(now(bitmap.begin(Sector(0), Sectors(8), &store)).err(), Some(Status::Invalid));
        now(bitmap.write_super(1, &store)).unwrap();
        assert!(bitmap.try_begin(Sector(0), Sectors(8)).is_some(), "the chunk is marked");
    }
}

#[test]
fn the_first_write_of_a_chunk_waits_for_its_mark_and_the_second_does_not() {
    for kind in KINDS {
        let (bitmap, store) = running(kind);
        let (sector, len) = chunks(7, 1);
        assert!(bitmap.try_begin(sector, len).is_none());
        let mut first = pin!(bitmap.begin(sector, len, &store));
        assert!(poll(first.as_mut()).is_pending());
        assert!(bitmap.try_begin(sector, len).is_none(), "the mark is not durable yet");
        assert!(store.end_next(Ok(())));
        let Poll::Ready(Ok(intent)) = poll(first) else { panic!("the mark is durable") };
        drop(intent);
        assert!(bitmap.try_begin(sector, len).is_some());
        assert!(now(bitmap.begin(sector, len, &store)).is_ok());
        assert_eq!(store.writes.get(), 1);
    }
}

#[test]
fn writes_that_begin_together_share_two_writes_of_marks() {
    for kind in KINDS {
        for count in [2, 10, 100, 300] {
            let (bitmap, store) = running(kind);
            let begins = (0..count).map(|chunk| {
                let (sector, len) = chunks(chunk * 3, 2);
                bitmap.begin(sector, len, &store)
            });
            let mut all = pin!(join_all(begins));
            assert!(poll(all.as_mut()).is_pending());
            assert_eq!(store.writes.get(), 1, "the first takes off at once");
            store.end_next(Ok(()));
            assert!(poll(all.as_mut()).is_pending());
            store.end_next(Ok(()));
            let Poll::Ready(intents) = poll(all.as_mut()) else { panic!("{count} writes wait") };
            assert!(intents.iter().all(Result::is_ok));
            assert_eq!(store.writes.get(), 2);
            assert!(!store.end_next(Ok(())));
        }
    }
}

#[test]
fn a_write_whose_mark_is_in_the_air_waits_for_that_flight_only() {
    let (bitmap, store) = running(Kind::Classic);
    let (sector, len) = chunks(7, 1);
    let mut first = pin!(bitmap.begin(sector, len, &store));
    assert!(poll(first.as_mut()).is_pending());
    let mut same = pin!(bitmap.begin(sector, len, &store));
    assert!(poll(same.as_mut()).is_pending());
    let mut other = pin!(bitmap.begin(Sector(800), len, &store));
    assert!(poll(other.as_mut()).is_pending());
    store.end_next(Ok(()));
    assert!(poll(first).is_ready());
    assert!(poll(same).is_ready());
    assert!(poll(other).is_pending(), "came too late");
    assert_eq!(store.writes.get(), 2);
}

#[test]
fn whoever_flies_may_be_dropped_and_the_others_fly_on() {
    for kind in KINDS {
        let (bitmap, store) = running(kind);
        let (sector, len) = chunks(7, 1);
        let mut first = Box::pin(bitmap.begin(sector, len, &store));
        assert!(poll(first.as_mut()).is_pending());
        let mut same = pin!(bitmap.begin(sector, len, &store));
        let mut other = pin!(bitmap.begin(Sector(800), len, &store));
        assert!(poll(same.as_mut()).is_pending() && poll(other.as_mut()).is_pending());
        drop(first);
        store.asked.borrow_mut().clear();
        assert!(poll(same.as_mut()).is_pending());
        assert_eq!(store.writes.get(), 2, "the blocks are written again");
        store.end_next(Ok(()));
        assert!(poll(same).is_ready() && poll(other).is_ready());
    }
}

#[test]
fn a_flight_that_fails_fails_those_who_wait_for_it_and_the_next_carries_its_blocks() {
    for kind in KINDS {
        let (bitmap, store) = running(kind);
        let (sector, len) = chunks(7, 1);
        let mut first = pin!(bitmap.begin(sector, len, &store));
        assert!(poll(first.as_mut()).is_pending());
        let mut same = pin!(bitmap.begin(sector, len, &store));
        assert!(poll(same.as_mut()).is_pending());
        store.end_next(Err(Status::Medium));
        assert!(matches!(poll(first), Poll::Ready(Err(Status::Medium))));
        assert!(matches!(poll(same), Poll::Ready(Err(Status::Medium))));
        assert!(bitmap.try_begin(sector, len).is_none(), "a mark that nobody has");
        // Another chunk, which with a lockless bitmap is in a distant block.
        let mut other = pin!(bitmap.begin(Sector(8 * 3999), len, &store));
        assert!(poll(other.as_mut()).is_pending());
        store.end_next(Ok(()));
        assert!(poll(other).is_ready());
        let byte = match kind {
            Kind::Classic => 256,
            Kind::Lockless => 1024 + 7,
        };
        assert_ne!(store.area.borrow()[byte], 0, "the mark of the flight that failed");
    }
}

#[test]
fn the_daemon_needs_two_passes_one_flush_and_two_writes() {
    for kind in KINDS {
        let (bitmap, store) = running(kind);
        store.automatic.set(true);
        for chunk in [3, 4, 1000] {
            let (sector, len) = chunks(chunk, 1);
            drop(now(bitmap.begin(sector, len, &store)).unwrap());
        }
        assert_eq!(bitmap.marked_chunks(), 3);
        assert_eq!(bitmap.marked_runs(), [chunks(3, 2), chunks(1000, 1)]);
        store.writes.set(0);
        now(bitmap.clean(true, &store)).unwrap();
        assert_eq!((bitmap.marked_chunks(), store.flushes.get(), store.writes.get()), (3, 0, 0));
        // events_cleared first, then the marks.
        now(bitmap.clean(true, &store)).unwrap();
        assert_eq!((bitmap.marked_chunks(), store.flushes.get(), store.writes.get()), (0, 1, 2));
        now(bitmap.clean(true, &store)).unwrap();
        assert_eq!((store.flushes.get(), store.writes.get()), (1, 2));
        assert_eq!(*store.area.borrow(), bitmap.encode(), "the member has it all");
    }
}

#[test]
fn a_chunk_that_is_written_again_and_again_keeps_its_mark() {
    let (bitmap, store) = running(Kind::Classic);
    store.automatic.set(true);
    let (sector, len) = chunks(3, 1);
    drop(now(bitmap.begin(sector, len, &store)).unwrap());
    for _ in 0..5 {
        now(bitmap.clean(true, &store)).unwrap();
        drop(bitmap.try_begin(sector, len).expect("the mark is there"));
    }
    let long = bitmap.try_begin(sector, len).unwrap();
    for _ in 0..5 {
        now(bitmap.clean_now(true, &store)).unwrap();
    }
    assert_eq!(bitmap.marked_chunks(), 1, "a write is in flight");
    drop(long);
    now(bitmap.clean_now(false, &store)).unwrap();
    assert_eq!(bitmap.marked_chunks(), 1, "the array is degraded");
    now(bitmap.clean_now(true, &store)).unwrap();
    assert_eq!(bitmap.marked_chunks(), 0);
}

#[test]
fn a_write_that_comes_while_the_daemon_flushes_keeps_the_mark_without_writing_it() {
    for kind in KINDS {
        let (bitmap, store) = running(kind);
        store.automatic.set(true);
        let (sector, len) = chunks(3, 1);
        drop(now(bitmap.begin(sector, len, &store)).unwrap());
        store.automatic.set(false);
        store.writes.set(0);
        let mut clean = pin!(bitmap.clean_now(true, &store));
        assert!(poll(clean.as_mut()).is_pending());
        assert!(bitmap.try_begin(sector, len).is_none(), "the mark is about to go");
        let intent = now(bitmap.begin(sector, len, &store)).unwrap();
        store.automatic.set(true);
        store.end_next(Ok(()));
        assert!(poll(clean).is_ready());
        assert_eq!(bitmap.marked_chunks(), 1);
        drop(intent);
        assert!(bitmap.try_begin(sector, len).is_some());
    }
}

#[test]
fn marks_stay_if_the_flush_fails_or_the_daemon_is_dropped() {
    let (bitmap, store) = running(Kind::Classic);
    store.automatic.set(true);
    let (sector, len) = chunks(3, 1);
    drop(now(bitmap.begin(sector, len, &store)).unwrap());
    store.automatic.set(false);
    let mut clean = Box::pin(bitmap.clean_now(true, &store));
    assert!(poll(clean.as_mut()).is_pending());
    drop(clean);
    assert!(bitmap.try_begin(sector, len).is_some());
    store.asked.borrow_mut().clear();
    let mut clean = pin!(bitmap.clean_now(true, &store));
    assert!(poll(clean.as_mut()).is_pending());
    store.end_next(Err(Status::Io));
    assert!(matches!(poll(clean), Poll::Ready(Err(Status::Io))));
    assert!(bitmap.try_begin(sector, len).is_some());
    assert_eq!(bitmap.marked_chunks(), 1);
}

#[test]
fn a_span_beyond_the_array_is_refused() {
    let (bitmap, store) = running(Kind::Classic);
    for (sector, len) in [(Sector(31_999), Sectors(2)), (Sector(u64::MAX), Sectors(8))] {
        assert!(bitmap.try_begin(sector, len).is_none());
        assert_eq!(now(bitmap.begin(sector, len, &store)).err(), Some(Status::Invalid));
    }
    drop(now(bitmap.begin(Sector(32_000), Sectors(0), &store)).unwrap());
    assert_eq!(bitmap.marked_chunks(), 0);
}
