//! Arrays on simulated disks: start to stop, failures of members, read errors.

use crate::common::{Shape, candidates, disks, gateway, make, media, stamped, start};
use ashlar_block::{Buffer, Flags, Op, Sector, Sectors, Status};
use ashlar_md::ondisk::{Level, Role};
use ashlar_md::{ArrayState, AssembleError, Options, probe};
use ashlar_sim::Sim;

const DISK: Sectors = Sectors(8192);

fn shapes() -> Vec<Shape> {
    vec![
        Shape::new(Level::Linear, None, 64, 3),
        Shape::new(Level::Raid0, None, 64, 3),
        Shape::new(Level::Raid1, None, 0, 2),
        Shape::new(Level::Raid1, None, 0, 3),
        Shape::new(Level::Raid10, Some(0x102), 64, 4),
        Shape::new(Level::Raid10, Some(0x102), 4, 3),
        Shape::new(Level::Raid10, Some(0x201), 64, 4),
        Shape::new(Level::Raid10, Some(0x1_0201), 64, 4),
    ]
}

#[test]
fn what_was_written_is_read_by_the_next_assembly() {
    for shape in shapes() {
        let media = media(shape.members, DISK);
        let sim = Sim::new(1);
        let all = sim.block_on(async {
            let disks = disks(&media);
            let made = make(&shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            assert_eq!(volume.capacity(), made.size, "{shape:?}");
            let all = made.size.0;
            let mut data = Buffer::from_slice(&stamped(0, all, 1));
            volume.write(Sector(0), &mut data, Flags::empty()).await.unwrap();
            let mut part = Buffer::from_slice(&stamped(100, 777, 2));
            volume.write(Sector(100), &mut part, Flags::FUA).await.unwrap();
            if shape.level.is_redundant() {
                assert_eq!(array.state(), ArrayState::Active);
                assert!(!candidates(&disks).await[0].sb.is_clean(), "{shape:?}");
            }
            array.stop().await.unwrap();
            assert_eq!(volume.flush().await, Err(Status::Offline));
            let gone = volume.read(Sector(0), Sectors(8)).await;
            assert_eq!(gone.err(), Some(Status::Offline));
            all
        });
        drop(sim);
        let sim = Sim::new(2);
        sim.block_on(async {
            let disks = disks(&media);
            assert!(candidates(&disks).await.iter().all(|c| c.sb.is_clean()));
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let got = gateway(&array).read(Sector(0), Sectors(all)).await.unwrap();
            let mut want = stamped(0, all, 1);
            want[100 * 512..877 * 512].copy_from_slice(&stamped(100, 777, 2));
            assert!(got.as_slice() == want, "{shape:?}");
        });
    }
}

#[test]
fn an_idle_array_is_clean_again_after_the_safe_mode_delay() {
    let media = media(2, DISK);
    let sim = Sim::new(3);
    sim.block_on(async {
        let disks = disks(&media);
        make(&Shape::new(Level::Raid1, None, 0, 2), &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        let mut data = Buffer::zeroed(4096);
        gateway(&array).write(Sector(0), &mut data, Flags::empty()).await.unwrap();
        assert_eq!(array.state(), ArrayState::Active);
        sim.runtime().sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(array.state(), ArrayState::Clean);
        for medium in &media {
            assert!(medium.counts().writes > 0);
        }
        assert!(candidates(&disks).await.iter().all(|c| c.sb.is_clean()));
    });
}

#[test]
fn a_member_that_fails_a_write_is_recorded_before_the_acknowledgement() {
    for shape in shapes().into_iter().filter(|s| s.level.is_redundant()) {
        let media = media(shape.members, DISK);
        let sim = Sim::new(4);
        sim.block_on(async {
            let disks = disks(&media);
            make(&shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            let mut data = Buffer::from_slice(&stamped(0, 1024, 9));
            volume.write(Sector(0), &mut data, Flags::empty()).await.unwrap();
            media[1].fail_writes(256..DISK.0);
            volume.write(Sector(0), &mut data, Flags::empty()).await.unwrap();
            // The survivors' superblocks must record it already.
            let survivor = probe(&disks[0].gateway()).await.unwrap().unwrap();
            assert_eq!(survivor.roles[1], Role::Faulty, "{shape:?}");
            assert_eq!(array.degraded(), 1);
            let got = volume.read(Sector(0), Sectors(1024)).await.unwrap();
            assert!(got.as_slice() == stamped(0, 1024, 9));
            array.stop().await.unwrap();
        });
        drop(sim);
        // The failed member is back, with a good superblock: it must not be used.
        media[1].heal();
        let sim = Sim::new(5);
        sim.block_on(async {
            let disks = disks(&media);
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let status = array.status().await;
            assert!(!status.members[1].in_sync);
            assert_eq!(status.notes.len(), 1, "{:?}", status.notes);
        });
    }
}

#[test]
fn a_read_error_is_made_good_from_another_copy_and_rewritten() {
    for shape in shapes().into_iter().filter(|s| s.level.is_redundant()) {
        let media = media(shape.members, DISK);
        let sim = Sim::new(6);
        sim.block_on(async {
            let disks = disks(&media);
            make(&shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            let mut data = Buffer::from_slice(&stamped(0, 2048, 5));
            volume.write(Sector(0), &mut data, Flags::empty()).await.unwrap();
            for (i, medium) in media.iter().enumerate() {
                // Bad sectors differ between members, so that every sector has a good copy.
                let bad = 300 + 16 * i as u64;
                medium.fail_reads(bad..bad + 3);
            }
            for _ in 0..8 {
                let got = volume.read(Sector(0), Sectors(2048)).await.unwrap();
                assert!(got.as_slice() == stamped(0, 2048, 5), "{shape:?}");
            }
            let status = array.status().await;
            let corrected: u64 = status.members.iter().map(|m| m.corrected).sum();
            assert!(corrected > 0, "{shape:?}");
            assert_eq!(status.degraded, 0);
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn degraded_arrays_start_only_when_asked_and_never_without_all_data() {
    let shape = Shape::new(Level::Raid10, Some(0x102), 64, 4);
    let media = media(4, DISK);
    let sim = Sim::new(7);
    sim.block_on(async {
        let disks = disks(&media);
        make(&shape, &disks).await;
        let run = Options { run: true, ..Options::default() };
        let three = [&disks[0], &disks[2], &disks[3]];
        let refused = start(&sim, &three, &Options::default()).await;
        assert!(matches!(refused, Err(AssembleError::NeedsRun { present: 3, expected: 4, .. })));
        let array = start(&sim, &three, &run).await.unwrap();
        let mut data = Buffer::from_slice(&stamped(0, 1024, 3));
        gateway(&array).write(Sector(0), &mut data, Flags::empty()).await.unwrap();
        array.stop().await.unwrap();
        // The member that was absent is stale now, even with all four present.
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        assert_eq!(array.degraded(), 1);
        let got = gateway(&array).read(Sector(0), Sectors(1024)).await.unwrap();
        assert!(got.as_slice() == stamped(0, 1024, 3));
        let pair = [&disks[2], &disks[3]];
        let refused = start(&sim, &pair, &run).await;
        assert!(matches!(refused, Err(AssembleError::NotEnough { present: 2, wanted: 4, .. })));
    });
}

#[test]
fn an_array_that_crashed_is_read_from_one_copy() {
    let shape = Shape::new(Level::Raid1, None, 0, 2);
    let media = media(2, DISK);
    let sim = Sim::new(8);
    sim.block_on(async {
        let disks = disks(&media);
        make(&shape, &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        let mut data = Buffer::from_slice(&stamped(0, 8, 1));
        gateway(&array).write(Sector(0), &mut data, Flags::FUA).await.unwrap();
    });
    sim.power_cut();
    let sim = Sim::new(9);
    sim.block_on(async {
        let disks = disks(&media);
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        assert_eq!(array.in_sync_to(), Sectors::ZERO);
        drop(array);
        let read_only = Options { read_only: true, ..Options::default() };
        let before: Vec<_> = media.iter().map(|m| m.snapshot()).collect();
        let array = start(&sim, &disks, &read_only).await.unwrap();
        let volume = gateway(&array);
        assert!(volume.read(Sector(0), Sectors(8)).await.unwrap().as_slice() == stamped(0, 8, 1));
        let mut data = Buffer::zeroed(512);
        let write = volume.write(Sector(0), &mut data, Flags::empty()).await;
        assert_eq!(write, Err(Status::ReadOnly));
        array.stop().await.unwrap();
        for (medium, before) in media.iter().zip(&before) {
            assert!(medium.diff(before).is_empty(), "a read-only array wrote");
        }
        // A single copy cannot differ from others: the array may be written.
        let run = Options { run: true, ..Options::default() };
        assert!(start(&sim, &disks[..1], &run).await.is_ok());
    });
}

#[test]
fn a_large_discard_of_a_raid10_is_one_range_for_each_member_and_pass() {
    for (layout, passes) in [(0x102, 1), (0x201, 2), (0x1_0201, 1)] {
        let shape = Shape::new(Level::Raid10, Some(layout), 64, 4);
        let media = media(4, DISK);
        let sim = Sim::new(10);
        sim.block_on(async {
            let disks = disks(&media);
            make(&shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            // Whole stripes, but not all, or the far layout's passes would be adjacent.
            let stripes = Sectors(10 * 4 * 128);
            for medium in &media {
                medium.clear_log();
            }
            volume.submit(ashlar_block::Bio::discard(Sector(512), stripes)).await.unwrap();
            for medium in &media {
                let log = medium.log();
                let discards = log.iter().filter(|c| c.op == Op::Discard);
                let ranges: usize = discards.map(|c| c.ranges.len()).sum();
                assert_eq!(ranges, passes, "layout {layout:#x}");
            }
            array.stop().await.unwrap();
        });
    }
}
