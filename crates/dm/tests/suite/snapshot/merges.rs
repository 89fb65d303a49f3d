//! Merges concurrent with other users of the same snapshot, and merges that do not begin.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Bio, Gateway, Op, Runtime, Sector, Sectors, Status};
use ashlar_dm::snapshot::examine;
use ashlar_dm::snapshot::ondisk::Exception;
use ashlar_dm::{Device, Devices};
use ashlar_sim::{Media, Mix, Oracle, Rng, Sim, SimRuntime, Stop, Value, Workload};
use futures_util::future::{join, join_all};
use zerocopy::IntoBytes;

use crate::snapshot::rig::{Rig, fill, filled, read, status};

const SIZE: u64 = 1600;
const SNAPSHOT: &str = "0 1600 snapshot real cow P 8";
const MERGE: &str = "0 1600 snapshot-merge real cow P 8";
const ORIGIN: &str = "0 1600 snapshot-origin real";

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

/// Writes in its part until the writes fail; `shown` has the acknowledged data, a byte per sector.
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

/// Writes to a snapshot while a merge of it begins: afterwards, the merged device and the origin
/// show the acknowledged data.
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
            // I/O in flight when the merge begins takes longer than later I/O.
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
        // Acknowledged data can be flushed, so the device can be suspended.
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

