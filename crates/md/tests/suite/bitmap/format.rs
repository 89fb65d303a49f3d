//! Bytes: written, read, and refused.

use std::collections::BTreeSet;

use ashlar_block::{Sector, Sectors};
use ashlar_md::Bitmap;
use ashlar_md::internals::bitmap::{
    ArrayFacts, BitmapError, Contents, Kind, Place, Purpose, State, Store,
};
use ashlar_md::ondisk::Version;
use ashlar_md::ondisk::bitmap_super::{self, BitmapSuper, BitmapSuperError};
use ashlar_sim::Rng;
use zerocopy::IntoBytes;

use crate::bitmap::store::{ManualStore, now};
use crate::bitmap::{UUID, bitmap, chunks, crashed, place};

fn needed(bitmap: &Bitmap) -> Vec<u32> {
    let sector = |chunk: u32| Sector(u64::from(chunk) * bitmap.chunk().0);
    (0..bitmap.chunks())
        .filter(|chunk| bitmap.needs_sync(sector(*chunk), Purpose::Resync).needed)
        .collect()
}

/// The layout, byte by byte.
#[test]
fn a_classic_bitmap_is_these_bytes() {
    let bitmap = bitmap(Kind::Classic, 20, 8, Contents::InSync);
    let store = ManualStore::automatic();
    now(bitmap.write_super(0x1122, &store)).unwrap();
    for chunk in [0, 9, 19] {
        let (sector, len) = chunks(chunk, 1);
        drop(now(bitmap.begin(sector, len, &store)).unwrap());
    }
    let mut want = vec![0; 512];
    want[0..4].copy_from_slice(b"bitm");
    want[4] = 4;
    want[8..24].copy_from_slice(&UUID);
    want[24..26].copy_from_slice(&[0x22, 0x11]);
    want[40] = 160;
    want[53] = 16; // 4096 bytes
    want[56] = 5;
    want[256..259].copy_from_slice(&[0b0000_0001, 0b0000_0010, 0b0000_1000]);
    assert_eq!(*store.area.borrow(), want);
    assert_eq!(bitmap.encode(), want);
}

#[test]
fn a_lockless_bitmap_is_these_bytes() {
    let bitmap = bitmap(Kind::Lockless, 20, 8, Contents::NeverWritten);
    let store = ManualStore::automatic();
    now(bitmap.write_super(0x1122, &store)).unwrap();
    let (sector, len) = chunks(19, 1);
    now(bitmap.begin(sector, len, &store)).unwrap().failed();
    drop(now(bitmap.begin(Sector(0), len, &store)).unwrap());
    let mut want = vec![0; 1536];
    want[0..4].copy_from_slice(b"bitm");
    want[4] = 6;
    want[8..24].copy_from_slice(&UUID);
    want[24..26].copy_from_slice(&[0x22, 0x11]);
    want[40] = 160;
    want[52] = 8; // sectors
    want[56] = 5;
    want[65] = 1; // 256 sectors reserved
    want[1024] = 2;
    want[1043] = 3;
    assert_eq!(*store.area.borrow(), want);
    assert_eq!(bitmap.encode(), want);
}

#[test]
fn marks_are_read_as_they_were_written() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        for kind in [Kind::Classic, Kind::Lockless] {
            let count = 1 + rng.below(5000);
            let bitmap = bitmap(kind, count, 8, Contents::InSync);
            let store = ManualStore::automatic();
            now(bitmap.write_super(9, &store)).unwrap();
            let marked: BTreeSet<u64> = (0..rng.below(50)).map(|_| rng.below(count)).collect();
            for chunk in &marked {
                let (sector, len) = chunks(*chunk, 1);
                drop(now(bitmap.begin(sector, len, &store)).unwrap());
            }
            let bytes = store.area.borrow();
            let len = Bitmap::length(&bytes[..512], place(count, 8)).unwrap();
            assert_eq!(len.bytes(), bytes.len() as u64);
            let loaded = Bitmap::load(&bytes, place(count, 8), crashed(9)).unwrap();
            assert!(!loaded.was_stale());
            assert_eq!(
                (loaded.kind(), loaded.chunk(), loaded.size()),
                (kind, Sectors(8), bitmap.size())
            );
            assert_eq!(needed(&loaded), marked.iter().map(|n| *n as u32).collect::<Vec<_>>());
            assert_eq!(loaded.marked_runs(), bitmap.marked_runs());
            if kind == Kind::Classic {
                assert_eq!(loaded.encode(), *bytes);
            }
        }
    }
}

