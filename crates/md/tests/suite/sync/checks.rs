//! Check and repair.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Bio, Buffer, Flags, Sector, Sectors, Status};
use ashlar_md::{Array, SyncAction, SyncRequest};
use ashlar_sim::{Media, Rng, Sim};
use futures_util::future::{join, join3};

use crate::common::{DATA, differing, gateway, media, write};
use crate::sync::world::{Writer, fill, first_copies, raid1, raid10, read_all, shapes, start_on};

const DISK: Sectors = Sectors(4 * 2048);
/// The kernel's unit of comparison.
const BLOCK: u64 = 128;

/// The kernel's count: for each 64 KiB block, cut at chunks, its sectors for each copy that differs from
/// the first.
fn mismatches(array: &Array, media: &[Media]) -> u64 {
    let size = array.personality().size().0;
    let (mut count, mut at) = (0, 0);
    while at < size {
        let edge = (at / BLOCK + 1) * BLOCK;
        let chunk = at.saturating_add(array.personality().chunk_left(Sector(at)).0);
        let len = edge.min(chunk).min(size) - at;
        let copies = array.personality().map(Sector(at));
        let bytes = |copy: usize| {
            let at = copies[copy];
            media[at.disk].peek_range(at.sector + Sectors(DATA), Sectors(len))
        };
        let first = bytes(0);
        count += (1..copies.len()).filter(|copy| bytes(*copy) != first).count() as u64 * len;
        at += len;
    }
    count
}

/// Changes single bytes of copies; returns the affected array sectors.
fn damage(array: &Array, media: &[Media], count: usize, rng: &mut Rng) -> BTreeSet<u64> {
    let size = array.personality().size().0;
    let hit = (0..count).map(|_| {
        let sector = rng.below(size);
        let copies = array.personality().map(Sector(sector));
        let copy = copies[rng.index(copies.len())];
        let at = copy.sector + Sectors(DATA);
        let mut bytes = media[copy.disk].peek(at);
        bytes[rng.index(512)] ^= 1 << rng.below(8);
        media[copy.disk].poke(at, &bytes);
        sector
    });
    hit.collect()
}

async fn run(array: &Arc<Array>, request: SyncRequest) -> u64 {
    array.request_sync(request).unwrap();
    array.sync_ended().await;
    array.sync_status().mismatches.0
}

#[test]
fn a_check_counts_exactly_what_differs_and_changes_nothing() {
    for shape in shapes() {
        for count in [0, 1, 20] {
            let media = media(shape.members, DISK);
            let sim = Sim::new(1);
            fill(&sim, &shape, &media);
            sim.block_on(async {
                let array = start_on(&sim, &media).await;
                let hit = damage(&array, &media, count, &mut sim.rng());
                let before: Vec<_> = media.iter().map(Media::snapshot).collect();
                let expected = mismatches(&array, &media);
                assert_eq!(expected > 0, count > 0);
                assert_eq!(run(&array, SyncRequest::Check).await, expected, "{shape:?} {hit:?}");
                assert_eq!(array.sync_status().last, SyncAction::Check);
                for (medium, before) in media.iter().zip(&before) {
                    assert!(medium.diff(before).is_empty(), "{shape:?}: a check wrote");
                }
            });
        }
    }
}

#[test]
fn a_repair_makes_all_copies_what_the_first_one_is() {
    for shape in shapes() {
        let media = media(shape.members, DISK);
        let sim = Sim::new(2);
        fill(&sim, &shape, &media);
        sim.block_on(async {
            let array = start_on(&sim, &media).await;
            damage(&array, &media, 30, &mut sim.rng());
            let size = array.personality().size().0;
            let first = first_copies(&array, &media);
            let expected = mismatches(&array, &media);
            assert_eq!(run(&array, SyncRequest::Repair).await, expected, "{shape:?}");
            assert!(differing(&array, &media, size).await.is_empty(), "{shape:?}");
            assert!(read_all(&array).await == first, "{shape:?}");
            assert_eq!(run(&array, SyncRequest::Check).await, 0, "{shape:?}");
        });
    }
}

#[test]
fn read_errors_met_by_a_check_are_corrected() {
    for shape in shapes() {
        for request in [SyncRequest::Check, SyncRequest::Repair] {
            let media = media(shape.members, DISK);
            let sim = Sim::new(3);
            fill(&sim, &shape, &media);
            sim.block_on(async {
                let array = start_on(&sim, &media).await;
                media[0].fail_reads(DATA + 300..DATA + 303);
                media[1].fail_reads(DATA + 1000..DATA + 1001);
                assert_eq!(run(&array, request).await, 0, "{shape:?}");
                let members = array.status().await.members;
                let corrected: Vec<u64> = members.iter().map(|m| m.corrected).collect();
                assert!((3..=16).contains(&corrected[0]), "{shape:?} {corrected:?}");
                assert!((1..=8).contains(&corrected[1]), "{shape:?} {corrected:?}");
                // Nothing is bad any more.
                let before = members.iter().map(|m| m.read_errors).sum::<u64>();
                assert_eq!(run(&array, request).await, 0, "{shape:?}");
                let members = array.status().await.members;
                assert_eq!(members.iter().map(|m| m.read_errors).sum::<u64>(), before);
                assert_eq!(array.degraded(), 0);
            });
        }
    }
}

