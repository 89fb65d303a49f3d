//! Failing flushes: a disk drops its cache, and reports it once.

use ashlar_block::{Buffer, Features, Flags, Sector, Sectors, Status};
use ashlar_dm::Device;
use ashlar_sim::{Media, Model, Sim};
use futures_util::future::join;

use crate::snapshot::rig::{Rig, fill, filled, status};

const SNAPSHOT: &str = "0 800 snapshot real cow P 8";
const MERGE: &str = "0 800 snapshot-merge real cow P 8";
const ORIGIN: &str = "0 800 snapshot-origin real";

fn bench() -> (Sim, Rig, Media, Media) {
    let (sim, rig) = (Sim::new(5), Rig::default());
    let (origin, cow) = (Media::new(Sectors(800)), Media::noisy(Sectors(800), 3));
    cow.poke(Sector(0), &[0; 4096]);
    rig.disk("real", &origin);
    rig.disk("cow", &cow);
    (sim, rig, origin, cow)
}

async fn until(device: &Device, said: &str) {
    while status(device) != said {
        let pause = std::time::Duration::from_millis(1);
        ashlar_block::Runtime::sleep(&ashlar_sim::SimRuntime, pause).await;
    }
}

/// Found by the simulation: the flush of an invalid snapshot failed, and so did the suspension.
#[test]
fn an_invalid_snapshot_is_flushed_suspended_and_reloaded() {
    for dead in [false, true] {
        let (sim, rig, _, cow) = bench();
        sim.block_on(async {
            let (origin, origin_gateway) = rig.device("origin", ORIGIN).await;
            let (snap, gateway) = rig.device("snap", SNAPSHOT).await;
            cow.fail_nth_write(0);
            fill(&origin_gateway, 0, 8, 2).await.unwrap();
            assert_eq!(status(&snap), "Invalid");
            if dead {
                cow.kill();
            }
            // The user gets the COW device's error, as in the kernel.
            let expected = if dead { Err(Status::Offline) } else { Ok(()) };
            assert_eq!(gateway.flush().await, expected);
            snap.suspend(true).await.unwrap();
            origin.suspend(true).await.unwrap();
            rig.reload(&snap, SNAPSHOT).await;
            rig.reload(&origin, ORIGIN).await;
            assert_eq!(status(&snap), "Invalid");
            assert_eq!(filled(&gateway, 0, 8).await, Err(Status::Io));
            assert_eq!(filled(&origin_gateway, 0, 8).await, Ok(2));
        });
    }
}

/// Found by the simulation: the commit's flush succeeded, after an earlier failed flush had dropped the copy.
#[test]
fn a_copy_that_a_failed_flush_took_along_costs_the_snapshot() {
    let (sim, rig, _, cow) = bench();
    sim.block_on(async {
        let (_origin, origin) = rig.device("origin", ORIGIN).await;
        let (snap, gateway) = rig.device("snap", SNAPSHOT).await;
        cow.fail_nth_flush(0);
        let (flushed, written) = join(gateway.flush(), fill(&origin, 0, 8, 2)).await;
        assert_eq!((flushed, written), (Err(Status::Io), Ok(())));
        assert_eq!(filled(&gateway, 0, 8).await, Err(Status::Io));
        assert_eq!(status(&snap), "Invalid");
    });
}

#[test]
fn a_transient_snapshot_does_not_survive_a_failed_flush_once_it_has_copies() {
    let (sim, rig, _, cow) = bench();
    sim.block_on(async {
        let (_origin, origin) = rig.device("origin", ORIGIN).await;
        let (snap, gateway) = rig.device("snap", "0 800 snapshot real cow N 8").await;
        cow.fail_nth_flush(0);
        assert_eq!(gateway.flush().await, Err(Status::Io));
        assert_eq!(filled(&gateway, 0, 8).await, Ok(0), "there was nothing to lose");
        fill(&origin, 0, 8, 2).await.unwrap();
        assert_eq!(filled(&gateway, 0, 8).await, Ok(0));
        cow.fail_nth_flush(0);
        assert_eq!(gateway.flush().await, Err(Status::Io));
        assert_eq!(
            (status(&snap).as_str(), filled(&gateway, 0, 8).await),
            ("Invalid", Err(Status::Io))
        );
    });
}