/// Bytes of a bitmap whose chunks 3 and 6 of 10 are marked.
fn some(kind: Kind, events: u64) -> Vec<u8> {
    let bitmap = bitmap(kind, 10, 8, Contents::InSync);
    let store = ManualStore::automatic();
    now(bitmap.write_super(events, &store)).unwrap();
    for chunk in [3, 6] {
        let (sector, len) = chunks(chunk, 1);
        drop(now(bitmap.begin(sector, len, &store)).unwrap());
    }
    store.area.take()
}

#[test]
fn a_bitmap_that_is_out_of_date_marks_everything() {
    for kind in [Kind::Classic, Kind::Lockless] {
        let good = some(kind, 7);
        let load =
            |bytes: &[u8], events| Bitmap::load(bytes, place(10, 8), crashed(events)).unwrap();
        for events in [6, 7] {
            assert_eq!(needed(&load(&good, events)), [3, 6], "as new as the array, or newer");
        }
        let mut flagged = vec![(load(&good, 8), 8)];
        for flag in [bitmap_super::state::STALE, bitmap_super::state::WRITE_ERROR] {
            let mut bytes = good.clone();
            bytes[48] = flag as u8;
            flagged.push((load(&bytes, 7), 7));
        }
        for (bitmap, events) in flagged {
            assert!(bitmap.was_stale());
            assert_eq!(needed(&bitmap), (0..10).collect::<Vec<_>>());
            assert!(!bitmap.covers(events - 1), "who was away before lacks more than it says");
            // The members' bitmap says that it is out of date until all of it is written.
            let store = ManualStore::automatic();
            now(bitmap.write_super(events + 1, &store)).unwrap();
            let again = load(&store.area.borrow(), events + 1);
            assert!(!again.was_stale());
            assert_eq!(needed(&again).len(), 10);
        }
    }
}

/// A lockless bitmap alone determines what needs a sync; for a classic one the array's superblock counts, too.
#[test]
fn what_is_known_to_be_in_sync_is_marked_but_needs_no_sync() {
    let bytes = some(Kind::Classic, 7);
    let load = |synced_to, complete, events| {
        let array = ArrayFacts { synced_to: Sector(synced_to), complete, ..crashed(events) };
        needed(&Bitmap::load(&bytes, place(10, 8), array).unwrap())
    };
    assert_eq!(load(0, true, 7), [3, 6]);
    assert_eq!(load(31, true, 7), [3, 6]);
    assert_eq!(load(32, true, 7), [6]);
    assert!(load(u64::MAX, true, 7).is_empty(), "clean");
    assert_eq!(load(u64::MAX, false, 7), [3, 6], "for the member that is away");
    let array = ArrayFacts { synced_to: Sector(u64::MAX), ..crashed(7) };
    let lockless = Bitmap::load(&some(Kind::Lockless, 7), place(10, 8), array).unwrap();
    assert_eq!(needed(&lockless), [3, 6]);
}

#[test]
fn marks_of_a_clean_array_go_with_the_first_pass() {
    let array = ArrayFacts { synced_to: Sector(u64::MAX), ..crashed(7) };
    let bitmap = Bitmap::load(&some(Kind::Classic, 7), place(10, 8), array).unwrap();
    let store = ManualStore::automatic();
    now(bitmap.clean(true, &store)).unwrap();
    assert_eq!((bitmap.marked_chunks(), store.writes.get()), (2, 0), "not before write_super");
    now(bitmap.write_super(8, &store)).unwrap();
    now(bitmap.clean(true, &store)).unwrap();
    assert_eq!(bitmap.marked_chunks(), 0);
}

