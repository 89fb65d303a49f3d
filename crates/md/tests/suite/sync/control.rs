//! Requests to a sync, and its reactions.

use std::time::Duration;

use ashlar_block::{Sector, Sectors};
use ashlar_md::ondisk::Level;
use ashlar_md::{Array, Options, SyncAction, SyncError, SyncRequest};
use ashlar_sim::Sim;
use futures_util::future::join;

use crate::common::{DATA, Shape, differing, disks, gateway, make, media, start, write};
use crate::sync::world::{crash, edit, empty_out, fill, raid1, raid10, start_on, superblock};

const DISK: Sectors = Sectors(9 * 2048);

fn action(array: &Array) -> SyncAction {
    array.sync_status().action
}

#[test]
fn one_thing_at_a_time_and_nothing_where_nothing_can_be_done() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    fill(&sim, &raid1(2), &media);
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        array.sync_settings().set_speed_max_kib(Some(1000));
        array.request_sync(SyncRequest::Check).unwrap();
        assert_eq!(array.request_sync(SyncRequest::Repair), Err(SyncError::Busy));
        sim.runtime().sleep(Duration::from_secs(2)).await;
        assert_eq!(action(&array), SyncAction::Check);
        for request in
            [SyncRequest::Check, SyncRequest::Repair, SyncRequest::Resync, SyncRequest::Recover]
        {
            assert_eq!(array.request_sync(request), Err(SyncError::Busy));
        }
        array.request_sync(SyncRequest::Idle).unwrap();
        array.sync_ended().await;
        let status = array.sync_status();
        assert_eq!((status.action, status.last), (SyncAction::Idle, SyncAction::Check));
        // Nothing to do: no action runs.
        array.request_sync(SyncRequest::Resync).unwrap();
        array.sync_ended().await;
        assert_eq!(array.sync_status().last, SyncAction::Check);
        array.stop().await.unwrap();
        assert_eq!(array.request_sync(SyncRequest::Check), Err(SyncError::Stopped));
        let array =
            start(&sim, &disks(&media), &Options { run: true, read_only: true, force: false })
                .await;
        let array = array.unwrap();
        assert_eq!(array.request_sync(SyncRequest::Check), Err(SyncError::ReadOnly));
        array.sync_ended().await;
    });
    let media = crate::common::media(2, DISK);
    sim.block_on(async {
        let disks = disks(&media);
        make(&Shape::new(Level::Raid0, None, 4, 2), &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        assert_eq!(array.request_sync(SyncRequest::Check), Err(SyncError::NotRedundant));
        array.sync_ended().await;
        array.stop().await.unwrap();
    });
}

#[test]
fn what_is_necessary_begins_again_after_idle_and_not_while_frozen() {
    let media = media(2, DISK);
    let sim = Sim::new(2);
    fill(&sim, &raid1(2), &media);
    crash(&media, 8 * 2048, &mut sim.rng());
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        array.sync_settings().set_speed_max_kib(Some(4000));
        sim.runtime().sleep(Duration::from_millis(700)).await;
        let before = array.in_sync_to();
        assert!(before > Sectors::ZERO && array.is_unsynced());
        array.request_sync(SyncRequest::Idle).unwrap();
        sim.runtime().sleep(Duration::from_millis(100)).await;
        assert_eq!(action(&array), SyncAction::Resync);
        array.request_sync(SyncRequest::Frozen).unwrap();
        sim.runtime().sleep(Duration::from_secs(60)).await;
        assert_eq!(action(&array), SyncAction::Frozen);
        let frozen = array.in_sync_to();
        assert!(before <= frozen && array.is_unsynced());
        assert_eq!(superblock(&media[0]).resync_offset, frozen);
        let paused = array.sync_status();
        assert_eq!((paused.paused, paused.done), (Some(SyncAction::Resync), frozen));
        assert!(paused.total > paused.done);
        // No other action begins either, even if it is necessary.
        array.wake_sync();
        sim.runtime().sleep(Duration::from_secs(1)).await;
        assert_eq!((action(&array), array.in_sync_to()), (SyncAction::Frozen, frozen));
        array.request_sync(SyncRequest::Resync).unwrap();
        array.sync_ended().await;
        assert!(!array.is_unsynced() && array.sync_status().paused.is_none());
        assert!(differing(&array, &media, 8 * 2048).await.is_empty());
    });
}

