//! The work of a sync, and its result.

use ashlar_block::{Sector, Sectors};
use ashlar_md::Bitmap;
use ashlar_md::internals::bitmap::{Contents, Kind, Purpose, Step};

use crate::bitmap::store::{ManualStore, now};
use crate::bitmap::{chunks, crashed, place};

fn running(kind: Kind, contents: Contents) -> (Bitmap, ManualStore) {
    let bitmap = crate::bitmap::bitmap(kind, 10, 8, contents);
    let store = ManualStore::automatic();
    now(bitmap.write_super(1, &store)).unwrap();
    (bitmap, store)
}

fn needed(bitmap: &Bitmap, purpose: Purpose) -> Vec<u64> {
    (0..10).filter(|chunk| bitmap.needs_sync(Sector(chunk * 8), purpose).needed).collect()
}

fn write(bitmap: &Bitmap, store: &ManualStore, chunk: u64, fails: bool) {
    let (sector, len) = chunks(chunk, 1);
    let intent = now(bitmap.begin(sector, len, store)).unwrap();
    if fails {
        intent.failed();
    }
}

#[test]
fn a_chunk_in_which_a_write_failed_stays_marked_until_it_is_synced() {
    for kind in [Kind::Classic, Kind::Lockless] {
        let (bitmap, store) = running(kind, Contents::InSync);
        write(&bitmap, &store, 2, true);
        write(&bitmap, &store, 5, false);
        write(&bitmap, &store, 2, false);
        now(bitmap.clean_now(true, &store)).unwrap();
        assert_eq!(bitmap.marked_runs(), [chunks(2, 1)]);
        assert_eq!(needed(&bitmap, Purpose::Resync), [2]);
        assert_eq!(bitmap.needed_chunks(), 1);
        let (start, len) = chunks(2, 1);
        let step = bitmap.start_sync(start, Purpose::Resync, false);
        assert_eq!(step, Step { needed: true, run: Sectors(8) });
        let step = bitmap.start_sync(start + Sectors(3), Purpose::Resync, false);
        assert_eq!(step, Step { needed: true, run: Sectors(5) }, "the rest of the chunk, too");
        now(bitmap.clean_now(true, &store)).unwrap();
        assert_eq!(bitmap.marked_chunks(), 1, "it is being synced");
        bitmap.end_sync(start..start + len, true);
        assert_eq!(bitmap.needed_chunks(), 0);
        now(bitmap.clean_now(true, &store)).unwrap();
        assert_eq!(bitmap.marked_chunks(), 0);
        assert_eq!(*store.area.borrow(), bitmap.encode());
    }
}

#[test]
fn only_chunks_that_were_synced_as_a_whole_count() {
    let (bitmap, _) = running(Kind::Classic, Contents::NeedsSync);
    let start = |chunk: u64| bitmap.start_sync(Sector(chunk * 8), Purpose::Resync, false).needed;
    assert!((0..10).all(start));
    bitmap.end_sync(Sector(4)..Sector(36), true);
    assert_eq!(needed(&bitmap, Purpose::Resync), [0, 4, 5, 6, 7, 8, 9]);
    bitmap.end_sync(Sector(72)..Sector(80), true);
    assert_eq!(needed(&bitmap, Purpose::Resync), [0, 4, 5, 6, 7, 8]);
    bitmap.end_sync(Sector(45)..Sector(50), false);
    bitmap.end_sync(Sector(0)..Sector(80), true);
    assert_eq!(needed(&bitmap, Purpose::Resync), [5, 6], "those had been abandoned");
    assert!(start(5));
    bitmap.close_sync();
    bitmap.end_sync(Sector(0)..Sector(80), true);
    assert_eq!(needed(&bitmap, Purpose::Resync), [5, 6]);
}

#[test]
fn the_last_chunk_ends_with_the_array() {
    let place = ashlar_md::internals::bitmap::Place { size: Sectors(20), ..place(3, 8) };
    let sb = crate::bitmap::superblock(Kind::Classic, place, 8);
    let bitmap = Bitmap::new(&sb, place, Contents::NeedsSync).unwrap();
    assert_eq!(bitmap.chunks(), 3);
    let step = bitmap.start_sync(Sector(16), Purpose::Resync, false);
    assert_eq!(step, Step { needed: true, run: Sectors(4) });
    bitmap.end_sync(Sector(16)..Sector(20), true);
    assert!(!bitmap.needs_sync(Sector(16), Purpose::Resync).needed);
    let beyond = bitmap.needs_sync(Sector(20), Purpose::Resync);
    assert_eq!(beyond, Step { needed: false, run: Sectors::ZERO });
    assert_eq!(bitmap.marked_runs(), [(Sector(0), Sectors(20))]);
}