#[test]
fn what_the_bitmap_did_not_cover_is_marked() {
    let bytes = some(Kind::Classic, 7);
    // 10 chunks were covered; half of the 11th and the 12th were not.
    let bitmap = Bitmap::load(&bytes, place(12, 8), crashed(7)).unwrap();
    assert_eq!(needed(&bitmap), [3, 6, 10, 11]);
    let mut short = bytes.clone();
    short[40] = 76;
    let bitmap = Bitmap::load(&short, place(12, 8), crashed(7)).unwrap();
    assert_eq!(needed(&bitmap), [3, 6, 9, 10, 11]);
    // Unknown coverage counts as all.
    short[40] = 0;
    let bitmap = Bitmap::load(&short, place(12, 8), crashed(7)).unwrap();
    assert_eq!(needed(&bitmap), [3, 6]);
}

#[test]
fn bytes_that_are_no_states_need_a_sync() {
    for byte in 0..=255u8 {
        let mut bytes = some(Kind::Lockless, 7);
        bytes[1024 + 8] = byte;
        let bitmap = Bitmap::load(&bytes, place(10, 8), crashed(7)).unwrap();
        let wanted: &[u32] = if byte < 2 { &[3, 6] } else { &[3, 6, 8] };
        assert_eq!(needed(&bitmap), wanted, "byte {byte}");
    }
}

#[test]
fn whoever_first_runs_a_new_lockless_array_lays_out_its_states() {
    // Sectors of the array, the chunk size, and the number of chunks.
    let cases = [
        (1, 128, 1),
        (1 << 20, 128, 1 << 13),
        // 127 KiB of states, the most that fit into 128 KiB with the superblock.
        (130_048 * 128, 128, 130_048),
        (130_048 * 128 + 1, 256, 65_025),
        (3_710_937_500, 32_768, 113_249),
    ];
    for (size, chunk, count) in cases {
        for clean in [false, true] {
            let sb = BitmapSuper::new_lockless(UUID, Sectors(size), 256, 5, clean);
            let place = Place { size: Sectors(size), area: Sectors(1000), block: 512 };
            let mut bytes = vec![0xff; 512];
            bytes[..256].copy_from_slice(sb.as_bytes());
            let bitmap = Bitmap::load(&bytes, place, crashed(0)).unwrap();
            assert_eq!((bitmap.chunk(), bitmap.chunks()), (Sectors(chunk), count));
            assert_eq!(bitmap.marked_chunks(), 0);
            assert_eq!(bitmap.daemon_sleep().as_secs(), 30);
            let rebuild = bitmap.needs_sync(Sector(0), Purpose::Rebuild).needed;
            assert_eq!(rebuild, clean, "clean data is there, unwritten is not");
            let store = ManualStore::automatic();
            now(bitmap.write_super(1, &store)).unwrap();
            let again = Bitmap::load(&store.area.borrow(), place, crashed(1)).unwrap();
            assert_eq!((again.chunk(), again.chunks()), (Sectors(chunk), count));
            assert_eq!(again.superblock().state.get(), 0);
            assert_eq!(again.encode(), bitmap.encode());
        }
    }
}

