//! Members that an array cannot spare are away for a while: what could not be done meanwhile is done when they are back.

use std::time::Duration;

use ashlar_block::{Runtime, Sector, Sectors};
use ashlar_md::ondisk::Level;
use ashlar_md::{ArrayState, Options};
use ashlar_sim::{Break, Media, Sim, SimRuntime};

use crate::common::{DATA, Shape, disks, gateway, make, media, start, write};
use crate::found::rebuilding;

const DISK: Sectors = Sectors(600);
const RUN: Options = Options { run: true, read_only: false, force: false };

/// The source of a recovery could not be reached for a moment, and had to stay. When it was back nothing woke the recovery,
/// and the array stayed degraded until its next change.
#[test]
fn a_recovery_goes_on_after_its_only_source_was_away() {
    for away in [1, 10, 200] {
        let media = media(3, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            let array = rebuilding(&sim, &Shape::new(Level::Raid1, None, 0, 2), &media).await;
            media[0].cut_off(Break::Ended);
            SimRuntime.sleep(Duration::from_secs(away)).await;
            array.sync_ended().await;
            let status = array.status().await;
            assert_eq!((array.degraded(), status.members[0].in_sync), (1, true), "{away}");
            media[0].reconnect();
            // The pause before the next try is as long as what passed, or 5 s.
            SimRuntime.sleep(Duration::from_secs(away.max(5) + 1)).await;
            array.sync_ended().await;
            assert_eq!(array.degraded(), 0, "{away}");
            array.stop().await.unwrap();
        });
        let all = |at: usize| media[at].peek_range(Sector(DATA), DISK - Sectors(DATA));
        assert!(all(0) == all(2), "{away}");
    }
}

/// The same in the middle of a recovery. The target was blamed: what the source did not return was listed as bad, or the
/// target failed.
#[test]
fn a_recovery_goes_on_after_its_only_source_was_away_for_a_part_of_it() {
    const LARGE: Sectors = Sectors(1 << 15);
    let media = media(3, LARGE);
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = rebuilding(&sim, &Shape::new(Level::Raid1, None, 0, 2), &media).await;
        array.sync_settings().set_speed_max_kib(Some(1024));
        let recovered = || array.members().member(1).map_or(Sectors::ZERO, |rdev| rdev.recovered());
        while recovered() < Sectors(4096) {
            SimRuntime.sleep(Duration::from_millis(10)).await;
        }
        media[0].cut_off(Break::Ended);
        array.sync_settings().set_speed_max_kib(None);
        SimRuntime.sleep(Duration::from_secs(20)).await;
        array.sync_ended().await;
        assert_eq!(array.degraded(), 1);
        assert!(!array.members().member(1).unwrap().is_faulty());
        let done = recovered();
        assert!((Sectors(4096)..LARGE).contains(&done), "{done}");
        media[0].reconnect();
        SimRuntime.sleep(Duration::from_secs(41)).await;
        array.sync_ended().await;
        assert_eq!(array.degraded(), 0);
        assert!(array.members().member(1).unwrap().bad_blocks().is_empty());
        array.stop().await.unwrap();
    });
    let all = |at: usize| media[at].peek_range(Sector(DATA), LARGE - Sectors(DATA));
    assert!(all(0) == all(2));
}

/// The last member of an array could not be flushed when the array became idle: nothing tried again, and the superblock
/// said "active" until the next write.
#[test]
fn an_array_becomes_clean_after_its_last_member_was_away() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        make(&Shape::new(Level::Raid1, None, 0, 2), &disks(&media)).await;
        let array = start(&sim, &disks(&media)[..1], &RUN).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
        media[0].cut_off(Break::Ended);
        SimRuntime.sleep(Duration::from_secs(30)).await;
        assert_ne!(array.state(), ArrayState::Clean);
        media[0].reconnect();
        SimRuntime.sleep(Duration::from_secs(61)).await;
        assert_eq!(array.state(), ArrayState::Clean);
        // The cache may have been lost, so the next flush says so; the array continues.
        write(&gateway(&array), 8, 8, 1).await.unwrap();
    });
}

/// A write could not record that the array is active: the array said "active" until the next write.
#[test]
fn an_array_becomes_clean_after_a_write_could_not_make_it_active() {
    for is_uneven in [false, true] {
        let media = media(2, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            make(&Shape::new(Level::Raid1, None, 0, 2), &disks(&media)).await;
            let array = start(&sim, &disks(&media), &RUN).await.unwrap();
            media.iter().for_each(|medium| medium.cut_off(Break::Ended));
            if is_uneven {
                let index = array.status().await.members[1].index.unwrap();
                array.fail(index).await.unwrap_err();
            }
            write(&gateway(&array), 0, 8, 1).await.unwrap_err();
            SimRuntime.sleep(Duration::from_secs(30)).await;
            media.iter().for_each(Media::reconnect);
            // The first flush only reports what the break may have lost.
            SimRuntime.sleep(Duration::from_secs(121)).await;
            assert_eq!(array.state(), ArrayState::Clean, "{is_uneven}");
        });
    }
}
