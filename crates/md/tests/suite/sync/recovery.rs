//! Recovery.

use std::time::Duration;

use ashlar_block::{Sector, Sectors};
use ashlar_md::ondisk::Role;
use ashlar_md::{SyncAction, SyncRequest};
use ashlar_sim::{Media, Rng, Sim};
use futures_util::future::join;

use crate::common::{DATA, Shape, differing, media, stamped};
use crate::sync::world::{
    Writer, crash, edit, empty_out, fill, raid1, raid10, read_all, replacement, shapes, start_on,
    superblock,
};

const DISK: Sectors = Sectors(4 * 2048);

/// Asserts that every sector in `found` holds the stamp of generation 1, or of the one in `written`.
fn check_stamps(found: &[u8], written: &[Option<u8>], what: &str) {
    for ((sector, bytes), written) in (0..).zip(found.chunks(512)).zip(written) {
        let generation = written.unwrap_or(1);
        assert!(bytes == stamped(sector, 1, generation), "{what}: sector {sector}");
    }
}

/// The slots that can be rebuilt together.
fn victims(shape: &Shape) -> Vec<Vec<usize>> {
    let mut sets: Vec<Vec<usize>> = (0..shape.members).map(|slot| vec![slot]).collect();
    match (shape.layout, shape.members) {
        (None, 3) => sets.push(vec![0, 2]),
        (Some(0x102), 4) => sets.push(vec![1, 2]),
        (Some(0x103), 5) => sets.push(vec![0, 1]),
        _ => {}
    }
    sets
}

#[test]
fn members_that_are_rebuilt_hold_what_the_others_do() {
    for shape in shapes() {
        for slots in victims(&shape) {
            let media = media(shape.members, DISK);
            let sim = Sim::new(1);
            fill(&sim, &shape, &media);
            slots.iter().for_each(|slot| empty_out(&media, *slot, 3));
            sim.block_on(async {
                let array = start_on(&sim, &media).await;
                assert_eq!(array.degraded(), slots.len());
                array.sync_ended().await;
                let what = format!("{shape:?} {slots:?}");
                assert_eq!((array.degraded(), array.sync_status().last), (0, SyncAction::Recover));
                let found = read_all(&array).await;
                check_stamps(&found, &vec![None; found.len() / 512], &what);
                let size = found.len() as u64 / 512;
                assert!(differing(&array, &media, size).await.is_empty(), "{what}");
                for slot in &slots {
                    assert_eq!(superblock(&media[*slot]).recovery_offset, None, "{what}");
                }
                array.stop().await.unwrap();
            });
            // The rebuilt members alone must hold all data.
            let rest = media.iter().enumerate().filter(|(slot, _)| slots.contains(slot));
            let rest: Vec<Media> = rest.map(|(_, medium)| medium.clone()).collect();
            if shape.layout.is_none() {
                sim.block_on(async {
                    let array = start_on(&sim, &rest).await;
                    let found = read_all(&array).await;
                    check_stamps(&found, &vec![None; found.len() / 512], "alone");
                });
            }
        }
    }
}

#[test]
fn writes_that_meet_a_recovery_are_on_the_new_member_too() {
    for shape in shapes() {
        for seed in 0..3 {
            let media = media(shape.members, DISK);
            let sim = Sim::new(seed);
            fill(&sim, &shape, &media);
            let slot = seed as usize % shape.members;
            empty_out(&media, slot, seed);
            media[slot].slow_down(1 + seed * 5);
            sim.block_on(async {
                let array = start_on(&sim, &media).await;
                let writer = Writer { ios: 60, max_len: 100, pause: Duration::from_micros(80) };
                let mut rng = sim.rng();
                let (last, ()) = join(writer.run(&array, &mut rng), array.sync_ended()).await;
                array.sync_ended().await;
                let what = format!("{shape:?} {seed}");
                assert_eq!(array.degraded(), 0, "{what}");
                check_stamps(&read_all(&array).await, &last, &what);
                let size = last.len() as u64;
                assert!(differing(&array, &media, size).await.is_empty(), "{what}");
                array.stop().await.unwrap();
            });
        }
    }
}