/// A crash between the two steps must not make states of writes unwritten again.
#[test]
fn states_are_laid_out_before_the_superblock_says_so_and_no_write_begins_before() {
    let sb = BitmapSuper::new_lockless(UUID, Sectors(1280), 256, 5, true);
    let place = Place { size: Sectors(1280), ..place(1, 1) };
    let bitmap = Bitmap::load(sb.as_bytes(), place, crashed(0)).unwrap();
    let store = ManualStore::default();
    let mut first = std::pin::pin!(bitmap.write_super(1, &store));
    assert!(crate::bitmap::store::poll(first.as_mut()).is_pending());
    store.end_next(Ok(()));
    let read = |at: usize| store.area.borrow()[at];
    assert_eq!((read(48), read(1024)), (24, State::Clean.byte()), "first use, clean");
    assert!(bitmap.try_begin(Sector(0), Sectors(1)).is_none());
    assert!(now(bitmap.begin(Sector(0), Sectors(1), &store)).is_err());
    assert!(crate::bitmap::store::poll(first.as_mut()).is_pending());
    store.end_next(Ok(()));
    assert!(crate::bitmap::store::poll(first).is_ready());
    assert_eq!((read(48), read(1024)), (0, State::Clean.byte()));
}

#[test]
fn what_cannot_be_is_refused() {
    let good = some(Kind::Classic, 7);
    let load = |bytes: &[u8], place| Bitmap::load(bytes, place, crashed(7)).err();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        load(&bytes, place(10, 8))
    };
    assert_eq!(load(&good, place(10, 8)), None);
    assert_eq!(with(8, 0), Some(BitmapError::Uuid));
    assert_eq!(with(4, 5), Some(BitmapError::Clustered));
    let magic = BitmapError::Superblock(BitmapSuperError::Magic { found: 0x6d74_6900 });
    assert_eq!(with(0, 0), Some(magic));
    let place = |size, area, block| Place { size: Sectors(size), area: Sectors(area), block };
    assert_eq!(
        load(&good[..511], place(80, 1, 512)),
        Some(BitmapError::Truncated { found: 511, needed: 512 })
    );
    assert_eq!(load(&good, place(80, 0, 512)), Some(BitmapError::Room { needed: 512, room: 0 }));
    assert_eq!(
        load(&good, place(80, 7, 4096)),
        Some(BitmapError::Room { needed: 4096, room: 3584 })
    );
    assert_eq!(
        load(&good, place(8 * 2049, 1, 512)),
        Some(BitmapError::Room { needed: 1024, room: 512 })
    );
    for (size, block) in [(0, 512), (80, 0), (80, 256), (80, 1000), (80, 1 << 17)] {
        let error = BitmapError::Place { size: Sectors(size), block };
        assert_eq!(load(&good, place(size, 8, block)), Some(error));
    }
    // A huge area must not cause a huge allocation.
    let huge = load(&good, place(u64::MAX, u64::MAX, 512));
    assert_eq!(huge, Some(BitmapError::Chunks { found: 1 << 61 }));
    let lockless = some(Kind::Lockless, 7);
    let error = BitmapError::SyncSize { covered: Sectors(80), size: Sectors(79) };
    assert_eq!(load(&lockless, place(79, 8, 512)), Some(error));
    let mut bytes = lockless;
    bytes[52] = 7;
    let error = BitmapError::Superblock(BitmapSuperError::LocklessChunkSize { found: 7 });
    assert_eq!(load(&bytes, place(80, 8, 512)), Some(error));
}

#[test]
fn random_bytes_are_refused_or_make_a_bitmap_within_bounds() {
    let mut loaded = 0;
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let kind = if rng.chance(1, 2) { Kind::Classic } else { Kind::Lockless };
        let mut bytes = some(kind, 7);
        for _ in 0..rng.below(6) {
            let at = match rng.chance(3, 4) {
                true => 40 + rng.index(40),
                false => rng.index(bytes.len()),
            };
            bytes[at] = rng.next_u64() as u8;
        }
        let place =
            Place { size: Sectors(1 + rng.next_u64() % (1 << rng.below(34))), ..place(1, 1) };
        let array = ArrayFacts { events: rng.below(10), ..crashed(0) };
        if let Ok(bitmap) = Bitmap::load(&bytes, place, array) {
            loaded += 1;
            assert!(bitmap.encode().len() as u64 <= place.area.bytes());
            assert!(bitmap.marked_chunks() <= bitmap.chunks().into());
        }
    }
    assert!(loaded > 100, "{loaded}");
}

