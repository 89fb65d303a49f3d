//! Merges beside other users of the same snapshot, and merges that do not begin.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;

use ashlar_block::{Bio, Gateway, Runtime, Sector, Sectors, Status};
use ashlar_dm::Device;
use ashlar_sim::{Media, Rng, Sim, SimRuntime};
use futures_util::future::{join, join_all};

use crate::rig::{Rig, fill, filled, read, status};

const SIZE: u64 = 1600;
const SNAPSHOT: &str = "0 1600 snapshot real cow P 8";
const MERGE: &str = "0 1600 snapshot-merge real cow P 8";

fn bench(seed: u64) -> (Sim, Rig, Media, Media) {
    let (sim, rig) = (Sim::new(seed), Rig::default());
    let (real, cow) = (Media::new(Sectors(SIZE)), Media::new(Sectors(4000)));
    rig.disk("real", &real);
    rig.disk("cow", &cow);
    (sim, rig, real, cow)
}

async fn pause() {
    SimRuntime.sleep(Duration::from_millis(1)).await;
}

async fn merged(device: &Device) {
    while status(device) != "16/4000 16" {
        pause().await;
    }
}

/// Writes here and there in its part until it is told that this is over; what was acknowledged is in
/// `shown`, a byte for each sector.
async fn write_on(snap: &Gateway, part: Range<u64>, shown: &RefCell<Vec<u8>>, mut rng: Rng) {
    for _ in 0..2000 {
        let chunk = part.start + rng.below(part.end - part.start);
        let (from, byte) = (rng.below(8), rng.below(256) as u8);
        let (at, len) = (chunk * 8 + from, 1 + rng.below(8 - from));
        match fill(snap, at, len, byte).await {
            Ok(()) => shown.borrow_mut()[at as usize..(at + len) as usize].fill(byte),
            Err(status) => return assert_eq!(status, Status::Io),
        }
    }
    panic!("the snapshot is merged, and takes writes");
}

async fn shows(gateway: &Gateway, shown: &RefCell<Vec<u8>>) -> bool {
    let bytes = read(gateway, 0, SIZE).await.unwrap();
    bytes.chunks(512).zip(&*shown.borrow()).all(|(sector, byte)| sector == [*byte; 512])
}

/// Writes to a snapshot while a merge of it begins: what the merged device and the origin show then
/// is what was acknowledged.
fn merge_beside_writes(seed: u64) -> (Media, Media, Vec<u8>) {
    let (sim, rig, real, cow) = bench(seed);
    let mut rng = Rng::new(seed);
    let shown = RefCell::new(vec![0; SIZE as usize]);
    sim.block_on(async {
        let (snap_device, snap) = rig.device("snap", SNAPSHOT).await;
        let chunks = 1 + rng.below(12);
        let most = [50, 500, 5000][rng.index(3)];
        let begins = Duration::from_micros(rng.below(most));
        let begin = async {
            SimRuntime.sleep(begins).await;
            // What is under way when the merge begins takes longer than what comes then.
            cow.slow_down(1 + seed % 4 * 20);
            pause().await;
            cow.slow_down(1);
            let (merge, gateway) = rig.device("merge", MERGE).await;
            merged(&merge).await;
            (merge, gateway)
        };
        let writers: Vec<_> =
            (0..4).map(|n| write_on(&snap, n * 12..n * 12 + chunks, &shown, rng.fork())).collect();
        let ((merge, gateway), _) = join(begin, join_all(writers)).await;
        assert_eq!(status(&snap_device), "Invalid");
        assert_eq!(filled(&snap, 0, 8).await, Err(Status::Io));
        // What was acknowledged can be flushed, so the device can be suspended.
        snap.flush().await.unwrap();
        snap_device.suspend(true).await.unwrap();
        assert_eq!(snap_device.resume().await, Err(Status::Invalid));
        assert!(shows(&gateway, &shown).await, "seed {seed}: the merged device");
        merge.suspend(true).await.unwrap();
    });
    (real, cow, shown.into_inner())
}

#[test]
fn a_snapshot_gets_no_io_once_it_is_merged_and_loses_no_write_of_before() {
    for seed in 0..400 {
        let (real, cow, shown) = merge_beside_writes(seed);
        let (sim, rig, shown) = (Sim::new(seed), Rig::default(), RefCell::new(shown));
        let origin = rig.disk("real", &real);
        rig.disk("cow", &cow);
        sim.block_on(async {
            assert!(shows(&origin, &shown).await, "seed {seed}: the origin");
            let (device, snap) = rig.device("snap", SNAPSHOT).await;
            assert_eq!(status(&device), "16/4000 16", "seed {seed}: nothing is left");
            assert!(shows(&snap, &shown).await, "seed {seed}: a new snapshot");
        });
    }
}

#[test]
fn a_discard_to_a_snapshot_that_is_merged_fails() {
    let (sim, rig, ..) = bench(1);
    sim.block_on(async {
        let features = "2 discard_zeroes_cow discard_passdown_origin";
        let (_snap, snap) = rig.device("snap", &format!("{SNAPSHOT} {features}")).await;
        fill(&snap, 0, 8, 1).await.unwrap();
        let (merge, gateway) = rig.device("merge", MERGE).await;
        let discard = Bio::discard(Sector(0), Sectors(8));
        assert_eq!(snap.submit(discard).await, Err(Status::Io));
        merged(&merge).await;
        assert_eq!(filled(&gateway, 0, 8).await, Ok(1));
    });
}