/// Also with the next table, and a suspension must not wait for a paused merge.
#[test]
fn a_paused_merge_waits_between_batches_until_it_is_resumed() {
    let (sim, rig, ..) = bench(3);
    sim.block_on(async {
        let (snap_device, snap) = rig.device("snap", SNAPSHOT).await;
        let chunks = SIZE / 8;
        for number in 0..chunks {
            // No two follow each other, so a batch has few of them.
            fill(&snap, number * 7 % chunks * 8, 8, 7).await.unwrap();
        }
        let full = status(&snap_device);
        let (merge, gateway) = rig.device("merge", MERGE).await;
        let message = async |word| merge.message(Sector::ZERO, &[word]).await.unwrap();
        while status(&merge) == full {
            SimRuntime.sleep(Duration::from_micros(10)).await;
        }
        message("pause").await;
        // A batch that had begun ends.
        SimRuntime.sleep(Duration::from_secs(1)).await;
        let left = status(&merge);
        assert!(left != "16/4000 16" && left != full, "{left} of {full}");
        fill(&gateway, 3, 2, 9).await.unwrap();
        merge.suspend(true).await.unwrap();
        rig.reload(&merge, MERGE).await;
        SimRuntime.sleep(Duration::from_secs(1)).await;
        assert_eq!((status(&merge), message("is_paused").await), (left, "1".to_owned()));
        message("resume").await;
        assert_eq!(message("is_paused").await, "0");
        merged(&merge).await;
        let shown = RefCell::new(vec![7; SIZE as usize]);
        shown.borrow_mut()[3..5].fill(9);
        assert!(shows(&gateway, &shown).await);
        let unknown = merge.message(Sector::ZERO, &["stop"]).await.unwrap_err().to_string();
        assert_eq!(unknown, "target snapshot-merge does not know the message 'stop'");
        merge.suspend(true).await.unwrap();
    });
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

/// A table of two merges into one device; the second cannot be resumed because of the first.
const TWO_MERGES: &str = "0 800 snapshot-merge real cow P 8\n800 800 snapshot-merge real cow2 P 8";

#[test]
fn nothing_is_merged_by_a_table_that_does_not_become_the_live_one() {
    let (sim, rig, real, _cow) = bench(3);
    rig.disk("cow2", &Media::new(Sectors(4000)));
    sim.block_on(async {
        let (_origin, origin) = rig.device("origin", ORIGIN).await;
        let (snap_device, snap) = rig.device("snap", SNAPSHOT).await;
        let (_snap2, _) = rig.device("snap2", "0 1600 snapshot real cow2 P 8").await;
        fill(&snap, 0, 80, 1).await.unwrap();
        let (device, top) = rig.device("top", "0 1600 zero").await;
        let before = real.snapshot();
        let started = rig.try_device("other", TWO_MERGES).await;
        assert!(started.is_err());
        device.load(rig.table(TWO_MERGES).await.unwrap()).await.unwrap();
        assert_eq!(device.resume().await, Err(Status::Invalid));
        for _ in 0..100 {
            pause().await;
        }
        assert!(real.diff(&before).is_empty(), "the origin has changed");
        // The snapshot works as before: it accepts writes, and the origin makes exceptions in it.
        assert_eq!(status(&snap_device), "96/4000 16");
        fill(&snap, 80, 4, 2).await.unwrap();
        fill(&origin, 0, 160, 3).await.unwrap();
        assert_eq!((filled(&snap, 0, 80).await, filled(&snap, 80, 4).await), (Ok(1), Ok(2)));
        assert_eq!(filled(&snap, 84, 76).await, Ok(0));
        // The right to merge is free, although the table still exists.
        let (merge, gateway) = rig.device("merge", MERGE).await;
        merged(&merge).await;
        assert_eq!((filled(&gateway, 0, 80).await, filled(&gateway, 80, 4).await), (Ok(1), Ok(2)));
        // The device continues with its old table.
        assert!(device.clear().await);
        device.resume().await.unwrap();
        assert_eq!(filled(&top, 0, SIZE).await, Ok(0));
    });
}

/// One target has the right to merge: with two, one would stop the other's merge.
#[test]
fn a_second_device_for_a_merge_is_refused_until_the_first_is_gone() {
    let (sim, rig, ..) = bench(4);
    sim.block_on(async {
        let (first, gateway) = rig.device("merge", MERGE).await;
        let second = rig.try_device("merge2", MERGE).await;
        assert!(second.is_err());
        assert_eq!(filled(&gateway, 0, 8).await, Ok(0));
        // A new table of the same device takes over.
        rig.reload(&first, MERGE).await;
        rig.remove("merge");
        drop((first, gateway));
        rig.device("merge2", MERGE).await;
    });
}

/// A suspended snapshot of which every other chunk is filled, in an order without neighbours, with `1 + chunk`.
async fn scattered(rig: &Rig, count: u64) -> Arc<Device> {
    let (device, snap) = rig.device("snap", SNAPSHOT).await;
    for n in 0..count {
        let chunk = n * 37 % count * 2;
        fill(&snap, chunk * 8, 8, 1 + chunk as u8).await.unwrap();
    }
    device.suspend(true).await.unwrap();
    device
}

#[test]
fn scattered_chunks_share_a_flush_and_a_write_of_the_list() {
    let (sim, rig, real, cow) = bench(5);
    sim.block_on(async {
        let _snap = scattered(&rig, 100).await;
        real.clear_log();
        cow.clear_log();
        let (merge, gateway) = rig.device("merge", MERGE).await;
        merged(&merge).await;
        for chunk in 0..200 {
            let shown = if chunk % 2 == 0 { 1 + chunk as u8 } else { 0 };
            assert_eq!(filled(&gateway, chunk * 8, 8).await, Ok(shown));
        }
    });
    let count = |media: &Media, op| media.log().iter().filter(|command| command.op == op).count();
    assert_eq!(count(&real, Op::Write), 100, "each copy is a request: none has a neighbour");
    // Batches of 64 and of 36.
    assert_eq!((count(&real, Op::Flush), count(&cow, Op::Write)), (2, 2));
}

/// A run that cannot be read keeps those before it in the list, as if runs were merged one by one; and the merge has not
/// failed before all copies have ended.
#[test]
fn a_run_that_cannot_be_copied_does_not_keep_those_behind_it() {
    let (sim, rig, real, cow) = bench(6);
    sim.block_on(async {
        let _snap = scattered(&rig, 50).await;
        // The copies are the chunks from 2 on, in the order of the writes.
        let (left, bad) = (30, 2 + 29);
        cow.fail_reads(bad * 8 + 3..bad * 8 + 4);
        // The other copies are written after that one has failed.
        real.slow_down(50);
        let (merge, gateway) = rig.device("merge", MERGE).await;
        for _ in 0..2 {
            while status(&merge) != "Merge failed" {
                SimRuntime.sleep(Duration::from_micros(1)).await;
            }
            let commands = (real.log().len(), cow.log().len());
            SimRuntime.sleep(Duration::from_millis(200)).await;
            assert_eq!((real.log().len(), cow.log().len()), commands);
            let gateway = rig.names().find("cow").unwrap();
            let store = examine(&gateway, Sectors(SIZE)).await.unwrap().unwrap();
            assert_eq!(store.exceptions.len(), left);
            merge.suspend(true).await.unwrap();
            merge.resume().await.unwrap();
        }
        // Nothing is closed: a write makes the copy readable.
        fill(&gateway, 29 * 37 % 50 * 2 * 8, 8, 99).await.unwrap();
        merge.suspend(true).await.unwrap();
        merge.resume().await.unwrap();
        merged(&merge).await;
        assert_eq!(filled(&gateway, 29 * 37 % 50 * 2 * 8, 8).await, Ok(99));
        assert_eq!(filled(&gateway, 4 * 8, 8).await, Ok(5));
    });
}

/// The merge computed with what it read once more, and asked the origin's other snapshots for exceptions there, before it compared it with
/// what it knows.
#[test]
fn a_list_that_has_changed_on_the_disk_ends_the_merge_and_changes_nothing() {
    const CHUNKS: u64 = 1000;
    for (old, new) in [(u64::MAX, 257), (1 << 60, 257), (900, 257), (255 * 3, u64::MAX)] {
        let (sim, rig) = (Sim::new(8), Rig::default());
        let [real, cow, other] = [(); 3].map(|()| Media::new(Sectors(CHUNKS * 8)));
        rig.disk("real", &real);
        rig.disk("cow", &cow);
        rig.disk("other", &other);
        cow.poke(Sector(0), b"SnAp\x01\0\0\0\x01\0\0\0\x08\0\0\0");
        let entry = |n: u64| Exception::new(n * 3, n + 2 + n / 256);
        let first: Vec<_> = (0..256).map(entry).collect();
        cow.poke(Sector(8), first.as_bytes());
        cow.poke(Sector(8 * 258), entry(256).as_bytes());
        sim.block_on(async {
            let (beside, _) = rig.device("beside", "0 8000 snapshot real other P 8").await;
            real.slow_down(50);
            let (merge, gateway) = rig.device("merge", "0 8000 snapshot-merge real cow P 8").await;
            // The list is known, and its last area is merged first.
            let mut last = cow.peek(Sector(15)).to_vec();
            last[496..].copy_from_slice(Exception::new(old, new).as_bytes());
            cow.poke(Sector(15), &last);
            while status(&merge) != "Merge failed" {
                pause().await;
            }
            // The copy of one chunk.
            assert_eq!(status(&beside), "24/8000 16", "{old}, {new}");
            let written = real.log().into_iter().filter(|command| command.op == Op::Write);
            let written: Vec<_> = written.flat_map(|command| command.ranges.clone()).collect();
            assert_eq!(
                written.as_slice(),
                std::slice::from_ref(&(768 * 8..769 * 8)),
                "{old}, {new}"
            );
            assert_eq!(filled(&gateway, 900 * 8, 8).await, Ok(0));
        });
    }
}

/// A snapshot with copies at random places, and a merge beside writes until a power cut after `steps`. Afterwards, what
/// was durable is shown during the rest of the merge and after it. True if the merge had ended before the cut.
fn merge_until_cut(steps: u64) -> bool {
    let (sim, rig, real, cow) = bench(7);
    let mut rng = sim.rng();
    let oracle = Oracle::new(7, Value::Zeroes);
    let mix = Mix { discard: 0, ..Mix::default() };
    let work = Workload { max_len: 16, tasks: 4, ios: 30, mix, ..Workload::over(0..SIZE) };
    sim.block_on(async {
        let (_snap, snap) = rig.device("snap", SNAPSHOT).await;
        work.run(&snap, &oracle, &mut rng).await.expect("what was written");
    });
    let merge = async {
        let (device, gateway) = rig.device("merge", MERGE).await;
        let (worked, ()) = join(work.run(&gateway, &oracle, &mut rng), merged(&device)).await;
        worked.expect("what was written");
    };
    let ended = sim.block_on_until(merge, Stop::AfterSteps(steps)).is_some();
    drop(rig);
    sim.power_cut();
    oracle.power_cut();
    let (sim, rig) = (Sim::new(steps), Rig::default());
    let origin = rig.disk("real", &real);
    rig.disk("cow", &cow);
    sim.block_on(async {
        let (device, gateway) = rig.device("merge", MERGE).await;
        work.verify(&gateway, &oracle).await.expect("what was durable");
        merged(&device).await;
        work.verify(&gateway, &oracle).await.expect("what was shown");
        work.verify(&origin, &oracle).await.expect("what was merged");
    });
    ended
}

#[test]
fn a_power_cut_at_any_step_of_a_merge_loses_nothing() {
    let ended = (1..20_000).find(|steps| merge_until_cut(*steps)).expect("an end");
    println!("the merge ended after {ended} steps");
}