#[test]
fn while_the_array_stays_degraded_a_sync_changes_nothing() {
    let (bitmap, _) = running(Kind::Lockless, Contents::NeedsSync);
    assert!(bitmap.start_sync(Sector(0), Purpose::Resync, true).needed);
    bitmap.end_sync(Sector(0)..Sector(80), true);
    assert_eq!(needed(&bitmap, Purpose::Resync).len(), 10);
}

#[test]
fn a_write_that_fails_while_its_chunk_is_synced_needs_another_sync() {
    for kind in [Kind::Classic, Kind::Lockless] {
        let (bitmap, store) = running(kind, Contents::NeedsSync);
        assert!(bitmap.start_sync(Sector(0), Purpose::Resync, false).needed);
        write(&bitmap, &store, 0, true);
        bitmap.end_sync(Sector(0)..Sector(8), true);
        assert!(bitmap.needs_sync(Sector(0), Purpose::Resync).needed);
        now(bitmap.clean_now(true, &store)).unwrap();
        assert_eq!(bitmap.marked_chunks(), 10);
    }
}

/// A re-added member gets what was marked meanwhile; a new one gets all chunks that hold data.
#[test]
fn members_that_come_get_what_they_lack() {
    let all: Vec<u64> = (0..10).collect();
    for (kind, contents, rebuild) in [
        (Kind::Classic, Contents::InSync, all.clone()),
        (Kind::Lockless, Contents::InSync, all.clone()),
        (Kind::Lockless, Contents::NeverWritten, vec![1, 4]),
    ] {
        let (bitmap, store) = running(kind, contents);
        write(&bitmap, &store, 1, true);
        write(&bitmap, &store, 4, false);
        assert_eq!(needed(&bitmap, Purpose::Resync), [1]);
        assert_eq!(needed(&bitmap, Purpose::Return), [1, 4]);
        assert_eq!(needed(&bitmap, Purpose::Rebuild), rebuild, "{kind:?} {contents:?}");
        for chunk in 0..10 {
            bitmap.start_sync(Sector(chunk * 8), Purpose::Rebuild, false);
        }
        assert_eq!(bitmap.needed_chunks(), 2);
        bitmap.end_sync(Sector(0)..Sector(80), true);
        now(bitmap.clean_now(true, &store)).unwrap();
        assert_eq!(bitmap.marked_chunks(), 0);
    }
}

/// `events_cleared` determines which members may be re-added by the marks.
#[test]
fn a_member_that_left_before_marks_were_taken_away_does_not_come_back_by_them() {
    let (bitmap, store) = running(Kind::Classic, Contents::InSync);
    now(bitmap.write_super(7, &store)).unwrap();
    assert!(bitmap.covers(0), "nothing was taken away yet");
    write(&bitmap, &store, 1, false);
    now(bitmap.clean_now(false, &store)).unwrap();
    assert!(bitmap.covers(0), "the array is degraded");
    now(bitmap.clean_now(true, &store)).unwrap();
    assert!(!bitmap.covers(6) && bitmap.covers(7) && bitmap.covers(8));
    // It was written to the members before the marks were cleared.
    let loaded = Bitmap::load(&store.area.borrow(), place(10, 8), crashed(7)).unwrap();
    assert!(!loaded.covers(6) && loaded.covers(7));
    // The array continues from older superblocks.
    now(bitmap.write_super(5, &store)).unwrap();
    assert_eq!(bitmap.superblock().events_cleared.get(), 5);
}

#[test]
fn events_cleared_is_durable_before_any_mark_goes() {
    let (bitmap, store) = running(Kind::Classic, Contents::InSync);
    now(bitmap.write_super(7, &store)).unwrap();
    write(&bitmap, &store, 1, false);
    store.automatic.set(false);
    let mut clean = std::pin::pin!(bitmap.clean_now(true, &store));
    let mut seen = Vec::new();
    while crate::bitmap::store::poll(clean.as_mut()).is_pending() {
        store.end_next(Ok(()));
        let loaded = Bitmap::load(&store.area.borrow(), place(10, 8), crashed(7)).unwrap();
        seen.push((loaded.superblock().events_cleared.get(), loaded.marked_chunks()));
    }
    assert_eq!(seen, [(0, 1), (7, 1), (7, 0)]);
}