#[test]
fn a_frozen_check_goes_on_where_it_was() {
    let media = media(2, DISK);
    let sim = Sim::new(5);
    fill(&sim, &raid1(2), &media);
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        array.request_sync(SyncRequest::Frozen).unwrap();
        assert_eq!(array.sync_status().paused, None, "nothing ran");
        array.sync_settings().set_speed_max_kib(Some(4000));
        array.request_sync(SyncRequest::Check).unwrap();
        sim.runtime().sleep(Duration::from_millis(700)).await;
        array.request_sync(SyncRequest::Frozen).unwrap();
        sim.runtime().sleep(Duration::from_secs(1)).await;
        let status = array.sync_status();
        assert_eq!(status.paused, Some(SyncAction::Check));
        assert!(status.done > Sectors::ZERO && status.done < status.total);
        assert_eq!(array.sync_settings().sync_min(), status.done);
        array.request_sync(SyncRequest::Frozen).unwrap();
        assert_eq!(array.sync_status(), status, "once more changes nothing");
        array.request_sync(SyncRequest::Check).unwrap();
        sim.runtime().sleep(Duration::from_millis(50)).await;
        let running = array.sync_status();
        assert_eq!((running.action, running.paused), (SyncAction::Check, None));
        assert!(running.done >= status.done);
        array.sync_ended().await;
        assert_eq!(array.sync_settings().sync_min(), Sectors::ZERO);
        array.request_sync(SyncRequest::Idle).unwrap();
        assert_eq!(array.sync_status().paused, None);
    });
}

#[test]
fn a_check_keeps_to_its_bounds() {
    let media = media(2, DISK);
    let sim = Sim::new(3);
    fill(&sim, &raid1(2), &media);
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        for mib in [1, 3, 5, 7] {
            media[1].poke(Sector(DATA + mib * 2048 + 9), &[1; 512]);
        }
        let bounds = |min, max| array.set_sync_bounds(Sectors(min), Sectors(max));
        assert_eq!(bounds(8, 0), Err(SyncError::Range));
        assert_eq!(bounds(3, 8), Err(SyncError::Range));
        bounds(2 * 2048, 4 * 2048).unwrap();
        array.request_sync(SyncRequest::Check).unwrap();
        sim.runtime().sleep(Duration::from_secs(60)).await;
        let status = array.sync_status();
        assert_eq!((status.action, status.done), (SyncAction::Check, Sectors(4 * 2048)));
        assert_eq!(status.mismatches, Sectors(128));
        assert_eq!(bounds(2 * 2048, 3 * 2048), Err(SyncError::Busy));
        bounds(2 * 2048, 6 * 2048).unwrap();
        sim.runtime().sleep(Duration::from_secs(1)).await;
        assert_eq!(array.sync_status().mismatches, Sectors(256));
        // The next check begins where this one ended.
        array.request_sync(SyncRequest::Idle).unwrap();
        array.sync_ended().await;
        assert_eq!(array.sync_settings().sync_min(), Sectors(6 * 2048));
        bounds(6 * 2048, u64::MAX).unwrap();
        array.request_sync(SyncRequest::Check).unwrap();
        array.sync_ended().await;
        assert_eq!(array.sync_status().mismatches, Sectors(128));
        let settings = array.sync_settings();
        assert_eq!((settings.sync_min(), settings.sync_max()), (Sectors::ZERO, Sectors::MAX));
    });
}

#[test]
fn nothing_is_synced_beyond_a_bound_within_a_window() {
    let media = media(2, DISK);
    let sim = Sim::new(7);
    fill(&sim, &raid1(2), &media);
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        let bound = Sectors(2048 + 1024);
        for sector in [bound.0 - 1, bound.0] {
            media[1].poke(Sector(DATA + sector), &[1; 512]);
        }
        array.set_sync_bounds(Sectors::ZERO, bound).unwrap();
        array.request_sync(SyncRequest::Repair).unwrap();
        sim.runtime().sleep(Duration::from_secs(60)).await;
        let status = array.sync_status();
        assert_eq!((status.action, status.done), (SyncAction::Repair, bound));
        assert_eq!(status.mismatches, Sectors(128));
        array.set_sync_bounds(Sectors::ZERO, Sectors::MAX).unwrap();
        array.sync_ended().await;
        assert_eq!(array.sync_status().mismatches, Sectors(256));
    });
}