#[test]
fn a_replacement_takes_the_place_of_its_member_which_is_out_then() {
    for shape in shapes() {
        for slot in 0..shape.members {
            let mut media = media(shape.members, DISK);
            let sim = Sim::new(1);
            fill(&sim, &shape, &media);
            replacement(&mut media, slot);
            // The member need not be readable everywhere.
            media[slot].fail_reads(DATA + 100..DATA + 130);
            sim.block_on(async {
                let array = start_on(&sim, &media).await;
                array.sync_ended().await;
                let status = array.status().await;
                let what = format!("{shape:?} {slot}");
                let new = format!("d{}", shape.members);
                assert_eq!(status.members[slot].path.as_deref(), Some(&*new), "{what}");
                assert!(status.members[slot].in_sync && status.degraded == 0, "{what}");
                let old = status.members.last().unwrap();
                assert!(old.faulty && old.slot.is_none(), "{what}");
                let found = read_all(&array).await;
                check_stamps(&found, &vec![None; found.len() / 512], &what);
                array.stop().await.unwrap();
                for (other, medium) in media.iter().enumerate().filter(|(m, _)| *m != slot) {
                    let sb = superblock(medium);
                    assert_eq!(sb.roles[slot], Role::Faulty, "{what} {other}");
                    assert_eq!(
                        sb.roles[shape.members],
                        Role::Active(slot as u16),
                        "{what} {other}"
                    );
                }
            });
            // All data must be readable without the old member.
            media.remove(slot);
            sim.block_on(async {
                let array = start_on(&sim, &media).await;
                let found = read_all(&array).await;
                check_stamps(&found, &vec![None; found.len() / 512], "without");
                assert_eq!(array.degraded(), 0);
                array.stop().await.unwrap();
            });
        }
    }
}

#[test]
fn where_copies_may_differ_a_rebuilt_member_does_not_change_what_is_read() {
    for shape in shapes() {
        let mut slots: Vec<usize> = (0..shape.members).collect();
        slots.truncate(3);
        for slot in slots {
            for replace in [false, true] {
                let mut media = media(shape.members, DISK);
                let sim = Sim::new(1);
                fill(&sim, &shape, &media);
                crash(&media, 3 * 2048, &mut Rng::new(4));
                if replace {
                    replacement(&mut media, slot);
                } else {
                    empty_out(&media, slot, 1);
                }
                sim.block_on(async {
                    let array = start_on(&sim, &media).await;
                    array.sync_settings().set_speed_max_kib(Some(128 << 10));
                    array.sync_settings().set_speed_min_kib(Some(128 << 10));
                    let unsynced = array.is_unsynced();
                    let first = read_all(&array).await;
                    let what = format!("{shape:?} {slot} {replace}");
                    while array.sync_status().action == SyncAction::Recover {
                        assert!(read_all(&array).await == first, "{what}: during");
                    }
                    array.sync_ended().await;
                    let last = if unsynced { SyncAction::Resync } else { SyncAction::Recover };
                    assert_eq!(array.sync_status().last, last, "{what}");
                    assert!(read_all(&array).await == first, "{what}: after");
                    let size = first.len() as u64 / 512;
                    if !replace {
                        assert!(differing(&array, &media, size).await.is_empty(), "{what}");
                    }
                });
            }
        }
    }
}

#[test]
fn a_recovery_that_is_stopped_goes_on_where_it_was() {
    let media = media(3, Sectors(48 * 2048));
    let shape = raid10(0x102, 3, 64);
    let sim = Sim::new(4);
    fill(&sim, &shape, &media);
    empty_out(&media, 1, 1);
    let mut starts = vec![0];
    for _ in 0..3 {
        sim.block_on(async {
            let array = start_on(&sim, &media).await;
            assert_eq!(array.status().await.members[1].recovered.0, *starts.last().unwrap());
            array.sync_settings().set_speed_max_kib(Some(10_000));
            sim.runtime().sleep(Duration::from_millis(1000)).await;
            array.stop().await.unwrap();
            starts.push(superblock(&media[1]).recovery_offset.unwrap().0);
        });
    }
    assert!(starts.is_sorted_by(|a, b| a + 8 * 2048 < *b && *b < a + 14 * 2048), "{starts:?}");
    // Data that was already copied is not read again.
    let done = starts[3];
    media.iter().for_each(Media::clear_log);
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        array.sync_ended().await;
        let size = array.status().await.size.0;
        assert!(differing(&array, &media, size).await.is_empty());
    });
    let writes = media[1].log().into_iter().filter(|c| c.op == ashlar_block::Op::Write);
    let below = writes.filter(|c| (DATA..DATA + done).contains(&c.ranges[0].start)).count();
    assert_eq!(below, 0);
}

