//! Upstream bugs of dm-snapshot, each under the name of its fix.

use ashlar_block::{Op, Sector, Sectors, Status};
use ashlar_sim::{Media, Sim};

use crate::snapshot::rig::{Rig, fill, filled, status};

const SIZE: u64 = 800;

fn rig() -> (Sim, Rig, Media, Media) {
    let (sim, rig) = (Sim::new(5), Rig::default());
    let (origin, cow) = (Media::new(Sectors(SIZE)), Media::new(Sectors(SIZE)));
    rig.disk("real", &origin);
    rig.disk("cow", &cow);
    (sim, rig, origin, cow)
}

/// "dm snapshot: fix crash with transient storage and zero chunk size" (5.10.40).
#[test]
fn fix_crash_with_transient_storage_and_zero_chunk_size() {
    let (sim, rig, ..) = rig();
    let made = sim.block_on(rig.try_device("snap", "0 800 snapshot real cow N 0"));
    assert!(made.is_err_and(|error| error.contains("the chunk size is not set")));
    // A persistent store uses the default.
    let (device, _) = sim.block_on(rig.device("snap", "0 800 snapshot real cow P 0"));
    assert_eq!(device.table(), "0 800 snapshot real cow P 32\n");
}

/// "dm snapshot: properly fix a crash when an origin has no snapshots" (5.10.42).
#[test]
fn properly_fix_a_crash_when_an_origin_has_no_snapshots() {
    let (sim, rig, ..) = rig();
    sim.block_on(async {
        let (_origin, gateway) = rig.device("origin", "0 800 snapshot-origin real").await;
        fill(&gateway, 0, 800, 1).await.unwrap();
        let (snap, _) = rig.device("snap", "0 800 snapshot real cow P 8").await;
        rig.remove("snap");
        drop(snap);
        fill(&gateway, 0, 800, 2).await.unwrap();
        assert_eq!(filled(&gateway, 0, 800).await, Ok(2));
    });
}

/// "dm snapshot: flush merged data before committing metadata" (5.10.9).
#[test]
fn flush_merged_data_before_committing_metadata() {
    let (sim, rig, origin, cow) = rig();
    sim.block_on(async {
        let (snap, gateway) = rig.device("snap", "0 800 snapshot real cow P 8").await;
        fill(&gateway, 80, 8, 9).await.unwrap();
        snap.suspend(true).await.unwrap();
        origin.clear_log();
        cow.clear_log();
        let (merge, _) = rig.device("merge", "0 800 snapshot-merge real cow P 8").await;
        drop(snap);
        while status(&merge) != "16/800 16" {
            pause().await;
        }
    });
    let (origin, cow) = (origin.log(), cow.log());
    let written = origin.iter().position(|c| c.op == Op::Write).unwrap();
    let flushed = origin.iter().position(|c| c.op == Op::Flush).unwrap();
    let committed = cow.iter().find(|c| c.op == Op::Write).unwrap();
    assert!(written < flushed, "{origin:?}");
    assert!(committed.issued_ns >= origin[flushed].issued_ns, "{cow:?}");
    assert_eq!(committed.ranges.first(), Some(&(8..16)));
}

/// The same fix: data that could not be flushed is not committed.
#[test]
fn merged_data_that_cannot_be_flushed_is_not_forgotten() {
    let (sim, rig, origin, cow) = rig();
    sim.block_on(async {
        let (snap, gateway) = rig.device("snap", "0 800 snapshot real cow P 8").await;
        fill(&gateway, 80, 8, 9).await.unwrap();
        snap.suspend(true).await.unwrap();
        origin.fail_nth_flush(0);
        let before = cow.peek_range(Sector(8), Sectors(8));
        let (merge, merged) = rig.device("merge", "0 800 snapshot-merge real cow P 8").await;
        while status(&merge) != "Merge failed" {
            pause().await;
        }
        assert_eq!(cow.peek_range(Sector(8), Sectors(8)), before);
        assert_eq!(filled(&merged, 80, 8).await, Ok(9));
        fill(&merged, 80, 4, 10).await.unwrap();
        assert_eq!(filled(&merged, 80, 4).await, Ok(10));
        // The merge is tried again when the device is resumed, as in the kernel. The suspend before that reports the loss to users.
        assert_eq!(merge.suspend(true).await, Err(Status::Io));
        merge.suspend(true).await.unwrap();
        merge.resume().await.unwrap();
        while status(&merge) != "16/800 16" {
            pause().await;
        }
        assert_ne!(cow.peek_range(Sector(8), Sectors(8)), before);
        assert_eq!(filled(&merged, 80, 4).await, Ok(10));
    });
}

/// "dm snapshot: reject the transient exception store for snapshot-merge" (6.12.113).
#[test]
fn reject_the_transient_exception_store_for_snapshot_merge() {
    let (sim, rig, ..) = rig();
    sim.block_on(async {
        let made = rig.try_device("merge", "0 800 snapshot-merge real cow N 8").await;
        assert!(made.is_err_and(|error| error.contains("a transient snapshot cannot be merged")));
        // Not with an existing transient snapshot either.
        let (_snap, _gateway) = rig.device("snap", "0 800 snapshot real cow N 8").await;
        let made = rig.try_device("merge", "0 800 snapshot-merge real cow P 8").await;
        assert!(made.is_err_and(|error| error.contains("in another way")));
    });
}

/// The kernel writes the header of a new store before its first area is zeroed, and a snapshot's
/// last area may have none after it: its list has no end then, and the snapshot becomes invalid at
/// the next exception or, after a reboot, cannot be read. Here the last slot stays free.
#[test]
fn a_full_last_area_does_not_make_a_snapshot_invalid() {
    let (sim, rig, _, _) = rig();
    let cow = Media::new(Sectors(2 * 66));
    rig.disk("cow", &cow);
    sim.block_on(async {
        let (snap, gateway) = rig.device("snap", "0 800 snapshot real cow PO 2").await;
        // Chunks of 1 KiB: 64 exceptions per area, 64 data chunks, and no room for more.
        for chunk in 0..63 {
            fill(&gateway, chunk * 2, 2, 7).await.unwrap();
        }
        assert_eq!(fill(&gateway, 126, 2, 7).await, Err(Status::Io));
        assert_eq!(status(&snap), "Overflow");
        assert_eq!(filled(&gateway, 0, 126).await, Ok(7));
        snap.suspend(true).await.unwrap();
        rig.remove("snap");
        drop((snap, gateway));
        let (snap, gateway) = rig.device("snap", "0 800 snapshot real cow PO 2").await;
        assert_eq!((status(&snap).as_str(), filled(&gateway, 0, 126).await), ("130/132 4", Ok(7)));
    });
}

async fn pause() {
    let pause = std::time::Duration::from_millis(1);
    ashlar_block::Runtime::sleep(&ashlar_sim::SimRuntime, pause).await;
}