#[test]
fn an_automatic_sync_comes_before_a_check_that_was_asked_for() {
    let media = media(3, DISK);
    let sim = Sim::new(4);
    fill(&sim, &raid1(3), &media);
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        array.request_sync(SyncRequest::Frozen).unwrap();
        array.stop().await.unwrap();
    });
    empty_out(&media, 1, 1);
    crash(&media, 8 * 2048, &mut sim.rng());
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        array.request_sync(SyncRequest::Check).unwrap();
        let mut seen = Vec::new();
        while action(&array) != SyncAction::Idle || seen.is_empty() {
            if seen.last() != Some(&action(&array)) {
                seen.push(action(&array));
            }
            sim.runtime().sleep(Duration::from_micros(10)).await;
        }
        seen.retain(|action| *action != SyncAction::Idle);
        assert_eq!(seen, [SyncAction::Recover, SyncAction::Resync, SyncAction::Check]);
        assert_eq!(array.sync_status().mismatches, Sectors::ZERO);
    });
}

#[test]
fn a_stop_ends_a_sync_within_its_windows() {
    for (shape, millis) in [(raid1(2), 3), (raid1(2), 9), (raid10(0x201, 4, 64), 5)] {
        let media = media(shape.members, Sectors(64 * 2048));
        let sim = Sim::new(5);
        fill(&sim, &shape, &media);
        empty_out(&media, 1, 1);
        sim.block_on(async {
            let array = start_on(&sim, &media).await;
            array.sync_settings().set_speed_max_kib(Some(100_000_000));
            sim.runtime().sleep(Duration::from_millis(millis)).await;
            assert_eq!(action(&array), SyncAction::Recover);
            let begin = sim.now_ns();
            array.stop().await.unwrap();
            // 16 MiB at 3 GB/s take 6 ms, plus some flushes and superblocks.
            let took = sim.now_ns() - begin;
            assert!(took < 15_000_000, "{shape:?}: {took} ns");
            assert!(superblock(&media[1]).recovery_offset.is_some());
        });
    }
}

#[test]
fn a_write_that_fails_on_a_last_copy_has_the_resync_begin_again() {
    // A raid10 of three without member 1 cannot lose member 0: it has last copies.
    let shape = raid10(0x102, 3, 4);
    for micros in (0..40).map(|n| n * 150) {
        let media = media(3, DISK);
        let sim = Sim::new(6);
        fill(&sim, &shape, &media);
        media.iter().for_each(|medium| edit(medium, |sb| sb.resync_offset = Sectors::ZERO));
        sim.block_on(async {
            let two = [&media[0], &media[2]].map(Clone::clone);
            let array = start_on(&sim, &two).await;
            let volume = gateway(&array);
            let late = async {
                sim.runtime().sleep(Duration::from_micros(micros)).await;
                // Chunk 1 is on members 2 and 0.
                let at = array.personality().map(Sector(8));
                assert_eq!((at[0].disk, at[1].disk), (2, 0));
                let bad = DATA + at[1].sector.0;
                media[0].fail_writes(bad..bad + 8);
                assert!(write(&volume, 8, 8, 3).await.is_err());
                media[0].heal();
            };
            join(late, array.sync_ended()).await;
            array.wake_sync();
            array.sync_ended().await;
            assert!(!array.is_unsynced(), "{micros}");
            let copies = array.personality().map(Sector(8));
            let bytes = |copy: usize| {
                let at = copies[copy];
                media[at.disk].peek_range(at.sector + Sectors(DATA), Sectors(8))
            };
            assert!(bytes(0) == bytes(1), "{micros}");
            array.stop().await.unwrap();
        });
    }
}