#[test]
fn a_check_does_without_a_first_copy_and_without_any() {
    // Upstream: "md/raid1: Add check for missing source disk in process_checks()".
    for shape in [raid1(2), raid1(3), raid10(0x103, 3, 64)] {
        let media = media(shape.members, DISK);
        let sim = Sim::new(4);
        fill(&sim, &shape, &media);
        sim.block_on(async {
            let array = start_on(&sim, &media).await;
            // One part that the first member cannot return, one that no member can.
            media[0].fail_reads(DATA + 256..DATA + 512);
            media[0].fail_writes(DATA + 256..DATA + 512);
            media.iter().for_each(|medium| medium.fail_reads(DATA + 1024..DATA + 1032));
            // Without a first copy, the others are still compared.
            media[1].poke(Sector(DATA + 300), &[7; 512]);
            assert_eq!(
                run(&array, SyncRequest::Check).await,
                if media.len() == 2 { 0 } else { BLOCK }
            );
            // The first member could be neither read nor written.
            let failed = array.status().await.members.iter().filter(|m| m.faulty).count();
            assert_eq!((failed, array.degraded()), (1, 1), "{shape:?}");
            assert!(gateway(&array).read(Sector(256), Sectors(256)).await.is_ok());
        });
    }
}

#[test]
fn an_array_with_a_missing_member_is_checked_as_far_as_there_are_copies() {
    let shape = raid10(0x102, 4, 64);
    let media = media(4, DISK);
    let sim = Sim::new(5);
    fill(&sim, &shape, &media);
    sim.block_on(async {
        let array = start_on(&sim, &media[1..]).await;
        assert_eq!(array.degraded(), 1);
        // Members 2 and 3 are a pair, member 1 is alone.
        media[1].poke(Sector(DATA + 5), &[9; 512]);
        media[3].poke(Sector(DATA + 5), &[9; 512]);
        assert_eq!(run(&array, SyncRequest::Check).await, 128);
        assert_eq!(run(&array, SyncRequest::Repair).await, 128);
        assert_eq!(run(&array, SyncRequest::Check).await, 0);
    });
}

#[test]
fn a_check_takes_writes_that_meet_it_for_no_difference() {
    for shape in shapes() {
        let media = media(shape.members, DISK);
        let sim = Sim::new(6);
        fill(&sim, &shape, &media);
        sim.block_on(async {
            let array = start_on(&sim, &media).await;
            array.sync_settings().set_speed_min_kib(Some(100_000));
            let writer = Writer { ios: 100, max_len: 60, pause: Duration::from_micros(50) };
            let mut rng = sim.rng();
            let check = async {
                for request in [SyncRequest::Check, SyncRequest::Repair, SyncRequest::Check] {
                    assert_eq!(run(&array, request).await, 0, "{shape:?}");
                }
            };
            let (last, ()) = join(writer.run(&array, &mut rng), check).await;
            let size = last.len() as u64;
            assert!(differing(&array, &media, size).await.is_empty(), "{shape:?}");
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn a_check_and_requests_that_must_not_wait_do_not_lock_each_other_out() {
    // Upstream: "md/raid1,raid10: fix deadlock with check operation and nowait requests".
    for shape in shapes() {
        let media = media(shape.members, DISK);
        let sim = Sim::new(7);
        fill(&sim, &shape, &media);
        sim.set_time_limit(Duration::from_secs(3600));
        sim.block_on(async {
            let array = start_on(&sim, &media).await;
            let volume = gateway(&array);
            let size = volume.capacity().0;
            let nowait = async |write: bool, seed: u64| {
                let mut rng = Rng::new(seed);
                for _ in 0..200 {
                    let mut data = Buffer::zeroed(4096);
                    let at = Sector(rng.below(size - 8));
                    let bio = if write {
                        Bio::write_from(at, &mut data)
                    } else {
                        Bio::read_into(at, &mut data)
                    };
                    let done = volume.submit(bio.with_flags(Flags::NOWAIT)).await;
                    assert!(matches!(done, Ok(()) | Err(Status::Again)), "{done:?}");
                    sim.runtime().sleep(Duration::from_micros(30)).await;
                }
            };
            array.sync_settings().set_speed_min_kib(Some(100_000));
            array.request_sync(SyncRequest::Check).unwrap();
            join3(nowait(true, 1), nowait(false, 2), array.sync_ended()).await;
            assert_eq!(array.sync_status().mismatches, Sectors::ZERO);
            assert_eq!(write(&volume, 0, 8, 9).await, Ok(()));
            array.stop().await.unwrap();
        });
    }
}