#[test]
fn a_target_that_fails_ends_the_recovery_and_nothing_else() {
    for shape in shapes() {
        let media = media(shape.members, DISK);
        let sim = Sim::new(5);
        fill(&sim, &shape, &media);
        empty_out(&media, 0, 1);
        media[0].fail_writes(DATA + 3000..DATA + 3001);
        sim.block_on(async {
            let array = start_on(&sim, &media).await;
            array.sync_ended().await;
            let status = array.status().await;
            assert!(status.degraded == 1, "{shape:?}");
            let target = status.members.iter().find(|m| m.path.as_deref() == Some("d0")).unwrap();
            assert!(target.faulty && !target.in_sync, "{shape:?}");
            let found = read_all(&array).await;
            check_stamps(&found, &vec![None; found.len() / 512], "degraded");
            array.stop().await.unwrap();
            assert_eq!(superblock(&media[1]).roles[0], Role::Faulty);
        });
    }
}

#[test]
fn of_two_targets_one_may_fail() {
    let media = media(3, DISK);
    let sim = Sim::new(6);
    fill(&sim, &raid1(3), &media);
    empty_out(&media, 0, 1);
    empty_out(&media, 2, 2);
    media[0].fail_writes(DATA + 3000..DATA + 3001);
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        array.sync_ended().await;
        let status = array.status().await;
        assert_eq!(status.degraded, 1);
        assert!(status.members[2].in_sync);
    });
}

#[test]
fn a_source_that_cannot_be_read_is_read_elsewhere_and_corrected() {
    for shape in [raid1(3), raid10(0x103, 3, 64), raid10(0x103, 5, 8)] {
        let media = media(shape.members, DISK);
        let sim = Sim::new(7);
        fill(&sim, &shape, &media);
        empty_out(&media, 2, 1);
        sim.block_on(async {
            let array = start_on(&sim, &media).await;
            // In the last layout, not all data of the first member is on the third.
            let on_both = |at: &u64| {
                let copies = array.personality().map(Sector(*at));
                copies[0].disk == 0 && copies.iter().any(|copy| copy.disk == 2)
            };
            let shared = (700..).find(on_both).unwrap();
            let bad = DATA + array.personality().map(Sector(shared))[0].sector.0;
            media[0].fail_reads(bad..bad + 3);
            array.sync_ended().await;
            assert_eq!(array.degraded(), 0, "{shape:?}");
            let size = array.status().await.size.0;
            assert!(differing(&array, &media, size).await.is_empty(), "{shape:?}");
            let corrected = array.status().await.members[0].corrected;
            assert!((1..=8).contains(&corrected), "{shape:?} {corrected}");
        });
    }
}

#[test]
fn what_nobody_can_read_ends_a_recovery_if_the_target_cannot_list_it() {
    let media = media(2, DISK);
    let sim = Sim::new(8);
    fill(&sim, &raid1(2), &media);
    empty_out(&media, 1, 1);
    media[0].fail_reads(DATA + 700..DATA + 703);
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        array.sync_ended().await;
        let status = array.status().await;
        assert_eq!(status.degraded, 1);
        assert!(status.members.iter().any(|m| m.path.as_deref() == Some("d1") && m.faulty));
        assert!(status.members[0].in_sync, "the only one that has the data");
    });
}

#[test]
fn a_frozen_array_does_not_move_the_offsets_of_a_recovery() {
    // Upstream: "md: prevent incorrect update of resync/recovery offset".
    for delay in 0..60 {
        let media = media(2, DISK);
        let sim = Sim::new(delay);
        fill(&sim, &raid1(2), &media);
        empty_out(&media, 1, delay);
        sim.block_on(async {
            let array = start_on(&sim, &media).await;
            sim.runtime().sleep(Duration::from_micros(delay * 40)).await;
            array.request_sync(SyncRequest::Frozen).unwrap();
            array.sync_ended().await;
            assert_eq!(array.sync_status().action, SyncAction::Frozen);
            let recovered = array.status().await.members[1].recovered;
            let same = |at: u64| {
                let at = Sector(DATA + at);
                media[0].peek(at) == media[1].peek(at)
            };
            let used = array.status().await.used_dev_size;
            assert!((0..recovered.min(used).0).all(same), "{delay}: {recovered}");
            array.stop().await.unwrap();
            let recorded = superblock(&media[1]).recovery_offset;
            assert_eq!(recorded.unwrap_or(Sectors::MAX), recovered, "{delay}");
        });
    }
}

#[test]
fn nothing_is_rebuilt_twice_when_there_is_nothing_to_rebuild_from() {
    // The member in slot 1 must be rebuilt, and its only source, in slot 0, dies.
    let media = media(2, DISK);
    let sim = Sim::new(9);
    fill(&sim, &raid1(2), &media);
    empty_out(&media, 1, 1);
    edit(&media[0], |sb| sb.roles[1] = Role::Active(1));
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        media[0].kill();
        array.sync_ended().await;
        assert!(!array.status().await.members[1].in_sync);
    });
}