/// Found by the simulation: the merge forgot exceptions whose data a failed flush had dropped.
#[test]
fn a_run_that_a_failed_flush_took_along_is_not_forgotten() {
    let (sim, rig, origin, _) = bench();
    sim.block_on(async {
        let (snap, gateway) = rig.device("snap", SNAPSHOT).await;
        fill(&gateway, 80, 8, 9).await.unwrap();
        snap.suspend(true).await.unwrap();
        let (merge, merged) = rig.device("merge", MERGE).await;
        origin.fail_nth_flush(0);
        assert_eq!(merged.flush().await, Err(Status::Io));
        until(&merge, "Merge failed").await;
        assert_eq!(filled(&merged, 80, 8).await, Ok(9));
        merge.suspend(true).await.unwrap();
        merge.resume().await.unwrap();
        until(&merge, "16/800 16").await;
        assert_eq!(filled(&merged, 80, 8).await, Ok(9));
    });
    assert_eq!(origin.peek_durable(Sector(80)), [9; 512]);
}

#[test]
fn what_users_lose_by_a_flush_of_a_merge_they_are_told() {
    let (sim, rig, origin, _) = bench();
    sim.block_on(async {
        let (snap, gateway) = rig.device("snap", SNAPSHOT).await;
        fill(&gateway, 80, 8, 9).await.unwrap();
        snap.suspend(true).await.unwrap();
        origin.fail_nth_flush(0);
        let (merge, merged) = rig.device("merge", MERGE).await;
        // Outside the merged chunks, so this goes to the origin's cache.
        fill(&merged, 400, 8, 7).await.unwrap();
        until(&merge, "Merge failed").await;
        assert_eq!(filled(&merged, 400, 8).await, Ok(0));
        assert_eq!(merged.flush().await, Err(Status::Io));
        assert_eq!(merged.flush().await, Ok(()));
    });
}

/// A device without FUA needs a write and a flush for it: only the flush concerns others.
#[test]
fn a_durable_write_that_fails_is_no_flush_that_fails() {
    let (sim, rig, _, cow) = bench();
    let model = Model::nvme();
    let mut limits = model.limits();
    limits.features -= Features::FUA;
    rig.disk_with("cow", &cow, model, limits);
    sim.block_on(async {
        let (_origin, origin) = rig.device("origin", ORIGIN).await;
        let (snap, gateway) = rig.device("snap", SNAPSHOT).await;
        fill(&gateway, 80, 8, 9).await.unwrap();
        cow.fail_nth_write(0);
        let mut data = Buffer::from_slice(&[8; 4096]);
        // The exception of another chunk is made meanwhile: its copy comes after a read.
        let durable = gateway.write(Sector(80), &mut data, Flags::FUA);
        let (durable, written) = join(durable, fill(&origin, 0, 8, 2)).await;
        assert!(durable.is_err());
        assert_eq!(written, Ok(()));
        assert_ne!(status(&snap), "Invalid");
        assert_eq!(filled(&gateway, 0, 8).await, Ok(0));
        // The flush after a write counts as a flush.
        cow.fail_nth_flush(0);
        let durable = gateway.write(Sector(80), &mut data, Flags::FUA);
        let (durable, written) = join(durable, fill(&origin, 8, 8, 2)).await;
        assert_eq!((durable, written), (Err(Status::Io), Ok(())));
        assert_eq!(status(&snap), "Invalid");
    });
}

/// Acknowledged data is not durable, and the suspension must report that, once.
#[test]
fn a_suspension_that_costs_the_snapshot_fails() {
    let (sim, rig, _, cow) = bench();
    sim.block_on(async {
        let (snap, gateway) = rig.device("snap", "0 800 snapshot real cow N 8").await;
        fill(&gateway, 80, 8, 9).await.unwrap();
        cow.fail_nth_flush(0);
        assert_eq!(snap.suspend(true).await, Err(Status::Io));
        assert_eq!(status(&snap), "Invalid");
        assert_eq!(snap.suspend(true).await, Ok(()));
    });
}