#[test]
fn the_status_is_in_the_kernels_words() {
    let place = Place { size: Sectors(3_710_674_944), area: Sectors(256), block: 512 };
    let sb = BitmapSuper::new(UUID, place.size, 64 << 20, 5, 0);
    let bitmap = Bitmap::new(&sb, place, Contents::InSync).unwrap();
    assert_eq!(bitmap.mdstat(), "bitmap: 0/14 pages [0KB], 65536KB chunk");
    let store = ManualStore::automatic();
    now(bitmap.write_super(1, &store)).unwrap();
    for chunk in [0, 2047, 4096] {
        let sector = Sector(chunk * bitmap.chunk().0);
        drop(now(bitmap.begin(sector, Sectors(1), &store)).unwrap());
    }
    assert_eq!(bitmap.mdstat(), "bitmap: 2/14 pages [8KB], 65536KB chunk");
    let text = bitmap.examine(Version::V1_2);
    assert!(text.contains("       Chunksize : 64 MB\n"), "{text}");
    assert!(text.contains("          Bitmap : 28311 bits (chunks), 3 dirty (0.0%)\n"), "{text}");
    let small = crate::bitmap::bitmap(Kind::Classic, 10, 1, Contents::NeedsSync);
    assert_eq!(small.mdstat(), "bitmap: 1/1 pages [4KB], 512B chunk");
    let lockless = crate::bitmap::bitmap(Kind::Lockless, 5000, 128, Contents::NeverWritten);
    assert_eq!(lockless.mdstat(), "bitmap: 2/2 pages [8KB], 64KB chunk");
    assert_eq!(lockless.states(), "unwritten 5000\nclean 0\ndirty 0\nneed sync 0\nsyncing 0\n");
    assert!(lockless.examine(Version::V1_2).contains("       Chunksize : 64 KB\n"));
}

/// The marks of a resized bitmap, compared by the sectors that they cover.
#[test]
fn another_size_keeps_the_marks_and_doubles_the_chunks_if_it_must() {
    for kind in [Kind::Classic, Kind::Lockless] {
        let area = if kind == Kind::Classic { 1 } else { 6 };
        // At most 2,048 classic or 2,048 lockless chunks fit.
        let place = Place { size: Sectors(8 * 2000), area: Sectors(area), block: 512 };
        let sb = crate::bitmap::superblock(kind, place, 8);
        let old = Bitmap::new(&sb, place, Contents::InSync).unwrap();
        let store = ManualStore::automatic();
        now(old.write_super(3, &store)).unwrap();
        for chunk in [0, 7, 1999] {
            let (sector, len) = chunks(chunk, 1);
            let intent = now(old.begin(sector, len, &store)).unwrap();
            assert_eq!(old.resized(Sectors(8), Contents::InSync).err(), Some(BitmapError::Busy));
            if chunk == 7 {
                intent.failed();
            }
        }
        for (size, chunk, contents) in [
            (8 * 2000, 8, Contents::InSync),
            (8 * 1000, 8, Contents::InSync),
            (8 * 2040, 8, Contents::NeedsSync),
            (8 * 2040, 8, Contents::NeverWritten),
            (8 * 2049, 16, Contents::InSync),
            (8 * 5001 + 3, 32, Contents::NeedsSync),
            (1 << 30, 1 << 19, Contents::NeedsSync),
        ] {
            let new = old.resized(Sectors(size), contents).unwrap();
            assert_eq!((new.size(), new.chunk()), (Sectors(size), Sectors(chunk)), "{kind:?}");
            let fresh_marks = match (contents, kind) {
                (Contents::InSync, _) | (Contents::NeverWritten, Kind::Lockless) => false,
                (Contents::NeedsSync, _) | (Contents::NeverWritten, Kind::Classic) => true,
            };
            for index in 0..u64::from(new.chunks()) {
                let (start, end) = (index * chunk, ((index + 1) * chunk).min(size));
                let has = |old: u64| start <= old * 8 && old * 8 < end;
                let fresh = fresh_marks && end > 8 * 2000;
                let step = |purpose| new.needs_sync(Sector(start), purpose).needed;
                assert_eq!(step(Purpose::Return), fresh || [0, 7, 1999].into_iter().any(has));
                assert_eq!(step(Purpose::Resync), fresh || has(7), "{kind:?} {size}: {index}");
            }
            assert_eq!(*store.area.borrow(), old.encode(), "nothing is written yet");
        }
    }
}

