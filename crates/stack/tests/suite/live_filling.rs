//! Snapshots that are extended by policy while their origin is written, with power cuts at any step.

use std::pin::pin;
use std::time::Duration;

use ashlar_block::{Buffer, Flags, Gateway, Runtime, Sector};
use ashlar_dm::snapshot::Status;
use ashlar_lvm::snapshots::AutoExtend;
use ashlar_sim::scheduler::{JoinHandle, Stop, start};
use ashlar_sim::{Media, Rng, Sim, SimRuntime, seeds};
use futures_util::future::{Either, select};

use crate::live::{LiveStack, create, group, snapshot};
use crate::volume_groups::{named, read, write};

/// The sectors of one write, and how many cover the origin.
const PIECE: u64 = 64;
const PIECES: u64 = 4 * 2048 / PIECE;

fn policy() -> AutoExtend {
    AutoExtend::new(Some(60), Some(20)).unwrap()
}

/// Disks with a group whose volume `data` has 1 everywhere, and a snapshot of it that has room for a quarter.
fn nearly_full(seed: u64) -> Vec<Media> {
    let sim = Sim::new(seed);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        for at in 0..PIECES {
            write(&live.stack, "vg/data", at * PIECE, 1).await;
        }
        live.run(snapshot("snap", "data", 1)).await.unwrap();
        live.stack.stop().await.unwrap();
    });
    media
}

/// Overwrites all of a volume with 2, in any order.
fn overwrite(volume: Gateway, mut rng: Rng) -> JoinHandle<()> {
    start(async move {
        let mut left: Vec<u64> = (0..PIECES).collect();
        while !left.is_empty() {
            let at = left.swap_remove(rng.index(left.len()));
            let mut data = Buffer::from_slice(&[2; PIECE as usize * 512]);
            volume.write(Sector(at * PIECE), &mut data, Flags::empty()).await.unwrap();
            SimRuntime.sleep(Duration::from_millis(3)).await;
        }
    })
}

/// Extends snapshots as the daemon does, until the writer has ended; returns how often.
async fn extend(live: &mut LiveStack, writer: JoinHandle<()>) -> u32 {
    let (mut writer, mut extended) = (pin!(writer), 0);
    loop {
        let fills = live.collector.snapshot_fills();
        for snapshot in live.collector.snapshots() {
            if let Some(command) = live.collector.autoextension(&snapshot, policy()).unwrap() {
                live.run(command).await.unwrap();
                extended += 1;
            }
        }
        if let Either::Left(_) = select(&mut writer, fills).await {
            return extended;
        }
    }
}

#[test]
fn a_snapshot_that_is_extended_in_time_shows_its_origin_whatever_cuts_it() {
    let (mut whole, mut sizes) = (0, [0; 6]);
    for seed in seeds(40) {
        let media = nearly_full(seed);
        let sim = Sim::new(seed ^ 7);
        let steps = if seed % 8 == 0 { u64::MAX } else { Rng::new(seed).below(12_000) };
        let done = sim.block_on_until(
            async {
                let mut live = LiveStack::boot(&sim, &media).await;
                let writer = overwrite(named(&live.stack, "vg/data"), sim.rng());
                let extended = extend(&mut live, writer).await;
                assert!(extended > 1, "{extended}");
                live.stack.stop().await.unwrap();
            },
            Stop::AfterSteps(steps),
        );
        sim.power_cut();
        whole += u32::from(done.is_some());
        let sim = Sim::new(seed ^ 8);
        sim.block_on(async {
            let live = LiveStack::boot(&sim, &media).await;
            for at in 0..PIECES {
                assert_eq!(read(&live.stack, "vg/snap", at * PIECE).await, 1, "{at}");
                let origin = read(&live.stack, "vg/data", at * PIECE).await;
                assert!(origin == 2 || done.is_none() && origin == 1, "{at}: {origin}");
            }
            let [snapshot] = &live.collector.snapshots()[..] else { panic!("one snapshot") };
            let Status::Valid(usage) = snapshot.status else { panic!("{:?}", snapshot.status) };
            assert_eq!(usage.total, snapshot.size);
            assert!(done.is_none() || snapshot.covers_origin);
            sizes[(snapshot.size.0 / 2048) as usize] += 1;
            live.stack.stop().await.unwrap();
        });
    }
    assert!(whole >= 5 && sizes[1..5].iter().all(|count| *count > 0), "{whole} {sizes:?}");
}

#[test]
fn a_snapshot_that_cannot_be_extended_is_lost_alone() {
    let media = nearly_full(3);
    let sim = Sim::new(9);
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        live.run(create("kept", 1)).await.unwrap();
        let mut rest = 1;
        while live.run(create(&format!("v{rest}"), 1)).await.is_ok() {
            rest += 1;
        }
        let writer = overwrite(named(&live.stack, "vg/data"), sim.rng());
        writer.await;
        let [snapshot] = &live.collector.snapshots()[..] else { panic!("one snapshot") };
        assert_eq!(snapshot.status, Status::Invalid);
        let refused = live.collector.autoextension(snapshot, policy());
        assert!(refused.unwrap().is_none(), "it is lost");
        assert_eq!(read(&live.stack, "vg/data", 0).await, 2);
        live.stack.stop().await.unwrap();
    });
}
