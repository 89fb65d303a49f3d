//! Resync.

use std::collections::BTreeSet;
use std::time::Duration;

use ashlar_block::{Sector, Sectors};
use ashlar_md::SyncAction;
use ashlar_sim::{Rng, Sim};
use futures_util::future::join;

use crate::common::{differing, gateway, media, stamped};
use crate::sync::world::{
    Writer, crash, fill, first_copies, raid1, read_all, shapes, start_on, superblock,
};

const DISK: Sectors = Sectors(4 * 2048);
const USED: u64 = 3 * 2048;

#[test]
fn after_a_crash_copies_are_made_the_same_and_the_superblocks_say_so() {
    for shape in shapes() {
        let media = media(shape.members, DISK);
        let sim = Sim::new(1);
        fill(&sim, &shape, &media);
        crash(&media, USED, &mut sim.rng());
        sim.block_on(async {
            let array = start_on(&sim, &media).await;
            assert!(array.is_unsynced());
            let before = read_all(&array).await;
            array.sync_ended().await;
            assert!(!array.is_unsynced(), "{shape:?}");
            assert_eq!(array.sync_status().last, SyncAction::Resync);
            let size = before.len() as u64 / 512;
            assert!(differing(&array, &media, size).await.is_empty(), "{shape:?}");
            // Reads return the same data before and after the resync.
            assert!(read_all(&array).await == before, "{shape:?}");
            for medium in &media {
                assert!(superblock(medium).is_clean(), "{shape:?}");
            }
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn writes_that_meet_a_resync_are_on_all_copies() {
    for shape in shapes() {
        for seed in 0..3 {
            let media = media(shape.members, DISK);
            let sim = Sim::new(seed);
            fill(&sim, &shape, &media);
            crash(&media, USED, &mut sim.rng());
            media[1].slow_down(1 + seed * 4);
            sim.block_on(async {
                let array = start_on(&sim, &media).await;
                let writer = Writer { ios: 60, max_len: 100, pause: Duration::from_micros(90) };
                let mut rng = sim.rng();
                let (last, ()) = join(writer.run(&array, &mut rng), array.sync_ended()).await;
                array.sync_ended().await;
                let found = read_all(&array).await;
                for ((sector, bytes), generation) in (0..).zip(found.chunks(512)).zip(&last) {
                    let Some(generation) = generation else { continue };
                    assert!(bytes == stamped(sector, 1, *generation), "{shape:?} {seed} {sector}");
                }
                let size = last.len() as u64;
                assert!(differing(&array, &media, size).await.is_empty(), "{shape:?} {seed}");
                assert!(!array.is_unsynced());
                array.stop().await.unwrap();
            });
        }
    }
}

#[test]
fn reads_during_a_resync_see_what_they_saw_before() {
    for shape in shapes() {
        // At least three of the longest windows.
        let media = media(shape.members, Sectors(14 * 2048));
        let sim = Sim::new(3);
        fill(&sim, &shape, &media);
        crash(&media, 13 * 2048, &mut Rng::new(9));
        sim.block_on(async {
            let array = start_on(&sim, &media).await;
            array.sync_settings().set_speed_max_kib(Some(128 << 10));
            array.sync_settings().set_speed_min_kib(Some(128 << 10));
            let first = first_copies(&array, &media);
            let volume = gateway(&array);
            let mut rng = sim.rng();
            let mut looks = BTreeSet::new();
            while array.is_unsynced() {
                let (at, len) = (rng.below(array.personality().size().0 - 256), 1 + rng.below(256));
                let found = volume.read(Sector(at), Sectors(len)).await.unwrap();
                let expected = &first[at as usize * 512..(at + len) as usize * 512];
                assert!(found.as_slice() == expected, "{shape:?} {at} {len}");
                looks.insert(array.in_sync_to());
                sim.runtime().sleep(Duration::from_micros(500)).await;
            }
            assert!(looks.len() > 2, "{shape:?}: {looks:?}");
            assert!(read_all(&array).await == first, "{shape:?}");
        });
    }
}

#[test]
fn a_resync_that_is_stopped_goes_on_where_it_was() {
    let shape = raid1(2);
    let media = media(2, Sectors(64 * 2048));
    let sim = Sim::new(4);
    fill(&sim, &shape, &media);
    crash(&media, 63 * 2048, &mut sim.rng());
    let mut starts = vec![0];
    for _ in 0..3 {
        sim.block_on(async {
            let array = start_on(&sim, &media).await;
            assert_eq!(array.in_sync_to().0, *starts.last().unwrap());
            array.sync_settings().set_speed_max_kib(Some(10_000));
            sim.runtime().sleep(Duration::from_millis(1500)).await;
            array.stop().await.unwrap();
            let offset = superblock(&media[0]).resync_offset;
            assert_eq!(superblock(&media[1]).resync_offset, offset);
            starts.push(offset.0);
        });
    }
    // 15 MiB each time.
    assert!(starts.is_sorted_by(|a, b| a + 12 * 2048 < *b && *b < a + 20 * 2048), "{starts:?}");
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        array.sync_ended().await;
        assert!(differing(&array, &media, 60 * 2048).await.is_empty());
    });
}