/// Power fails after and within every write of a bitmap that gets other chunks: no mark is lost,
/// whichever superblock is found.
#[test]
fn a_crash_while_the_marks_are_laid_out_anew_loses_none() {
    for kind in [Kind::Classic, Kind::Lockless] {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let area = if kind == Kind::Classic { 2 } else { 12 };
            let small = Place { size: Sectors(8 * 5000), area: Sectors(area), block: 512 };
            let sb = crate::bitmap::superblock(kind, small, 8);
            let old = Bitmap::new(&sb, small, Contents::InSync).unwrap();
            let store = ManualStore::automatic();
            now(old.write_super(3, &store)).unwrap();
            let marked: Vec<u64> = (0..1 + rng.below(9)).map(|_| rng.below(5000)).collect();
            for chunk in &marked {
                let (sector, len) = chunks(*chunk, 1);
                drop(now(old.begin(sector, len, &store)).unwrap());
            }
            let new = old.resized(Sectors(8 * 20_000), Contents::InSync).unwrap();
            store.automatic.set(false);
            let mut laid_out = std::pin::pin!(new.write_super(4, &store));
            let cut_after = rng.below(5);
            for _ in 0..cut_after {
                if crate::bitmap::store::poll(laid_out.as_mut()).is_pending() {
                    store.end_next(Ok(()));
                }
            }
            // Some blocks of the write in flight arrive.
            if crate::bitmap::store::poll(laid_out.as_mut()).is_pending() {
                for (asked, _) in store.asked.take() {
                    let crate::bitmap::store::StoreOperation::Write { offset, bytes } = asked
                    else {
                        continue;
                    };
                    let mut medium = store.area.borrow_mut();
                    for at in (0..bytes.len()).step_by(512).filter(|_| rng.chance(1, 2)) {
                        let end = (offset + at + 512).max(medium.len());
                        medium.resize(end, 0);
                        medium[offset + at..offset + at + 512]
                            .copy_from_slice(&bytes[at..at + 512]);
                    }
                }
            }
            let mut bytes = store.area.take();
            bytes.resize(16 << 10, 0);
            let is_new = BitmapSuper::parse(&bytes).unwrap().sync_size.get() == 8 * 20_000;
            let place = if is_new { Place { size: Sectors(8 * 20_000), ..small } } else { small };
            let found = Bitmap::load(&bytes, place, crashed(3)).unwrap();
            for chunk in marked {
                let step = found.needs_sync(Sector(chunk * 8), Purpose::Resync);
                assert!(
                    step.needed,
                    "{kind:?}, seed {seed}: chunk {chunk} after {cut_after} writes"
                );
            }
        }
    }
}

#[test]
fn a_mark_counts_if_any_member_has_it() {
    for kind in [Kind::Classic, Kind::Lockless] {
        let load = |bytes: &[u8]| Bitmap::load(bytes, place(10, 8), crashed(7)).unwrap();
        let mut bytes = some(kind, 7);
        let other = load(&bytes);
        let (at, byte) = if kind == Kind::Classic { (256, 1 << 3 | 1) } else { (1024 + 6, 1) };
        bytes[at] = byte;
        bytes[32] = 5;
        let mut bitmap = load(&bytes);
        let before: &[u32] = if kind == Kind::Classic { &[0, 3] } else { &[3] };
        assert_eq!(needed(&bitmap), before);
        bitmap.absorb(&load(&some(kind, 6)));
        assert_eq!(needed(&bitmap), before, "that one is out of date");
        bitmap.absorb(&other);
        let both: &[u32] = if kind == Kind::Classic { &[0, 3, 6] } else { &[3, 6] };
        assert_eq!(needed(&bitmap), both);
        assert!(!bitmap.covers(4) && bitmap.covers(5));
        let store = ManualStore::automatic();
        now(bitmap.write_super(8, &store)).unwrap();
        let again = Bitmap::load(&store.area.borrow(), place(10, 8), crashed(8)).unwrap();
        assert_eq!(needed(&again), both);
    }
}

/// A new member gets the whole bitmap.
#[test]
fn a_new_member_gets_the_whole_bitmap() {
    let bitmap = bitmap(Kind::Lockless, 5000, 8, Contents::NeverWritten);
    let store = ManualStore::automatic();
    now(bitmap.write_super(1, &store)).unwrap();
    drop(now(bitmap.begin(Sector(8000), Sectors(800), &store)).unwrap());
    let before = store.area.take();
    now(bitmap.write_all(&store)).unwrap();
    assert_eq!(*store.area.borrow(), before);
    let store: &dyn Store = &store;
    now(bitmap.write_all(store)).unwrap();
}

/// Compares the table of states in the documentation.
#[test]
fn the_documented_states_are_the_codes() {
    let document = include_str!("../../../../../docs/formats/md.md");
    let rows: Vec<(u8, &str)> = document
        .lines()
        .skip_while(|line| *line != "| byte | state | meaning |")
        .skip(2)
        .map_while(|line| line.strip_prefix("| "))
        .map(|row| {
            let mut cells = row.split(" | ");
            (cells.next().unwrap().parse().unwrap(), cells.next().unwrap())
        })
        .collect();
    let bitmap = bitmap(Kind::Lockless, 1, 8, Contents::InSync);
    let text = bitmap.states();
    let names = text.lines().map(|line| line.rsplit_once(' ').unwrap().0);
    assert_eq!(rows, State::ALL.map(State::byte).into_iter().zip(names).collect::<Vec<_>>());
}

/// A bitmap that Linux 6.1 wrote while chunks were written, and mdadm's text for it.
#[test]
fn marks_that_the_kernel_made_are_those_of_what_was_written() {
    let file = |name: &str| {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        std::fs::read(root.join("../../tests/images/md/raid1-marks").join(name)).unwrap()
    };
    let text = |name: &str| String::from_utf8(file(name)).unwrap();
    let bytes = file("marks.bin");
    let sb = BitmapSuper::parse(&bytes).unwrap();
    let place = Place { size: Sectors(sb.sync_size.get()), area: Sectors(8), block: 512 };
    let array = ArrayFacts {
        uuid: sb.uuid,
        events: sb.events.get(),
        synced_to: Sector(u64::MAX),
        complete: false,
    };
    let bitmap = Bitmap::load(&bytes, place, array).unwrap();
    let written: BTreeSet<u32> = text("written.txt")
        .lines()
        .flat_map(|line| {
            let (start, len) = line.split_once(' ').unwrap();
            let (start, len): (u32, u32) = (start.parse().unwrap(), len.parse().unwrap());
            start / 8..(start + len).div_ceil(8)
        })
        .collect();
    assert_eq!(needed(&bitmap), written.into_iter().collect::<Vec<_>>());
    assert_eq!(bitmap.examine(Version::V1_2), text("expect-marks.txt"));
    // Writing it again gives the same bytes.
    let store = ManualStore::automatic();
    now(bitmap.write_super(sb.events.get(), &store)).unwrap();
    let ours = store.area.take();
    assert_eq!(ours[..], bytes[..ours.len()]);
}
